package pocketbert.core.search

import kotlinx.serialization.json.JsonObject
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pocketbert.core.VECTORS
import pocketbert.core.child
import pocketbert.core.contract.VectorSpace
import pocketbert.core.doubles
import pocketbert.core.numbers
import pocketbert.core.objects
import pocketbert.core.readJson
import pocketbert.core.text
import pocketbert.core.texts
import java.io.File

/** Indexes of the pipeline give the passages that it gives, and so do those that are written here (`tests/apps/search_cases.py`). */
class SearchCasesTest {
    @Test
    fun `every search is as in Python`() {
        val folders = checkNotNull(File(VECTORS, "search").listFiles()).sorted()
        var searches = 0
        for (folder in folders) {
            val case = readJson(File(folder, "case.json").readText())
            val space = VectorSpace.read(checkNotNull(case.child("vectors")))
            FlatIndex.open(File(folder, "index"), space).use { searches += compare(it, case) }
            // Python opens it when all tests have run.
            val own = File(folder, "kotlin").also { it.deleteRecursively() }
            FlatIndex.openOrCreate(own, IndexSpec.read(checkNotNull(case.child("about"))), space.width).use { index ->
                val passages = case.objects("passages").map { Passage(it.text("id"), it.text("text"), it.floats()) }
                passages.chunked(70).forEach(index::add)
                index.remove(case.texts("removed"))
                compare(index, case)
            }
            assertArrayEquals(File(folder, "index/vectors.bin").readBytes(), File(own, "vectors.bin").readBytes(), folder.name)
        }
        assertTrue(searches > 200, "$searches searches")
        println("search: $searches cases, none differs")
    }

    private fun compare(index: FlatIndex, case: JsonObject): Int {
        for (query in case.objects("queries")) {
            val hits = index.search(query.floats(), query.numbers("rows").size)
            assertEquals(query.numbers("rows"), hits.map { it.row })
            assertEquals(query.texts("texts"), hits.map { it.text })
            query.doubles("cosines").zip(hits).forEach { (wanted, hit) -> assertEquals(wanted, hit.cosine.toDouble(), 1e-6) }
        }
        return case.objects("queries").size
    }

    private fun JsonObject.floats() = doubles("embedding").map(Double::toFloat).toFloatArray()
}
