package pocketbert.app.screens

import androidx.compose.foundation.layout.Arrangement
import androidx.compose.foundation.layout.Column
import androidx.compose.foundation.layout.Row
import androidx.compose.foundation.layout.fillMaxWidth
import androidx.compose.foundation.layout.height
import androidx.compose.foundation.layout.padding
import androidx.compose.material3.LinearProgressIndicator
import androidx.compose.material3.MaterialTheme
import androidx.compose.material3.Text
import androidx.compose.runtime.Composable
import androidx.compose.ui.Modifier
import androidx.compose.ui.graphics.Color
import androidx.compose.ui.platform.testTag
import androidx.compose.ui.res.stringResource
import androidx.compose.ui.semantics.clearAndSetSemantics
import androidx.compose.ui.semantics.semantics
import androidx.compose.ui.text.TextStyle
import androidx.compose.ui.unit.Dp
import androidx.compose.ui.unit.dp
import pocketbert.app.R
import pocketbert.core.output.Found
import pocketbert.core.output.Share
import pocketbert.models.Answer
import pocketbert.models.Confidence
import pocketbert.models.Formats
import pocketbert.models.Question
import pocketbert.models.SearchModel
import pocketbert.models.TryModel

/** What the model said; below it, in small letters, how long that took. */
@Composable
fun AnswerBlock(form: TryModel.Form, set: SearchModel.Set) {
    set.problem?.let { Notice(words().problem(it), Tone.ERROR) }
    when (val state = form.state) {
        is TryModel.State.Idle -> state.missing?.let { Notice(words().missing(it)) }
        is TryModel.State.Failed -> Notice(state.why, Tone.ERROR)
        TryModel.State.Working -> Working(set)
        is TryModel.State.Answered -> Block(Modifier.testTag("answer")) {
            // Spoken when no figure of it will change any more.
            val isFinal = state.warmMs != null
            Said(state.question, state.reply.answer, set, Modifier.announced(isFinal).testTag("said"))
            form.chosen?.let { Caption(words().caption(state, it), Modifier.announced(isFinal).testTag("caption")) }
            state.reply.cutAt?.let { Notice(stringResource(R.string.cut, it)) }
            if (form.unusedPrompts.isNotEmpty()) Notice(words().unused(form.unusedPrompts))
        }
    }
}

@Composable
private fun Working(set: SearchModel.Set) = Block {
    val embedded = set.embedded
    if (embedded == null) {
        Text(stringResource(R.string.working))
        LinearProgressIndicator(Modifier.fillMaxWidth())
    } else {
        Text(stringResource(R.string.embedding, embedded, set.sentences.size))
        LinearProgressIndicator({ embedded.toFloat() / set.sentences.size }, Modifier.fillMaxWidth())
    }
}

/** @param modifier of what one came for, which stands first and largest. */
@Composable
private fun Said(question: Question, answer: Answer, set: SearchModel.Set, modifier: Modifier) {
    val (figure, sentence) = MaterialTheme.typography.let { it.figure to it.answer }
    when (answer) {
        Answer.Hidden -> Text(stringResource(R.string.hidden), modifier)
        is Answer.Labels -> Labels(answer, modifier)
        is Answer.Values -> Column(modifier.semantics(mergeDescendants = true) {}, Arrangement.spacedBy(6.dp)) {
            for (one in answer.values) Pair(Formats.value(one.value), figure) { Text(words().value(one.name), it, style = sentence) }
        }
        is Answer.Value -> Column(modifier.semantics(mergeDescendants = true) {}) {
            Text(Formats.value(answer.value), style = figure, color = LocalAccents.current.student)
            Text(stringResource(R.string.value), color = MaterialTheme.colorScheme.onSurfaceVariant)
        }
        is Answer.Span -> {
            val found = answer.found
            val passage = question.second.orEmpty()
            val says = found?.let { passage.substring(it.from, it.to) } ?: stringResource(R.string.no_answer)
            Text(says, modifier, if (found == null) Color.Unspecified else LocalAccents.current.student, style = sentence)
            if (found != null) Marked(passage, listOf(found), MaterialTheme.typography.bodyMedium) { Confidence.SURE }
        }
        is Answer.Entities -> Entities(question.first, answer.found, modifier)
        is Answer.Embedding -> for ((place, one) in set.found.withIndex()) {
            val style = if (place == 0) sentence else MaterialTheme.typography.bodyLarge
            Rated(one.text, Formats.value(one.cosine), one.cosine.toDouble(), style, if (place == 0) modifier else Modifier)
        }
    }
}

