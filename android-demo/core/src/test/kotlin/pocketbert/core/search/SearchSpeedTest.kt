package pocketbert.core.search

import org.junit.jupiter.api.Test
import org.junit.jupiter.api.condition.EnabledIfSystemProperty
import org.junit.jupiter.api.io.TempDir
import pocketbert.core.contract.VectorSpace
import java.io.File
import java.util.Random
import kotlin.math.sqrt

/** Times of a search in int8 and float rows, one after the other in one run, for `make search-speed`; nothing is asserted. */
@EnabledIfSystemProperty(named = "pocketbert.search.speed", matches = ".+")
class SearchSpeedTest {
    @TempDir
    lateinit var home: File

    @Test
    fun `times of both storages`() {
        val scales = List(WIDTH) { 5 / sqrt(WIDTH.toDouble()) / 127 }
        val space = VectorSpace("b1946ac92492d234", WIDTH, true, "cosine", listOf(WIDTH), scales)
        val random = Random(1)
        val queries = List(QUERIES) { vector(random) }
        val indexes = Storage.entries.associateWith { storage ->
            FlatIndex.openOrCreate(File(home, storage.word), IndexSpec.of(space, storage, madeBy = "random"), WIDTH)
        }
        val addMs = HashMap<Storage, Double>()
        for (first in 0 until ROWS step BATCH) {
            val batch = List(BATCH) { Passage("${first + it}", "A passage of some words, number ${first + it}.", vector(random)) }
            for ((storage, index) in indexes) addMs.merge(storage, millis { index.add(batch) }, Double::plus)
        }
        val times = Storage.entries.associateWith { ArrayList<Double>() }
        // The first turns are the compiler's.
        repeat(TURNS) { turn ->
            for (query in queries) {
                for ((storage, index) in indexes) {
                    val took = millis { index.search(query, TOP) }
                    if (turn > 0) times.getValue(storage).add(took)
                }
            }
        }
        for ((storage, index) in indexes) {
            val sorted = times.getValue(storage).sorted()
            println(
                "search: {\"storage\": \"${storage.word}\", \"rows\": ${index.rows}, \"width\": $WIDTH, " +
                    "\"search_ms\": ${sorted[sorted.size / 2]}, \"p90_ms\": ${sorted[sorted.size * 9 / 10]}, " +
                    "\"held_kb\": ${index.heldBytes / 1024}, \"add_ms\": ${addMs[storage]}}",
            )
            index.close()
        }
    }

    private fun vector(random: Random): FloatArray {
        val row = DoubleArray(WIDTH) { random.nextGaussian() }
        val length = sqrt(row.sumOf { it * it })
        return FloatArray(WIDTH) { (row[it] / length).toFloat() }
    }

    private fun millis(act: () -> Unit): Double {
        val began = System.nanoTime()
        act()
        return (System.nanoTime() - began) / 1e6
    }

    private companion object {
        const val ROWS = 10_000
        const val WIDTH = 384
        const val BATCH = 500
        const val QUERIES = 20
        const val TURNS = 6
        const val TOP = 10
    }
}
