package pocketbert.app.screens

import android.net.Uri
import androidx.activity.compose.rememberLauncherForActivityResult
import androidx.activity.result.contract.ActivityResultContracts
import androidx.compose.foundation.layout.Arrangement
import androidx.compose.foundation.layout.ExperimentalLayoutApi
import androidx.compose.foundation.layout.FlowRow
import androidx.compose.foundation.layout.heightIn
import androidx.compose.material3.Button
import androidx.compose.material3.OutlinedButton
import androidx.compose.material3.Text
import androidx.compose.material3.TextButton
import androidx.compose.runtime.Composable
import androidx.compose.runtime.LaunchedEffect
import androidx.compose.runtime.getValue
import androidx.compose.runtime.mutableStateOf
import androidx.compose.runtime.saveable.rememberSaveable
import androidx.compose.runtime.setValue
import androidx.compose.ui.Modifier
import androidx.compose.ui.platform.LocalContext
import androidx.compose.ui.platform.testTag
import androidx.compose.ui.res.pluralStringResource
import androidx.compose.ui.res.stringResource
import androidx.compose.ui.unit.dp
import androidx.lifecycle.Lifecycle
import androidx.lifecycle.compose.LocalLifecycleOwner
import androidx.lifecycle.compose.collectAsStateWithLifecycle
import androidx.lifecycle.repeatOnLifecycle
import kotlinx.coroutines.delay
import pocketbert.app.R
import pocketbert.models.SearchModel
import pocketbert.models.Task
import pocketbert.models.TryModel
import java.io.FileNotFoundException

/** Whoever writes is waited for, so that not every letter is asked for. */
private const val PAUSE_MS = 250L

/**
 * Asks one model what a person writes, while it is written.
 *
 * @param quiet waits until what another screen has measured has ended: a benchmark that is left ends some time later.
 */
@Composable
fun TryScreen(model: TryModel, quiet: suspend () -> Unit) {
    val form by model.form.collectAsStateWithLifecycle()
    val set by model.search.set.collectAsStateWithLifecycle()
    val lifecycle = LocalLifecycleOwner.current.lifecycle
    LaunchedEffect(lifecycle, form.chosen?.id, form.first, form.second, form.prompt, form.own, set.sentences, set.index?.isOwn) {
        // Nothing is asked in the background; coming back asks again.
        lifecycle.repeatOnLifecycle(Lifecycle.State.STARTED) {
            delay(PAUSE_MS)
            quiet()
            model.ask()
        }
    }
    Cards {
        Block {
            ModelPicker(stringResource(R.string.model), model.models, form.chosen, model::choose)
            val prompts = form.chosen?.prompts.orEmpty()
            if (prompts.isNotEmpty()) {
                Group(stringResource(R.string.prompt)) {
                    for (name in listOf("") + prompts) {
                        Chip(words().prompt(name), name == form.prompt, Modifier.testTag("prompt-$name")) { model.choosePrompt(name) }
                    }
                }
            }
            if (form.chosen?.takesOwnLabels == true) OwnLabels(form, model)
            val (first, second) = when (form.chosen?.task) {
                Task.LABELS, Task.VALUES -> R.string.text to R.string.second_text_optional
                Task.VALUE -> R.string.first_text to R.string.second_text
                Task.ANSWER -> R.string.question to R.string.passage
                Task.SEARCH -> R.string.look_for to null
                Task.ENTITIES, null -> R.string.text to null
            }
            Input(stringResource(first), form.first, model::writeFirst, "first")
            if (form.own != null) {
                Input(stringResource(R.string.own_labels), form.labels, model::writeLabels, "labels")
                Input(stringResource(R.string.template), form.template, model::writeTemplate, "template")
            } else {
                second?.let { Input(stringResource(it), form.second, model::writeSecond, "second", lines = 8) }
            }
        }
        AnswerBlock(form, set)
        if (form.chosen?.task == Task.SEARCH) {
            set.index?.let { IndexBlock(it, model.search) }
            Sentences(model, set)
        }
    }
}

/** Whose labels a model of inference is asked, and whether several may be true. */
@Composable
private fun OwnLabels(form: TryModel.Form, model: TryModel) {
    Group(stringResource(R.string.labels)) {
        Chip(stringResource(R.string.labels_yours), form.prefersOwn, Modifier.testTag("labels-yours")) { model.preferOwn(true) }
        Chip(stringResource(R.string.labels_of_model), !form.prefersOwn, Modifier.testTag("labels-of-model")) { model.preferOwn(false) }
    }
    if (form.own == null || form.chosen?.decidesEach != true) return
    Group(stringResource(R.string.true_labels)) {
        Chip(stringResource(R.string.one_is_true), !form.multiLabel, Modifier.testTag("one-true")) { model.decideEach(false) }
        Chip(stringResource(R.string.several_are_true), form.multiLabel, Modifier.testTag("several-true")) { model.decideEach(true) }
    }
}

/** The set that is searched; it can be written where it is small, and replaced by a file. */
@OptIn(ExperimentalLayoutApi::class)
@Composable
private fun Sentences(model: TryModel, set: SearchModel.Set) {
    var isOpen by rememberSaveable { mutableStateOf(false) }
    // Texts of an index are too many for a field, and a shipped one is replaced by writing something else.
    val isLarge = set.index?.isOwn == true
    if (!isOpen) {
        TextButton({ isOpen = true }, Modifier.heightIn(min = 48.dp)) {
            val edit = pluralStringResource(R.plurals.edit_sentences, set.sentences.size, set.sentences.size)
            Text(if (set.index == null) edit else stringResource(R.string.replace_texts))
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
    Block {
        if (!isLarge) Input(stringResource(R.string.sentences), written, { written = it }, "sentences", lines = 12)
        FlowRow(horizontalArrangement = Arrangement.spacedBy(8.dp)) {
            Button({
                if (!isLarge && written != set.sentences.joinToString("\n")) model.search.replace(written)
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
