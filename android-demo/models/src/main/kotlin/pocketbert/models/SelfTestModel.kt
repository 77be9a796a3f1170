package pocketbert.models

import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import pocketbert.core.model.RunnerOptions

/** Whether the shipped models are what was verified, on this phone, in the runtimes of this app and on each compute unit. */
class SelfTestModel(shelf: Shelf, private val scope: CoroutineScope) {
    /**
     * What a model showed on one compute unit.
     *
     * @property differences what is not as in the reference; empty where it gives the same answers.
     */
    data class Report(
        val rows: Int,
        val sameTokens: Int,
        val worstCosine: Double?,
        val minCosine: Double?,
        val sqnrDb: Double?,
        val minSqnrDb: Double?,
        val differences: List<Difference>,
    )

    /** What is not as in the reference. */
    sealed class Difference {
        /** An older runtime may run the file and be wrong, and not on these rows. */
        data class OldRuntime(val runtime: String, val version: String, val minimum: String) : Difference()

        data class OtherTokens(val texts: Int) : Difference()

        /** @property cosine of the worst row; null where it has none. */
        data class LessSimilar(val cosine: Double?, val least: Double) : Difference()

        data class Noisier(val sqnrDb: Double, val least: Double) : Difference()

        /** The runtime does not confirm that the unit ran the file. */
        data class NotConfirmed(val unit: String) : Difference()

        /** In the core's own words. */
        data class Other(val why: String) : Difference()
    }

    /**
     * One compute unit.
     *
     * @property known what is known of such files there, where none has passed on it yet; null for one of the file's own.
     */
    data class OnUnit(val unit: String, val known: String?, val state: State = State.Waiting) {
        /** Whether it gives the same answers; null before it has ended. */
        val agrees: Boolean?
            get() = when (state) {
                State.Waiting, State.Running -> null
                is State.Failed -> false
                is State.Done -> state.report.differences.isEmpty()
            }
    }

    sealed class State {
        data object Waiting : State()

        data object Running : State()

        data class Done(val report: Report) : State()

        /** It could not be tested; the message is a sentence. */
        data class Failed(val why: String) : State()
    }

    /** One model. Its own units decide how it has done; untried ones may differ, and are then not offered. */
    data class Row(val model: ShelvedModel, val units: List<OnUnit> = units(model)) {
        private val own get() = units.filter { it.known == null }
        val isRunning get() = units.any { it.state == State.Running }

        /** Whether each of the file's own units gives the same answers; null before all have ended. */
        val agrees: Boolean?
            get() {
                if (own.any { it.agrees == null }) return null
                return own.all { it.agrees == true }
            }

        /** The first of its own units that does not give the same answers. */
        val differing get() = own.firstOrNull { it.agrees == false }
    }

    /** How it went over all. */
    data class Verdict(val differing: Int, val models: Int)

    /** What the screen shows. */
    data class Table(val rows: List<Row>, val isRunning: Boolean = false) {
        /** Null before all have ended. */
        val verdict: Verdict?
            get() {
                if (rows.isEmpty() || isRunning || rows.any { it.agrees == null }) return null
                return Verdict(rows.count { it.agrees == false }, rows.size)
            }
    }

    /** Models that are refused, with the reason. */
    val refused = shelf.refused
    private val current = MutableStateFlow(Table(shelf.usable.map { Row(it) }))
    val table: StateFlow<Table> = current.asStateFlow()
    private var work: Job? = null

    /** Tests one model after the other, on each unit; a run that goes on is cancelled first. */
    fun run() {
        cancel()
        current.update { table -> Table(table.rows.map { Row(it.model) }, isRunning = true) }
        work = scope.launch {
            for ((place, row) in current.value.rows.withIndex()) {
                for ((number, one) in row.units.withIndex()) {
                    update(place, number, State.Running)
                    update(place, number, test(row.model, one.unit))
                }
            }
            current.update { it.copy(isRunning = false) }
        }
    }

    private suspend fun test(shelved: ShelvedModel, unit: String): State = try {
        val options = RunnerOptions(shelved.linked.threads.first, unit)
        State.Done(report(shelved, Worker(shelved, options).use { it.check() }, unit))
    } catch (cancelled: CancellationException) {
        throw cancelled
    } catch (error: Exception) {
        State.Failed(error.sentence)
    }

    private fun report(shelved: ShelvedModel, checked: Checked, unit: String): Report {
        val (golden, verdict) = checked.golden to checked.verdict
        val (runtime, minimum) = shelved.linked.runtime to shelved.model.signature.minimumRuntime
        val others = verdict.rows.count { !it.sameIds }
        val sqnr = verdict.sqnrDb
        val worst = verdict.worstCosine
        val least = golden.minCosine
        val noisiest = golden.minSqnrDb
        val differences = listOfNotNull(
            Difference.OldRuntime(runtime.name, runtime.version, minimum)
                .takeIf { MinimumVersion.of(minimum, runtime.version) == MinimumVersion.TOO_OLD },
            Difference.NotConfirmed(unit).takeUnless { checked.confirms },
            Difference.OtherTokens(others).takeIf { others > 0 },
            if (others > 0 || least == null || (worst ?: -1.0) >= least) null else Difference.LessSimilar(worst, least),
            if (sqnr == null || noisiest == null || sqnr >= noisiest) null else Difference.Noisier(sqnr, noisiest),
        )
        // What the core finds and this does not know of is said all the same.
        val unknown = verdict.failures.takeIf { differences.none(::isOfRows) }.orEmpty().map { Difference.Other(it) }
        return Report(
            verdict.rows.size,
            verdict.rows.size - others,
            worst,
            least,
            sqnr,
            noisiest,
            differences + unknown,
        )
    }

    private fun isOfRows(one: Difference) = one !is Difference.OldRuntime && one !is Difference.NotConfirmed

    private fun update(place: Int, number: Int, state: State) = current.update { table ->
        val changed = table.rows[place].let { row ->
            row.copy(units = row.units.mapIndexed { at, one -> if (at == number) one.copy(state = state) else one })
        }
        table.copy(rows = table.rows.mapIndexed { at, row -> if (at == place) changed else row })
    }

    /** Gives up what goes on; what has ended stays. */
    fun cancel() {
        work?.cancel()
        work = null
        current.update { table ->
            Table(table.rows.map { if (it.isRunning) Row(it.model) else it })
        }
    }

    /** Gives up what goes on: nothing is tested behind another screen. Each model is closed when it has been tested. */
    fun leave() = cancel()

    /** Waits for what goes on. */
    suspend fun settled() = work?.join()

    private companion object {
        fun units(model: ShelvedModel) = model.model.computeUnits.map { OnUnit(it, null) } +
            model.model.untriedUnits.map { (unit, known) -> OnUnit(unit, known) }
    }
}
