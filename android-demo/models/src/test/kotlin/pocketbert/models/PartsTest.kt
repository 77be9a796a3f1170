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
import pocketbert.core.contract.State
import pocketbert.core.model.RunnerRefused
import pocketbert.core.output.Found
import java.io.File

/** What needs no model. */
class PartsTest {
    @TempDir
    lateinit var home: File

    @Test
    fun `numbers have the digits that one reads`() {
        val written = listOf(0.8412, 8.41, 84.12, 841.2, 12_345.0, null, Double.NaN).map(Formats::ms)
        assertEquals(listOf("0.84 ms", "8.41 ms", "84.1 ms", "841 ms", "12.3 s", "–", "–"), written)
        assertEquals(listOf("0.94 MB", "22.6 MB", "438.0 MB"), listOf(940_000L, 22_600_000, 438_000_000).map(Formats::megabytes))
        assertEquals("71% less time", Formats.percentLess(29.0, 100.0))
        assertEquals("50% more time", Formats.percentLess(150.0, 100.0))
        assertEquals("the same time", Formats.percentLess(100.2, 100.0))
        assertNull(Formats.percentLess(null, 100.0))
        assertNull(Formats.percentLess(1.0, 0.0))
        assertEquals("98.8%", Formats.percent(0.9876))
        assertEquals("0.99987", Formats.cosine(0.999_87))
        assertEquals(listOf("no noise", "31.0 dB", "–"), listOf(Double.POSITIVE_INFINITY, 31.04, null).map(Formats::decibels))
        val medians = listOf(listOf(3.0, 1.0, 2.0), listOf(4.0, 1.0, 2.0, 3.0), emptyList()).map(Formats::median)
        assertEquals(listOf(2.0, 2.5, null), medians)
    }

    @Test
    fun `errors are sentences`() {
        assertEquals("There are no compute units npu here.", RunnerRefused("there are no compute units npu here").sentence)
        assertEquals(NoModels().message, NoModels().sentence)
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
    fun `a run says how it ended`() {
        val ends = State.entries.filter { it.isFinal }.map { RunProgress(it, 0.5, it.word, "why").sentence }
        assertEquals(6, ends.toSet().size)
        assertTrue(ends.all { it.endsWith(".") && it[0].isUpperCase() }, "$ends")
        assertEquals("length 16, round 2 of 3", RunProgress(State.RUNNING, 0.1, "length 16, round 2 of 3").sentence)
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
        assertEquals("Write a question and a passage.", Question("A question?", " \n").missing(Task.ANSWER))
        assertEquals("Write two texts to compare.", Question("A text.").missing(Task.VALUE))
        assertEquals("Write a text.", Question(" ").missing(Task.ENTITIES))
    }
}
