package pocketbert.app.screens

import androidx.compose.material3.MaterialTheme
import androidx.compose.material3.Text
import androidx.compose.runtime.Composable
import androidx.compose.runtime.getValue
import androidx.compose.runtime.mutableStateOf
import androidx.compose.runtime.remember
import androidx.compose.runtime.setValue
import androidx.compose.ui.Modifier
import androidx.compose.ui.draw.drawBehind
import androidx.compose.ui.geometry.CornerRadius
import androidx.compose.ui.geometry.Rect
import androidx.compose.ui.graphics.Color
import androidx.compose.ui.graphics.PathEffect
import androidx.compose.ui.graphics.drawscope.DrawScope
import androidx.compose.ui.graphics.drawscope.Stroke
import androidx.compose.ui.text.AnnotatedString
import androidx.compose.ui.text.SpanStyle
import androidx.compose.ui.text.TextLayoutResult
import androidx.compose.ui.text.TextStyle
import androidx.compose.ui.text.buildAnnotatedString
import androidx.compose.ui.text.font.FontWeight
import androidx.compose.ui.text.withStyle
import androidx.compose.ui.unit.dp
import pocketbert.core.output.Found
import pocketbert.models.Confidence
import pocketbert.models.Segment

/** How a mark looks: the surer, the fuller. */
class MarkColors(val sure: Color, val onSure: Color, val likely: Color, val onLikely: Color, val outline: Color)

/**
 * A text with what was found in it: filled where the model is sure, lighter where it is likely, and a dashed outline where it is
 * neither.
 *
 * @param confidence of each part that was found; an answer of a passage has none, and is marked as a sure one.
 */
@Composable
fun Marked(text: String, found: List<Found>, style: TextStyle, modifier: Modifier = Modifier, confidence: (Found) -> Confidence) {
    val colors = LocalAccents.current.marks
    var layout by remember(text, found) { mutableStateOf<TextLayoutResult?>(null) }
    val segments = remember(text, found) { Segment.split(text, found) }
    val shown = remember(segments, colors) { annotated(segments, colors, confidence) }
    Text(
        shown,
        modifier.drawBehind {
            val laidOut = layout ?: return@drawBehind
            var at = 0
            for (segment in segments) {
                val end = at + segment.text.length
                segment.found?.let { one -> for (rect in lines(laidOut, at, end)) mark(rect, confidence(one), colors) }
                at = end
            }
        },
        style = style.copy(lineHeight = style.fontSize * LINE_HEIGHT),
        color = MaterialTheme.colorScheme.onSurface,
        onTextLayout = { layout = it },
    )
}

private fun annotated(segments: List<Segment>, colors: MarkColors, confidence: (Found) -> Confidence): AnnotatedString =
    buildAnnotatedString {
        for (segment in segments) {
            val style = segment.found?.let(confidence)?.let { sure ->
                when (sure) {
                    Confidence.SURE -> SpanStyle(colors.onSure, fontWeight = FontWeight.SemiBold)
                    Confidence.LIKELY -> SpanStyle(colors.onLikely, fontWeight = FontWeight.SemiBold)
                    Confidence.UNSURE -> SpanStyle()
                }
            }
            if (style == null) append(segment.text) else withStyle(style) { append(segment.text) }
        }
    }

/** Returns where a part of a text stands, a rectangle a line. */
private fun lines(layout: TextLayoutResult, from: Int, to: Int): List<Rect> =
    (layout.getLineForOffset(from)..layout.getLineForOffset(to - 1)).map { line ->
        val first = layout.getBoundingBox(maxOf(from, layout.getLineStart(line)))
        val last = layout.getBoundingBox(minOf(to, layout.getLineEnd(line, visibleEnd = true)) - 1)
        // Of a text that runs from right to left the first character is the rightmost.
        Rect(minOf(first.left, last.left), layout.getLineTop(line), maxOf(first.right, last.right), layout.getLineBottom(line))
    }

private fun DrawScope.mark(line: Rect, confidence: Confidence, colors: MarkColors) {
    val rect = Rect(line.left - SIDE.toPx(), line.top + GAP_BETWEEN.toPx(), line.right + SIDE.toPx(), line.bottom - GAP_BETWEEN.toPx())
    val corner = CornerRadius(CORNER.toPx())
    when (confidence) {
        Confidence.SURE -> drawRoundRect(colors.sure, rect.topLeft, rect.size, corner)
        Confidence.LIKELY -> drawRoundRect(colors.likely, rect.topLeft, rect.size, corner)
        Confidence.UNSURE -> {
            val dashes = PathEffect.dashPathEffect(floatArrayOf(DASH.toPx(), DASH.toPx()))
            drawRoundRect(colors.outline, rect.topLeft, rect.size, corner, Stroke(STROKE.toPx(), pathEffect = dashes))
        }
    }
}

private const val LINE_HEIGHT = 1.45f
private val SIDE = 2.dp
private val GAP_BETWEEN = 1.5.dp
private val CORNER = 5.dp
private val DASH = 4.dp
private val STROKE = 1.5.dp
