package pocketbert.app.screens

import androidx.compose.foundation.clickable
import androidx.compose.foundation.layout.Arrangement
import androidx.compose.foundation.layout.Column
import androidx.compose.foundation.layout.Row
import androidx.compose.foundation.layout.fillMaxWidth
import androidx.compose.foundation.layout.heightIn
import androidx.compose.foundation.layout.padding
import androidx.compose.foundation.shape.RoundedCornerShape
import androidx.compose.material3.Button
import androidx.compose.material3.HorizontalDivider
import androidx.compose.material3.Icon
import androidx.compose.material3.LinearProgressIndicator
import androidx.compose.material3.MaterialTheme
import androidx.compose.material3.Surface
import androidx.compose.material3.Text
import androidx.compose.runtime.Composable
import androidx.compose.runtime.getValue
import androidx.compose.runtime.mutableStateOf
import androidx.compose.runtime.saveable.rememberSaveable
import androidx.compose.runtime.setValue
import androidx.compose.ui.Alignment
import androidx.compose.ui.Modifier
import androidx.compose.ui.draw.rotate
import androidx.compose.ui.platform.testTag
import androidx.compose.ui.res.painterResource
import androidx.compose.ui.res.stringResource
import androidx.compose.ui.semantics.Role
import androidx.compose.ui.text.font.FontWeight
import androidx.compose.ui.unit.dp
import androidx.lifecycle.compose.collectAsStateWithLifecycle
import pocketbert.app.R
import pocketbert.models.Formats
import pocketbert.models.RefusedModel
import pocketbert.models.SelfTestModel

/** Whether this phone computes what was verified: a line a model, and more of one that is tapped. */
@Composable
fun SelfTestScreen(model: SelfTestModel) {
    val table by model.table.collectAsStateWithLifecycle()
    Cards {
        Block {
            val verdict = table.verdict
            if (verdict == null) {
                Text(stringResource(R.string.about_self_test), color = MaterialTheme.colorScheme.onSurfaceVariant)
            } else {
                val color = if (verdict.differing == 0) LocalAccents.current.good else MaterialTheme.colorScheme.error
                Text(words().verdict(verdict), Modifier.announced(true).testTag("verdict"), color, style = MaterialTheme.typography.answer)
            }
            if (table.isRunning) {
                val tested = table.rows.count { it.agrees != null }
                LinearProgressIndicator({ tested.toFloat() / table.rows.size }, Modifier.fillMaxWidth())
            }
            Button({ if (table.isRunning) model.cancel() else model.run() }, Modifier.heightIn(min = 48.dp)) {
                Text(stringResource(if (table.isRunning) R.string.stop else R.string.run_self_test))
            }
        }
        for (one in model.refused) Refused(one)
        Surface(Modifier.fillMaxWidth(), RoundedCornerShape(18.dp), MaterialTheme.colorScheme.surfaceContainerHigh) {
            Column {
                for ((place, row) in table.rows.withIndex()) {
                    if (place > 0) HorizontalDivider(color = MaterialTheme.colorScheme.outlineVariant)
                    Tested(row)
                }
            }
        }
    }
}

@Composable
private fun Tested(row: SelfTestModel.Row) {
    var isOpen by rememberSaveable(row.model.id) { mutableStateOf(false) }
    val does = stringResource(if (isOpen) R.string.hide_details else R.string.show_details)
    Column(Modifier.clickable(onClickLabel = does, role = Role.Button) { isOpen = !isOpen }.testTag("tested-${row.model.id}")) {
        Row(
            Modifier.fillMaxWidth().heightIn(min = 56.dp).padding(horizontal = GAP, vertical = 10.dp),
            Arrangement.spacedBy(12.dp),
            Alignment.CenterVertically,
        ) {
            Column(Modifier.weight(1f)) {
                Text(words().modelAndRuntime(row.model), fontWeight = FontWeight.SemiBold)
                Text(words().outcome(row), color = color(row), style = MaterialTheme.typography.bodyMedium)
            }
            Icon(
                painterResource(R.drawable.expand),
                null,
                Modifier.rotate(if (isOpen) 180f else 0f),
                MaterialTheme.colorScheme.onSurfaceVariant,
            )
        }
        if (isOpen) Details(row)
    }
}

@Composable
private fun color(row: SelfTestModel.Row) = when (row.agrees) {
    true -> LocalAccents.current.good
    false -> MaterialTheme.colorScheme.error
    null -> if (row.isRunning) MaterialTheme.colorScheme.primary else MaterialTheme.colorScheme.onSurfaceVariant
}

@Composable
private fun Details(row: SelfTestModel.Row) {
    val words = words()
    Column(Modifier.padding(start = GAP, end = GAP, bottom = GAP), Arrangement.spacedBy(8.dp)) {
        for (one in row.units) {
            Text(words.outcome(one), style = MaterialTheme.typography.bodyMedium, fontWeight = FontWeight.SemiBold)
            one.known?.let { Caption(it) }
            (one.state as? SelfTestModel.State.Done)?.let { Measured(it.report) }
        }
        HorizontalDivider(color = MaterialTheme.colorScheme.outlineVariant)
        val signature = row.model.model.signedBy?.let { stringResource(R.string.signed_by, it.take(SHOWN)) }
        Caption(signature ?: stringResource(R.string.signed_by_nobody))
        val (runtime, minimum) = row.model.linked.runtime to row.model.model.signature.minimumRuntime
        Caption(stringResource(R.string.minimum_runtime, runtime.name, runtime.version, minimum))
    }
}

@Composable
private fun Measured(report: SelfTestModel.Report) {
    val words = words()
    for (one in report.differences.drop(1)) Text(words.difference(one), color = MaterialTheme.colorScheme.error)
    report.worstCosine?.let {
        Fact(stringResource(R.string.least_similar), bounded(Formats.cosine(it), report.minCosine?.let(Formats::cosine)))
    }
    report.sqnrDb?.let { Fact(stringResource(R.string.noise), bounded(words.decibels(it), report.minSqnrDb?.let(words::decibels))) }
    Fact(stringResource(R.string.same_tokens), stringResource(R.string.of, report.sameTokens, report.rows))
}

@Composable
private fun bounded(found: String, least: String?) = if (least == null) found else stringResource(R.string.asked_for, found, least)

@Composable
private fun Refused(one: RefusedModel) {
    Block(color = MaterialTheme.colorScheme.errorContainer) {
        Text(
            stringResource(R.string.refused, one.entry.folder),
            style = MaterialTheme.typography.titleMedium,
            color = MaterialTheme.colorScheme.onErrorContainer,
        )
        Text(one.why, color = MaterialTheme.colorScheme.onErrorContainer)
    }
}

/** Letters of a key's fingerprint that are shown. */
private const val SHOWN = 16
