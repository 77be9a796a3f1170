package pocketbert.core.search

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pocketbert.core.contract.VectorSpace
import pocketbert.core.output.OutputError
import pocketbert.core.output.Outputs
import java.io.File
import java.util.Random
import kotlin.math.abs
import kotlin.math.sqrt

/** The flat index: what is kept, what a kill leaves, what is refused, and what is found. */
class FlatIndexTest {
    @TempDir
    lateinit var home: File

    private fun space(width: Int, isUnitLength: Boolean = true, id: String = "b1946ac92492d234", widths: List<Int> = listOf(width)) =
        VectorSpace(id, width, isUnitLength, "cosine", widths, List(width) { (5 + 0.1 * (it % 7)) / sqrt(width.toDouble()) / 127 })

    private fun vectors(count: Int, width: Int, isUnitLength: Boolean = true, seed: Long = 7): List<FloatArray> {
        val random = Random(seed)
        return List(count) {
            val row = DoubleArray(width) { random.nextGaussian() / sqrt(width.toDouble()) }
            val length = if (isUnitLength) sqrt(row.sumOf { it * it }) else 1 / (0.5 + random.nextDouble())
            FloatArray(width) { at -> (row[at] / length).toFloat() }
        }
    }

    private fun passages(vectors: List<FloatArray>, from: Int = 0) =
        vectors.mapIndexed { number, one -> Passage("id ${from + number}", "Text ${from + number} \"é\u2028😀\"\n.", one) }

    private fun made(space: VectorSpace, storage: Storage, width: Int = space.width, name: String = storage.word) =
        FlatIndex.openOrCreate(File(home, name), IndexSpec.of(space, storage, width, madeBy = "litert-fp32"), space.width)

    private fun FlatIndex.found(query: FloatArray, top: Int = 10) = search(query, top).map { it.id }

    @Test
    fun `what is added is found, replaced and removed, and is there when it is opened again`() {
        val space = space(32)
        val all = passages(vectors(50, 32))
        made(space, Storage.INT8).use { index ->
            index.add(all.take(20))
            index.add(all.drop(20))
            val first = index.search(all[31].embedding, 3).first()
            assertEquals(Triple(31, all[31].id, all[31].text), Triple(first.row, first.id, first.text))
            assertEquals(1f, first.cosine, 0.01f)
            assertTrue(index.has("id 3", all[3].text) && !index.has("id 3", "another") && !index.has("id 99", all[3].text))
            index.add(listOf(Passage("id 31", "New.", all[4].embedding)))
            assertEquals(51 to 50, index.rows to index.size)
            assertEquals(listOf("id 4", "id 31"), index.found(all[4].embedding, 2))
            assertFalse(31 in index.search(all[31].embedding, 50).map { it.row })
            index.remove(listOf("id 4", "id 4", "nobody"))
            assertEquals("id 31", index.found(all[4].embedding, 1).single())
            index.add(listOf(Passage("a", "One.", all[5].embedding), Passage("a", "Two.", all[6].embedding)))
            assertTrue(index.has("a", "Two.") && index.size == 50)
        }
        for (isWritable in listOf(false, true)) {
            FlatIndex.open(File(home, "int8"), space, isWritable).use { index ->
                assertEquals(52 to 50, index.rows to index.size)
                assertEquals("New.", index.search(all[4].embedding, 1).single().text)
            }
        }
        assertThrows(IllegalStateException::class.java) { FlatIndex.open(File(home, "int8"), space).use { it.add(all.take(1)) } }
    }

