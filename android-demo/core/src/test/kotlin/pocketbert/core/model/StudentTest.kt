package pocketbert.core.model

import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.int
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pocketbert.core.VECTORS
import pocketbert.core.contract.Folder
import pocketbert.core.contract.Golden
import pocketbert.core.contract.GoldenRow
import pocketbert.core.contract.Listed
import pocketbert.core.contract.Model
import pocketbert.core.contract.Models
import pocketbert.core.contract.NoSuchPrompt
import pocketbert.core.contract.PaddedRow
import pocketbert.core.contract.Policy
import pocketbert.core.contract.TrustedKeys
import pocketbert.core.objects
import pocketbert.core.output.NamedValue
import pocketbert.core.output.OutputError
import pocketbert.core.output.Outputs
import pocketbert.core.readJson
import pocketbert.core.text
import pocketbert.core.textOrNull
import java.io.File

/** What a student gives a runtime and makes of its numbers, by the facts of its signature (`tests/apps/contract.py`). */
class StudentTest {
    private val home = File(VECTORS, "contract")

    /** Opens a model of a folder in a runtime that gives the same numbers for every row, and remembers the rows. */
    private fun student(folder: String, place: Int, vararg numbers: Float): Pair<Student, List<PaddedRow>> {
        val listed = Models.open(Folder(File(home, folder)), Policy(TrustedKeys(emptyList()), unsigned = true))[place]
        val model = (listed as Listed.Usable).model
        val rows = ArrayList<PaddedRow>()
        val runner = object : Runner {
            override val delegate: String? = null
            override val shareByUnit: Map<String, Double>? = null
            override val poolThreads: Int? = null

            override fun run(row: PaddedRow): Map<String, FloatArray> {
                rows.add(row)
                return row.function.outputs.associate { it.name to numbers }
            }

            override fun close() = Unit
        }
        val runtime = object : Runtime {
            override val name = "Same"
            override val version = "1.0"
            override val backend = model.signature.backend

            override fun open(model: Model, options: RunnerOptions) = runner
        }
        return Student.open(model, runtime) to rows
    }

    private fun embedder() = student("whole", 1, *FloatArray(WIDTH) { 1f })

    private fun PaddedRow.input(name: String) = inputs.getValue(name).toList()

    @Test
    fun `a prompt stands before the text, and is not pooled where the signature says so`() {
        val (student, rows) = embedder()
        val cases = readJson(File(home, "cases.json").readText()).objects("prompts")
        for (case in cases) {
            val prompt = case.textOrNull("prompt")
            val tokens = student.embedding(case.text("text"), prompt).tokens
            val (ids, mask) = listOf("ids", "mask").map { name -> (case[name] as JsonArray).map { (it as JsonPrimitive).int } }
            assertEquals(ids, rows.last().input("input_ids"), "$case")
            assertEquals(mask, rows.last().input("attention_mask"), "$case")
            assertEquals(ids.size, tokens)
            val whole = student.tokens(case.text("text"), prompt = prompt)
            assertEquals(ids.size, minOf(whole, student.model.signature.maxLength))
        }
        assertTrue(cases.size > LEAST && rows.any { 2 in it.input("attention_mask") })
        println("prompts: ${cases.size} cases, none differs")
    }

    @Test
    fun `a prompt that there is none of is said with those that there are`() {
        val error = assertThrows(NoSuchPrompt::class.java) { embedder().first.embedding("A text.", "passage") }
        assertEquals("there is no prompt passage for model.pte; it has document, nothing, query", error.message)
        val none = assertThrows(NoSuchPrompt::class.java) { student("whole", 0).first.tokens("A text.", prompt = "query") }
        assertEquals("there is no prompt query for model.tflite; it has none", none.message)
    }

    @Test
    fun `the self-test takes the prompt of each row, and none where a row has none`() {
        val (student, rows) = embedder()
        val golden = student.model.golden()
        val sized = golden.rows.map { row ->
            row.run { GoldenRow(first, second, window, ids, types, FloatArray(WIDTH) { 1f }, prompt) }
        }
        val verdict = student.check(Golden(golden.task, golden.maxLength, golden.minCosine, null, sized))
        assertEquals(emptyList<String>(), verdict.failures)
        assertEquals(setOf(null, "query", "document", "nothing"), golden.rows.map { it.prompt }.toSet())
        val unpooled = golden.rows.zip(rows) { row, padded -> row.prompt to (2 in padded.input("attention_mask")) }.toSet()
        assertEquals(setOf(null to false, "query" to true, "document" to true, "nothing" to false), unpooled)
        // The same rows without their prompts are other rows.
        val others = sized.map { row -> row.run { GoldenRow(first, second, window, ids, types, output) } }
        val wrong = student.check(Golden(golden.task, golden.maxLength, golden.minCosine, null, others))
        assertEquals(listOf("other ids for \"Thanks!\""), wrong.failures)
    }

    @Test
    fun `each label is decided by itself`() {
        val shares = student("multi_label", 0, 0f, 2f, -1f).first.labels("A text.").value
        // The thresholds are 0.2, 0.9 and 0.5.
        assertEquals(listOf("neutral" to false, "negative" to true, "positive" to false), shares.map { it.label to it.isGiven })
        assertEquals(listOf(2.0, 0.0, -1.0).map(Outputs::sigmoid), shares.map { it.share })
        val softmax = student("whole", 0, 0f, 2f, -1f).first.labels("A text.").value
        assertEquals(listOf("neutral" to null, "negative" to null, "positive" to null), softmax.map { it.label to it.isGiven })
    }

    @Test
    fun `numbers of a regression go through its activation, and golden rows do not`() {
        val (one, _) = student("value", 0, 0f, 2f, -1f)
        assertEquals(0.5f, one.value("A text.", "Another.").value)
        val (several, rows) = student("values", 0, 0f, 2f, -1f)
        val wanted = listOf(NamedValue("negative", 0.5f), NamedValue("neutral", 0.8807971f), NamedValue("positive", 0.26894143f))
        assertEquals(wanted, several.values("A text.").value)
        assertEquals(listOf(0f, 2f, -1f), several.output(several.model.tokenizer().encode("A text.")).toList())
        assertEquals(2, rows.size)
        assertEquals(0.25f, student("value", 0, -1.0986123f, 0f, 0f).first.value("A text.").value, 1e-6f)
        assertThrows(OutputError::class.java) { one.values("A text.") }
    }

    private companion object {
        const val WIDTH = 8
        const val LEAST = 50
    }
}
