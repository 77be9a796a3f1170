package pocketbert.core.search

import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import pocketbert.core.WrongJson
import pocketbert.core.long
import pocketbert.core.readStrictJson
import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.channels.FileChannel
import java.nio.channels.FileLock
import java.nio.channels.OverlappingFileLockException
import java.nio.file.Files
import java.nio.file.StandardCopyOption.ATOMIC_MOVE
import java.nio.file.StandardCopyOption.REPLACE_EXISTING
import java.nio.file.StandardOpenOption.CREATE
import java.nio.file.StandardOpenOption.READ
import java.nio.file.StandardOpenOption.TRUNCATE_EXISTING
import java.nio.file.StandardOpenOption.WRITE

/** What `state.json` says is in an index: so many rows, bytes of text and removals count, and what is behind them does not. */
internal class IndexState(val rows: Int, val textBytes: Long, val removed: Int) {
    fun json() = JsonObject(
        linkedMapOf("rows" to JsonPrimitive(rows), "text_bytes" to JsonPrimitive(textBytes), "removed" to JsonPrimitive(removed)),
    )

    companion object {
        private val KEYS = setOf("rows", "text_bytes", "removed")

        fun read(json: JsonObject): IndexState {
            val (rows, bytes, removed) = KEYS.map { json.long(it) }
            (json.keys - KEYS).firstOrNull()?.let { throw WrongJson("$it is no field of it; there are $KEYS") }
            if (rows !in 0..Int.MAX_VALUE || bytes < 0 || removed !in 0..rows || (rows == 0L) != (bytes == 0L)) {
                throw WrongJson("$rows rows, $bytes bytes of text and $removed removed ones cannot be")
            }
            return IndexState(rows.toInt(), bytes, removed.toInt())
        }
    }
}

/**
 * The files of an index. What is appended counts from [commit] on, which is one rename; what a kill has left behind the last one
 * is cut off by whoever opens the index to write next, and never read.
 */
internal class IndexFiles private constructor(folder: File, val spec: IndexSpec, private val isWritable: Boolean) : AutoCloseable {
    /** Where it is; what is open stays so where the folder is renamed. */
    var folder = folder
    private var lock: FileLock? = null
    private val channels = HashMap<String, FileChannel>()
    private val rowBytes = spec.width.toLong() * spec.storage.bytes
    var state = IndexState(0, 0, 0)
        private set

    private fun sizes(state: IndexState) = mapOf(
        VECTORS to state.rows * rowBytes,
        PASSAGES to state.textBytes,
        OFFSETS to state.rows.toLong() * Long.SIZE_BYTES,
        REMOVED to state.removed.toLong() * Int.SIZE_BYTES,
    )

    private fun open() {
        if (isWritable) lock()
        val stored = File(folder, STATE)
        if (stored.isFile) {
            state = json(stored, IndexState::read)
        } else {
            // Who made it was killed before the first commit; data without one is something else.
            DATA.firstOrNull { File(folder, it).length() > 0 }?.let { throw DamagedIndex(folder.name, "it has $it and no $STATE") }
        }
        for ((name, size) in sizes(state)) {
            val file = File(folder, name)
            val there = file.length()
            if (there < size) throw DamagedIndex(folder.name, "$name has $there bytes, and $STATE says $size")
            if (!isWritable && !file.isFile) continue
            val channel = if (isWritable) FileChannel.open(file.toPath(), READ, WRITE, CREATE) else FileChannel.open(file.toPath(), READ)
            channels[name] = channel
            if (isWritable && there > size) channel.truncate(size)
        }
        checkOffsets()
    }

    private fun lock() {
        val channel = FileChannel.open(File(folder, LOCK).toPath(), WRITE, CREATE)
        channels[LOCK] = channel
        lock = try {
            channel.tryLock()
        } catch (_: OverlappingFileLockException) {
            null
        } ?: throw IndexInUse(folder.name)
    }

    /** A line that begins where another one does not end would show a passage beside a vector of another one. */
    private fun checkOffsets() {
        var before = -1L
        forOffsets { row, offset ->
            val fits = if (row == 0) offset == 0L else offset > before
            if (!fits || offset >= state.textBytes) throw DamagedIndex(folder.name, "$OFFSETS says $offset for row $row")
            before = offset
        }
    }

    private fun forOffsets(act: (row: Int, offset: Long) -> Unit) {
        var row = 0
        while (row < state.rows) {
            val count = minOf(OFFSETS_AT_ONCE, state.rows - row)
            val buffer = read(OFFSETS, row.toLong() * Long.SIZE_BYTES, count * Long.SIZE_BYTES)
            repeat(count) { act(row + it, buffer.getLong()) }
            row += count
        }
    }

    /** Calls back with each row's line, one after the other. */
    fun forLines(act: (row: Int, line: ByteArray) -> Unit) {
        var from = 0L
        forOffsets { row, offset ->
            if (row > 0) act(row - 1, lineAt(from, offset))
            from = offset
        }
        if (state.rows > 0) act(state.rows - 1, lineAt(from, state.textBytes))
    }

    /** Returns a row's line of `passages.jsonl`. */
    fun line(row: Int): ByteArray {
        val isLast = row == state.rows - 1
        val offsets = read(OFFSETS, row.toLong() * Long.SIZE_BYTES, if (isLast) Long.SIZE_BYTES else 2 * Long.SIZE_BYTES)
        val from = offsets.getLong()
        return lineAt(from, if (isLast) state.textBytes else offsets.getLong())
    }

    private fun lineAt(from: Long, to: Long): ByteArray {
        if (to - from > LONGEST_LINE) throw DamagedIndex(folder.name, "$PASSAGES has a line of ${to - from} bytes")
        return read(PASSAGES, from, (to - from).toInt()).array()
    }