    @Test
    fun `a kill loses nothing that was committed, and leaves nothing else`() {
        val space = space(16)
        val all = passages(vectors(12, 16))
        val folder = File(home, "int8")
        val index = made(space, Storage.INT8)
        index.add(all.take(5))
        index.remove(listOf("id 1"))
        val before = FlatIndex.FILES.associateWith { File(folder, it).readBytes() }
        index.add(all.drop(5) + Passage("id 0", "Other.", all[1].embedding))
        index.close()
        val after = FlatIndex.FILES.associateWith { File(folder, it).readBytes() }
        val changed = FlatIndex.FILES.filter { before.getValue(it).size < after.getValue(it).size && it != "state.json" }
        assertEquals(listOf("vectors.bin", "passages.jsonl", "offsets.bin", "removed.bin"), changed)
        // Killed while any of them was written, at its first byte, within and behind its last.
        for ((number, name) in changed.withIndex()) {
            val (old, new) = before.getValue(name).size to after.getValue(name).size
            for (size in listOf(old, old + 1, (old + new) / 2, new)) {
                for (one in FlatIndex.FILES) File(folder, one).writeBytes(before.getValue(one))
                for (one in changed.take(number)) File(folder, one).writeBytes(after.getValue(one))
                File(folder, name).writeBytes(after.getValue(name).copyOf(size))
                File(folder, "state.json.new").writeText("{\"rows\": 1")
                FlatIndex.open(folder, space).use { assertEquals(listOf("id 3"), it.found(all[3].embedding, 1)) }
                FlatIndex.open(folder, space, isWritable = true).use {
                    assertEquals(5 to 4, it.rows to it.size)
                    for (one in changed) assertEquals(before.getValue(one).size.toLong(), File(folder, one).length(), one)
                    it.add(all.drop(5) + Passage("id 0", "Other.", all[1].embedding))
                }
                for (one in FlatIndex.FILES) assertEquals(after.getValue(one).toList(), File(folder, one).readBytes().toList(), one)
            }
        }
        // Killed before the first commit.
        File(folder, "state.json").delete()
        changed.forEach { File(folder, it).delete() }
        FlatIndex.open(folder, space, isWritable = true).use { empty ->
            assertEquals(0 to emptyList<Hit>(), empty.size to empty.search(all[0].embedding, 3))
        }
    }

    @Test
    fun `damage is refused with a sentence`() {
        val space = space(16)
        made(space, Storage.INT8).use { index ->
            index.add(passages(vectors(5, 16)))
            index.remove(listOf("id 1", "id 2"))
        }
        val folder = File(home, "int8")
        val whole = FlatIndex.FILES.associateWith { File(folder, it).readBytes() }

        fun refused(name: String, piece: String, act: (FlatIndex) -> Unit = {}, damage: (ByteArray) -> ByteArray?) {
            for ((one, bytes) in whole) File(folder, one).writeBytes(bytes)
            damage(whole.getValue(name).copyOf())?.let { File(folder, name).writeBytes(it) } ?: File(folder, name).delete()
            val error = assertThrows(DamagedIndex::class.java, { FlatIndex.open(folder, space, isWritable = true).use(act) }, piece)
            assertTrue(piece in error.message.orEmpty() && "index the texts again" in error.message.orEmpty(), "${error.message}: $piece")
        }

        fun text(from: String, to: String) = { bytes: ByteArray ->
            check(from in String(bytes))
            String(bytes).replace(from, to).toByteArray()
        }
        for (name in listOf("vectors.bin", "passages.jsonl", "offsets.bin", "removed.bin")) {
            refused(name, "$name has") { it.copyOf(it.size - 1) }
            refused(name, "$name has 0 bytes") { null }
        }
        refused("index.json", "it has no index.json") { null }
        refused("state.json", "and no state.json") { null }
        refused("state.json", "state.json: it cannot be read") { it.copyOf(3) }
        refused("state.json", "cannot be", damage = text("\"removed\":2", "\"removed\":6"))
        refused("state.json", "more is no field", damage = text("{", "{\"more\":1,"))
        refused("index.json", "schema_version is 2", damage = text("\"schema_version\":1", "\"schema_version\":2"))
        refused("index.json", "storage is bits", damage = text("\"int8\"", "\"bits\""))
        refused("index.json", "scales for 15 numbers", damage = text("\"width\":16", "\"width\":15"))
        refused("index.json", "unit_length false", damage = text("\"unit_length\":true", "\"unit_length\":false"))
        refused("index.json", "similarity is near", damage = text("\"similarity\":\"cosine\"", "\"similarity\":\"near\""))
        refused("index.json", "similarity is dot, and of unit", damage = text("\"similarity\":\"cosine\"", "\"similarity\":\"dot\""))
        refused("offsets.bin", "offsets.bin says 0 for row 1") { it.also { bytes -> bytes.fill(0, 8, 16) } }
        refused("offsets.bin", "for row 4") { it.also { bytes -> bytes[34] = 1 } }
        refused("removed.bin", "names row 9 of 5") { it.also { bytes -> bytes[0] = 9 } }
        refused("removed.bin", "removes a row twice") { it.also { bytes -> bytes[0] = bytes[4] } }
        refused("passages.jsonl", "passage of row 0", act = { it.has("id 0", "") }) { it.also { bytes -> bytes[0] = '['.code.toByte() } }
        refused("passages.jsonl", "two passages", act = { it.has("id 0", "") }, damage = text("\"id 3\"", "\"id 0\""))
    }

