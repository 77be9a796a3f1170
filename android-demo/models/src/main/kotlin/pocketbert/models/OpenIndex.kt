package pocketbert.models

import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.ExperimentalCoroutinesApi
import kotlinx.coroutines.delay
import kotlinx.coroutines.withContext
import pocketbert.core.contract.Files
import pocketbert.core.contract.Model
import pocketbert.core.contract.Signature
import pocketbert.core.search.DamagedIndex
import pocketbert.core.search.FlatIndex
import pocketbert.core.search.IndexSpec
import pocketbert.core.search.OtherSpace
import pocketbert.core.search.Passage
import pocketbert.core.search.Storage
import java.io.File
import java.io.IOException
import java.security.MessageDigest

/**
 * The prompt of what is looked for. A model that has prompts embeds what is looked for with the one named `query`, what is searched
 * with `document` or `passage`, and with the default one where there is none of these names.
 */
internal val Signature.queryPrompt: String? get() = "query".takeIf { it in prompts }

/** The prompt of what is searched, as [queryPrompt] says. */
internal val Signature.documentPrompt: String? get() = listOf("document", "passage").firstOrNull { it in prompts }

/** An index that is searched, off the main thread and by one call at a time. */
internal class OpenIndex private constructor(private val index: FlatIndex, val isOwn: Boolean) {
    @OptIn(ExperimentalCoroutinesApi::class)
    private val thread = Dispatchers.IO.limitedParallelism(1)

    suspend fun size() = withContext(thread) { index.size }

    suspend fun search(query: FloatArray, top: Int) = withContext(thread) { index.search(query, top) }

    suspend fun close() = withContext(thread) { index.close() }

    /**
     * Puts texts into the index, and removes what is none of them; what is there already is passed over, so that it goes on where it
     * was left, be it by a kill.
     *
     * @param worker embeds them; its model's vectors are of the index's space.
     * @param gate says when to rest; it is asked again after [restMs].
     * @param tell is called with how many texts are there, and why it rests.
     */
    suspend fun fill(texts: OwnTexts, worker: Worker, gate: EnergyGate?, restMs: Long, tell: suspend (done: Int, rest: Rest?) -> Unit) {
        val prompt = worker.shelved.model.signature.documentPrompt
        var wanted = LongArray(WINDOW)
        var count = 0
        withContext(Dispatchers.IO) { texts.open() }.use { reading ->
            while (true) {
                val window = withContext(Dispatchers.IO) { reading.next(WINDOW) }
                if (window.isEmpty()) break
                val numbers = window.map(OwnTexts::number)
                if (count + window.size > wanted.size) wanted = wanted.copyOf(2 * wanted.size)
                numbers.forEach { wanted[count++] = it }
                val missing = missing(window.zip(numbers.map(OwnTexts::id)))
                var done = count - missing.size
                // Texts of one length run one after the other: a runtime keeps what it has made ready for that length.
                val lengths = if (missing.isEmpty()) emptyList() else worker.tokens(missing.map { it.first }, prompt)
                for (batch in missing.zip(lengths).sortedBy { it.second }.map { it.first }.chunked(BATCH)) {
                    while (true) {
                        val rest = withContext(Dispatchers.IO) { gate?.rest() } ?: break
                        tell(done, rest)
                        delay(restMs)
                    }
                    tell(done, null)
                    val passages = batch.map { (text, id) ->
                        val answer = worker.ask(Question(text, prompt = prompt)).answer
                        Passage(id, text, (answer as Answer.Embedding).embedding)
                    }
                    withContext(thread) { index.add(passages) }
                    done += batch.size
                }
                tell(count, null)
            }
        }
        wanted = wanted.copyOf(count).also(LongArray::sort)
        withContext(thread) {
            index.retain { wanted.binarySearch(it.toULong(HEXADECIMAL).toLong()) >= 0 }
            // What was removed takes room, and time in every search.
            if (index.rows > 2 * index.size) index.compact()
        }
        tell(count, null)
    }

    private suspend fun missing(texts: List<Pair<String, String>>) =
        withContext(thread) { texts.distinctBy { it.second }.filterNot { (text, id) -> index.has(id, text) } }

