package pocketbert.models

import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pocketbert.core.contract.Headless
import pocketbert.core.model.RunnerRefused
import pocketbert.core.output.Found
import java.io.File

/** What needs no model. */
class PartsTest {
    @TempDir
    lateinit var home: File

    @Test
    fun `numbers have the digits that one reads`() {
        val times = listOf(0.8412, 3.04, 15.12, 841.2, 12_345.0)
        assertEquals(listOf("0.84 ms", "3.0 ms", "15.1 ms", "841 ms", "12.3 s"), times.map(Formats::ms))
        assertEquals(listOf("0.84 ms", "3.04 ms", "15.1 ms", "841 ms", "12.3 s"), times.map(Formats::recordMs))
        assertEquals(listOf("0.94 MB", "22.6 MB", "438.0 MB"), listOf(940_000L, 22_600_000, 438_000_000).map(Formats::megabytes))
        assertEquals(listOf("1.3", "13"), listOf(1.34, 13.4).map(Formats::times))
        assertEquals("98.8%" to "27%", Formats.percent(0.9876) to Formats.wholePercent(0.269))
        assertEquals("0.99987" to "31.0 dB", Formats.cosine(0.999_87) to Formats.decibels(31.04))
        val medians = listOf(listOf(3.0, 1.0, 2.0), listOf(4.0, 1.0, 2.0, 3.0), emptyList()).map(Formats::median)
        assertEquals(listOf(2.0, 2.5, null), medians)
    }

    @Test
    fun `errors are sentences`() {
        assertEquals("There are no compute units npu here.", RunnerRefused("there are no compute units npu here").sentence)
        assertEquals("IllegalStateException happened, and does not say why.", IllegalStateException().sentence)
    }

    @Test
    fun `an older runtime is seen`() {
        assertEquals(MinimumVersion.ENOUGH, MinimumVersion.of("1.4.1", "1.4.1"))
        assertEquals(MinimumVersion.ENOUGH, MinimumVersion.of("1.4.1", "1.10.0"))
        assertEquals(MinimumVersion.ENOUGH, MinimumVersion.of("1.4", "1.4.0-rc1"))
        assertEquals(MinimumVersion.ENOUGH, MinimumVersion.of("1.4", "1.4.0+cpu"))
        assertEquals(MinimumVersion.TOO_OLD, MinimumVersion.of("1.4.1", "1.4.0"))
        assertEquals(MinimumVersion.TOO_OLD, MinimumVersion.of("2", "1.99"))
        assertEquals(MinimumVersion.NOT_COMPARABLE, MinimumVersion.of("iOS 18 / macOS 15", "18.1"))
        assertEquals(MinimumVersion.NOT_COMPARABLE, MinimumVersion.of("1.4.1", "1..1"))
    }

    @Test
    fun `a run cannot lead out of its folder`() {
        val runs = RunFolders(File(home, "runs"))
        for (name in listOf("", ".", "..", "../a", "a/b", ".a", "a b", "a".repeat(101))) {
            assertThrows(WrongRun::class.java, { runs.folder(name) }, name)
            assertThrows(WrongRun::class.java, { runs.remove(name) }, name)
        }
        assertEquals("near-2026", runs.folder("near-2026").name)
        runs.remove("near-2026")
        assertFalse(File(runs.root, "near-2026").exists())
        assertTrue(runs.records().isEmpty())
    }

    @Test
    fun `a request has every field of its schema`() {
        val request = RunRequest("a", "near/litert-fp32", null, 2, listOf(32, 128), listOf("A text."), 2.0, null)
        val file = File(RunFolders(home).write(request), Headless.REQUEST)
        val found = Json.parseToJsonElement(file.readText()).jsonObject
        val names = listOf("compute_units", "lengths", "model", "round_ms", "rounds", "run_id", "runs_per_round", "schema_version")
        val starts = listOf("start_below_c", "start_thermal")
        val others = listOf("sustained_part_s", "sustained_s", "text_passes", "texts", "threads", "time_limit_s")
        assertEquals(names + starts + others, found.keys.sorted())
        assertTrue((listOf("compute_units") + starts).all { found[it] == JsonNull })
        assertEquals(JsonPrimitive(120.0), found.getValue("time_limit_s"))
        assertEquals(JsonPrimitive(1_000.0), found.getValue("round_ms"))
        assertEquals(JsonPrimitive(24), found.getValue("rounds"))
    }

