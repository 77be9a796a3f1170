package pocketbert.app.screens

import android.content.Intent
import androidx.compose.foundation.layout.Arrangement
import androidx.compose.foundation.layout.Column
import androidx.compose.foundation.layout.ExperimentalLayoutApi
import androidx.compose.foundation.layout.FlowRow
import androidx.compose.foundation.layout.Row
import androidx.compose.foundation.layout.fillMaxWidth
import androidx.compose.foundation.layout.heightIn
import androidx.compose.foundation.selection.toggleable
import androidx.compose.material3.Button
import androidx.compose.material3.LinearProgressIndicator
import androidx.compose.material3.MaterialTheme
import androidx.compose.material3.OutlinedButton
import androidx.compose.material3.Switch
import androidx.compose.material3.Text
import androidx.compose.material3.TextButton
import androidx.compose.runtime.Composable
import androidx.compose.runtime.LaunchedEffect
import androidx.compose.runtime.getValue
import androidx.compose.ui.Alignment
import androidx.compose.ui.Modifier
import androidx.compose.ui.platform.LocalContext
import androidx.compose.ui.platform.testTag
import androidx.compose.ui.res.stringResource
import androidx.compose.ui.semantics.Role
import androidx.compose.ui.semantics.contentDescription
import androidx.compose.ui.semantics.heading
import androidx.compose.ui.semantics.semantics
import androidx.compose.ui.unit.dp
import androidx.core.content.FileProvider
import androidx.lifecycle.compose.collectAsStateWithLifecycle
import pocketbert.app.Desk
import pocketbert.app.R
import pocketbert.core.contract.State
import pocketbert.models.BenchmarkModel
import pocketbert.models.Formats
import pocketbert.models.RunRecord

/** Where a phone is cool by common consent: the start of a measurement does not depend on the one before. */
private const val COOL_C = 37

/** Measures a model, and keeps the records. */
@Composable
fun BenchmarkScreen(model: BenchmarkModel, desk: Desk) {
    val form by model.form.collectAsStateWithLifecycle()
    LaunchedEffect(Unit) { model.readRecords() }
    Cards {
        Block {
            ModelPicker(stringResource(R.string.model), model.models, form.chosen, model::choose)
            Choices(model, form)
            val isRunning = form.state is BenchmarkModel.State.Running
            Button({ if (isRunning) model.cancel() else model.start() }, Modifier.heightIn(min = 48.dp)) {
                Text(stringResource(if (isRunning) R.string.stop else R.string.measure))
            }
        }
        when (val state = form.state) {
            BenchmarkModel.State.Idle -> Unit
            BenchmarkModel.State.NoLength -> Notice(stringResource(R.string.no_length))
            is BenchmarkModel.State.Failed -> Notice(state.why, Tone.ERROR)
            is BenchmarkModel.State.Running -> Block(Modifier.testTag("progress")) {
                LinearProgressIndicator({ state.progress.done.toFloat() }, Modifier.fillMaxWidth())
                Text(words().run(state.progress), style = MaterialTheme.typography.bodyLarge.tabular())
            }
            is BenchmarkModel.State.Ended -> {
                val record = state.record
                if (record != null) {
                    Record(record, model, desk)
                } else {
                    // Whoever has stopped it knows why.
                    val isWanted = state.progress.state == State.CANCELLED
                    Notice(words().run(state.progress), if (isWanted) Tone.NEUTRAL else Tone.ERROR)
                }
            }
        }
        val shown = (form.state as? BenchmarkModel.State.Ended)?.record?.run
        val earlier = form.records.filter { it.run != shown }
        if (earlier.isNotEmpty()) {
            Text(stringResource(R.string.earlier), Modifier.semantics { heading() }, style = MaterialTheme.typography.titleMedium)
        }
        for (record in earlier) Record(record, model, desk)
    }
}

