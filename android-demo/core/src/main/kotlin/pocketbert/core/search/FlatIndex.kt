package pocketbert.core.search

import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import pocketbert.core.WrongJson
import pocketbert.core.contract.VectorSpace
import pocketbert.core.readStrictJson
import pocketbert.core.text
import java.io.ByteArrayOutputStream
import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.BitSet

/** A text with its embedding, which is whole whatever an index keeps of it. */
class Passage(val id: String, val text: String, val embedding: FloatArray)

/** A passage that was found. */
class Hit(val row: Int, val id: String, val text: String, val cosine: Float)

/**
 * Passages in a folder that are searched by comparing a query with each of them (`pipeline/search/flat.py` writes the same files).
 * Vectors are mapped, and texts stay in their file until they are shown. Used from one thread at a time.
 */
class FlatIndex private constructor(private var files: IndexFiles, private val isWhole: Boolean, private val isWritable: Boolean) :
    AutoCloseable {
    private val folder = files.folder
    private val removed = BitSet()
    private var norms = FloatArray(0)
    private var mapped: ByteBuffer? = null
    private var known: Ids? = null

    /** What the index says of itself. */
    val spec get() = files.spec

    /** Rows of the files, removed ones included. */
    val rows get() = files.state.rows

    /** Passages that can be found. */
    val size get() = rows - files.state.removed

    /** Bytes of memory that a search needs: vectors that are mapped, and norms and removals beside them. */
    val heldBytes get() = map().capacity() + norms.size.toLong() * Float.SIZE_BYTES + removed.size() / Byte.SIZE_BITS

    init {
        readRemoved()
    }

    private fun readRemoved() {
        removed.clear()
        files.removed().forEach(removed::set)
        if (removed.cardinality() != files.state.removed) throw DamagedIndex(folder.name, "it removes a row twice")
    }

    /**
     * Returns the passages that are nearest to a query, the nearest first; of equal ones the one that was added first.
     *
     * @param query a whole embedding of a model of the index's space.
     */
    fun search(query: FloatArray, top: Int): List<Hit> {
        val rows = map()
        val found = Scan.nearest(query, rows, this.rows, spec, norms.takeUnless { isWhole }, top, removed)
        return found.map { one -> passage(one.row).let { (id, text) -> Hit(one.row, id, text, one.cosine) } }
    }

    private fun map(): ByteBuffer = mapped ?: files.map().also { rows ->
        if (!isWhole) norms = Scan.norms(rows, this.rows, spec)
        mapped = rows
    }

    private fun passage(row: Int, line: ByteArray = files.line(row)): Pair<String, String> = try {
        readStrictJson(line).let { it.text("id") to it.text("text") }
    } catch (error: WrongJson) {
        throw DamagedIndex(folder.name, "the passage of row $row: ${error.message}")
    }

    private fun ids(): Ids = known ?: Ids(rows) { passage(it).first }.also { ids ->
        files.forLines { row, line ->
            if (removed[row]) return@forLines
            val id = passage(row, line).first
            if (ids.find(id) != null) throw DamagedIndex(folder.name, "it has two passages with the id ${id.take(SHOWN)}")
            ids.put(id, row)
        }
        known = ids
    }

    /** Whether a passage is in the index with this text, so that it needs no embedding. */
    fun has(id: String, text: String): Boolean {
        val row = ids().find(id) ?: return false
        // As UTF-8 keeps it, which has no half of a character.
        return passage(row).second == String(text.toByteArray())
    }

    /**
     * Adds passages, and keeps them: after a kill all of them are there. One whose id is there takes the place of that one.
     *
     * @throws IOException there is no room; the index is as it was.
     * @throws pocketbert.core.output.OutputError an embedding is none that the index can keep.
     */
    fun add(passages: List<Passage>) {
        val new = passages.associateBy { it.id }.values
        if (new.isEmpty()) return
        val ids = ids()
        val vectors = ByteBuffer.allocate(new.size * spec.width * spec.storage.bytes).order(ByteOrder.LITTLE_ENDIAN)
        for (one in new) Scan.store(one.embedding, spec, vectors)
        val lines = new.map { one ->
            val line = linkedMapOf("id" to JsonPrimitive(one.id), "text" to JsonPrimitive(one.text))
            "${JsonObject(line)}\n".toByteArray()
        }
        val first = rows
        val replaced = new.mapNotNull { ids.find(it.id) }
        files.commit(vectors.array(), lines, replaced)
        replaced.forEach(removed::set)
        new.forEachIndexed { number, one -> ids.put(one.id, first + number) }
        mapped = null
    }

    /** Removes passages, where they are there. */
    fun remove(all: Collection<String>) {
        val ids = ids()
        val there = all.distinct().mapNotNull { id -> ids.find(id)?.let { id to it } }
        if (there.isEmpty()) return
        files.commit(ByteArray(0), emptyList(), there.map { it.second })
        for ((id, row) in there) {
            ids.remove(id)
            removed.set(row)
        }
    }

    /** Removes the passages whose id is not wanted. */
    fun retain(isWanted: (id: String) -> Boolean) {
        val unwanted = ArrayList<String>()
        files.forLines { row, line -> if (!removed[row]) passage(row, line).first.let { if (!isWanted(it)) unwanted.add(it) } }
        remove(unwanted)
    }

    /**
     * Writes the index anew without removed rows; the old one stays until the new one is complete.
     *
     * @throws IOException there is no room; the index is as it was.
     */
    fun compact() {
        check(isWritable) { "the index ${folder.name} is open to be read" }
        val new = beside(folder, NEW)
        new.deleteRecursively()
        val target = IndexFiles.create(new, spec)
        try {
            copyTo(target)
            val before = beside(folder, BEFORE)
            before.deleteRecursively()
            if (!folder.renameTo(before)) throw IOException("$folder cannot be renamed")
            if (!new.renameTo(folder)) throw IOException("$new cannot be renamed")
            before.deleteRecursively()
        } catch (error: IOException) {
            target.close()
            throw error
        }
        files.close()
        target.folder = folder
        files = target
        readRemoved()
        known = null
        mapped = null
    }

    private fun copyTo(target: IndexFiles) {
        val rowBytes = spec.width * spec.storage.bytes
        val source = map().duplicate()
        val lines = ArrayList<ByteArray>()
        val vectors = ByteArrayOutputStream()
        val flush = {
            target.commit(vectors.toByteArray(), lines, emptyList())
            vectors.reset()
            lines.clear()
        }
        val row = ByteArray(rowBytes)
        files.forLines { number, line ->
            if (removed[number]) return@forLines
            source.goTo(number * rowBytes)
            source.get(row)
            vectors.write(row)
            lines.add(line)
            if (lines.size == COPIED_AT_ONCE) flush()
        }
        if (lines.isNotEmpty()) flush()
    }

    override fun close() = files.close()

    companion object {
        /** The files of an index, for whoever copies one out of an app. */
        val FILES get() = IndexFiles.FILES
        private const val SHOWN = 60
        private const val COPIED_AT_ONCE = 1_024

        // As `pipeline/search/flat.py` names them.
        private const val NEW = "new"
        private const val BEFORE = "before"

        private fun beside(folder: File, what: String) = File(folder.absoluteFile.parentFile, ".${folder.name}.$what")

        /** Whether a folder holds an index. */
        fun isThere(folder: File): Boolean {
            recover(folder)
            return File(folder, IndexFiles.INDEX).isFile
        }

        /** Puts an index back in its place that was being compacted when the process was killed. */
        private fun recover(folder: File) {
            val before = beside(folder, BEFORE)
            if (before.isDirectory && !folder.exists()) before.renameTo(folder)
        }

        /**
         * Opens an index for a model's vectors.
         *
         * @param space of the model's vectors.
         * @param isWritable whether passages can be added; one at a time writes. What a kill has left is cut off then.
         * @throws OtherSpace the index holds vectors of another space.
         * @throws IndexRefused it is damaged, or somebody else writes it.
         */
        fun open(folder: File, space: VectorSpace, isWritable: Boolean = false): FlatIndex =
            open(folder, space.id, space.width, isWritable) {
                if (it.width !in space.widths || it.isUnitLength != space.isUnitLength || it.isByDot != space.isByDot) {
                    val says = "width ${it.width}, unit_length ${it.isUnitLength} and similarity ${it.similarity}"
                    val model = "${space.widths}, ${space.isUnitLength} and ${space.similarity}"
                    throw DamagedIndex(folder.name, "it says $says, and the model says $model")
                }
            }

        private fun open(folder: File, space: String, width: Int, isWritable: Boolean, check: (IndexSpec) -> Unit): FlatIndex {
            recover(folder)
            val files = IndexFiles.open(folder, isWritable)
            try {
                if (files.spec.space != space) throw OtherSpace(folder.name, files.spec.space, space)
                check(files.spec)
                return FlatIndex(files, files.spec.isUnitLength && files.spec.width == width, isWritable)
            } catch (error: Exception) {
                files.close()
                throw error
            }
        }

        /**
         * Opens an index to write, and makes it where there is none.
         *
         * @param width of a whole vector.
         * @throws OtherSpace the index that is there holds vectors of another space.
         * @throws IndexRefused it is damaged, or somebody else writes it.
         * @throws IOException it cannot be made.
         */
        fun openOrCreate(folder: File, spec: IndexSpec, width: Int): FlatIndex {
            if (!isThere(folder)) IndexFiles.create(folder, spec).close()
            return open(folder, spec.space, width, isWritable = true) {}
        }
    }
}
