package pocketbert.app.screens

import android.net.Uri
import androidx.activity.compose.rememberLauncherForActivityResult
import androidx.activity.result.contract.ActivityResultContracts
import androidx.compose.foundation.layout.Arrangement
import androidx.compose.foundation.layout.Column
import androidx.compose.foundation.layout.ExperimentalLayoutApi
import androidx.compose.foundation.layout.FlowRow
import androidx.compose.foundation.layout.fillMaxWidth
import androidx.compose.foundation.layout.heightIn
import androidx.compose.material3.Button
import androidx.compose.material3.OutlinedButton
import androidx.compose.material3.Text
import androidx.compose.material3.TextButton
import androidx.compose.runtime.Composable
import androidx.compose.runtime.DisposableEffect
import androidx.compose.runtime.LaunchedEffect
import androidx.compose.runtime.collectAsState
import androidx.compose.runtime.getValue
import androidx.compose.runtime.mutableStateOf
import androidx.compose.runtime.saveable.rememberSaveable
import androidx.compose.runtime.setValue
import androidx.compose.ui.Modifier
import androidx.compose.ui.platform.LocalContext
import androidx.compose.ui.res.stringResource
import androidx.compose.ui.unit.dp
import kotlinx.coroutines.delay
import pocketbert.app.R
import pocketbert.models.SearchModel
import pocketbert.models.Task
import pocketbert.models.TryModel
import java.io.FileNotFoundException

/** Whoever writes is waited for, so that not every letter is asked for. */
private const val PAUSE_MS = 250L

/** Asks one model what a person writes, while it is written. */
@Composable
fun TryScreen(model: TryModel) {
    val form by model.form.collectAsState()
    val set by model.search.set.collectAsState()
    LaunchedEffect(form.chosen?.id, form.first, form.second, set.sentences) {
        delay(PAUSE_MS)
        model.ask()
    }
    // Whoever measures on another screen is not to share the processor with this one; coming back asks again.
    DisposableEffect(Unit) { onDispose(model::cancel) }
    Cards {
        Block {
            ModelPicker(stringResource(R.string.model), model.models, form.chosen, model::choose)
            val (first, second) = when (form.chosen?.task) {
                Task.LABELS -> R.string.text to R.string.second_text_optional
                Task.VALUE -> R.string.first_text to R.string.second_text
                Task.ANSWER -> R.string.question to R.string.passage
                Task.SEARCH -> R.string.look_for to null
                Task.ENTITIES, null -> R.string.text to null
            }
            Input(stringResource(first), form.first, model::writeFirst, "first")
            second?.let { Input(stringResource(it), form.second, model::writeSecond, "second", lines = 8) }
            if (form.chosen?.task == Task.SEARCH) Sentences(model, set)
        }
        AnswerBlock(form, set)
    }
}

/** The set that is searched; it can be written, and replaced by a file. */
@OptIn(ExperimentalLayoutApi::class)
@Composable
private fun Sentences(model: TryModel, set: SearchModel.Set) {
    var isOpen by rememberSaveable { mutableStateOf(false) }
    if (!isOpen) {
        TextButton({ isOpen = true }, Modifier.heightIn(min = 48.dp)) {
            Text(stringResource(R.string.edit_sentences, set.sentences.size))
        }
        return
    }
    var written by rememberSaveable { mutableStateOf(set.sentences.joinToString("\n")) }
    val resolver = LocalContext.current.contentResolver
    val open = rememberLauncherForActivityResult(ActivityResultContracts.OpenDocument()) { chosen: Uri? ->
        chosen ?: return@rememberLauncherForActivityResult
        model.importSentences(chosen.lastPathSegment.orEmpty()) {
            resolver.openInputStream(chosen) ?: throw FileNotFoundException("$chosen gives nothing to read")
        }
        isOpen = false
    }
    Column(Modifier.fillMaxWidth(), verticalArrangement = Arrangement.spacedBy(8.dp)) {
        Input(stringResource(R.string.sentences), written, { written = it }, "sentences", lines = 12)
        FlowRow(horizontalArrangement = Arrangement.spacedBy(8.dp)) {
            Button({
                model.search.replace(written)
                isOpen = false
            }) { Text(stringResource(R.string.done)) }
            OutlinedButton({ open.launch(arrayOf("text/*")) }) { Text(stringResource(R.string.import_file)) }
            TextButton({
                model.search.reset()
                isOpen = false
            }) { Text(stringResource(R.string.example_back)) }
        }
    }
}
