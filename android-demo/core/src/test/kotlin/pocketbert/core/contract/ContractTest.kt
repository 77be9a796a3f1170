package pocketbert.core.contract

import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import pocketbert.core.VECTORS
import pocketbert.core.child
import pocketbert.core.objects
import pocketbert.core.readJson
import pocketbert.core.text
import pocketbert.core.textOrNull
import pocketbert.core.texts
import java.io.File

/** Shipped folders, whole and spoilt (`tests/apps/contract.py`): what is read, and why the rest is refused. */
class ContractTest {
    private val home = File(VECTORS, "contract")

    /** Nothing here is signed; `SignedBundleTest` has what is. */
    private fun open(folder: String) = Models.open(Folder(File(home, folder)), Policy(TrustedKeys(emptyList()), unsigned = true))

    @TestFactory
    fun cases(): List<DynamicTest> {
        val cases = readJson(File(home, "cases.json").readText()).objects("cases")
        assertTrue(cases.size > 20, "there are ${cases.size} cases")
        println("contract: ${cases.size} cases")
        return cases.map { case ->
            DynamicTest.dynamicTest(case.text("folder")) {
                val folder = case.text("folder")
                val error = case.textOrNull("error")
                if (error != null) {
                    says(error, assertThrows(UnreadableFile::class.java) { open(folder) })
                } else {
                    val listed = open(folder)
                    val broken = checkNotNull(case.child("broken"))
                    val usable = listed.filterIsInstance<Listed.Usable>().map { it.model }
                    assertEquals(case.texts("usable"), usable.map { it.entry.folder })
                    val refused = listed.filterIsInstance<Listed.Broken>()
                    assertEquals(broken.keys, refused.map { it.entry.folder }.toSet())
                    for (one in refused) says(broken.text(one.entry.folder), one.error)
                    val fails = checkNotNull(case.child("fails"))
                    for (model in usable) {
                        val files = listOf("json", "bin").map { "${model.entry.folder}/tokenizer.$it" }
                        read(files.firstNotNullOfOrNull(fails::textOrNull)) { model.tokenizer() }
                        read(fails.textOrNull("${model.entry.folder}/golden.json")) { model.golden() }
                        val config = fails.textOrNull("${model.entry.folder}/config.json") ?: continue
                        read(config) { model.pad(model.tokenizer().encode("words")) }
                    }
                }
            }
        }
    }

    private fun says(piece: String, error: Unusable) =
        assertTrue(error.message.orEmpty().contains(piece), "${error.message} does not say $piece")

    private fun read(fails: String?, act: () -> Unit) {
        if (fails == null) act() else says(fails, assertThrows(UnreadableFile::class.java, act))
    }

    @Test
    fun `golden ids are what the tokenizer gives, at the length that fits`() {
        for (listed in open("whole")) {
            val model = (listed as Listed.Usable).model
            val tokenizer = model.tokenizer()
            val golden = model.golden()
            assertTrue(golden.rows.size > 10)
            for (row in golden.rows) {
                val before = model.signature.promptText(row.prompt.orEmpty())
                val encoded = tokenizer.encode(before + row.first, row.second, minOf(golden.maxLength, model.signature.maxLength))
                assertEquals(row.ids, encoded.ids.toList(), row.first)
                assertEquals(row.types, encoded.types.toList(), row.first)
                val padded = model.pad(encoded)
                assertTrue(padded.length >= encoded.size && padded.length in padded.function.minLength..padded.function.maxLength)
                assertEquals(encoded.size, padded.inputs.getValue("attention_mask").sum())
                assertArrayEquals(encoded.ids, padded.inputs.getValue("input_ids").copyOf(encoded.size))
                assertTrue(padded.inputs.values.all { it.size == padded.length })
            }
            assertArrayEquals(floatArrayOf(0.5f, -1.25e-7f, 3f), golden.rows[0].output)
            assertEquals(1L shl 32, model.entry.bytes)
            assertThrows(RowTooLong::class.java) { model.signature.choose(65) }
        }
    }

    @Test
    fun `the smallest length that fits is chosen`() {
        val (fixed, free) = open("whole").map { (it as Listed.Usable).model.signature }
        assertEquals(listOf(16, 16, 32, 64), listOf(1, 16, 17, 64).map { fixed.choose(it).second })
        assertEquals(listOf(1, 17, 64), listOf(1, 17, 64).map { free.choose(it).second })
    }

    @Test
    fun `weights that nobody trained are said to be random`() {
        assertEquals(listOf(false, true), open("whole").map { (it as Listed.Usable).model.hasRandomWeights })
    }
}
