package pocketbert.app.screens

import androidx.compose.foundation.layout.Arrangement
import androidx.compose.foundation.layout.Column
import androidx.compose.foundation.layout.fillMaxSize
import androidx.compose.foundation.layout.fillMaxWidth
import androidx.compose.foundation.layout.padding
import androidx.compose.material3.LinearProgressIndicator
import androidx.compose.material3.MaterialTheme
import androidx.compose.material3.OutlinedButton
import androidx.compose.material3.Surface
import androidx.compose.material3.Text
import androidx.compose.runtime.Composable
import androidx.compose.ui.Alignment
import androidx.compose.ui.Modifier
import androidx.compose.ui.platform.testTag
import androidx.compose.ui.res.stringResource
import androidx.compose.ui.text.style.TextAlign
import androidx.compose.ui.unit.dp
import pocketbert.app.R
import pocketbert.models.RunProgress

/** How far a run is that a computer has started. */
@Composable
fun HeadlessScreen(run: String, progress: RunProgress, onCancel: () -> Unit) {
    Surface(Modifier.fillMaxSize(), color = MaterialTheme.colorScheme.background) {
        Column(
            Modifier.fillMaxSize().padding(32.dp).testTag("headless"),
            verticalArrangement = Arrangement.spacedBy(GAP, Alignment.CenterVertically),
            horizontalAlignment = Alignment.CenterHorizontally,
        ) {
            Text(stringResource(R.string.headless, run), style = MaterialTheme.typography.headlineMedium, textAlign = TextAlign.Center)
            Text(stringResource(R.string.headless_says), textAlign = TextAlign.Center, color = MaterialTheme.colorScheme.onSurfaceVariant)
            LinearProgressIndicator({ progress.done.toFloat() }, Modifier.fillMaxWidth())
            Text(words().run(progress), textAlign = TextAlign.Center)
            if (!progress.state.isFinal) OutlinedButton(onCancel) { Text(stringResource(R.string.stop)) }
        }
    }
}
