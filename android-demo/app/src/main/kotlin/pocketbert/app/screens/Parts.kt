package pocketbert.app.screens

import androidx.compose.foundation.layout.Arrangement
import androidx.compose.foundation.layout.Box
import androidx.compose.foundation.layout.Column
import androidx.compose.foundation.layout.ColumnScope
import androidx.compose.foundation.layout.ExperimentalLayoutApi
import androidx.compose.foundation.layout.FlowRow
import androidx.compose.foundation.layout.fillMaxSize
import androidx.compose.foundation.layout.fillMaxWidth
import androidx.compose.foundation.layout.heightIn
import androidx.compose.foundation.layout.padding
import androidx.compose.foundation.layout.widthIn
import androidx.compose.foundation.rememberScrollState
import androidx.compose.foundation.shape.RoundedCornerShape
import androidx.compose.foundation.verticalScroll
import androidx.compose.material3.DropdownMenuItem
import androidx.compose.material3.ExperimentalMaterial3Api
import androidx.compose.material3.ExposedDropdownMenuBox
import androidx.compose.material3.ExposedDropdownMenuDefaults
import androidx.compose.material3.FilterChip
import androidx.compose.material3.MaterialTheme
import androidx.compose.material3.MenuAnchorType
import androidx.compose.material3.OutlinedTextField
import androidx.compose.material3.Surface
import androidx.compose.material3.Text
import androidx.compose.runtime.Composable
import androidx.compose.runtime.getValue
import androidx.compose.runtime.mutableStateOf
import androidx.compose.runtime.remember
import androidx.compose.runtime.setValue
import androidx.compose.ui.Alignment
import androidx.compose.ui.Modifier
import androidx.compose.ui.graphics.Color
import androidx.compose.ui.platform.LocalDensity
import androidx.compose.ui.platform.testTag
import androidx.compose.ui.semantics.LiveRegionMode
import androidx.compose.ui.semantics.liveRegion
import androidx.compose.ui.semantics.semantics
import androidx.compose.ui.unit.dp
import pocketbert.models.ShelvedModel

val GAP = 16.dp

private const val LARGE_LETTERS = 1.5f

/** Whether letters are so large that two things hardly stand beside each other. */
@Composable
fun hasLargeLetters() = LocalDensity.current.fontScale >= LARGE_LETTERS

/** A screen of cards that scrolls, so that nothing is cut where text is large. */
@Composable
fun Cards(modifier: Modifier = Modifier, content: @Composable ColumnScope.() -> Unit) {
    Box(modifier.fillMaxSize(), contentAlignment = Alignment.TopCenter) {
        Column(
            Modifier.verticalScroll(rememberScrollState()).widthIn(max = 720.dp).fillMaxWidth().padding(GAP),
            verticalArrangement = Arrangement.spacedBy(GAP),
            content = content,
        )
    }
}

/** A block of a screen that belongs together. */
@Composable
fun Block(
    modifier: Modifier = Modifier,
    color: Color = MaterialTheme.colorScheme.surfaceContainerHigh,
    content: @Composable ColumnScope.() -> Unit,
) {
    Surface(modifier.fillMaxWidth(), shape = RoundedCornerShape(18.dp), color = color) {
        Column(Modifier.padding(GAP), verticalArrangement = Arrangement.spacedBy(12.dp), content = content)
    }
}

/** What a notice is about: an error alone is red. */
enum class Tone { NEUTRAL, ERROR }

/** A sentence that has to be seen, and is read out. */
@Composable
fun Notice(text: String, tone: Tone = Tone.NEUTRAL) {
    val colors = MaterialTheme.colorScheme
    val (ground, letters) = when (tone) {
        Tone.NEUTRAL -> colors.surfaceVariant to colors.onSurfaceVariant
        Tone.ERROR -> colors.errorContainer to colors.onErrorContainer
    }
    Block(Modifier.announced(true), ground) { Text(text, color = letters) }
}