/** What is given stands first and largest; the other labels stand below it. */
@Composable
private fun Labels(answer: Answer.Labels, modifier: Modifier) {
    val (figure, others) = MaterialTheme.typography.let { it.figure to it.bodyLarge }
    val rated: @Composable (Share, TextStyle) -> Unit = { one, style ->
        Rated(words().label(one.label), words().share(one), one.share, style, Modifier)
    }
    Column(modifier.semantics(mergeDescendants = true) {}, Arrangement.spacedBy(12.dp)) {
        if (answer.given.isEmpty()) Text(stringResource(R.string.no_label), style = MaterialTheme.typography.answer)
        for (one in answer.given) rated(one, figure)
    }
    for (one in answer.shares.filterNot(answer.given::contains)) rated(one, others)
}

@Composable
private fun Entities(text: String, found: List<Found>, modifier: Modifier) {
    if (found.isEmpty()) Text(stringResource(R.string.no_entities), modifier, style = MaterialTheme.typography.answer)
    val style = if (found.isEmpty()) MaterialTheme.typography.bodyLarge else MaterialTheme.typography.answer
    Marked(text, found, style, if (found.isEmpty()) Modifier else modifier) { Confidence.of(it.score) }
    for (one in found) {
        val name = text.substring(one.from, one.to)
        Pair(words().entity(one), MaterialTheme.typography.bodyMedium) {
            Marked(name, listOf(Found(0, name.length, one.score)), MaterialTheme.typography.bodyLarge, it.padding(start = 3.dp)) { part ->
                Confidence.of(part.score)
            }
        }
    }
}

/** A name with a number that a bar shows as well; the first one, in larger letters, is the answer. */
@Composable
private fun Rated(name: String, number: String, share: Double, style: TextStyle, modifier: Modifier) {
    val isAnswer = style != MaterialTheme.typography.bodyLarge
    val color = if (isAnswer) LocalAccents.current.student else MaterialTheme.colorScheme.onSurface
    Column(modifier.fillMaxWidth().semantics(mergeDescendants = true) {}, Arrangement.spacedBy(6.dp)) {
        Pair(number, MaterialTheme.typography.run { if (isAnswer) titleLarge else bodyLarge }) {
            Text(name, it, color, style = style)
        }
        Meter(share.toFloat(), if (isAnswer) 10.dp else 6.dp)
    }
}

/** A long name and a short value at its end; one below the other where letters are large. */
@Composable
private fun Pair(value: String, style: TextStyle, name: @Composable (Modifier) -> Unit) {
    val modifier = Modifier.fillMaxWidth().semantics(mergeDescendants = true) {}
    if (hasLargeLetters()) {
        Column(modifier) {
            name(Modifier)
            Text(value, style = style.tabular())
        }
        return
    }
    Row(modifier, Arrangement.spacedBy(12.dp)) {
        name(Modifier.weight(1f).alignByBaseline())
        Text(value, Modifier.alignByBaseline(), style = style.tabular())
    }
}

@Composable
private fun Meter(share: Float, height: Dp) = LinearProgressIndicator(
    { share.coerceIn(0f, 1f) },
    // The number beside it says the same.
    Modifier.fillMaxWidth().height(height).clearAndSetSemantics {},
    color = LocalAccents.current.student,
    trackColor = MaterialTheme.colorScheme.surfaceVariant,
    gapSize = 0.dp,
    drawStopIndicator = {},
)
