package pocketbert.models

import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.boolean
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
import org.junit.jupiter.api.io.TempDir
import pocketbert.core.output.Found
import pocketbert.core.output.NamedValue
import java.io.File

/** Every sentence of the real students through the view model of the screen: each answer is Python's. */
class EndToEndTest {
    @TempDir
    lateinit var home: File

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
            model.preferOwn(false)
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

    @Test
    fun `labels of one's own on the screen are as in Python`() = Served.test {
        val rows = Served.cases.getValue("zero_shot").jsonArray.map { it.jsonObject }
        val model = TryModel(Served.usable(), SearchModel(), this, warmRuns = 0)
        for ((number, row) in rows.withIndex()) {
            model.choose(row.text("model"))
            model.writeFirst(row.text("text"))
            val between = if (number % 2 == 0) ", " else "\n"
            model.writeLabels(row.getValue("labels").jsonArray.joinToString(between) { it.jsonPrimitive.content })
            model.writeTemplate(row.text("template"))
            val multiLabel = row.getValue("multi_label").jsonPrimitive.boolean
            model.decideEach(multiLabel)
            model.ask()
            model.settled()
            val state = model.form.value.state
            val reply = (state as? TryModel.State.Answered)?.reply ?: error("${row.text("text")}: $state")
            compare(JsonObject(row + ("first" to row.getValue("text"))), reply)
            val answer = reply.answer as Answer.Labels
            assertEquals(if (multiLabel) answer.shares.filter { it.share >= 0.5 } else answer.shares.take(1), answer.given)
        }
        assertTrue(rows.isNotEmpty())
        println("view models: ${rows.size} answers to labels of one's own, none differs")
    }

    @Test
    fun `what is found in a shipped index is as in Python`() = Served.test {
        val rows = Served.cases.getValue("searches").jsonArray.map { it.jsonObject }
        val shipped = Served.copy(File(home, "models")) { Served.index.copyRecursively(File(it, "index")) }
        val search = SearchModel()
        val model = TryModel(Shelf.open(Served.equipment(models = shipped)).usable, search, this, warmRuns = 0)
        for (row in rows) {
            model.choose(row.text("model"))
            model.writeFirst(row.text("question"))
            model.ask()
            model.settled()
            val wanted = row.getValue("found").jsonArray
            assertEquals(wanted.map { it.cell(0).int }, search.set.value.found.map { it.place }, row.text("question"))
            compare(wanted, search.set.value, row.text("question"))
        }
        assertTrue(rows.isNotEmpty())
        println("view models: ${rows.size} answers of an index of ${search.set.value.index?.passages} passages, none differs")
        model.leave()
    }

    @Test
    fun `what the transformer finds among a static table's passages is as in Python`() = Served.test {
        val wanted = Served.cases.getValue("two_speeds").jsonObject
        val texts = wanted.getValue("texts").jsonArray.map { it.jsonPrimitive.content }
        val rows = wanted.getValue("searches").jsonArray.map { it.jsonObject }
        val search = SearchModel(home = File(home, "home"))
        val models = Shelf.open(Served.equipment(models = Served.twoSpeeds)).usable
        val model = TryModel(models, search, this, warmRuns = 0)
        model.choose(rows.first().text("model"))
        model.writeFirst("Who is there?")
        model.ask()
        model.settled()
        // From here on, so that no passage is the transformer's.
        search.preferFast(true)
        search.importFrom("notes.txt") { texts.joinToString("\n").byteInputStream() }
        eventually("it is being filled by the table") { search.set.value.index.let { it?.isFast == true && it.other == "near" } }
        eventually("all are there") { search.set.value.index.let { it?.texts == null && it?.passages == texts.size } }
        for (row in rows) {
            model.writeFirst(row.text("question"))
            model.ask()
            model.settled()
            compare(row.getValue("found").jsonArray, search.set.value, row.text("question"))
        }
        assertTrue(rows.isNotEmpty())
        println("view models: ${rows.size} answers among ${texts.size} passages of a static table, none differs")
        model.leave()
    }

    private fun compare(wanted: JsonArray, set: SearchModel.Set, question: String) {
        assertEquals(wanted.map { it.cell(1).content }, set.found.map { it.text }, question)
        wanted.zip(set.found) { one, other -> assertEquals(one.cell(2).double, other.cosine.toDouble(), 1e-6) }
    }

    private fun compare(row: JsonObject, reply: Reply) {
        val (text, wanted) = row.text("first") to row.getValue("answer").jsonArray
        assertEquals(listOf("tokens", "length").map { row.getValue(it).jsonPrimitive.int }, listOf(reply.tokens, reply.length), text)
        assertTrue(reply.tokenizeMs >= 0 && reply.inferenceMs > 0 && reply.openedMs > 0)
        when (val answer = reply.answer) {
            is Answer.Embedding -> assertArrayEquals(wanted.map { it.jsonPrimitive.float }.toFloatArray(), answer.embedding, text)
            is Answer.Value -> assertEquals(wanted.single().jsonPrimitive.float, answer.value, text)
            is Answer.Values -> {
                assertEquals(wanted.map { NamedValue(it.cell(0).content, it.cell(1).float) }, answer.values, text)
            }
            is Answer.Labels -> {
                assertEquals(wanted.map { it.cell(0).content }, answer.shares.map { it.label }, text)
                wanted.zip(answer.shares) { one, share -> assertEquals(one.cell(1).double, share.share, CLOSE, text) }
                val decided = wanted.filter { it.jsonArray.size == KIND }
                if (decided.isNotEmpty()) assertEquals(decided.map { it.cell(2).boolean }, answer.shares.map { it.isGiven }, text)
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
