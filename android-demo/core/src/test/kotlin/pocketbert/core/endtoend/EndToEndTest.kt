package pocketbert.core.endtoend

import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.boolean
import kotlinx.serialization.json.double
import kotlinx.serialization.json.float
import kotlinx.serialization.json.int
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonPrimitive
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNotNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assumptions.assumeTrue
import org.junit.jupiter.api.BeforeEach
import org.junit.jupiter.api.Test
import pocketbert.core.Background
import pocketbert.core.Cancellation
import pocketbert.core.Cancelled
import pocketbert.core.benchmark.HeadlessRun
import pocketbert.core.contract.BenchmarkStatus
import pocketbert.core.contract.Folder
import pocketbert.core.contract.Headless
import pocketbert.core.contract.Listed
import pocketbert.core.contract.Model
import pocketbert.core.contract.Models
import pocketbert.core.contract.Policy
import pocketbert.core.contract.State
import pocketbert.core.contract.TrustedKeys
import pocketbert.core.flag
import pocketbert.core.model.Answered
import pocketbert.core.model.Student
import pocketbert.core.number
import pocketbert.core.objects
import pocketbert.core.output.Found
import pocketbert.core.output.NamedValue
import pocketbert.core.output.Outputs
import pocketbert.core.output.Share
import pocketbert.core.output.ZeroShot
import pocketbert.core.readJson
import pocketbert.core.text
import pocketbert.core.textOrNull
import pocketbert.core.texts
import java.io.File
import java.util.concurrent.CountDownLatch

/** The real student in the real runtimes: every answer is Python's (`tests/apps/end_to_end.py`). */
class EndToEndTest {
    private val folder = File(System.getProperty("pocketbert.endtoend").orEmpty())
    private val cases by lazy { readJson(File(folder, "cases.json").readText()) }
    private val runtimes by lazy {
        val versions = mapOf("litert" to cases.text("litert"), "executorch" to cases.text("executorch"))
        versions.keys.map { SocketRuntime(File(folder.parentFile, "runtime.sock"), it, versions) }
    }

    @BeforeEach
    fun `students are there`() = assumeTrue(folder.path.isNotEmpty(), "`make core-check` makes the students and serves the runtimes")

    private fun models() = Models.open(Folder(File(folder, "models")), Policy(TrustedKeys(cases.texts("keys"))))

    private fun usable() = models().map { (it as? Listed.Usable)?.model ?: throw (it as Listed.Broken).error }

    private fun open(model: Model) = Student.open(model, runtimes.first { it.backend == model.signature.backend })

    @Test
    fun `every answer is as in Python`() {
        val rows = cases.objects("rows").groupBy { it.text("model") }
        val models = usable()
        assertEquals(rows.keys, models.map { it.entry.folder }.toSet())
        for (model in models) {
            open(model).use { student -> rows.getValue(model.entry.folder).forEach { compare(student, it) } }
        }
        assertEquals(7, models.map { it.signature.task }.toSet().size)
        println("end to end: ${rows.values.sumOf { it.size }} answers of ${models.size} files, none differs")
    }

    private fun compare(student: Student, row: JsonObject) {
        val (first, second) = row.text("first") to row.textOrNull("second")
        val answer = row["answer"] as JsonArray
        val answered: Answered<*> = when (val kind = student.model.signature.outputKind) {
            "embedding" -> student.embedding(first).also { assertArrayEquals(answer.floats(), it.value, first) }
            "value" -> student.value(first, second).also { assertEquals(answer.floats()[0], it.value, first) }
            "logits" -> student.labels(first, second).also { found ->
                compare(answer, found.value)
                assertTrue(found.value.all { it.isGiven == null })
            }
            "multi_label" -> student.labels(first, second).also { found ->
                compare(answer, found.value)
                assertEquals(answer.map { it.jsonArray[2].jsonPrimitive.boolean }, found.value.map { it.isGiven }, first)
            }
            "values" -> student.values(first, second).also { found ->
                val wanted = answer.map { NamedValue(it.jsonArray[0].jsonPrimitive.content, it.jsonArray[1].jsonPrimitive.float) }
                assertEquals(wanted, found.value, first)
            }
            "token_logits" -> student.entities(first).also { compare(answer.map { it.jsonArray }, it.value, first) }
            "spans" -> student.answer(first, checkNotNull(second)).also { compare(listOf(answer), listOf(checkNotNull(it.value)), first) }
            else -> error("kind $kind")
        }
        assertEquals(row.number("tokens") to row.number("length"), answered.tokens to answered.length, first)
        assertTrue(answered.tokenizeMs >= 0 && answered.inferenceMs > 0)
    }

    private fun compare(wanted: JsonArray, found: List<Share>) {
        assertEquals(wanted.map { it.jsonArray[0].jsonPrimitive.content }, found.map { it.label })
        wanted.zip(found).forEach { (row, share) -> assertEquals(row.jsonArray[1].jsonPrimitive.double, share.share, CLOSE) }
    }

