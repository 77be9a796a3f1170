package pocketbert.app.screens

import androidx.compose.foundation.layout.Arrangement
import androidx.compose.foundation.layout.Column
import androidx.compose.foundation.layout.Row
import androidx.compose.foundation.layout.fillMaxWidth
import androidx.compose.foundation.layout.height
import androidx.compose.foundation.layout.padding
import androidx.compose.material3.HorizontalDivider
import androidx.compose.material3.LinearProgressIndicator
import androidx.compose.material3.MaterialTheme
import androidx.compose.material3.Text
import androidx.compose.runtime.Composable
import androidx.compose.ui.Modifier
import androidx.compose.ui.platform.testTag
import androidx.compose.ui.res.stringResource
import androidx.compose.ui.semantics.LiveRegionMode
import androidx.compose.ui.semantics.liveRegion
import androidx.compose.ui.semantics.semantics
import androidx.compose.ui.text.AnnotatedString
import androidx.compose.ui.text.SpanStyle
import androidx.compose.ui.text.buildAnnotatedString
import androidx.compose.ui.text.font.FontWeight
import androidx.compose.ui.text.withStyle
import androidx.compose.ui.unit.dp
import pocketbert.app.R
import pocketbert.core.output.Found
import pocketbert.core.output.Share
import pocketbert.models.Answer
import pocketbert.models.Formats
import pocketbert.models.Question
import pocketbert.models.Reply
import pocketbert.models.SearchModel
import pocketbert.models.Segment
import pocketbert.models.TryModel

/** What the model said, and how long it took. */
@Composable
fun AnswerBlock(form: TryModel.Form, set: SearchModel.Set) {
    set.problem?.let { Notice(it, isError = true) }
    when (val state = form.state) {
        is TryModel.State.Idle -> state.missing?.let { Notice(it) }
        is TryModel.State.Failed -> Notice(state.why, isError = true)
        TryModel.State.Working -> Block {
            val embedded = set.embedded
            Text(
                if (embedded ==
                    null
                ) {
                    stringResource(R.string.working)
                } else {
                    stringResource(R.string.embedding, embedded, set.sentences.size)
                },
            )
            if (embedded == null) {
                LinearProgressIndicator(Modifier.fillMaxWidth())
            } else {
                LinearProgressIndicator({ embedded.toFloat() / set.sentences.size }, Modifier.fillMaxWidth())
            }
        }
        is TryModel.State.Answered -> Block(Modifier.testTag("answer").semantics { liveRegion = LiveRegionMode.Polite }) {
            Headline(state.reply)
            Said(state.question, state.reply.answer, set)
            HorizontalDivider(color = MaterialTheme.colorScheme.outlineVariant)
            Facts(state.reply)
        }
    }
}

@Composable
private fun Said(question: Question, answer: Answer, set: SearchModel.Set) {
    when (answer) {
        Answer.Hidden -> Text(stringResource(R.string.hidden))
        is Answer.Labels -> Shares(answer.shares)
        is Answer.Value -> Fact(stringResource(R.string.value), Formats.value(answer.value))
        is Answer.Span -> {
            val found = answer.found
            if (found == null) {
                Text(stringResource(R.string.no_answer))
            } else {
                val passage = question.second.orEmpty()
                Text(passage.substring(found.from, found.to), style = MaterialTheme.typography.titleLarge)
                Text(marked(passage, listOf(found)), style = MaterialTheme.typography.bodyMedium)
            }
        }
        is Answer.Entities -> {
            if (answer.found.isEmpty()) Text(stringResource(R.string.no_entities))
            Text(marked(question.first, answer.found), style = MaterialTheme.typography.bodyLarge)
            for (one in answer.found) {
                Fact(question.first.substring(one.from, one.to), "${one.kind}  ${Formats.percent(one.score)}")
            }
        }
        is Answer.Embedding -> for (one in set.found) {
            Column(verticalArrangement = Arrangement.spacedBy(4.dp)) {
                Row(Modifier.fillMaxWidth().semantics(mergeDescendants = true) {}, Arrangement.SpaceBetween) {
                    Text(one.text, Modifier.weight(1f))
                    Text(
                        Formats.value(one.cosine),
                        Modifier.padding(start = 12.dp),
                        style = MaterialTheme.typography.bodyMedium.tabular(),
                        color = MaterialTheme.colorScheme.onSurfaceVariant,
                    )
                }
                Meter(one.cosine)
            }
        }
    }
}

@Composable
private fun Shares(shares: List<Share>) {
    for ((place, one) in shares.withIndex()) {
        Column(verticalArrangement = Arrangement.spacedBy(4.dp)) {
            Row(Modifier.fillMaxWidth().semantics(mergeDescendants = true) {}, Arrangement.SpaceBetween) {
                val weight = if (place == 0) FontWeight.SemiBold else FontWeight.Normal
                Text(one.label, Modifier.weight(1f), fontWeight = weight)
                Text(Formats.percent(one.share), style = MaterialTheme.typography.bodyLarge.tabular(), fontWeight = weight)
            }
            Meter(one.share.toFloat())
        }
    }
}

@Composable
private fun Meter(share: Float) = LinearProgressIndicator(
    { share.coerceIn(0f, 1f) },
    Modifier.fillMaxWidth().height(6.dp),
    color = LocalAccents.current.student,
    trackColor = MaterialTheme.colorScheme.surfaceVariant,
    gapSize = 0.dp,
    drawStopIndicator = {},
)

/** The text with what was found set off. */
@Composable
private fun marked(text: String, found: List<Found>): AnnotatedString {
    val colors = MaterialTheme.colorScheme
    val style = SpanStyle(colors.onSecondaryContainer, fontWeight = FontWeight.SemiBold, background = colors.secondaryContainer)
    return buildAnnotatedString {
        for (segment in Segment.split(text, found)) {
            if (segment.found == null) append(segment.text) else withStyle(style) { append(segment.text) }
        }
    }
}

/** How long it took stands first: a list of what was found may be long. */
@Composable
private fun Headline(reply: Reply) {
    Column(Modifier.semantics(mergeDescendants = true) {}) {
        Text(Formats.ms(reply.inferenceMs), style = MaterialTheme.typography.figure, color = LocalAccents.current.student)
        Text(stringResource(R.string.inference), color = MaterialTheme.colorScheme.onSurfaceVariant)
    }
}

@Composable
private fun Facts(reply: Reply) {
    Fact(stringResource(R.string.tokenisation), Formats.ms(reply.tokenizeMs))
    Fact(stringResource(R.string.tokens), stringResource(R.string.tokens_of, reply.tokens, reply.length))
    Fact(stringResource(R.string.opened), Formats.ms(reply.openedMs))
    reply.cutAt?.let { Notice(stringResource(R.string.cut, it)) }
}
