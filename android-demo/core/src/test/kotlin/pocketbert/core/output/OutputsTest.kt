package pocketbert.core.output

import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.boolean
import kotlinx.serialization.json.contentOrNull
import kotlinx.serialization.json.double
import kotlinx.serialization.json.doubleOrNull
import kotlinx.serialization.json.float
import kotlinx.serialization.json.int
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pocketbert.core.VECTORS
import pocketbert.core.benchmark.Statistics
import pocketbert.core.contract.Signature
import java.io.File

/** Post-processing says what `pipeline.metrics.outputs` says, case by case (`tests/apps/outputs.py`). */
class OutputsTest {
    @Test
    fun `every case is as in Python`() {
        val counts = HashMap<String, Int>()
        File(VECTORS, "outputs.jsonl").forEachLine { line ->
            val case = Json.parseToJsonElement(line).jsonObject
            val kind = case.getValue("kind").jsonPrimitive.content
            compare(kind, case)
            counts.merge(kind, 1, Int::plus)
        }
        val kinds = setOf("softmax", "each_label", "words", "entities", "answer", "nearest", "statistics", "zero_shot")
        assertEquals(kinds, counts.keys)
        println("post-processing: ${counts.values.sum()} cases, none differs")
    }

    private fun compare(kind: String, case: JsonObject) = when (kind) {
        "softmax" -> close(case.doubles("shares"), Outputs.softmax(case.floats("logits")).asList(), case)
        "each_label" -> {
            val logits = case.floats("logits")
            val thresholds = (case.getValue("thresholds") as? JsonArray)?.map { it.jsonPrimitive.double }
            val found = Outputs.eachLabel(logits.indices.map { "$it" }, logits, thresholds)
            assertEquals(case.getValue("labels").jsonArray.map { it.jsonPrimitive.content }, found.map { it.label })
            assertEquals(case.getValue("given").jsonArray.map { it.jsonPrimitive.boolean }, found.map { it.isGiven })
            close(case.doubles("shares"), found.map { it.share }, case)
        }
        "words" -> assertEquals(case.rows("words").map { it[0].int until it[1].int }, Outputs.words(case.string("text")))
        "entities" -> {
            val logits = case.getValue("logits").jsonArray.map { it.floats() }
            val labels = case.getValue("labels").jsonArray.map { it.jsonPrimitive.content }
            val found = Outputs.entities(case.string("text"), labels, case.ints("from"), case.ints("to"), logits)
            val wanted = case.rows("entities")
            assertEquals(wanted.map { Triple(it[0].int, it[1].int, it[3].content) }, found.map { Triple(it.from, it.to, it.kind) })
            close(wanted.map { it[2].double }, found.map { it.score }, case)
        }
        "nearest" -> {
            val among = case.getValue("among").jsonArray.map { it.floats() }
            val found = Outputs.nearest(case.floats("one"), among, case.getValue("top").jsonPrimitive.int)
            assertEquals(case.ints("places").toList(), found.map { it.first })
            case.doubles("cosines").zip(found).forEach { (wanted, one) -> assertEquals(wanted, one.second.toDouble(), 1e-6) }
        }
        "zero_shot" -> zeroShot(case)
        "statistics" -> {
            val samples = case.doubles("samples")
            val found = Statistics.percentiles(samples)
            val wanted = case.getValue("percentiles").jsonArray.map { it.jsonPrimitive.doubleOrNull }
            wanted.zip(listOf(found.p50, found.p90, found.p99, found.mean)).forEach { (one, other) ->
                if (one == null) assertNull(other) else assertEquals(one, checkNotNull(other), 1e-9 * one)
            }
            assertEquals(samples.size, found.n)
            val mean = case.getValue("mean_of_medians").jsonPrimitive.double
            assertEquals(mean, Statistics.meanOfMedians(samples, case.getValue("passes").jsonPrimitive.int), 1e-9 * mean)
        }
        else -> {
            val windows = case.getValue("windows").jsonArray.map { it.jsonObject }
            val found = Outputs.answer(windows.map(::window))
            val wanted = case.getValue("answer").takeUnless { it is JsonNull }?.jsonArray?.map { it.jsonPrimitive }
            if (wanted == null) {
                assertNull(found)
            } else {
                assertEquals(Found(wanted[0].int, wanted[1].int, wanted[2].double), found)
            }
            val margin = case.getValue("margin").jsonPrimitive.double
            val answered = case.getValue("answered").jsonPrimitive.boolean
            assertEquals(answered, Outputs.answer(windows.map(::window), noAnswerMargin = margin) != null)
        }
    }