    @Test
    fun `an index of another space is refused, and so is a second writer`() {
        val folder = File(home, "int8")
        made(space(8), Storage.INT8).use { index ->
            index.add(passages(vectors(3, 8)))
            val busy = assertThrows(IndexInUse::class.java) { FlatIndex.open(folder, space(8), isWritable = true) }
            assertTrue("being written" in busy.message.orEmpty(), busy.message)
            FlatIndex.open(folder, space(8)).use { assertEquals(3, it.size) }
        }
        val other = space(8, id = "0123456789abcdef")
        val error = assertThrows(OtherSpace::class.java) { FlatIndex.open(folder, other) }
        for (piece in listOf("b1946ac92492d234", "0123456789abcdef", "index the texts again", "pocketbert compatible")) {
            assertTrue(piece in error.message.orEmpty(), error.message)
        }
        val spec = IndexSpec.of(other, Storage.INT8, madeBy = "litert-fp32")
        assertThrows(OtherSpace::class.java) { FlatIndex.openOrCreate(folder, spec, 8) }
        FlatIndex.open(folder, space(8), isWritable = true).use { assertEquals(3, it.size) }
    }

    @Test
    fun `an embedding that is none is refused, and nothing is kept of its batch`() {
        made(space(8), Storage.INT8).use { index ->
            val (good, odd) = vectors(1, 8).single() to FloatArray(8) { if (it == 3) Float.NaN else 0f }
            for (bad in listOf(odd, FloatArray(7))) {
                assertThrows(OutputError::class.java) { index.add(listOf(Passage("a", "A.", good), Passage("b", "B.", bad))) }
                assertThrows(OutputError::class.java) { index.search(bad, 1) }
            }
            assertEquals(0, index.rows)
        }
    }

    @Test
    fun `compacting drops what was removed, and a kill in it loses nothing`() {
        val space = space(16)
        val all = passages(vectors(40, 16))
        val folder = File(home, "int8")
        made(space, Storage.INT8).use { index ->
            index.add(all)
            index.retain { it.removePrefix("id ").toInt() % 3 != 0 }
            val found = index.found(all[7].embedding, 30)
            index.compact()
            assertEquals(26 to 26, index.rows to index.size)
            assertEquals(26L * 16, File(folder, "vectors.bin").length())
            assertEquals(found, index.found(all[7].embedding, 30))
            assertThrows(IndexInUse::class.java) { FlatIndex.open(folder, space, isWritable = true) }
            index.add(all.take(1))
            assertEquals("id 0", index.found(all[0].embedding, 1).single())
        }
        // Killed between the two renames, with half a new one.
        assertTrue(folder.renameTo(File(home, ".int8.before")))
        File(home, ".int8.new").mkdir()
        assertTrue(FlatIndex.isThere(folder))
        FlatIndex.open(folder, space, isWritable = true).use { index ->
            assertEquals(27, index.size)
            index.compact()
            assertEquals(27 to "id 0", index.size to index.found(all[0].embedding, 1).single())
        }
        assertEquals(listOf("int8"), home.list().orEmpty().toList())
    }

    @Test
    fun `ranks are those of the numbers that are kept`() {
        for ((isUnitLength, width) in listOf(true to 48, false to 48, true to 24, false to 24)) {
            val space = space(48, isUnitLength, widths = listOf(48, 24))
            val rows = vectors(300, 48, isUnitLength)
            for (storage in Storage.entries) {
                made(space, storage, width, "$isUnitLength $width $storage").use { index ->
                    index.add(passages(rows))
                    for (query in vectors(20, 48, isUnitLength, seed = 9)) {
                        val wanted = rows.map { cosine(query.copyOf(width), kept(it, space, storage, width)) }
                        val found = index.search(query, 300)
                        found.forEach { assertEquals(wanted[it.row], it.cosine.toDouble(), 2e-5, "$isUnitLength $width $storage") }
                        assertTrue(found.zipWithNext().all { (one, next) -> wanted[one.row] > wanted[next.row] - 4e-5 })
                        assertEquals(300, found.map { it.row }.toSet().size)
                    }
                }
            }
        }
        // The floats of a whole index are ranked as a set of sentences is.
        val rows = vectors(100, 48, seed = 3)
        FlatIndex.open(File(home, "true 48 FLOAT32"), space(48, widths = listOf(48, 24)), isWritable = true).use { index ->
            index.remove(List(300) { "id $it" })
            index.add(passages(rows))
            val nearest = Outputs.nearest(rows[5], rows, 10).map { "id ${it.first}" }
            assertEquals(nearest, index.found(rows[5]))
        }
    }