    companion object {
        /** Texts that are sorted by length together. */
        private const val WINDOW = 512

        /** Texts that are kept together, and lost together by a kill. */
        private const val BATCH = 32
        private const val HEXADECIMAL = 16
        private const val FOLDER = "index"

        /** The id of a space is the folder's name. */
        private val OWN = Regex("[0-9a-f]{16}")

        /** Opens the index of a person's own texts, and makes it where there is none; the texts are kept, so a damaged one is made anew. */
        suspend fun own(home: File, model: Model): OpenIndex = withContext(Dispatchers.IO) {
            val (spec, width) = spec(model)
            val folder = File(home, spec.space)
            val index = try {
                FlatIndex.openOrCreate(folder, spec, width)
            } catch (_: DamagedIndex) {
                folder.deleteRecursively()
                FlatIndex.openOrCreate(folder, spec, width)
            }
            OpenIndex(index, isOwn = true)
        }

        /** Removes the indexes of texts that a person has given up. */
        suspend fun forget(home: File) = withContext(Dispatchers.IO) {
            home.listFiles().orEmpty().filter { OWN.matches(it.name) }.forEach { it.deleteRecursively() }
        }

        /** A file of an older version, whose vectors no contract describes, is a space of its own. */
        private fun spec(model: Model): Pair<IndexSpec, Int> {
            val signature = model.signature
            val madeBy = "${signature.backend}-${signature.scheme}"
            val (document, query) = signature.documentPrompt to signature.queryPrompt
            val vectors = signature.vectors
            if (vectors != null) return IndexSpec.of(vectors, Storage.INT8, vectors.width, document, query, madeBy) to vectors.width
            val width = checkNotNull(signature.functions.first().outputs.first().shape.last()) { "an embedding has a width" }
            val space = model.entry.digest.take(2 * Long.SIZE_BYTES)
            return IndexSpec(space, width, Storage.FLOAT32, null, isUnitLength = true, document, query, madeBy) to width
        }

        /**
         * Opens the ready index that was shipped with a model, or beside all of them; null where there is none of the model's space.
         *
         * @param home where it is copied to where it lies within the app.
         * @throws pocketbert.core.search.IndexRefused it is damaged.
         */
        suspend fun shipped(files: Files, model: Model, home: File?): OpenIndex? = withContext(Dispatchers.IO) {
            val space = model.signature.vectors ?: return@withContext null
            for (place in listOf("${model.entry.recipe}/$FOLDER", FOLDER)) {
                if (!has(files, "$place/index.json")) continue
                val folder = files.onDisk(place) ?: home?.let { copied(files, place, it) } ?: continue
                try {
                    return@withContext OpenIndex(FlatIndex.open(folder, space), isOwn = false)
                } catch (_: OtherSpace) {
                    continue
                }
            }
            null
        }

        private fun has(files: Files, path: String) = try {
            files.open(path).close()
            true
        } catch (_: IOException) {
            false
        }

        /** Copies an index out of the app once, and returns its folder; what another version of the app left there goes. */
        private fun copied(files: Files, place: String, home: File): File {
            val names = FlatIndex.FILES.filter { has(files, "$place/$it") }
            val digest = MessageDigest.getInstance("SHA-256")
            for (name in names) {
                digest.update(name.toByteArray())
                files.open("$place/$name").use { from -> from.pieces { bytes, count -> digest.update(bytes, 0, count) } }
            }
            val name =
                "shipped-" + place.replace('/', '-') + "-" + digest.digest().take(Long.SIZE_BYTES).joinToString("") { "%02x".format(it) }
            val folder = File(home, name)
            if (folder.isDirectory) return folder
            val before = "shipped-" + place.replace('/', '-')
            home.listFiles().orEmpty().filter { it.name.startsWith(before) }.forEach { it.deleteRecursively() }
            val aside = File(home, "$name.new")
            if (!aside.mkdirs()) throw IOException("the folder $aside cannot be made")
            for (one in names) files.open("$place/$one").use { from -> File(aside, one).outputStream().use { from.copyTo(it) } }
            if (!aside.renameTo(folder)) throw IOException("$aside cannot be renamed")
            return folder
        }

        private fun java.io.InputStream.pieces(take: (ByteArray, Int) -> Unit) {
            val buffer = ByteArray(1 shl 16)
            while (true) {
                val count = read(buffer)
                if (count < 0) return
                take(buffer, count)
            }
        }
    }
}