@OptIn(ExperimentalLayoutApi::class)
@Composable
private fun Choices(model: BenchmarkModel, form: BenchmarkModel.Form) {
    val chosen = form.chosen ?: return
    val linked = chosen.linked
    if (chosen.computeUnits.size > 1) {
        Group(stringResource(R.string.compute_units)) {
            val now = form.computeUnits ?: chosen.computeUnits.first()
            for (units in chosen.computeUnits) Chip(units, now == units) { model.chooseUnits(units) }
        }
    }
    if (linked.threads.first < linked.threads.last) {
        Row(Modifier.fillMaxWidth(), Arrangement.SpaceBetween, Alignment.CenterVertically) {
            Text(words().threads(form.threads), style = MaterialTheme.typography.bodyLarge.tabular())
            Row(horizontalArrangement = Arrangement.spacedBy(8.dp)) {
                Step("−", stringResource(R.string.fewer), form.threads > linked.threads.first) { model.chooseThreads(form.threads - 1) }
                Step("+", stringResource(R.string.more), form.threads < linked.threads.last) { model.chooseThreads(form.threads + 1) }
            }
        }
    }
    Group(stringResource(R.string.lengths)) {
        for (length in form.lengthsOffered) Chip("$length", length in form.lengths) { model.chooseLength(length, length !in form.lengths) }
    }
    Group(stringResource(R.string.minutes)) {
        for (minutes in BenchmarkModel.MINUTES_OFFERED) {
            Chip("${minutes.toInt()}", form.minutes == minutes) { model.chooseMinutes(minutes) }
        }
    }
    if (model.tellsTemperature) {
        val isWaiting = form.startBelowC != null
        val toggle = Modifier.toggleable(isWaiting, role = Role.Switch) { model.chooseStart(if (it) COOL_C.toDouble() else null) }
        Row(toggle.fillMaxWidth().heightIn(min = 48.dp), Arrangement.SpaceBetween, Alignment.CenterVertically) {
            Text(stringResource(R.string.wait_cool, COOL_C), Modifier.weight(1f))
            Switch(isWaiting, null)
        }
    }
}

@Composable
private fun Step(sign: String, says: String, isPossible: Boolean, onStep: () -> Unit) =
    OutlinedButton(onStep, Modifier.semantics { contentDescription = says }, isPossible) { Text(sign) }

@OptIn(ExperimentalLayoutApi::class)
@Composable
private fun Record(record: RunRecord, model: BenchmarkModel, desk: Desk) {
    val words = words()
    Block(Modifier.testTag("record")) {
        Column {
            val measured = model.models.firstOrNull { it.id == record.model }
            Text(measured?.let(words::modelAndRuntime) ?: record.run, style = MaterialTheme.typography.titleMedium)
            Caption(words.made(record))
        }
        for (one in record.lengths) words.length(one)?.let { Text(it, style = MaterialTheme.typography.bodyLarge.tabular()) }
        Fact(stringResource(R.string.real_texts), Formats.recordMs(record.textMs))
        Fact(stringResource(R.string.opened), Formats.recordMs(record.loadMs))
        Fact(stringResource(R.string.first_run), Formats.recordMs(record.firstMs))
        record.peakBytes?.let { Fact(stringResource(R.string.most_memory), Formats.megabytes(it)) }
        FlowRow(horizontalArrangement = Arrangement.spacedBy(8.dp)) {
            val context = LocalContext.current
            Button({
                val uri = FileProvider.getUriForFile(context, "${context.packageName}.records", record.file)
                val send = Intent(Intent.ACTION_SEND).setType("application/json").putExtra(Intent.EXTRA_STREAM, uri)
                context.startActivity(Intent.createChooser(send.addFlags(Intent.FLAG_GRANT_READ_URI_PERMISSION), null))
            }) { Text(stringResource(R.string.share)) }
            TextButton({ desk.launch { model.remove(record) } }) { Text(stringResource(R.string.delete)) }
        }
    }
}
