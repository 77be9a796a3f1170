package pocketbert.models

import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.suspendCancellableCoroutine
import pocketbert.core.Background
import pocketbert.core.Cancellation
import pocketbert.core.contract.Golden
import pocketbert.core.model.Answered
import pocketbert.core.model.GoldenVerdict
import pocketbert.core.model.Runner
import pocketbert.core.model.RunnerFailed
import pocketbert.core.model.RunnerOptions
import pocketbert.core.model.RunnerRefused
import pocketbert.core.model.Student
import pocketbert.core.output.Found
import pocketbert.core.output.NamedValue
import pocketbert.core.output.Share
import pocketbert.core.output.ZeroShot
import java.util.concurrent.RejectedExecutionException

/**
 * Runs work behind what was started before, and returns what it returns; cancelled with the coroutine that waits.
 *
 * @throws RunnerFailed also for what Java takes for the end of the process, and a screen for a sentence.
 */
internal suspend fun <T> Background.run(work: (Cancellation) -> T): T = suspendCancellableCoroutine { waiting ->
    val asked = start({ cancellation ->
        try {
            work(cancellation)
        } catch (error: OutOfMemoryError) {
            throw RunnerFailed("there is not enough memory: ${error.message}", error)
        } catch (error: LinkageError) {
            throw RunnerFailed("the runtime's library cannot be loaded: ${error.message}", error)
        } catch (error: Error) {
            throw RunnerFailed("${error.javaClass.simpleName}: ${error.message}", error)
        }
    }) { waiting.resumeWith(it) }
    // What was given up ends some time later; resuming who has gone does nothing.
    waiting.invokeOnCancellation { asked.cancel() }
}

/**
 * A model that is opened when it is asked something, runs off the main thread, one call at a time, and gives its memory back
 * when it is released or closed.
 */
class Worker(val shelved: ShelvedModel, private val options: RunnerOptions = RunnerOptions(shelved.linked.threads.first)) : AutoCloseable {
    private class Opened(val student: Student, val runner: Runner, val tookMs: Double)

    private val background = Background()
    private val inMemory = shelved.equipment.inMemory
    private val gone = CompletableDeferred<Unit>()
    private var isClosed = false

    // Touched in the background alone, where work goes one after the other.
    private var opened: Opened? = null

    /**
     * Asks the model something, and returns what it says.
     *
     * @throws RunnerRefused its compute units are untried, and no self-test has passed there; or a benchmark goes on.
     */
    suspend fun ask(question: Question): Reply = background.run { cancellation ->
        shelved.equipment.selfTested.choose(shelved.model, options.computeUnits)
        val opened = open()
        val (answer, answered) = question.ask(opened.student, cancellation)
        val limit = shelved.model.signature.maxLength
        // A row of that length may have been cut, or just fit.
        val mayBeCut = shelved.task != Task.ANSWER && answered.tokens == limit
        val cut = mayBeCut && question.tokens(opened.student, cancellation) > limit
        Reply(
            if (shelved.model.hasRandomWeights) Answer.Hidden else answer,
            answered.inferenceMs,
            answered.tokenizeMs,
            answered.tokens,
            answered.length,
            limit.takeIf { cut },
            opened.tookMs,
            opened.runner.shareByUnit.orEmpty().confirmed(),
        )
    }

    /** Returns how many tokens each text has behind a prompt, however many the file takes. */
    internal suspend fun tokens(texts: List<String>, prompt: String?): List<Int> = background.run { cancellation ->
        shelved.equipment.selfTested.choose(shelved.model, options.computeUnits)
        val student = open().student
        texts.map { student.tokens(it, prompt = prompt, cancellation = cancellation) }
    }

    /** Runs the golden rows that were shipped with the model; compute units on which they hold may be used from then on. */
    suspend fun check(): Checked = background.run { cancellation ->
        val golden = shelved.model.golden()
        val opened = open()
        val verdict = opened.student.check(golden, cancellation)
        val units = options.computeUnits
        // LiteRT takes what a unit cannot run to the CPU without a word: equal answers say nothing of the unit then.
        val confirms = units == null || units == CPU || units in opened.runner.shareByUnit.orEmpty().confirmed()
        // An older runtime may be wrong on other rows.
        val isOld = MinimumVersion.of(shelved.model.signature.minimumRuntime, shelved.linked.runtime.version) == MinimumVersion.TOO_OLD
        if (units != null && confirms && !isOld && verdict.failures.isEmpty()) shelved.equipment.selfTested.add(shelved.model, units)
        Checked(golden, verdict, confirms)
    }

    private fun open(): Opened = opened ?: run {
        inMemory.add(this)
        val began = System.nanoTime()
        val tokenizer = shelved.model.tokenizer()
        val runner = shelved.linked.runtime.open(shelved.model, options)
        Opened(Student(shelved.model, tokenizer, runner), runner, (System.nanoTime() - began) / NANOS_IN_MS).also { opened = it }
    }

    /** Gives the memory back behind what was asked before, and waits for that; the next question opens the model again. */
    suspend fun release() {
        try {
            background.run { giveBack() }
        } catch (_: RejectedExecutionException) {
            gone.await()
        }
    }

    /** Gives the memory back behind what was asked before; nothing can be asked any more. */
    override fun close() {
        if (isClosed) return
        isClosed = true
        background.start({ giveBack() }) { gone.complete(Unit) }
        background.close()
    }

    private fun giveBack() {
        try {
            opened?.student?.close()
        } finally {
            opened = null
            inMemory.remove(this)
        }
    }

    private companion object {
        const val NANOS_IN_MS = 1e6
        const val CPU = "CPU"
    }
}

/**
 * What the golden rows have shown.
 *
 * @property confirms whether the runtime confirms that the compute units that were asked for ran the file.
 */
