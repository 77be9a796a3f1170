package pocketbert.models

import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Deferred
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.async
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import pocketbert.core.output.Outputs
import pocketbert.core.search.IndexRefused
import java.io.File
import java.io.IOException
import java.io.InputStream

/**
 * What is searched by meaning: a set of sentences, each of which is embedded once and kept while the model and the sentence stay the
 * same; or an index, of a person's own texts where there are many, or the one that was shipped with the model. An index is filled
 * while the screen is open, and goes on where it was left.
 *
 * @property storage a text file for the set; null keeps it in memory alone.
 * @param home a folder for indexes; null has none of a person's own texts.
 * @property gate says when filling an index has to rest; null for never.
 * @property restMs after which the gate is asked again.
 */
class SearchModel(
    private val storage: File? = null,
    private val home: File? = null,
    private val gate: EnergyGate? = null,
    private val restMs: Long = REST_MS,
) {
    /** A sentence that was found. */
    data class Neighbour(val place: Int, val text: String, val cosine: Float)

    /**
     * An index in place of the sentences.
     *
     * @property isOwn whether it is of a person's own texts.
     * @property passages that can be found.
     * @property texts of which that many are in the index when it is full; null where it is.
     * @property rest why filling it rests; null where it goes on.
     * @property isStopped whether a person has stopped it.
     * @property other name of the model that can fill it in place of the one that does; null where there is none.
     * @property isFast whether the faster and less exact one of both fills it, see [ShelvedModel.faster].
     */
    data class Indexed(
        val isOwn: Boolean,
        val passages: Int,
        val texts: Int? = null,
        val rest: Rest? = null,
        val isStopped: Boolean = false,
        val other: String? = null,
        val isFast: Boolean = false,
    )

    /** What went wrong with a set. */
    sealed class Problem {
        /** A file cannot be read; the message is a sentence. */
        data class Unreadable(val why: String) : Problem()

        data class TooLarge(val file: String, val mostBytes: Long) : Problem()

        data class NotText(val file: String) : Problem()

        /** Only the first lines of a set were taken. */
        data class Cut(val taken: Int, val lines: Int) : Problem()

        /** The next start of the app finds the set that was there before; the message is a sentence. */
        data class NotKept(val why: String) : Problem()
    }

    /**
     * What the screen shows.
     *
     * @property embedded how many sentences have their embedding; null while none is being computed.
     * @property problem what went wrong with the set.
     * @property index what is searched in place of the sentences; null where they are.
     */
    data class Set(
        val sentences: List<String>,
        val found: List<Neighbour> = emptyList(),
        val embedded: Int? = null,
        val problem: Problem? = null,
        val index: Indexed? = null,
    )

    private val own = home?.let(::OwnTexts)
    private val current = MutableStateFlow(
        Set(storage?.let { runCatching { it.readText() }.getOrNull() }?.let(::lines) ?: Examples.sentences),
    )
    val set: StateFlow<Set> = current.asStateFlow()
    private var worker: Worker? = null
    private val embeddings = HashMap<String, FloatArray>()
    private var scope: CoroutineScope? = null

    /** The model whose embeddings are kept, also while it is closed. */
    private var embedder: ShelvedModel? = null

    /** Fills an index of a person's own texts in place of [embedder] when asked to, and answers no question; null where there is none. */
    private var faster: ShelvedModel? = null
    private var prefersFast = false

    /** The index that is searched, while it is opened and then; null where none is asked for. */
    private var opening: Deferred<OpenIndex?>? = null
    private var filling: Job? = null
    private var closing: Job? = null

    /** What was looked for last. */
    private var query: FloatArray? = null

    /**
     * Takes an open model, whose embeddings may be others, and goes on with its index.
     *
     * @param among models of which a faster one may fill it.
     */
    internal fun use(worker: Worker, among: List<ShelvedModel>, scope: CoroutineScope) {
        if (embedder?.id != worker.shelved.id) {
            embeddings.clear()
            faster = worker.shelved.faster(among)
            prefersFast = false
        }
        embedder = worker.shelved
        if (this.worker !== worker) {
            pause()
            this.worker = worker
            current.update { it.copy(found = emptyList()) }
        }
        this.scope = scope
        if (opening == null) open()
    }

    /** Leaves the model, which is closed. */
    internal fun leave() {
        pause()
        worker = null
    }

    /** Gives up filling the index, and closes it: the app goes to the background, or something else is searched. */
    internal fun pause() {
        filling?.cancel()
        val (filled, opened) = filling to opening
        filling = null
        opening = null
        query = null
        if (opened == null) return
        val before = closing
        closing = scope?.launch {
            withContext(NonCancellable) {
                before?.join()
                filled?.join()
                opened.await()?.close()
            }
        }
    }

    /** Stops filling the index until [goOn]. */
    fun stop() {
        filling?.cancel()
        current.update { set -> set.copy(index = set.index?.copy(isStopped = true, rest = null)) }
    }

    /** Goes on with filling the index. */
    fun goOn() {
        current.update { set -> set.copy(index = set.index?.copy(isStopped = false)) }
        pause()
        open()
    }

    /** Goes on with filling the index by the faster model, or by the one that is asked; passages that are there stay. */
    fun preferFast(isSo: Boolean) {
        prefersFast = isSo && faster != null
        current.update { set -> set.copy(index = set.index?.let(::offering)) }
        goOn()
    }

    /** Says of an index that is being filled by which model, and which other one can. */
    private fun offering(index: Indexed): Indexed {
        if (index.texts == null) return index
        return index.copy(other = (if (prefersFast) embedder else faster)?.name, isFast = prefersFast)
    }

    /** Waits until the index is full or stopped, or is closed where it was left. */
    suspend fun settled() {
        filling?.join()
        closing?.join()
    }

    private fun open() {
        val (worker, scope) = (worker ?: return) to (scope ?: return)
        if (worker.shelved.task != Task.SEARCH || worker.shelved.model.hasRandomWeights) return
        val before = closing
        val opening = scope.async {
            before?.join()
            opened(worker)
        }
        this.opening = opening
        filling = scope.launch {
            val index = opening.await() ?: return@launch
            if (index.isOwn && current.value.index?.isStopped != true) fill(index, worker)
        }
    }

    private suspend fun opened(worker: Worker): OpenIndex? {
        val wasStopped = current.value.index?.isStopped == true
        val (shelved, hasOwn) = worker.shelved to (own?.isThere == true)
        val index = try {
            when {
                home != null && hasOwn -> OpenIndex.own(home, shelved.model)
                current.value.sentences == Examples.sentences -> OpenIndex.shipped(shelved.equipment.models, shelved.model, home)
                else -> null
            }
        } catch (error: IndexRefused) {
            current.update { it.copy(problem = Problem.Unreadable(error.sentence)) }
            null
        } catch (error: IOException) {
            current.update { it.copy(problem = Problem.Unreadable(error.sentence)) }
            null
        }
        if (home != null && !hasOwn) OpenIndex.forget(home)
        val texts = index?.takeIf { it.isOwn }?.let { withContext(Dispatchers.IO) { own?.count() } }?.coerceAtMost(MOST_TEXTS)
        val indexed = index?.let { Indexed(it.isOwn, it.size(), texts, isStopped = wasStopped) }
        current.update { it.copy(index = indexed?.let(::offering)) }
        return index
    }

    private suspend fun fill(index: OpenIndex, worker: Worker) {
        val texts = own ?: return
        val all = current.value.index?.texts
        val filler = faster?.takeIf { prefersFast }?.let { Worker(it) } ?: worker
        try {
            var told = 0
            index.fill(texts, filler, gate, restMs) { done, rest ->
                current.update { it.copy(index = it.index?.copy(passages = done, rest = rest)) }
                if (done - told < FOUND_EVERY) return@fill
                told = done
                query?.let { look(index, it) }
            }
            current.update { it.copy(index = it.index?.copy(passages = index.size(), texts = null, other = null, isFast = false)) }
            query?.let { look(index, it) }
        } catch (cancelled: CancellationException) {
            throw cancelled
        } catch (error: Exception) {
            current.update { it.copy(problem = Problem.Unreadable(error.sentence), index = it.index?.copy(texts = all, isStopped = true)) }
        } finally {
            // Questions are asked of the other one.
            if (filler !== worker) filler.close()
        }
    }

    /** Replaces what is searched by the lines of a text; empty ones are left out. */
    fun replace(text: String) {
        val lines = lines(text)
        if (own == null || lines.size <= MOST_IN_MEMORY) return keep(lines)
        try {
            own.take { text.byteInputStream() }
            keepOwn(lines.size)
        } catch (error: IOException) {
            current.update { it.copy(problem = Problem.NotKept(error.sentence)) }
        }
    }

    /** Puts the example back, or the index that was shipped with the model. */
    fun reset() = keep(Examples.sentences)

    /** Takes the texts that were copied; more than fit in memory. */
    private fun keepOwn(count: Int) {
        own?.keep()
        pause()
        val taken = minOf(count, MOST_TEXTS)
        val problem = Problem.Cut(MOST_TEXTS, count).takeIf { count > MOST_TEXTS }
        current.value = Set(emptyList(), problem = problem, index = Indexed(isOwn = true, passages = 0, texts = taken))
        embeddings.clear()
        open()
    }

    /**
     * Replaces what is searched by the lines of a text file.
     *
     * @param open the file, which is read off the main thread: it may lie in a cloud.
     */
    suspend fun importFrom(name: String, open: () -> InputStream) {
        try {
            val texts = own ?: return replace(withContext(Dispatchers.IO) { OwnTexts.read(MOST_FILE_BYTES, open) })
            val count = withContext(Dispatchers.IO) { texts.take(open) }
            if (count > MOST_IN_MEMORY) return keepOwn(count)
            keep(withContext(Dispatchers.IO) { texts.taken() })
        } catch (_: OwnTexts.TooLarge) {
            current.update { it.copy(problem = Problem.TooLarge(name, if (own == null) MOST_FILE_BYTES else OwnTexts.MOST_BYTES)) }
        } catch (_: OwnTexts.NotText) {
            current.update { it.copy(problem = Problem.NotText(name)) }
        } catch (error: IOException) {
            current.update { it.copy(problem = Problem.Unreadable(error.sentence)) }
        } catch (error: SecurityException) {
            current.update { it.copy(problem = Problem.Unreadable(error.sentence)) }
        } finally {
            own?.drop()
        }
    }

    /** Finds what is nearest to an embedding, in the index where there is one; embeds sentences that are new first. */
    internal suspend fun find(embedding: FloatArray) {
        query = embedding
        val index = opening?.await()
        if (index != null) return look(index, embedding)
        val sentences = current.value.sentences
        val among = embedded(sentences)
        // A set of thousands takes milliseconds, in which the screen would stand still.
        val nearest = withContext(Dispatchers.Default) { Outputs.nearest(embedding, among, TOP) }
        val found = nearest.map { (place, cosine) -> Neighbour(place, sentences[place], cosine) }
        // Another set may have been written meanwhile; what was found in the old one is of no use there.
        current.update { if (it.sentences === sentences) it.copy(found = found) else it }
    }

    private suspend fun look(index: OpenIndex, embedding: FloatArray) {
        val found = try {
            index.search(embedding, TOP).map { Neighbour(it.row, it.text, it.cosine) }
        } catch (error: IOException) {
            // It was closed meanwhile, because something else is searched.
            if (query !== embedding) return
            throw error
        }
        if (query === embedding) current.update { it.copy(found = found) }
    }

    private suspend fun embedded(sentences: List<String>): List<FloatArray> {
        val worker = worker ?: return emptyList()
        var missing = 0
        try {
            return sentences.mapIndexed { place, sentence ->
                embeddings[sentence] ?: run {
                    if (missing++ % TOLD_EVERY == 0) current.update { it.copy(embedded = place) }
                    embed(sentence, worker)
                }
            }
        } finally {
            current.update { it.copy(embedded = null) }
        }
    }

    private suspend fun embed(sentence: String, worker: Worker): FloatArray {
        val answer = worker.ask(Question(sentence, prompt = worker.shelved.model.signature.documentPrompt)).answer
        // Another model may have been taken meanwhile.
        if (worker !== this.worker || answer !is Answer.Embedding) throw CancellationException("another model was taken")
        return answer.embedding.also { embeddings[sentence] = it }
    }

    private fun keep(new: List<String>) {
        own?.remove()
        pause()
        val sentences = new.take(MOST_SENTENCES)
        embeddings.keys.retainAll(sentences.toSet())
        val problem = Problem.Cut(MOST_SENTENCES, new.size).takeIf { new.size > MOST_SENTENCES }
        current.value = Set(sentences, problem = problem)
        try {
            storage?.replaceBy(sentences.joinToString("\n"))
        } catch (error: IOException) {
            current.update { it.copy(problem = Problem.NotKept(error.sentence)) }
        }
        open()
    }

    companion object {
        /** More are not embedded for one question where there is no folder for an index: a phone embeds some hundred a second. */
        const val MOST_SENTENCES = 5_000

        /** More are kept in an index, where there is a folder for one. */
        const val MOST_IN_MEMORY = 500

        /** An index of a person's own texts has no more. */
        const val MOST_TEXTS = 100_000
        private const val MOST_FILE_BYTES = 8L shl 20
        private const val TOP = 10
        private const val TOLD_EVERY = 8

        /** What is shown is looked for again each time that so many passages came to the index. */
        private const val FOUND_EVERY = 512
        private const val REST_MS = 30_000L

        private fun lines(text: String) = text.lines().map(String::trim).filter(String::isNotEmpty)
    }
}
