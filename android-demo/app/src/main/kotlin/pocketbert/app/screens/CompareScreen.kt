package pocketbert.app.screens

import androidx.compose.animation.core.animateFloatAsState
import androidx.compose.foundation.background
import androidx.compose.foundation.layout.Arrangement
import androidx.compose.foundation.layout.Box
import androidx.compose.foundation.layout.BoxWithConstraints
import androidx.compose.foundation.layout.Column
import androidx.compose.foundation.layout.Row
import androidx.compose.foundation.layout.fillMaxWidth
import androidx.compose.foundation.layout.height
import androidx.compose.foundation.layout.heightIn
import androidx.compose.foundation.shape.RoundedCornerShape
import androidx.compose.material3.Button
import androidx.compose.material3.MaterialTheme
import androidx.compose.material3.Text
import androidx.compose.runtime.Composable
import androidx.compose.runtime.LaunchedEffect
import androidx.compose.runtime.getValue
import androidx.compose.ui.Modifier
import androidx.compose.ui.draw.clip
import androidx.compose.ui.graphics.Color
import androidx.compose.ui.platform.testTag
import androidx.compose.ui.res.pluralStringResource
import androidx.compose.ui.res.stringResource
import androidx.compose.ui.semantics.semantics
import androidx.compose.ui.unit.dp
import androidx.lifecycle.Lifecycle
import androidx.lifecycle.compose.LocalLifecycleOwner
import androidx.lifecycle.compose.collectAsStateWithLifecycle
import androidx.lifecycle.repeatOnLifecycle
import kotlinx.coroutines.delay
import pocketbert.app.R
import pocketbert.models.Answer
import pocketbert.models.CompareModel
import pocketbert.models.Formats

private const val PAUSE_MS = 400L

/** From this width on, and with letters that are not large, the two stand beside each other. */
private const val WIDE_DP = 560

/** Two models on the same text, side by side: how long each takes, and how large it is. @param quiet see [TryScreen]. */
@Composable
fun CompareScreen(model: CompareModel, quiet: suspend () -> Unit) {
    val form by model.form.collectAsStateWithLifecycle()
    if (form.sides.isEmpty()) {
        Cards { Notice(stringResource(R.string.two_models)) }
        return
    }
    val lifecycle = LocalLifecycleOwner.current.lifecycle
    LaunchedEffect(lifecycle, form.sides.map { it.model.id }, form.first, form.second) {
        lifecycle.repeatOnLifecycle(Lifecycle.State.STARTED) {
            // Whoever writes is waited for; what was measured is not measured again where the phone is turned.
            delay(PAUSE_MS)
            quiet()
            if (model.form.value.let { now -> !now.isRunning && now.sides.all { it.samples.isEmpty() } }) model.run()
        }
    }
    Cards {
        Verdict(form)
        Block {
            Input(stringResource(R.string.text), form.first, {
                model.writeFirst(it)
                model.forget()
            }, "first")
            if (form.takesTwo) {
                Input(stringResource(R.string.second_or_passage), form.second, {
                    model.writeSecond(it)
                    model.forget()
                }, "second")
            }
            Button({ if (form.isRunning) model.cancel() else model.run() }, Modifier.heightIn(min = 48.dp)) {
                Text(stringResource(if (form.isRunning) R.string.stop else R.string.run_both))
            }
        }
        BoxWithConstraints {
            val isWide = maxWidth.value >= WIDE_DP && !hasLargeLetters()
            if (isWide) {
                Row(horizontalArrangement = Arrangement.spacedBy(GAP)) {
                    for (place in form.sides.indices) Box(Modifier.weight(1f)) { Side(model, form, place) }
                }
            } else {
                Column(verticalArrangement = Arrangement.spacedBy(GAP)) {
                    for (place in form.sides.indices) Side(model, form, place)
                }
            }
        }
    }
}

