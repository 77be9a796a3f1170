package pocketbert.app.screens

import androidx.compose.foundation.layout.Column
import androidx.compose.foundation.layout.heightIn
import androidx.compose.material3.Button
import androidx.compose.material3.LinearProgressIndicator
import androidx.compose.material3.MaterialTheme
import androidx.compose.material3.Text
import androidx.compose.runtime.Composable
import androidx.compose.runtime.collectAsState
import androidx.compose.runtime.getValue
import androidx.compose.ui.Modifier
import androidx.compose.ui.platform.testTag
import androidx.compose.ui.res.stringResource
import androidx.compose.ui.unit.dp
import pocketbert.app.R
import pocketbert.models.Formats
import pocketbert.models.RefusedModel
import pocketbert.models.SelfTestModel

/** Whether this phone computes what was verified. */
@Composable
fun SelfTestScreen(model: SelfTestModel) {
    val table by model.table.collectAsState()
    Cards {
        Block {
            table.verdict?.let { Text(it, Modifier.testTag("verdict"), style = MaterialTheme.typography.titleLarge) }
            if (table.isRunning) LinearProgressIndicator()
            Button({ if (table.isRunning) model.cancel() else model.run() }, Modifier.heightIn(min = 48.dp)) {
                Text(stringResource(if (table.isRunning) R.string.stop else R.string.run_self_test))
            }
        }
        for (row in table.rows) Tested(row)
        for (one in model.refused) Refused(one)
    }
}

@Composable
private fun Tested(row: SelfTestModel.Row) {
    Block {
        Column {
            Text(row.model.name, style = MaterialTheme.typography.titleMedium)
            Text(row.model.detail, style = MaterialTheme.typography.bodySmall, color = MaterialTheme.colorScheme.onSurfaceVariant)
        }
        val accents = LocalAccents.current
        val colors = MaterialTheme.colorScheme
        when (val state = row.state) {
            SelfTestModel.State.Waiting -> Text(stringResource(R.string.waiting), color = colors.onSurfaceVariant)
            SelfTestModel.State.Running -> Text(stringResource(R.string.testing), color = colors.primary)
            is SelfTestModel.State.Failed -> Notice(state.why, isError = true)
            is SelfTestModel.State.Done -> {
                val report = state.report
                Text(
                    stringResource(if (report.passed) R.string.holds else R.string.does_not_hold),
                    style = MaterialTheme.typography.titleMedium,
                    color = if (report.passed) accents.good else colors.error,
                )
                for (failure in report.failures) Notice(failure, isError = true)
                Fact(stringResource(R.string.same_tokens), stringResource(R.string.of, report.sameTokens, report.rows))
                Fact(
                    stringResource(R.string.worst_cosine),
                    bounded(Formats.cosine(report.worstCosine), report.minCosine?.let(Formats::cosine)),
                )
                Fact(stringResource(R.string.sqnr), bounded(Formats.decibels(report.sqnrDb), report.minSqnrDb?.let(Formats::decibels)))
            }
        }
        Text(row.signature, style = MaterialTheme.typography.bodySmall, color = colors.onSurfaceVariant)
        Text(row.runtime, style = MaterialTheme.typography.bodySmall, color = colors.onSurfaceVariant)
    }
}

@Composable
private fun bounded(found: String, least: String?) = if (least == null) found else stringResource(R.string.asked_for, found, least)

@Composable
private fun Refused(one: RefusedModel) {
    Block(color = MaterialTheme.colorScheme.errorContainer) {
        Text(
            "${stringResource(R.string.refused_models)}: ${one.entry.folder}",
            style = MaterialTheme.typography.titleMedium,
            color = MaterialTheme.colorScheme.onErrorContainer,
        )
        Text(one.why, color = MaterialTheme.colorScheme.onErrorContainer)
    }
}