/** Small letters below a figure. */
@Composable
fun Caption(text: String, modifier: Modifier = Modifier) = Text(
    text,
    modifier,
    style = MaterialTheme.typography.bodySmall.tabular(),
    color = MaterialTheme.colorScheme.onSurfaceVariant,
)

/** Read out once it is final: a figure that changes is not spoken each time. */
fun Modifier.announced(isFinal: Boolean) = if (isFinal) semantics { liveRegion = LiveRegionMode.Polite } else this

/** A name and a value; one below the other where they do not fit beside each other. */
@OptIn(ExperimentalLayoutApi::class)
@Composable
fun Fact(name: String, value: String) {
    FlowRow(
        Modifier.fillMaxWidth().semantics(mergeDescendants = true) {},
        horizontalArrangement = Arrangement.SpaceBetween,
        verticalArrangement = Arrangement.spacedBy(2.dp),
    ) {
        Text(
            name,
            Modifier.padding(end = 12.dp),
            color = MaterialTheme.colorScheme.onSurfaceVariant,
            style = MaterialTheme.typography.bodyMedium,
        )
        Text(value, style = MaterialTheme.typography.bodyMedium.tabular())
    }
}

/** A field that a person writes into. */
@Composable
fun Input(label: String, text: String, onChange: (String) -> Unit, tag: String, lines: Int = 5) {
    OutlinedTextField(
        text,
        onChange,
        Modifier.fillMaxWidth().testTag(tag),
        label = { Text(label) },
        maxLines = lines,
        shape = RoundedCornerShape(12.dp),
    )
}

/** A few things to choose among, below their name. */
@OptIn(ExperimentalLayoutApi::class)
@Composable
fun Group(title: String, content: @Composable () -> Unit) {
    Column {
        Text(title, style = MaterialTheme.typography.bodyMedium, color = MaterialTheme.colorScheme.onSurfaceVariant)
        FlowRow(horizontalArrangement = Arrangement.spacedBy(8.dp)) { content() }
    }
}

/** One of a group. */
@Composable
fun Chip(text: String, isChosen: Boolean, modifier: Modifier = Modifier, onChoose: () -> Unit) =
    FilterChip(isChosen, onChoose, { Text(text, style = MaterialTheme.typography.labelLarge.tabular()) }, modifier)

/** Chooses one of the models; the runtime and the size tell apart those of one recipe. */
@OptIn(ExperimentalMaterial3Api::class)
@Composable
fun ModelPicker(label: String, models: List<ShelvedModel>, chosen: ShelvedModel?, onChoose: (String) -> Unit) {
    var isOpen by remember { mutableStateOf(false) }
    val words = words()
    ExposedDropdownMenuBox(isOpen, { isOpen = it }) {
        OutlinedTextField(
            chosen?.name.orEmpty(),
            {},
            Modifier.menuAnchor(MenuAnchorType.PrimaryNotEditable).fillMaxWidth().testTag("picker-$label"),
            readOnly = true,
            label = { Text(label) },
            supportingText = { Text(chosen?.let(words::detail).orEmpty()) },
            trailingIcon = { ExposedDropdownMenuDefaults.TrailingIcon(isOpen) },
            shape = RoundedCornerShape(12.dp),
        )
        ExposedDropdownMenu(isOpen, { isOpen = false }) {
            for (model in models) {
                DropdownMenuItem(
                    {
                        Column(Modifier.padding(vertical = 6.dp)) {
                            Text(model.name)
                            Text(
                                words.detail(model),
                                style = MaterialTheme.typography.bodySmall,
                                color = MaterialTheme.colorScheme.onSurfaceVariant,
                            )
                        }
                    },
                    {
                        onChoose(model.id)
                        isOpen = false
                    },
                    Modifier.heightIn(min = 48.dp).testTag("model-${model.id}"),
                )
            }
        }
    }
}
