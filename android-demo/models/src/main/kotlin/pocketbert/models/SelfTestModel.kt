package pocketbert.models

import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch

/** Whether the shipped models are what was verified, on this phone and in the runtimes of this app. */
class SelfTestModel(shelf: Shelf, private val scope: CoroutineScope) {
    /**
     * What a model showed.
     *
     * @property version the version that is linked in, against the one that the file asks for.
     * @property failures what is wrong, in sentences.
     */
    data class Report(
        val version: MinimumVersion,
        val rows: Int,
        val sameTokens: Int,
        val worstCosine: Double?,
        val minCosine: Double?,
        val sqnrDb: Double?,
        val minSqnrDb: Double?,
        val failures: List<String>,
    ) {
        val passed get() = failures.isEmpty()
    }

    sealed class State {
        data object Waiting : State()

        data object Running : State()

        data class Done(val report: Report) : State()

        /** It could not be tested; the message is a sentence. */
        data class Failed(val why: String) : State()
    }

    data class Row(val model: ShelvedModel, val state: State = State.Waiting) {
        /** Who signed the model, in a sentence. */
        val signature
            get() = model.model.signedBy?.let { "Signed with the key ${it.take(SHOWN)}…" }
                ?: "Nobody signed it: a debug build takes it all the same."

        /** The runtime that is linked in and the oldest that the file may be run with. */
        val runtime
            get() = model.linked.runtime.let {
                "${it.name} ${it.version}; the file asks for ${model.model.signature.minimumRuntime} or later"
            }
    }

    /** What the screen shows. */
    data class Table(val rows: List<Row>, val isRunning: Boolean = false) {
        /** How it went over all, in a sentence; null before all have ended. */
        val verdict: String?
            get() {
                if (rows.isEmpty() || rows.any { it.state is State.Waiting || it.state is State.Running }) return null
                val failed = rows.count { row -> (row.state as? State.Done)?.report?.passed != true }
                if (failed == 0) return "All ${rows.size} models compute here what was verified."
                return "$failed of ${rows.size} models do not hold."
            }
    }

    /** Models that are refused, with the reason. */
    val refused = shelf.refused
    private val current = MutableStateFlow(Table(shelf.usable.map { Row(it) }))
    val table: StateFlow<Table> = current.asStateFlow()
    private var work: Job? = null

    /** Tests one model after the other; a run that goes on is cancelled first. */
    fun run() {
        cancel()
        current.update { table -> Table(table.rows.map { Row(it.model) }, isRunning = true) }
        work = scope.launch {
            for ((place, row) in current.value.rows.withIndex()) {
                update(place, State.Running)
                update(place, test(row.model))
            }
            current.update { it.copy(isRunning = false) }
        }
    }

    private suspend fun test(shelved: ShelvedModel): State {
        val minimum = shelved.model.signature.minimumRuntime
        val linked = shelved.linked.runtime
        val version = MinimumVersion.of(minimum, linked.version)
        return try {
            val (golden, verdict) = Worker(shelved).use { it.check() }
            // An older runtime may run the file and be wrong, and not on these rows.
            val old = "${linked.name} ${linked.version} is older than $minimum, which the file asks for"
            State.Done(
                Report(
                    version,
                    verdict.rows.size,
                    verdict.rows.count { it.sameIds },
                    verdict.worstCosine,
                    golden.minCosine,
                    verdict.sqnrDb,
                    golden.minSqnrDb,
                    listOfNotNull(old.takeIf { version == MinimumVersion.TOO_OLD }) + verdict.failures,
                ),
            )
        } catch (cancelled: CancellationException) {
            throw cancelled
        } catch (error: Exception) {
            State.Failed(error.sentence)
        }
    }

    private fun update(place: Int, state: State) = current.update { table ->
        table.copy(rows = table.rows.mapIndexed { at, row -> if (at == place) row.copy(state = state) else row })
    }

    /** Gives up what goes on; what has ended stays. */
    fun cancel() {
        work?.cancel()
        work = null
        current.update { table ->
            Table(table.rows.map { if (it.state is State.Running) Row(it.model) else it })
        }
    }

    /** Waits for what goes on. */
    suspend fun settled() = work?.join()

    private companion object {
        const val SHOWN = 16
    }
}