    @Test
    fun `a guess is not a hit`() {
        val confidences = listOf(1.0, 0.8, 0.799, 0.5, 0.499, 0.0).map(Confidence::of)
        assertEquals(List(6) { Confidence.entries[it / 2] }, confidences)
    }

    @Test
    fun `a record names the units that ran it, and no memory of a computer`() {
        val texts = """{"passes": 1, "latencies_ms": [3.0], "tokenise_ms": [0.1]}"""
        val timing = """{"load_ms": 1.0, "first_inference_ms": 2.0, "lengths": [], "texts": $texts}"""
        val record = { source: String, shares: String ->
            val backend = """{"runtime": "LiteRT", "version": "2.1.5", "threads": 1, "share_by_unit": $shares}"""
            val folder = File(home, "run").also { it.mkdirs() }
            File(folder, Headless.RECORD).writeText(
                """{"run_id": "run", "started_utc": "2026-11-25T10:49:48+00:00", "source": "$source", "backend": $backend,
                    "timing": $timing, "memory": {"peak_bytes": 1076100000}}""",
            )
            RunRecord.read(folder)
        }
        val device = record("device", """{"CPU": 0.25, "GPU": 0.75, "NPU": 0.0}""")
        assertEquals(listOf("GPU", "CPU") to 1_076_100_000L, device.ranOn to device.peakBytes)
        assertEquals("2026-11-25T10:49:48Z" to null, device.started.toString() to device.model)
        File(home, "run/${Headless.REQUEST}").writeText("""{"model": "near/litert-fp32"}""")
        val host = record("host", "null")
        assertEquals(Triple(emptyList<String>(), null, "near/litert-fp32"), Triple(host.ranOn, host.peakBytes, host.model))
    }

    @Test
    fun `a text is split where something was found`() {
        val found = listOf(Found(11, 14, 0.9, "name"), Found(3, 6, 0.8, "name"), Found(4, 9, 1.0), Found(40, 50, 1.0))
        val parts = Segment.split("😀 Ana met Bob.", found)
        assertEquals(listOf("😀 ", "Ana", " met ", "Bob", "."), parts.map { it.text })
        assertEquals(listOf(null, 0.8, null, 0.9, null), parts.map { it.found?.score })
        assertEquals(emptyList<Segment>(), Segment.split("", emptyList()))
        // Half of a character is none.
        assertEquals(listOf("😀"), Segment.split("😀", listOf(Found(1, 2, 1.0))).map { it.text })
        assertEquals(listOf("a😀"), Segment.split("a😀", listOf(Found(0, 2, 1.0))).map { it.text })
    }

    @Test
    fun `a question says what it misses`() {
        assertNull(Question("A text.").missing(Task.LABELS))
        assertNull(Question("A question?", "A passage.").missing(Task.ANSWER))
        assertEquals(Missing.QUESTION_AND_PASSAGE, Question("A question?", " \n").missing(Task.ANSWER))
        assertEquals(Missing.TWO_TEXTS, Question("A text.").missing(Task.VALUE))
        assertEquals(Missing.TEXT, Question(" ").missing(Task.ENTITIES))
        assertNull(Question("A text.").missing(Task.VALUES))
        val own = { labels: List<String>, template: String, multiLabel: Boolean ->
            Question("A text.", own = OwnLabels(labels, template, multiLabel)).missing(Task.LABELS)
        }
        assertNull(own(listOf("a", "b"), "It is {}.", false))
        assertEquals(Missing.TWO_LABELS, own(listOf("a"), "It is {}.", false))
        assertNull(own(listOf("a"), "It is {}.", true))
        assertEquals(Missing.LABEL, own(emptyList(), "It is {}.", true))
        for (template in listOf("", "It is.", "{} and {}")) assertEquals(Missing.TEMPLATE, own(listOf("a", "b"), template, false))
        assertEquals(Missing.TEXT, Question("", own = OwnLabels(emptyList(), "", false)).missing(Task.LABELS))
    }
}
