package pocketbert.models

import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.withContext
import pocketbert.core.contract.Signature
import pocketbert.core.output.Outputs
import java.io.File
import java.io.IOException
import java.io.InputStream
import java.nio.ByteBuffer

/**
 * A set of sentences that is searched by meaning: each one's embedding is computed once, and kept while the model and the
 * sentence stay the same.
 *
 * @property storage a text file for the set; null keeps it in memory alone.
 */
class SearchModel(private val storage: File? = null) {
    /** A sentence that was found. */
    data class Neighbour(val place: Int, val text: String, val cosine: Float)

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
     */
    data class Set(
        val sentences: List<String>,
        val found: List<Neighbour> = emptyList(),
        val embedded: Int? = null,
        val problem: Problem? = null,
    )

    private val current = MutableStateFlow(
        Set(storage?.let { runCatching { it.readText() }.getOrNull() }?.let(::lines) ?: Examples.sentences),
    )
    val set: StateFlow<Set> = current.asStateFlow()
    private var worker: Worker? = null
    private val embeddings = HashMap<String, FloatArray>()

    /** Takes another model, whose embeddings are others. */
    internal fun use(worker: Worker) {
        if (this.worker?.shelved?.id != worker.shelved.id) embeddings.clear()
        this.worker = worker
        current.update { it.copy(found = emptyList()) }
    }

    /** Replaces the set by the lines of a text; empty ones are left out. */
    fun replace(text: String) = keep(lines(text))

    /** Puts the example back. */
    fun reset() = keep(Examples.sentences)

    /**
     * Replaces the set by the lines of a text file.
     *
     * @param open the file, which is read off the main thread: it may lie in a cloud.
     */
    suspend fun importFrom(name: String, open: () -> InputStream) {
        val bytes = try {
            withContext(Dispatchers.IO) { open().use { it.readAtMost(MOST_FILE_BYTES) } }
        } catch (error: IOException) {
            current.update { it.copy(problem = Problem.Unreadable(error.sentence)) }
            return
        } catch (error: SecurityException) {
            current.update { it.copy(problem = Problem.Unreadable(error.sentence)) }
            return
        }
        val text = bytes?.let { runCatching { Charsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(it)).toString() }.getOrNull() }
        when {
            bytes == null -> current.update { it.copy(problem = Problem.TooLarge(name, MOST_FILE_BYTES.toLong())) }
            text == null -> current.update { it.copy(problem = Problem.NotText(name)) }
            else -> replace(text)
        }
    }

    /** Finds the sentences that are nearest to an embedding; embeds those that are new first. */
    internal suspend fun find(embedding: FloatArray) {
        val sentences = current.value.sentences
        val among = embedded(sentences)
        // A set of thousands takes milliseconds, in which the screen would stand still.
        val nearest = withContext(Dispatchers.Default) { Outputs.nearest(embedding, among, TOP) }
        val found = nearest.map { (place, cosine) -> Neighbour(place, sentences[place], cosine) }
        // Another set may have been written meanwhile; what was found in the old one is of no use there.
        current.update { if (it.sentences === sentences) it.copy(found = found) else it }
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
        val answer = worker.ask(Question(sentence, prompt = sentencePrompt(worker.shelved.model.signature))).answer
        // Another model may have been taken meanwhile.
        if (worker !== this.worker || answer !is Answer.Embedding) throw CancellationException("another model was taken")
        return answer.embedding.also { embeddings[sentence] = it }
    }

    private fun keep(new: List<String>) {
        val sentences = new.take(MOST_SENTENCES)
        embeddings.keys.retainAll(sentences.toSet())
        val problem = Problem.Cut(MOST_SENTENCES, new.size).takeIf { new.size > MOST_SENTENCES }
        current.value = Set(sentences, problem = problem)
        try {
            storage?.replaceBy(sentences.joinToString("\n"))
        } catch (error: IOException) {
            current.update { it.copy(problem = Problem.NotKept(error.sentence)) }
        }
    }

    companion object {
        /** A file from which sentences are imported may not have more: a phone embeds some hundred sentences a second. */
        const val MOST_SENTENCES = 5_000
        private const val MOST_FILE_BYTES = 8 shl 20
        private const val TOP = 10
        private const val TOLD_EVERY = 8

        /**
         * Returns the prompt of what is looked for. The prompts of a search, for models that have some: what is looked for is
         * embedded with the one named `query`, the sentences with `document` or `passage`, and with the default one where there
         * is none of these names.
         */
        internal fun queryPrompt(signature: Signature): String? = "query".takeIf { it in signature.prompts }

        /** Returns the prompt of the sentences, as [queryPrompt] says. */
        internal fun sentencePrompt(signature: Signature): String? = listOf("document", "passage").firstOrNull { it in signature.prompts }

        private fun lines(text: String) = text.lines().map(String::trim).filter(String::isNotEmpty)

        private fun InputStream.readAtMost(most: Int): ByteArray? {
            val read = java.io.ByteArrayOutputStream()
            val buffer = ByteArray(1 shl 16)
            while (true) {
                val count = read(buffer)
                if (count < 0) return read.toByteArray()
                if (read.size() + count > most) return null
                read.write(buffer, 0, count)
            }
        }
    }
}
