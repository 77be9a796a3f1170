package pocketbert.models

import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import pocketbert.core.Cancellation
import pocketbert.core.contract.Model
import java.text.SimpleDateFormat
import java.util.Date
import java.util.Locale
import java.util.TimeZone

/**
 * Measures a model as a computer would: the request is written into a folder of a run, and carried out from there. Used from
 * one thread, the one of [scope].
 */
class BenchmarkModel(val models: List<ShelvedModel>, private val equipment: Equipment, private val scope: CoroutineScope) {
    sealed class State {
        data object Idle : State()

        data class Running(val progress: RunProgress) : State()

        data class Ended(val progress: RunProgress, val record: RunRecord?) : State()

        /** It did not begin: a length has to be chosen. */
        data object NoLength : State()

        /** It did not begin; the message is a sentence. */
        data class Failed(val why: String) : State()
    }

    /**
     * What the screen shows.
     *
     * @property computeUnits one of the file's; null for the first of them.
     * @property lengthsOffered those that the chosen file runs at; where it takes any, some that are usual.
     * @property startBelowC waits until the phone is cooler than this; null does not wait.
     * @property records of earlier runs, the newest first.
     */
    data class Form(
        val chosen: ShelvedModel? = null,
        val computeUnits: String? = null,
        val threads: Int = 1,
        val lengths: Set<Int> = emptySet(),
        val lengthsOffered: List<Int> = emptyList(),
        val minutes: Double = 2.0,
        val startBelowC: Double? = null,
        val state: State = State.Idle,
        val records: List<RunRecord> = emptyList(),
    )

    private val current = MutableStateFlow(Form())
    val form: StateFlow<Form> = current.asStateFlow()
    private var asked: Cancellation? = null
    private var work: Job? = null

    init {
        models.firstOrNull()?.let { choose(it.id) }
    }

    /** Whether this phone tells its temperature, so that one can wait for it. */
    val tellsTemperature by lazy { equipment.phone.moment().temperatureC != null }

    /** Takes another model, with what its runtime offers. */
    fun choose(id: String) {
        val model = models.firstOrNull { it.id == id } ?: return
        val signature = model.model.signature
        val offered = if (signature.functions.all { it.fixed }) {
            signature.functions.map { it.maxLength }
        } else {
            FREE_LENGTHS.filter { it < signature.maxLength } + signature.maxLength
        }
        current.update { form ->
            form.copy(
                chosen = model,
                computeUnits = form.computeUnits?.takeIf { it in model.computeUnits },
                threads = form.threads.coerceIn(model.linked.threads),
                lengths = offered.toSet(),
                lengthsOffered = offered,
            )
        }
    }

    fun chooseUnits(units: String?) = current.update { it.copy(computeUnits = units) }

    fun chooseThreads(threads: Int) = current.update { it.copy(threads = threads.coerceIn(it.chosen?.linked?.threads ?: 1..1)) }

    fun chooseLength(length: Int, on: Boolean) = current.update { it.copy(lengths = if (on) it.lengths + length else it.lengths - length) }

    fun chooseMinutes(minutes: Double) = current.update { it.copy(minutes = minutes) }

    fun chooseStart(belowC: Double?) = current.update { it.copy(startBelowC = belowC) }

    /** Starts a run, unless one goes on. */
    fun start() {
        val form = current.value
        val chosen = form.chosen ?: return
        if (form.state is State.Running) return
        if (form.lengths.isEmpty()) {
            current.update { it.copy(state = State.NoLength) }
            return
        }
        val first = RunProgress(pocketbert.core.contract.State.RUNNING, 0.0, "reading the texts")
        current.update { it.copy(state = State.Running(first)) }
        val cancellation = Cancellation().also { asked = it }
        work = scope.launch {
            val state = try {
                val folder = withContext(Dispatchers.IO) { equipment.runs.write(request(form, chosen)) }
                val end = RunInFolder.carryOut(folder, equipment, cancellation) { progress ->
                    current.update { if (it.state is State.Running) it.copy(state = State.Running(progress)) else it }
                }
                State.Ended(end, withContext(Dispatchers.IO) { runCatching { RunRecord.read(folder) }.getOrNull() })
            } catch (cancelled: CancellationException) {
                throw cancelled
            } catch (error: Exception) {
                State.Failed(error.sentence)
            }
            current.update { it.copy(state = state) }
            readRecords()
        }
    }

    private fun request(form: Form, chosen: ShelvedModel) = RunRequest(
        name(chosen),
        chosen.id,
        form.computeUnits,
        form.threads,
        form.lengths.sorted(),
        texts(chosen.model),
        form.minutes,
        form.startBelowC,
    )

    /** Asks the run that goes on to end: it writes that into its folder, and then has ended. */
    fun cancel() {
        asked?.cancel()
    }

    /** Ends the run: nothing measures behind another screen. */
    fun leave() = cancel()

    /** Waits for what goes on. */
    suspend fun settled() = work?.join()

    /** Reads the records of earlier runs. */
    suspend fun readRecords() {
        val records = withContext(Dispatchers.IO) { equipment.runs.records() }
        current.update { it.copy(records = records) }
    }

    /** Removes an earlier run; one whose record names another folder stays. */
    suspend fun remove(record: RunRecord) {
        withContext(Dispatchers.IO) { runCatching { equipment.runs.remove(record.run) } }
        readRecords()
    }

    companion object {
        val MINUTES_OFFERED = listOf(1.0, 2.0, 5.0, 10.0)
        private const val MOST_TEXTS = 24
        private const val MOST_NAME = 60
        private val FREE_LENGTHS = listOf(16, 32, 64, 128, 256, 512)

        /** Names a run by its model and the time, so that folders sort by time within a model. */
        private fun name(model: ShelvedModel): String {
            val format = SimpleDateFormat("yyyy-MM-dd'T'HHmmss'Z'", Locale.ROOT).apply { timeZone = TimeZone.getTimeZone("UTC") }
            return "${model.id.replace('/', '-').take(MOST_NAME)}-${format.format(Date())}"
        }

        /** Takes the texts that were shipped with a model to test it: they are real ones, short and long. */
        private fun texts(model: Model): List<String> =
            model.golden().rows.map { it.first }.filter(String::isNotBlank).distinct().take(MOST_TEXTS)
    }
}
