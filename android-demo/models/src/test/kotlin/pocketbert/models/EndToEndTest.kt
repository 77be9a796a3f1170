package pocketbert.models

import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
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
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.BeforeEach
import org.junit.jupiter.api.Test
import pocketbert.core.output.Found

/** Every sentence of the real students through the view model of the screen: each answer is Python's. */
class EndToEndTest {
    @BeforeEach
    fun `students are there`() = Served.orSkip()

    @Test
    fun `every answer on the screen is as in Python`() = Served.test {
        val rows = Served.cases.getValue("rows").jsonArray.map { it.jsonObject }.groupBy { it.text("model") }
        val model = TryModel(Served.usable(), SearchModel().apply { replace("") }, this, warmRuns = 0)
        assertEquals(rows.keys, model.models.map { it.id }.toSet())
        var answers = 0
        for ((id, cases) in rows) {
            model.choose(id)
            for (row in cases) {
                model.writeFirst(row.text("first"))
                model.writeSecond(row["second"]?.jsonPrimitive?.contentOrNull.orEmpty())
                model.ask()
                model.settled()
                val state = model.form.value.state
                val reply = (state as? TryModel.State.Answered)?.reply ?: error("$id, ${row.text("first")}: $state")
                compare(row, reply)
                answers++
            }
        }
        assertTrue(answers > LEAST, "there are $answers")
        println("view models: $answers answers of ${rows.size} files, none differs")
    }

    private fun compare(row: JsonObject, reply: Reply) {
        val (text, wanted) = row.text("first") to row.getValue("answer").jsonArray
        assertEquals(listOf("tokens", "length").map { row.getValue(it).jsonPrimitive.int }, listOf(reply.tokens, reply.length), text)
        assertTrue(reply.tokenizeMs >= 0 && reply.inferenceMs > 0 && reply.openedMs > 0)
        when (val answer = reply.answer) {
            is Answer.Embedding -> assertArrayEquals(wanted.map { it.jsonPrimitive.float }.toFloatArray(), answer.embedding, text)
            is Answer.Value -> assertEquals(wanted.single().jsonPrimitive.float, answer.value, text)
            is Answer.Values -> assertEquals(wanted.map { it.jsonPrimitive.float }, answer.values.map { it.value }, text)
            is Answer.Labels -> {
                assertEquals(wanted.map { it.cell(0).content }, answer.shares.map { it.label }, text)
                wanted.zip(answer.shares) { one, share -> assertEquals(one.cell(1).double, share.share, CLOSE, text) }
            }
            is Answer.Entities -> compare(wanted, answer.found, text)
            is Answer.Span -> compare(listOf(wanted), listOf(checkNotNull(answer.found)), text)
            Answer.Hidden -> error("the answer to $text is hidden")
        }
    }

    private fun compare(wanted: List<JsonElement>, found: List<Found>, text: String) {
        val places = wanted.map { Triple(it.cell(0).int, it.cell(1).int, it.jsonArray.getOrNull(KIND)?.jsonPrimitive?.content) }
        assertEquals(places, found.map { Triple(it.from, it.to, it.kind) }, text)
        wanted.zip(found) { row, one -> assertEquals(row.cell(2).double, one.score, CLOSE, text) }
    }

    private fun JsonObject.text(name: String) = getValue(name).jsonPrimitive.content

    private fun JsonElement.cell(number: Int) = (this as JsonArray)[number].jsonPrimitive

    private companion object {
        const val CLOSE = 1e-12
        const val KIND = 3
        const val LEAST = 500
    }
}
