package pocketbert.models

import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.contentOrNull
import kotlinx.serialization.json.double
import kotlinx.serialization.json.float
import kotlinx.serialization.json.int
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNotNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assumptions.assumeTrue
import org.junit.jupiter.api.BeforeEach
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pocketbert.core.Cancellation
import pocketbert.core.contract.State
import pocketbert.core.output.Found
import java.io.File

/** The real students through the view models of the screens: every answer is Python's (`tests/apps/end_to_end.py`). */
class EndToEndTest {
    @TempDir
    lateinit var home: File

    @BeforeEach
    fun `students are there`() = assumeTrue(Served.areThere, "`make apps-check` makes the students and serves the runtimes")

    @Test
    fun `every answer is as in Python`() = Served.test {
        val rows = Served.cases.getValue("rows").jsonArray.map { it.jsonObject }.groupBy { it.getValue("model").jsonPrimitive.content }
        val shelf = Shelf.open(Served.equipment(home))
        assertEquals(rows.keys, shelf.usable.map { it.id }.toSet())
        val search = SearchModel().apply { replace("A sentence.") }
        val tries = TryModel(shelf.usable, search, this)
        for ((model, cases) in rows) {
            tries.choose(model)
            for (row in cases) {
                val first = row.getValue("first").jsonPrimitive.content
                tries.writeFirst(first)
                tries.writeSecond(row["second"]?.jsonPrimitive?.contentOrNull.orEmpty())
                tries.ask()
                tries.settled()
                val state = tries.form.value.state
                val reply = (state as? TryModel.State.Answered)?.reply
                assertNotNull(reply, "$model, $first: ${(state as? TryModel.State.Failed)?.why}")
                compare(row, checkNotNull(reply), first)
            }
        }
        tries.cancel()
        println("view models: ${rows.values.sumOf { it.size }} answers of ${rows.size} files, none differs")
    }

    private fun compare(row: JsonObject, reply: Reply, text: String) {
        val wanted = row.getValue("answer").jsonArray
        when (val answer = reply.answer) {
            is Answer.Embedding -> assertArrayEquals(wanted.map { it.jsonPrimitive.float }.toFloatArray(), answer.embedding, text)
            is Answer.Value -> assertEquals(wanted[0].jsonPrimitive.float, answer.value, text)
            is Answer.Labels -> {
                assertEquals(wanted.map { it.jsonArray[0].jsonPrimitive.content }, answer.shares.map { it.label }, text)
                wanted.zip(answer.shares) { one, share -> assertEquals(one.jsonArray[1].jsonPrimitive.double, share.share, CLOSE, text) }
            }
            is Answer.Entities -> compare(wanted.map { it.jsonArray }, answer.found, text)
            is Answer.Span -> compare(listOf(wanted), listOfNotNull(answer.found), text)
            Answer.Hidden -> error("the students are trained")
        }
        assertEquals(
            row.getValue("tokens").jsonPrimitive.int to row.getValue("length").jsonPrimitive.int,
            reply.tokens to reply.length,
            text,
        )
        assertTrue(reply.tokenizeMs >= 0 && reply.inferenceMs > 0 && reply.openedMs > 0)
    }

    private fun compare(wanted: List<JsonArray>, found: List<Found>, text: String) {
        val places = wanted.map { Triple(it[0].jsonPrimitive.int, it[1].jsonPrimitive.int, it.getOrNull(KIND)?.jsonPrimitive?.content) }
        assertEquals(places, found.map { Triple(it.from, it.to, it.kind) }, text)
    }

    @Test
    fun `the self-test holds in every file`() = Served.test {
        val model = SelfTestModel(Shelf.open(Served.equipment(home)), this)
        model.run()
        model.settled()
        val table = model.table.value
        assertEquals("All ${table.rows.size} models compute here what was verified.", table.verdict)
        val rows = table.rows.sumOf { (it.state as SelfTestModel.State.Done).report.rows }
        println("self-test: $rows cases of ${table.rows.size} files, none differs")
    }

    @Test
    fun `headless runs end as they have to`() = Served.test {
        val runs = Served.cases.getValue("runs").jsonArray.map { it.jsonObject }.filter { it.getValue("does").jsonPrimitive.content == "" }
        for (case in runs) {
            val run = case.getValue("run").jsonPrimitive.content
            val folder = Served.equipment(home).runs.folder(run)
            File(folder, "request.json").writeText(case.getValue("request").jsonPrimitive.content)
            val equipment = Served.equipment(home)
            val ended = RunInFolder.carryOut(folder, equipment, Cancellation()) { assertTrue(!it.state.isFinal) }
            assertEquals(case.getValue("state").jsonPrimitive.content, ended.state.word, "$run: ${ended.message}")
            if (ended.state == State.FINISHED) assertEquals(run, RunRecord.read(folder).run)
        }
        println("headless runs of the app: ${runs.size} cases, each ended as it has to")
    }

    private companion object {
        const val CLOSE = 1e-12
        const val KIND = 3
    }
}
