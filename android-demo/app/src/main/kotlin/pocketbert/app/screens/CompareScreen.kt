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
import androidx.compose.runtime.DisposableEffect
import androidx.compose.runtime.LaunchedEffect
import androidx.compose.runtime.collectAsState
import androidx.compose.runtime.getValue
import androidx.compose.ui.Modifier
import androidx.compose.ui.draw.clip
import androidx.compose.ui.graphics.Color
import androidx.compose.ui.platform.LocalDensity
import androidx.compose.ui.platform.testTag
import androidx.compose.ui.res.stringResource
import androidx.compose.ui.semantics.LiveRegionMode
import androidx.compose.ui.semantics.contentDescription
import androidx.compose.ui.semantics.liveRegion
import androidx.compose.ui.semantics.semantics
import androidx.compose.ui.unit.dp
import kotlinx.coroutines.delay
import pocketbert.app.R
import pocketbert.models.Answer
import pocketbert.models.CompareModel
import pocketbert.models.Formats

private const val PAUSE_MS = 400L

/** From this width on, and with letters that are not large, the two stand beside each other. */
private const val WIDE_DP = 560
private const val LARGE_LETTERS = 1.5f

/** Two models on the same text, side by side: how long each takes, and how large it is. */
@Composable
fun CompareScreen(model: CompareModel) {
    val form by model.form.collectAsState()
    if (form.sides.isEmpty()) {
        Cards { Notice(stringResource(R.string.two_models)) }
        return
    }
    LaunchedEffect(form.sides.map { it.model.id }, form.first, form.second) {
        // Whoever writes is waited for; what was measured is not measured again where the phone is turned.
        delay(PAUSE_MS)
        if (form.sides.all { it.samples.isEmpty() }) model.run()
    }
    DisposableEffect(Unit) { onDispose(model::cancel) }
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
            val isWide = maxWidth.value >= WIDE_DP && LocalDensity.current.fontScale < LARGE_LETTERS
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
    Block(Modifier.testTag("verdict").semantics { liveRegion = LiveRegionMode.Polite }) {
        val verdict = form.verdict
        if (verdict != null) {
            val isLess = (form.sides[0].medianMs ?: 0.0) <= (form.sides[1].medianMs ?: 0.0)
            Text(
                verdict,
                style = MaterialTheme.typography.figure,
                color = if (isLess) accents.student else MaterialTheme.colorScheme.onSurface,
            )
            Text(
                stringResource(R.string.than, form.sides[0].model.name, form.sides[1].model.name),
                color = MaterialTheme.colorScheme.onSurfaceVariant,
            )
        } else {
            Text(stringResource(R.string.working), style = MaterialTheme.typography.figure)
        }
        for ((place, side) in form.sides.withIndex()) {
            val share = side.medianMs?.let { (it / checkNotNull(longest)).toFloat() } ?: 0f
            Bar(side, share, if (place == 0) accents.student else accents.reference)
        }
        if (form.isRunning) {
            Text(
                stringResource(R.string.measuring, form.sides.maxOf { it.runs }, CompareModel.RUNS),
                style = MaterialTheme.typography.bodySmall.tabular(),
                color = MaterialTheme.colorScheme.onSurfaceVariant,
            )
        }
    }
}

@Composable
private fun Bar(side: CompareModel.Side, share: Float, color: Color) {
    val length by animateFloatAsState(share)
    val says = stringResource(R.string.bar, side.model.name, Formats.ms(side.medianMs))
    Column(Modifier.semantics(mergeDescendants = true) { contentDescription = says }, verticalArrangement = Arrangement.spacedBy(4.dp)) {
        Row(Modifier.fillMaxWidth(), Arrangement.SpaceBetween) {
            Text(side.model.name, Modifier.weight(1f))
            Text(Formats.ms(side.medianMs), style = MaterialTheme.typography.bodyLarge.tabular())
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
        side.problem?.let { Notice(it, isError = true) }
        Fact(stringResource(R.string.median_of, side.samples.size), Formats.ms(side.medianMs))
        Fact(stringResource(R.string.size), Formats.megabytes(side.model.model.entry.bytes))
        side.reply?.let { reply ->
            Fact(stringResource(R.string.tokenisation), Formats.ms(reply.tokenizeMs))
            Fact(stringResource(R.string.opened), Formats.ms(reply.openedMs))
            when (val answer = reply.answer) {
                Answer.Hidden -> Notice(stringResource(R.string.hidden))
                is Answer.Labels -> answer.shares.firstOrNull()?.let { Fact(it.label, Formats.percent(it.share)) }
                is Answer.Value -> Fact(stringResource(R.string.value), Formats.value(answer.value))
                is Answer.Span -> Text(answer.found?.let { form.second.substring(it.from, it.to) } ?: stringResource(R.string.no_answer))
                is Answer.Entities -> answer.found.forEach { Fact(form.first.substring(it.from, it.to), it.kind.orEmpty()) }
                is Answer.Embedding -> Unit
            }
        }
    }
}
