package pocketbert.models

import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.io.InputStream

/** Memory while texts are indexed. */
class SearchMemoryTest {
    @TempDir
    lateinit var home: File

    /** More of them by `-Dpocketbert.search.texts=100000`. */
    private val texts = System.getProperty("pocketbert.search.texts").orEmpty().toIntOrNull() ?: 20_000

    @Test
    fun `the number of texts does not decide the memory that indexing takes`() = Served.test {
        Served.orSkip()
        val bag = BagOfTokens("executorch", Served.runtime("executorch").version, keepsLengths = false)
        val search = SearchModel(home = home)
        val model = TryModel(Served.usable(mapOf("executorch" to bag)), search, this, warmRuns = 0)
        model.choose("near/executorch-int8_dynamic")
        search.importFrom("notes.txt") { Lines(texts) }
        model.ask()
        val used = ArrayList<Pair<Int, Long>>()
        for (share in 1..SAMPLES) {
            val count = texts * share / SAMPLES
            eventually("$count texts are in the index") { (search.set.value.index?.passages ?: 0) >= count }
            // What is garbage is no growth.
            repeat(3) { System.gc() }
            used.add(count to Runtime.getRuntime().run { totalMemory() - freeMemory() })
        }
        eventually("the index is full") { search.set.value.index?.texts == null }
        model.leave()
        val told = used.joinToString { (count, bytes) -> "$count texts ${bytes / 1024} kB" }
        println("memory while texts of $CHARACTERS characters are indexed: $told")
        // What is under way when memory is read is no growth either: of each half the lower reading counts.
        val (before, after) = used.chunked(SAMPLES / 2).map { half -> half.minOf { it.second } }
        val perText = (after - before) / (texts / 2)
        // A text has half a thousand bytes, and its embedding a thousand and a half; an id has twelve, and eight while they are compared.
        assertTrue(perText < 250, "$perText bytes a text: $told")
    }

    /** A file of texts that is never in memory as a whole. */
    private class Lines(private val count: Int) : InputStream() {
        private var number = 0
        private var line = ByteArray(0)
        private var at = 0

        override fun read(): Int {
            if (at == line.size) {
                if (number == count) return -1
                line = "Note ${number++} ${"of a day that was long ".repeat(CHARACTERS / 23)}\n".toByteArray()
                at = 0
            }
            return line[at++].toInt()
        }
    }

    private companion object {
        const val CHARACTERS = 500
        const val SAMPLES = 4
    }
}
