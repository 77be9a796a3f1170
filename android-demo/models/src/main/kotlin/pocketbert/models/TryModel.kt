package pocketbert.models

import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import pocketbert.core.output.ZeroShot
import java.io.InputStream

/**
 * One model at a time is asked what a person writes. Used from one thread, the one of [scope].
 *
 * @property search the set that is searched, where the chosen model embeds texts.
 * @property warmRuns how often an answered question is run again for its warm median.
 */
class TryModel(
    val models: List<ShelvedModel>,
    val search: SearchModel,
    private val scope: CoroutineScope,
    private val warmRuns: Int = WARM_RUNS,
) {
    sealed class State {
        /** Nothing was asked, or something is missing. */
        data class Idle(val missing: Missing? = null) : State()

        data object Working : State()

        /**
         * The model has answered, in its first run of this question.
         *
         * @property warmMs the median of the runs after it; null until they have ended.
         */
        data class Answered(val question: Question, val reply: Reply, val warmMs: Double? = null) : State()

        data class Failed(val why: String) : State()
    }

    /**
     * What the screen shows.
     *
     * @property first the text; or the question.
     * @property second the second text, or the passage.
     * @property prompt the one of the chosen model's prompts that is put before the text; an empty name for none.
     * @property prefersOwn whether a person's own labels are asked where the chosen model takes some.
     * @property labels those, with commas or ends of lines between.
     * @property template the sentence into which each is put.
     * @property multiLabel whether each is decided by itself where the chosen model can.
     */
    data class Form(
        val chosen: ShelvedModel?,
        val first: String,
        val second: String,
        val state: State,
        val prompt: String = "",
        val prefersOwn: Boolean = true,
        val labels: String = Examples.LABELS,
        val template: String = ZeroShot.TEMPLATE,
        val multiLabel: Boolean = false,
    ) {
        /** The labels that are asked in place of the chosen model's; null where its own are. */
        val own: OwnLabels?
            get() = chosen?.takeIf { it.takesOwnLabels && prefersOwn }
                ?.let { OwnLabels(ZeroShot.split(labels), template, multiLabel && it.decidesEach) }

        /** The prompts of the model that has answered without one of them. */
        val unusedPrompts: List<String>
            get() = chosen?.prompts.orEmpty().takeIf { (state as? State.Answered)?.question?.prompt == "" }.orEmpty()
    }

    private val current = MutableStateFlow(Form(null, "", "", State.Idle()))
    val form: StateFlow<Form> = current.asStateFlow()
    private var worker: Worker? = null
    private var work: Job? = null

    init {
        models.firstOrNull()?.let { choose(it.id) }
    }

    /** Takes another model, with an example of what it can be asked. What was asked of the one before is cancelled. */
    fun choose(id: String) {
        val model = models.firstOrNull { it.id == id } ?: return
        val before = current.value.chosen
        if (model.id == before?.id) return
        leave()
        val example = Examples.question(model.task)
        current.update {
            val same = model.task == before?.task
            val (first, second) = if (same) it.first to it.second else example.first to example.second.orEmpty()
            it.copy(chosen = model, first = first, second = second, state = State.Idle(), prompt = prompt(model))
        }
    }

    /** Returns the prompt that is chosen before a person does: what is written here is looked for. */
    private fun prompt(model: ShelvedModel): String {
        val signature = model.model.signature
        return (signature.queryPrompt ?: signature.defaultPrompt).orEmpty()
    }

    /** Takes another prompt of the chosen model; an empty name for none. */
    fun choosePrompt(name: String) = current.update { form ->
        val isThere = name.isEmpty() || name in form.chosen?.prompts.orEmpty()
        if (isThere) form.copy(prompt = name) else form
    }

    fun writeFirst(text: String) = current.update { it.copy(first = text) }

    fun writeSecond(text: String) = current.update { it.copy(second = text) }

    /** Asks labels that a person writes, or the model's own ones. */
    fun preferOwn(isSo: Boolean) = current.update { it.copy(prefersOwn = isSo) }

    fun writeLabels(text: String) = current.update { it.copy(labels = text) }

    fun writeTemplate(text: String) = current.update { it.copy(template = text) }

    /** Decides each of a person's own labels by itself, or takes one of them for true. */
    fun decideEach(isSo: Boolean) = current.update { it.copy(multiLabel = isSo) }

    private fun question(form: Form, task: Task): Question = when (task) {
        Task.VALUE, Task.ANSWER -> Question(form.first, form.second)
        // The second text of a classification may be left out; a label of a person's own takes its place.
        Task.LABELS -> form.own?.let { Question(form.first, own = it) } ?: Question(form.first, form.second.ifBlank { null })
        Task.VALUES -> Question(form.first, form.second.ifBlank { null })
        Task.SEARCH -> Question(form.first, prompt = form.prompt)
        Task.ENTITIES -> Question(form.first)
    }

    /** Asks the chosen model, and measures it on what it has answered; what was asked before is cancelled. */
    fun ask() {
        cancel()
        val worker = worker ?: Worker(current.value.chosen ?: return).also { worker = it }
        search.use(worker, models, scope)
        val question = question(current.value, worker.shelved.task)
        question.missing(worker.shelved.task)?.let { missing ->
            current.update { it.copy(state = State.Idle(missing)) }
            return
        }
        current.update { it.copy(state = State.Working) }
        work = scope.launch {
            try {
                val reply = worker.ask(question)
                (reply.answer as? Answer.Embedding)?.let { search.find(it.embedding) }
                val answered = State.Answered(question, reply)
                current.update { it.copy(state = answered) }
                val warm = List(warmRuns) { worker.ask(question).inferenceMs }
                current.update { it.copy(state = answered.copy(warmMs = Formats.median(warm))) }
            } catch (cancelled: CancellationException) {
                throw cancelled
            } catch (error: Exception) {
                current.update { it.copy(state = State.Failed(error.sentence)) }
            }
        }
    }

    /** Gives up what goes on; an answer stays. */
    fun cancel() {
        work?.cancel()
        work = null
        current.update { if (it.state == State.Working) it.copy(state = State.Idle()) else it }
    }

    /** Gives the model's memory back as well; the next question opens it again. */
    fun leave() {
        cancel()
        search.leave()
        worker?.close()
        worker = null
    }

    /** Replaces the set that is searched by the lines of a text file; see [SearchModel.importFrom]. Outlives a screen. */
    fun importSentences(name: String, open: () -> InputStream): Job = scope.launch { search.importFrom(name, open) }

    /** Waits for what goes on. */
    suspend fun settled() = work?.join()

    companion object {
        const val WARM_RUNS = 10
    }
}
