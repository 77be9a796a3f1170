package pocketbert.app.screens

import androidx.compose.foundation.layout.Arrangement
import androidx.compose.foundation.layout.Column
import androidx.compose.foundation.layout.fillMaxSize
import androidx.compose.foundation.layout.fillMaxWidth
import androidx.compose.foundation.layout.padding
import androidx.compose.material3.Button
import androidx.compose.material3.CircularProgressIndicator
import androidx.compose.material3.ExperimentalMaterial3Api
import androidx.compose.material3.Icon
import androidx.compose.material3.MaterialTheme
import androidx.compose.material3.NavigationBar
import androidx.compose.material3.NavigationBarItem
import androidx.compose.material3.Scaffold
import androidx.compose.material3.Surface
import androidx.compose.material3.Text
import androidx.compose.material3.TopAppBar
import androidx.compose.runtime.Composable
import androidx.compose.runtime.collectAsState
import androidx.compose.runtime.getValue
import androidx.compose.runtime.mutableIntStateOf
import androidx.compose.runtime.saveable.rememberSaveable
import androidx.compose.runtime.setValue
import androidx.compose.ui.Alignment
import androidx.compose.ui.Modifier
import androidx.compose.ui.res.painterResource
import androidx.compose.ui.res.stringResource
import androidx.compose.ui.semantics.heading
import androidx.compose.ui.semantics.semantics
import androidx.compose.ui.text.style.TextAlign
import androidx.compose.ui.text.style.TextOverflow
import androidx.compose.ui.unit.dp
import pocketbert.app.Desk
import pocketbert.app.R
import pocketbert.models.ShelfModel

private enum class Tab(val title: Int, val icon: Int) {
    TRY(R.string.try_title, R.drawable.tab_try),
    COMPARE(R.string.compare_title, R.drawable.tab_compare),
    SELF_TEST(R.string.self_test_title, R.drawable.tab_self_test),
    BENCHMARK(R.string.benchmark_title, R.drawable.tab_benchmark),
}

/** All screens, or why there is none. */
@OptIn(ExperimentalMaterial3Api::class)
@Composable
fun RootScreen(desk: Desk) {
    val shelf by desk.shelf.state.collectAsState()
    val models by desk.models.collectAsState()
    var chosen by rememberSaveable { mutableIntStateOf(0) }
    val made = models
    if (made == null) {
        Surface(Modifier.fillMaxSize(), color = MaterialTheme.colorScheme.background) {
            Opening((shelf as? ShelfModel.State.Failed)?.why, desk::open)
        }
        return
    }
    val tab = Tab.entries[chosen]
    Scaffold(
        topBar = {
            TopAppBar({
                Text(
                    stringResource(tab.title),
                    Modifier.semantics { heading() },
                    style = MaterialTheme.typography.headlineMedium,
                    maxLines = 1,
                    overflow = TextOverflow.Ellipsis,
                )
            })
        },
        bottomBar = {
            NavigationBar {
                for (one in Tab.entries) {
                    NavigationBarItem(
                        one == tab,
                        { chosen = one.ordinal },
                        { Icon(painterResource(one.icon), null) },
                        label = { Text(stringResource(one.title), maxLines = 1, overflow = TextOverflow.Ellipsis) },
                    )
                }
            }
        },
    ) { padding ->
        Column(Modifier.padding(padding)) {
            if (made.shelf.usesUnsigned) Banner(stringResource(R.string.unsigned))
            when (tab) {
                Tab.TRY -> TryScreen(made.tries)
                Tab.COMPARE -> CompareScreen(made.compare)
                Tab.SELF_TEST -> SelfTestScreen(made.selfTest)
                Tab.BENCHMARK -> BenchmarkScreen(made.benchmark, desk)
            }
        }
    }
}

@Composable
private fun Banner(text: String) {
    Surface(Modifier.fillMaxWidth(), color = MaterialTheme.colorScheme.tertiaryContainer) {
        Text(
            text,
            Modifier.padding(horizontal = GAP, vertical = 6.dp),
            style = MaterialTheme.typography.labelMedium,
            color = MaterialTheme.colorScheme.onTertiaryContainer,
        )
    }
}

/** What is seen before the models are read, and where they cannot be. */
@Composable
private fun Opening(why: String?, onAgain: () -> Unit) {
    Column(
        Modifier.fillMaxSize().padding(32.dp),
        verticalArrangement = Arrangement.spacedBy(GAP, Alignment.CenterVertically),
        horizontalAlignment = Alignment.CenterHorizontally,
    ) {
        Text(stringResource(R.string.app_name), style = MaterialTheme.typography.headlineMedium, color = MaterialTheme.colorScheme.primary)
        if (why == null) {
            CircularProgressIndicator()
            Text(stringResource(R.string.reading_models), textAlign = TextAlign.Center)
        } else {
            Text(why, textAlign = TextAlign.Center)
            Button(onAgain) { Text(stringResource(R.string.again)) }
        }
    }
}