    private fun zeroShot(case: JsonObject) {
        val signature = Signature.read(case.getValue("signature").jsonObject)
        val labels = case.strings("labels")
        val (template, multiLabel) = case.string("template") to case.getValue("multi_label").jsonPrimitive.boolean
        val ask = { ZeroShot(signature, labels, template, multiLabel) }
        val error = case.getValue("error").jsonPrimitive.contentOrNull
        if (error != null) {
            val message = assertThrows(WrongLabels::class.java, { ask() }, case.toString()).message.orEmpty()
            assertTrue(error in message, "$message: $case")
            return
        }
        assertTrue(ZeroShot.isPossible(signature) && (!multiLabel || ZeroShot.decidesEach(signature)))
        val asked = ask()
        assertEquals(case.strings("hypotheses"), asked.hypotheses)
        val found = asked.shares(case.getValue("logits").jsonArray.map { it.floats() })
        assertEquals(case.rows("answer").map { it[0].content }, found.map { it.label }, case.toString())
        close(case.rows("answer").map { it[1].double }, found.map { it.share }, case)
        assertEquals(found.map { if (multiLabel) it.share >= 0.5 else null }, found.map { it.isGiven })
    }

    @Test
    fun `labels are written with commas or lines between`() {
        assertEquals(listOf("travel", "food", "old house"), ZeroShot.split(" travel,food\r\n\u2003old house\n,food, "))
        assertEquals(emptyList<String>(), ZeroShot.split(" ,\n"))
    }

    private fun window(it: JsonObject) = AnsweredWindow(it.ints("from"), it.ints("to"), it.floats("starts"), it.floats("ends"))

    private fun close(wanted: List<Double>, found: List<Double>, case: JsonObject) {
        assertEquals(wanted.size, found.size)
        wanted.zip(found).forEach { (one, other) -> assertEquals(one, other, 1e-12, case.toString()) }
    }

    @Test
    fun `labels come with the most probable first`() {
        val shares = Outputs.labels(listOf("a", "b", "c"), floatArrayOf(0f, 2f, 1f))
        assertEquals(listOf("b", "c", "a"), shares.map { it.label })
        assertEquals(1.0, shares.sumOf { it.share }, 1e-12)
        assertThrows(OutputError::class.java) { Outputs.labels(listOf("a"), floatArrayOf(0f, 1f)) }
        assertThrows(OutputError::class.java) { Outputs.eachLabel(listOf("a"), floatArrayOf(0f, 1f)) }
        assertThrows(OutputError::class.java) { Outputs.values(listOf("a"), floatArrayOf(0f, 1f)) }
    }

    @Test
    fun `an entity ends without punctuation`() {
        // U+10100 is punctuation of two code units.
        val found = { text: String ->
            val words = Outputs.words(text)
            val (from, to) = words.map { it.first }.toIntArray() to words.map { it.last + 1 }.toIntArray()
            Outputs.entities(text, listOf("I-person", "O"), from, to, List(words.size) { floatArrayOf(1f, 0f) })
                .map { text.substring(it.from, it.to) }
        }
        val texts = listOf("Anna Berg,", "(Ana)", "\uD800\uDD00Łódź\uD800\uDD00", "…!", "O'Neill's", "«")
        assertEquals(listOf("Anna Berg", "Ana", "Łódź", "…!", "O'Neill's", "«"), texts.flatMap(found))
    }

    @Test
    fun `the nearest come first`() {
        val among = listOf(floatArrayOf(0f, 1f), floatArrayOf(1f, 0f), floatArrayOf(0.6f, 0.8f))
        assertEquals(listOf(1, 2), Outputs.nearest(floatArrayOf(1f, 0f), among, top = 2).map { it.first })
        assertEquals(1f, Outputs.length(among[2]), 1e-6f)
    }

    private fun JsonObject.string(name: String) = getValue(name).jsonPrimitive.content

    private fun JsonObject.strings(name: String) = getValue(name).jsonArray.map { it.jsonPrimitive.content }

    private fun JsonObject.ints(name: String) = getValue(name).jsonArray.map { it.jsonPrimitive.int }.toIntArray()

    private fun JsonObject.floats(name: String) = getValue(name).floats()

    private fun JsonElement.floats() = jsonArray.map { it.jsonPrimitive.float }.toFloatArray()

    private fun JsonObject.doubles(name: String) = getValue(name).jsonArray.map { it.jsonPrimitive.double }

    private fun JsonObject.rows(name: String) = getValue(name).jsonArray.map { row -> (row as JsonArray).map { it.jsonPrimitive } }
}
