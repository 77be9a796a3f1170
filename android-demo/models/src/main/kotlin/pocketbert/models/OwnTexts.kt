package pocketbert.models

import java.io.BufferedReader
import java.io.ByteArrayOutputStream
import java.io.File
import java.io.IOException
import java.io.InputStream
import java.io.InputStreamReader
import java.nio.ByteBuffer
import java.nio.charset.CharacterCodingException
import java.security.MessageDigest

/**
 * A person's texts, one on each line of a file, of which there are so many that they are never in memory together.
 *
 * @property home the app's folder for indexes.
 */
internal class OwnTexts(home: File) {
    private val file = File(home, "texts.txt")
    private val aside = File(home, "texts.new")
    val isThere get() = file.isFile

    /** A file is larger than is taken. */
    class TooLarge : Exception()

    /** A file is no text. */
    class NotText : Exception()

    /**
     * Copies texts beside those that are kept, and returns how many there are.
     *
     * @throws TooLarge there are too many bytes.
     * @throws NotText it is no UTF-8.
     * @throws IOException it cannot be read, or there is no room.
     */
    fun take(open: () -> InputStream): Int {
        aside.parentFile?.mkdirs()
        open().use { from -> aside.outputStream().use { to -> copy(from, MOST_BYTES, to::write) } }
        return try {
            count(aside)
        } catch (_: CharacterCodingException) {
            throw NotText()
        }
    }

    /** Returns the texts that [take] has copied, where there are few. */
    fun taken(): List<String> = reader(aside).use { lines -> texts(lines).toList() }

    /** Keeps what [take] has copied in place of the texts that were there. */
    fun keep() {
        if (!aside.renameTo(file)) throw IOException("$file cannot be written")
    }

    /** Forgets what [take] has copied. */
    fun drop() {
        aside.delete()
    }

    /** Forgets the texts. */
    fun remove() {
        drop()
        file.delete()
    }

    /** Returns how many texts are kept. */
    fun count(): Int = count(file)

    private fun count(of: File): Int = reader(of).use { lines -> texts(lines).count() }

    /** Opens the texts, the first ones where there are too many; close it. */
    fun open(): Reading = Reading(reader(file))

    /** Texts that are read one window after the other. */
    class Reading(private val lines: BufferedReader) : AutoCloseable by lines {
        private val texts = texts(lines).take(SearchModel.MOST_TEXTS).iterator()

        /** Returns the next texts; none at the end. */
        fun next(most: Int): List<String> {
            val window = ArrayList<String>()
            while (window.size < most && texts.hasNext()) window.add(texts.next())
            return window
        }
    }

    companion object {
        const val MOST_BYTES = 64L shl 20

        /**
         * Returns the text of a file that is kept in memory.
         *
         * @throws TooLarge there are more bytes than [most].
         * @throws NotText it is no UTF-8.
         * @throws IOException it cannot be read.
         */
        fun read(most: Long, open: () -> InputStream): String {
            val bytes = ByteArrayOutputStream()
            open().use { copy(it, most, bytes::write) }
            try {
                return Charsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes.toByteArray())).toString()
            } catch (_: CharacterCodingException) {
                throw NotText()
            }
        }

        private fun copy(from: InputStream, most: Long, write: (ByteArray, Int, Int) -> Unit) {
            val buffer = ByteArray(1 shl 16)
            var all = 0L
            while (true) {
                val count = from.read(buffer)
                if (count < 0) return
                all += count
                if (all > most) throw TooLarge()
                write(buffer, 0, count)
            }
        }

        private fun reader(file: File) = BufferedReader(InputStreamReader(file.inputStream(), Charsets.UTF_8.newDecoder()))

        private fun texts(lines: BufferedReader) = lines.lineSequence().map(String::trim).filter(String::isNotEmpty)

        /** Returns the number that is a text's id, so that a text that is there in another file as well is embedded once. */
        fun number(text: String): Long =
            MessageDigest.getInstance("SHA-256").digest(text.toByteArray()).take(Long.SIZE_BYTES).fold(0L) { sum, byte ->
                (sum shl Byte.SIZE_BITS) or (byte.toLong() and 0xFF)
            }

        /** Returns a text's id as an index has it. */
        fun id(number: Long): String = number.toULong().toString(HEXADECIMAL).padStart(2 * Long.SIZE_BYTES, '0')

        private const val HEXADECIMAL = 16
    }
}