    /** Returns the rows that were removed, in the order of their removal. */
    fun removed(): IntArray {
        val buffer = read(REMOVED, 0, state.removed * Int.SIZE_BYTES)
        return IntArray(state.removed) {
            val row = buffer.getInt()
            if (row !in 0 until state.rows) throw DamagedIndex(folder.name, "$REMOVED names row $row of ${state.rows}")
            row
        }
    }

    /** Returns the vectors as they lie in the file, mapped: the system brings in what is read, and takes it back. */
    fun map(): ByteBuffer {
        if (state.rows == 0) return ByteBuffer.allocate(0)
        val size = state.rows * rowBytes
        if (size > Int.MAX_VALUE) throw DamagedIndex(folder.name, "$VECTORS has more than ${Int.MAX_VALUE} bytes, which cannot be mapped")
        return channels.getValue(VECTORS).map(FileChannel.MapMode.READ_ONLY, 0, size).order(ByteOrder.LITTLE_ENDIAN)
    }

    private fun read(name: String, from: Long, bytes: Int): ByteBuffer {
        val buffer = ByteBuffer.allocate(bytes).order(ByteOrder.LITTLE_ENDIAN)
        while (buffer.hasRemaining()) {
            val count = channels.getValue(name).read(buffer, from + buffer.position())
            if (count < 0) throw DamagedIndex(folder.name, "$name ends at ${from + buffer.position()}")
        }
        return ByteBuffer.wrap(buffer.array()).order(ByteOrder.LITTLE_ENDIAN)
    }

    /**
     * Appends rows and removals, and commits them: all that is appended here counts after a kill, or nothing of it.
     *
     * @param vectors as many rows as there are [lines].
     * @param removed numbers of rows, which may be among the new ones.
     * @throws IOException there is no room; the index is as it was.
     */
    fun commit(vectors: ByteArray, lines: List<ByteArray>, removed: List<Int>) {
        check(isWritable) { "the index ${folder.name} is open to be read" }
        val texts = ByteBuffer.allocate(lines.sumOf { it.size })
        val offsets = ByteBuffer.allocate(lines.size * Long.SIZE_BYTES).order(ByteOrder.LITTLE_ENDIAN)
        for (line in lines) {
            offsets.putLong(state.textBytes + texts.position())
            texts.put(line)
        }
        val removals = ByteBuffer.allocate(removed.size * Int.SIZE_BYTES).order(ByteOrder.LITTLE_ENDIAN)
        removed.forEach(removals::putInt)
        val sizes = sizes(state)
        val new = IndexState(state.rows + lines.size, state.textBytes + texts.capacity(), state.removed + removed.size)
        val appended = mapOf(VECTORS to ByteBuffer.wrap(vectors), PASSAGES to texts, OFFSETS to offsets, REMOVED to removals)
        for ((name, bytes) in appended) write(channels.getValue(name), ByteBuffer.wrap(bytes.array()), sizes.getValue(name))
        replace(folder, STATE, new.json())
        state = new
    }

    private fun write(channel: FileChannel, bytes: ByteBuffer, from: Long) {
        if (!bytes.hasRemaining()) return
        var at = from
        while (bytes.hasRemaining()) at += channel.write(bytes, at)
        channel.force(false)
    }

    override fun close() {
        lock?.release()
        channels.values.forEach(FileChannel::close)
    }

    companion object {
        const val INDEX = "index.json"
        private const val STATE = "state.json"
        private const val LOCK = "lock"
        private const val VECTORS = "vectors.bin"
        private const val PASSAGES = "passages.jsonl"
        private const val OFFSETS = "offsets.bin"
        private const val REMOVED = "removed.bin"
        private val DATA = listOf(VECTORS, PASSAGES, OFFSETS, REMOVED)

        /** What an index consists of, for whoever copies one. */
        val FILES = listOf(INDEX, STATE) + DATA
        private const val LONGEST_LINE = 64 shl 20
        private const val OFFSETS_AT_ONCE = 8_192

        /** @throws IndexRefused it is damaged, or somebody else writes it. */
        fun open(folder: File, isWritable: Boolean): IndexFiles {
            val stored = File(folder, INDEX)
            if (!stored.isFile) throw DamagedIndex(folder.name, "it has no $INDEX")
            val files = IndexFiles(folder, json(stored, IndexSpec::read), isWritable)
            try {
                files.open()
            } catch (error: Exception) {
                files.close()
                throw error
            }
            return files
        }

        /** Makes an empty index. @throws IOException it cannot be written. */
        fun create(folder: File, spec: IndexSpec): IndexFiles {
            if (!folder.isDirectory && !folder.mkdirs()) throw IOException("the folder $folder cannot be made")
            replace(folder, INDEX, spec.json())
            replace(folder, STATE, IndexState(0, 0, 0).json())
            return open(folder, isWritable = true)
        }

        private fun <T> json(file: File, read: (JsonObject) -> T): T = try {
            read(readStrictJson(file.readBytes()))
        } catch (error: WrongJson) {
            throw DamagedIndex(checkNotNull(file.parentFile).name, "${file.name}: ${error.message}")
        }

        /** Writes beside the place and renames, so that a reader finds all of it or what was there. */
        private fun replace(folder: File, name: String, json: JsonObject) {
            val (aside, place) = File(folder, "$name.new").toPath() to File(folder, name).toPath()
            FileChannel.open(aside, WRITE, CREATE, TRUNCATE_EXISTING).use { channel ->
                val bytes = ByteBuffer.wrap("$json\n".toByteArray())
                while (bytes.hasRemaining()) channel.write(bytes)
                channel.force(true)
            }
            Files.move(aside, place, ATOMIC_MOVE, REPLACE_EXISTING)
        }
    }
}