class Checked(val golden: Golden, val verdict: GoldenVerdict, val confirms: Boolean)

/** What a person has to write before a model can be asked. */
enum class Missing { TEXT, TWO_TEXTS, QUESTION_AND_PASSAGE, LABEL, TWO_LABELS, TEMPLATE }

/**
 * The workers that hold a model in memory. A benchmark measures alone: other models would count among its memory, take its
 * processor, and hold a runtime's pool of threads at their size.
 */
internal class InMemory {
    private val workers = LinkedHashSet<Worker>()
    private var benchmarks = 0

    /** @throws RunnerRefused a benchmark goes on. */
    @Synchronized
    fun add(worker: Worker) {
        if (benchmarks > 0) throw RunnerRefused("a benchmark goes on, and has this phone for itself; ask again when it has ended")
        workers.add(worker)
    }

    @Synchronized
    fun remove(worker: Worker) {
        workers.remove(worker)
    }

    /** Does work while no worker has a model in memory. */
    suspend fun <T> without(work: suspend () -> T): T {
        val open = synchronized(this) {
            benchmarks++
            workers.toList()
        }
        try {
            open.forEach { it.release() }
            return work()
        } finally {
            synchronized(this) { benchmarks-- }
        }
    }
}

/**
 * What a model is asked.
 *
 * @property first the text; or the question, where there is a passage.
 * @property second the other text, or the passage.
 * @property prompt name of the prompt before a text that is embedded; null for the model's default one, an empty name for none.
 * @property own labels in place of the model's.
 */
data class Question(val first: String, val second: String? = null, val prompt: String? = null, val own: OwnLabels? = null) {
    /** Says what is missing for a task, or null. */
    fun missing(task: Task): Missing? {
        val both = first.isNotBlank() && !second.isNullOrBlank()
        return when (task) {
            Task.ANSWER -> Missing.QUESTION_AND_PASSAGE.takeUnless { both }
            Task.VALUE -> Missing.TWO_TEXTS.takeUnless { both }
            Task.LABELS -> Missing.TEXT.takeUnless { first.isNotBlank() } ?: own?.missing
            Task.VALUES, Task.SEARCH, Task.ENTITIES -> Missing.TEXT.takeUnless { first.isNotBlank() }
        }
    }

    /** Returns how many tokens the longest row has that it asks, however many the file takes. */
    internal fun tokens(student: Student, cancellation: Cancellation): Int {
        if (own == null) return student.tokens(first, second, prompt, cancellation)
        val hypotheses = own.run { ZeroShot(student.model.signature, labels, template, multiLabel) }.hypotheses
        return hypotheses.maxOf { student.tokens(first, it, cancellation = cancellation) }
    }

    internal fun ask(student: Student, cancellation: Cancellation): Pair<Answer, Answered<*>> = when (Task.of(student.model.signature)) {
        Task.SEARCH -> student.embedding(first, prompt, cancellation).let { Answer.Embedding(it.value) to it }
        Task.VALUE -> student.value(first, second, cancellation).let { Answer.Value(it.value) to it }
        Task.VALUES -> student.values(first, second, cancellation).let { Answer.Values(it.value) to it }
        Task.LABELS -> labels(student, cancellation).let { Answer.Labels(it.value) to it }
        Task.ENTITIES -> student.entities(first, cancellation).let { Answer.Entities(it.value) to it }
        Task.ANSWER -> student.answer(first, second.orEmpty(), cancellation = cancellation).let { Answer.Span(it.value) to it }
    }

    private fun labels(student: Student, cancellation: Cancellation): Answered<List<Share>> = if (own == null) {
        student.labels(first, second, cancellation)
    } else {
        student.zeroShot(first, own.labels, own.template, own.multiLabel, cancellation)
    }
}

/**
 * Labels that a person wrote, for a model of natural language inference; see [ZeroShot].
 *
 * @property multiLabel whether each is decided by itself, so that several may be true.
 */
data class OwnLabels(val labels: List<String>, val template: String, val multiLabel: Boolean) {
    /** What has to be written before a model can be asked, or null. */
    val missing: Missing?
        get() = when {
            labels.size < ZeroShot.least(multiLabel) -> if (multiLabel) Missing.LABEL else Missing.TWO_LABELS
            !ZeroShot.isTemplate(template) -> Missing.TEMPLATE
            else -> null
        }
}

/** What came out of a model. */
sealed class Answer {
    /** Labels with their probabilities, the most probable first. */
    data class Labels(val shares: List<Share>) : Answer() {
        /** Those that are the answer: the first one, or each that is given where each is decided by itself. */
        val given get() = if (shares.any { it.isGiven != null }) shares.filter { it.isGiven == true } else shares.take(1)
    }

    data class Value(val value: Float) : Answer()

    data class Values(val values: List<NamedValue>) : Answer()

    /** A part of the passage; null where there is none. */
    data class Span(val found: Found?) : Answer()

    data class Entities(val found: List<Found>) : Answer()

    class Embedding(val embedding: FloatArray) : Answer()

    /** The model's weights are random. */
    data object Hidden : Answer()
}

/**
 * An answer, and how long it took.
 *
 * @property tokens of the row, special ones included.
 * @property length at which it ran.
 * @property cutAt how many tokens the file takes, where the text has more and its end was not read.
 * @property openedMs how long opening the model took, when it was opened.
 * @property ranOn compute units that run the file, as the runtime confirms it, the largest share first.
 */
data class Reply(
    val answer: Answer,
    val inferenceMs: Double,
    val tokenizeMs: Double,
    val tokens: Int,
    val length: Int,
    val cutAt: Int?,
    val openedMs: Double,
    val ranOn: List<String>,
)