/** The sentence that one came for, over the bars that show it. */
@Composable
private fun Verdict(form: CompareModel.Form) {
    val accents = LocalAccents.current
    val longest = form.sides.mapNotNull { it.medianMs }.maxOrNull()
    val words = words()
    val names = words.names(form.sides)
    // While it is measured the bars move, and nothing is said.
    val verdict = form.verdict.takeUnless { form.isRunning }
    val isFinal = verdict != null
    Block(Modifier.testTag("verdict")) {
        val headline = when {
            verdict != null -> words.headline(verdict, names[form.sides.indexOf(verdict.student)])
            form.isRunning -> stringResource(R.string.measuring_both)
            else -> stringResource(R.string.not_compared)
        }
        val color = if (isFinal) accents.student else MaterialTheme.colorScheme.onSurfaceVariant
        Text(headline, Modifier.announced(isFinal).testTag("headline"), color, style = MaterialTheme.typography.answer.tabular())
        if (verdict != null) {
            val comparison = words.comparison(verdict, names[form.sides.indexOf(verdict.other)])
            Text(
                comparison,
                Modifier.announced(true).testTag("comparison"),
                MaterialTheme.colorScheme.onSurfaceVariant,
                style = MaterialTheme.typography.bodyMedium,
            )
        }
        for ((place, side) in form.sides.withIndex()) {
            val share = side.medianMs?.let { (it / checkNotNull(longest)).toFloat() } ?: 0f
            Bar(side, names[place], share, if (side === form.student) accents.student else accents.reference)
        }
        val runs = form.sides.maxOf { it.runs }
        val kept = form.sides.maxOf { it.samples.size }
        when {
            form.isRunning -> Caption(pluralStringResource(R.plurals.measuring, CompareModel.RUNS, runs, CompareModel.RUNS))
            kept > 0 -> Caption(pluralStringResource(R.plurals.medians_of, kept, kept))
        }
    }
}

@Composable
private fun Bar(side: CompareModel.Side, name: String, share: Float, color: Color) {
    val length by animateFloatAsState(share)
    val time = side.medianMs?.let(Formats::ms)
    Column(Modifier.semantics(mergeDescendants = true) {}, verticalArrangement = Arrangement.spacedBy(4.dp)) {
        Row(Modifier.fillMaxWidth(), Arrangement.SpaceBetween) {
            val random = if (side.model.model.hasRandomWeights) " · ${stringResource(R.string.random_weights)}" else ""
            Text(name + random, Modifier.weight(1f))
            if (time != null) Text(time, style = MaterialTheme.typography.bodyLarge.tabular())
        }
        Box(Modifier.fillMaxWidth().height(18.dp).clip(RoundedCornerShape(6.dp)).background(MaterialTheme.colorScheme.surfaceVariant)) {
            Box(Modifier.fillMaxWidth(length).height(18.dp).clip(RoundedCornerShape(6.dp)).background(color))
        }
    }
}

@Composable
private fun Side(model: CompareModel, form: CompareModel.Form, place: Int) {
    val side = form.sides[place]
    Block {
        val title = if (place == 0) R.string.left_model else R.string.right_model
        ModelPicker(stringResource(title), model.models, side.model) { model.choose(it, place) }
        side.missing?.let { Notice(words().missing(it)) }
        side.problem?.let { Notice(it, Tone.ERROR) }
        side.reply?.let { reply ->
            when (val answer = reply.answer) {
                Answer.Hidden -> Unit
                is Answer.Labels -> {
                    if (answer.given.isEmpty()) Text(stringResource(R.string.no_label))
                    answer.given.forEach { Fact(words().label(it.label), words().share(it)) }
                }
                is Answer.Values -> answer.values.forEach { Fact(words().value(it.name), Formats.value(it.value)) }
                is Answer.Value -> Fact(stringResource(R.string.value), Formats.value(answer.value))
                is Answer.Span -> Text(answer.found?.let { form.second.substring(it.from, it.to) } ?: stringResource(R.string.no_answer))
                is Answer.Entities -> answer.found.forEach { Fact(form.first.substring(it.from, it.to), words().entity(it)) }
                is Answer.Embedding -> Unit
            }
        }
    }
}