    /** Returns what is kept of a vector, with its length: 1 for a whole one of unit length, whatever rounding makes of it. */
    private fun kept(row: FloatArray, space: VectorSpace, storage: Storage, width: Int): Pair<DoubleArray, Double> {
        val numbers = DoubleArray(width) {
            val number = row[it].toDouble()
            if (storage == Storage.FLOAT32) number else Math.round(number / space.scales[it]).coerceIn(-127, 127) * space.scales[it]
        }
        return numbers to if (space.isUnitLength && width == space.width) 1.0 else sqrt(numbers.sumOf { it * it })
    }

    private fun cosine(query: FloatArray, kept: Pair<DoubleArray, Double>) =
        kept.first.indices.sumOf { query[it] * kept.first[it] } / (kept.second * sqrt(query.sumOf { it.toDouble() * it }))

    @Test
    fun `equal rows come in the order in which they were added`() {
        val one = vectors(1, 8).single()
        for (storage in Storage.entries) {
            made(space(8), storage).use { index ->
                index.add(List(7) { Passage("$it", "Text.", one) })
                assertEquals(listOf("0", "1", "2", "3"), index.found(one, 4))
                assertEquals(emptyList<String>(), index.found(FloatArray(8), 0))
                assertEquals(listOf("0", "1") to 0f, index.search(FloatArray(8), 2).let { found -> found.map { it.id } to found[0].cosine })
            }
        }
    }

    @Test
    fun `the sum of the largest codes stays within 32 bits`() {
        for (width in listOf(384, 1024, 4096)) {
            val ones = VectorSpace("b1946ac92492d234", width, true, "cosine", listOf(width), List(width) { 0.01 })
            made(ones, Storage.INT8, name = "$width").use { index ->
                index.add(listOf(-2f, 2f).map { Passage("$it", "", FloatArray(width) { _ -> it }) })
                val codes = QueryCodes(FloatArray(width) { 2f }, DoubleArray(width) { 0.01 })
                val largest = codes.codes.sumOf { abs(it.toLong()) * 127 }
                assertTrue(largest <= Int.MAX_VALUE && (width < 1024 || largest > Int.MAX_VALUE * 0.999), "$largest at $width")
                assertEquals(listOf("2.0", "-2.0"), index.found(FloatArray(width) { 2f }))
                assertEquals(listOf("-2.0", "2.0"), index.found(FloatArray(width) { -2f }))
            }
        }
    }

    @Test
    fun `an int8 index needs a quarter of the memory`() {
        for (width in listOf(384, 192)) {
            val (int8, float32) = listOf(Storage.INT8, Storage.FLOAT32).map { storage ->
                made(space(384, widths = listOf(384, 192)), storage, width, "$storage $width").use { index ->
                    index.add(passages(vectors(500, 384)))
                    index.heldBytes
                }
            }
            assertTrue(float32 >= 3.9 * int8, "$float32 and $int8 at $width")
            println("memory of 500 rows of $width: $float32 bytes as float32, $int8 as int8")
        }
    }

    @Test
    fun `ids are found whatever was put and removed before`() {
        val names = ArrayList<String>()
        val (ids, wanted) = Ids(0, names::get) to HashMap<String, Int>()
        val random = Random(5)
        repeat(20_000) {
            val id = "${random.nextInt(900)}"
            if (random.nextInt(3) == 0) {
                ids.remove(id)
                wanted.remove(id)
            } else {
                names.add(id)
                ids.put(id, names.size - 1)
                wanted[id] = names.size - 1
            }
            val asked = "${random.nextInt(900)}"
            assertEquals(wanted[asked], ids.find(asked))
        }
        for (id in 0 until 900) assertEquals(wanted["$id"], ids.find("$id"))
    }
}
