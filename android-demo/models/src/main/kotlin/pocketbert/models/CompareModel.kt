package pocketbert.models

import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch

/** Two shipped models side by side on the same text, live. Used from one thread, the one of [scope]. */
class CompareModel(val models: List<ShelvedModel>, private val scope: CoroutineScope) {
    /**
     * One of the two, with what it has shown on this text.
     *
     * @property samples latencies of the last runs, in ms.
     * @property missing what it is to be asked and was not written.
     * @property problem why it did not answer, in a sentence.
     * @property runs how often it has run on this text, the first time apart.
     */
    data class Side(
        val model: ShelvedModel,
        val samples: List<Double> = emptyList(),
        val reply: Reply? = null,
        val missing: Missing? = null,
        val problem: String? = null,
        val runs: Int = 0,
    ) {
        /** The median of the last runs; null before the first. */
        val medianMs get() = Formats.median(samples)
    }

    /**
     * How the two compare.
     *
     * @property student see [Form.student].
     */
    data class Verdict(val student: Side, val other: Side) {
        /** How many times the student's time the other takes. */
        val ratio get() = checkNotNull(other.medianMs) / checkNotNull(student.medianMs)
    }

    /** What the screen shows. */
    data class Form(val sides: List<Side>, val first: String, val second: String, val isRunning: Boolean = false) {
        /** Whether a side takes two texts. */
        val takesTwo get() = sides.any { it.model.task == Task.VALUE || it.model.task == Task.ANSWER }

        /** The one that the comparison is about: the first whose weights are trained. */
        val student get() = sides.firstOrNull { !it.model.model.hasRandomWeights } ?: sides.firstOrNull()

        /** Null before both have run. */
        val verdict: Verdict?
            get() {
                val student = student
                if (student == null || sides.size != 2 || sides.any { (it.medianMs ?: 0.0) <= 0 }) return null
                return Verdict(student, sides.first { it !== student })
            }
    }

    private val current = MutableStateFlow(Form(emptyList(), "", ""))
    val form: StateFlow<Form> = current.asStateFlow()
    private var workers = emptyList<Worker>()
    private var work: Job? = null

    init {
        // The smaller one beside the larger, since that is the comparison one makes.
        val bySize = models.sortedBy { it.model.entry.bytes }
        if (bySize.size > 1) set(listOf(bySize.first(), bySize.last()))
    }

    /** Takes another model for a side. */
    fun choose(id: String, side: Int) {
        val model = models.firstOrNull { it.id == id } ?: return
        val both = current.value.sides.map { it.model }
        if (side in both.indices && both[side].id != id) set(both.mapIndexed { place, old -> if (place == side) model else old })
    }

    private fun set(both: List<ShelvedModel>) {
        leave()
        val example = Examples.question(both.first().task)
        val sides = both.map { Side(it) }
        current.update { if (it.first.isEmpty()) Form(sides, example.first, example.second.orEmpty()) else it.copy(sides = sides) }
    }

    fun writeFirst(text: String) = current.update { it.copy(first = text) }

    fun writeSecond(text: String) = current.update { it.copy(second = text) }

    /** Runs both on the text, by turns, so that a phone that grows warm slows both; what went on before is cancelled. */
    fun run() {
        cancel()
        val (first, second) = current.value.let { it.first to it.second }
        current.update { form -> form.copy(sides = form.sides.map { Side(it.model) }, isRunning = true) }
        if (workers.isEmpty()) workers = current.value.sides.map { Worker(it.model) }
        val workers = workers
        work = scope.launch {
            for (number in 0..RUNS) {
                for ((place, worker) in workers.withIndex()) {
                    val side = current.value.sides[place]
                    if (side.problem == null && side.missing == null) run(worker, place, first, second, isFirst = number == 0)
                }
            }
            current.update { it.copy(isRunning = false) }
        }
    }

    private suspend fun run(worker: Worker, place: Int, first: String, second: String, isFirst: Boolean) {
        val task = worker.shelved.task
        val question = if (task == Task.VALUE || task == Task.ANSWER) Question(first, second) else Question(first)
        question.missing(task)?.let { missing ->
            update(place) { it.copy(missing = missing) }
            return
        }
        try {
            val reply = worker.ask(question)
            update(place) {
                // The first run opens the model and warms it up.
                if (isFirst) {
                    it.copy(reply = reply)
                } else {
                    it.copy(reply = reply, samples = (it.samples + reply.inferenceMs).takeLast(KEPT), runs = it.runs + 1)
                }
            }
        } catch (cancelled: CancellationException) {
            throw cancelled
        } catch (error: Exception) {
            update(place) { it.copy(problem = error.sentence) }
        }
    }

    private fun update(place: Int, change: (Side) -> Side) = current.update { form ->
        form.copy(sides = form.sides.mapIndexed { at, side -> if (at == place) change(side) else side })
    }

    /** Gives up what goes on, and what was measured on another text. */
    fun forget() {
        cancel()
        current.update { form -> form.copy(sides = form.sides.map { Side(it.model) }) }
    }

    /** Gives up what goes on; what was measured stays. */
    fun cancel() {
        work?.cancel()
        work = null
        current.update { it.copy(isRunning = false) }
    }

    /** Gives up what goes on with what it has measured so far, which is half of a comparison. */
    fun pause() {
        if (current.value.isRunning) forget()
    }

    /** Gives the models' memory back as well; the next run opens them again. */
    fun leave() {
        pause()
        workers.forEach(Worker::close)
        workers = emptyList()
    }

    /** Waits for what goes on. */
    suspend fun settled() = work?.join()

    companion object {
        /** Runs of each model on a text; the median of the last ones is shown. */
        const val RUNS = 30
        private const val KEPT = 20
    }
}