    @Test
    fun `labels of one's own are as in Python`() {
        val cases = cases.objects("zero_shot").groupBy { it.text("model") }
        val models = usable().associateBy { it.entry.folder }
        assertEquals(cases.keys, models.filterValues { ZeroShot.isPossible(it.signature) }.keys)
        for ((folder, rows) in cases) {
            open(models.getValue(folder)).use { student ->
                for (row in rows) {
                    val each = row.flag("multi_label", false)
                    val found = student.zeroShot(row.text("text"), row.texts("labels"), row.text("template"), each)
                    compare(row["answer"] as JsonArray, found.value)
                    assertEquals(row.number("tokens") to row.number("length"), found.tokens to found.length)
                    assertTrue(found.inferenceMs > 0 && found.value.all { (it.isGiven != null) == each })
                }
            }
        }
        println("end to end: ${cases.values.sumOf { it.size }} answers of ${cases.size} files to labels of one's own, none differs")
    }

    private fun compare(wanted: List<JsonArray>, found: List<Found>, text: String) {
        val places = wanted.map { row ->
            Triple(row[0].jsonPrimitive.int, row[1].jsonPrimitive.int, row.getOrNull(KIND)?.jsonPrimitive?.content)
        }
        assertEquals(places, found.map { Triple(it.from, it.to, it.kind) }, text)
        wanted.zip(found).forEach { (row, one) -> assertEquals(row[2].jsonPrimitive.double, one.score, CLOSE, text) }
    }

    private fun JsonArray.floats() = map { it.jsonPrimitive.float }.toFloatArray()

    @Test
    fun `golden rows hold`() {
        var rows = 0
        for (model in usable()) {
            val verdict = open(model).use { it.check(model.golden()) }
            assertEquals(emptyList<String>(), verdict.failures, model.entry.folder)
            assertTrue(verdict.rows.size > 10 && verdict.rows.all { it.sameIds })
            rows += verdict.rows.size
        }
        println("golden rows: $rows cases, none differs")
    }

    @Test
    fun `golden rows of another model do not hold`() {
        val models = usable().associateBy { it.entry.folder }
        val golden = models.getValue("alike/litert-int8_dynamic").golden()
        val verdict = open(models.getValue("near/litert-int8_dynamic")).use { it.check(golden) }
        assertTrue(verdict.failures.isNotEmpty() && verdict.sqnrDb == null)
    }

    @Test
    fun `the nearest texts are found`() {
        val model = usable().first { it.signature.task == "embedding" }
        open(model).use { student ->
            val among = listOf("The shop closes at six.", "A man is playing a guitar.", "It rained all day.").map {
                student.embedding(it).value
            }
            val found = Outputs.nearest(student.embedding("The store shuts at six o'clock.").value, among, top = 2)
            assertEquals(0, found[0].first)
            assertTrue(found[0].second > found[1].second && found[0].second > 0.7)
        }
    }

    @Test
    fun `work goes on in the background, and is given up when asked`() {
        val model = usable().first { it.signature.task == "embedding" }
        val ended = CountDownLatch(2)
        val results = ArrayList<Result<Int>>()
        Background().use { background ->
            background.start({ open(model).use { student -> student.embedding("A text.").tokens } }) { result ->
                results.add(result)
                ended.countDown()
            }
            val second = background.start({ cancellation ->
                while (true) cancellation.check()
                @Suppress("UNREACHABLE_CODE")
                0
            }) { result ->
                results.add(result)
                ended.countDown()
            }
            second.cancel()
            ended.await()
        }
        assertEquals(5, results[0].getOrThrow())
        assertTrue(results[1].exceptionOrNull() is Cancelled)
    }

    @Test
    fun `headless runs end as they have to`() {
        val runs = cases.objects("runs")
        for (case in runs) {
            val status = run(case)
            assertEquals(case.text("state"), status.state.word, "${case.text("run")}: ${status.message}")
            case.textOrNull("message")?.let { assertTrue(it in status.message.orEmpty(), "${case.text("run")}: ${status.message}") }
        }
        println("headless runs: ${runs.size} cases, each ended as it has to")
    }

    private fun run(case: JsonObject): BenchmarkStatus {
        val home = File(folder, "runs-kotlin/${case.text("run")}").apply {
            deleteRecursively()
            mkdirs()
        }
        case.textOrNull("request")?.let { File(home, Headless.REQUEST).writeText(it) }
        val does = case.text("does")
        val temperatures = if (does == "cools") listOf(40.0, 38.0, 30.0) else listOf(37.0)
        if (does == "no room") File(home, "${Headless.RECORD}.new").mkdir()
        runtimes.forEach { it.hangsUpAfter = if (does == "hangs up") 5 else null }
        val cancellation = Cancellation()
        val headless = HeadlessRun(home, ::models, runtimes, HostPhone(temperatures), cancellation)
        if (does != "cancels") return headless.run()
        // Cancelled once it is seen to run, as somebody at the phone would.
        val watcher = Thread {
            while (!File(home, Headless.STATUS).let { it.exists() && "length" in it.readText() }) Thread.sleep(10)
            cancellation.cancel()
        }
        watcher.start()
        return headless.run().also {
            watcher.join()
            assertNotNull(it.message)
            assertTrue(it.state == State.CANCELLED && it.beats > 1)
        }
    }

    private companion object {
        const val CLOSE = 1e-12
        const val KIND = 3
    }
}
