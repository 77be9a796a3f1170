package pocketbert.app

import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.annotation.Config
import pocketbert.app.screens.Words
import pocketbert.core.benchmark.Percentiles
import pocketbert.core.contract.State
import pocketbert.core.output.Found
import pocketbert.core.output.Share
import pocketbert.models.Missing
import pocketbert.models.Rest
import pocketbert.models.RunProgress
import pocketbert.models.RunRecord
import pocketbert.models.SearchModel
import pocketbert.models.SelfTestModel
import pocketbert.models.SelfTestModel.Difference
import java.io.File
import java.util.Locale
import java.util.TimeZone

/** What the screens say, in the app's own resources. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [35], application = TestApp::class)
class WordsTest {
    private val words get() = Words(RuntimeEnvironment.getApplication().resources)

    @Test
    fun `labels and schemes are words`() {
        val labels = listOf("positive", "LABEL_0", "1", "not_entailment", "B2").map(words::label)
        assertEquals(listOf("positive", "class 0", "class 1", "not entailment", "B2"), labels)
        val schemes = listOf("int8_dynamic", "int8_weight_only", "palettize_4bit", "fp16", "some_other").map(words::scheme)
        assertEquals(listOf("int8", "int8 weights", "4-bit palette", "fp16", "some other"), schemes)
    }

    @Test
    fun `a guess is said to be one`() {
        val found = listOf(0.97, 0.506, 0.269).map { words.entity(Found(0, 1, it, "location")) }
        assertEquals(listOf("location, 97%", "location, 51%", "location, unsure, 27%"), found)
    }

    @Test
    fun `what is given is marked, and values have names`() {
        val shares = listOf(Share("toxic", 0.9, false), Share("insult", 0.1, true), Share("a", 0.5))
        assertEquals(listOf("90.0%", "given, 10.0%", "50.0%"), shares.map(words::share))
        assertEquals(listOf("clear style", "value 1"), listOf("clear_style", "LABEL_1").map(words::value))
    }

    @Test
    fun `prompts are named`() {
        assertEquals(listOf("No prompt", "query"), listOf("", "query").map(words::prompt))
        val said = words.unused(listOf("passage", "query"))
        assertEquals("The text was embedded without a prompt. This model has: passage, query.", said)
    }

    @Test
    fun `one and many`() {
        assertEquals(listOf("1 thread", "2 threads"), listOf(1, 2).map(words::threads))
        val lengths = listOf(1, 60).map { words.length(RunRecord.Length(32, 32, Percentiles(1.927, null, null, 1.9, it))) }
        assertEquals(listOf("median 1.93 ms of 1 run at 32 tokens", "median 1.93 ms of 60 runs at 32 tokens"), lengths)
        assertEquals(null, words.length(RunRecord.Length(32, 32, Percentiles(null, null, null, 1.9, 3))))
        val verdicts = listOf(0 to 1, 0 to 10, 1 to 1, 2 to 10).map { words.verdict(SelfTestModel.Verdict(it.first, it.second)) }
        val wanted = listOf(
            "The model gives the same answers as the reference.",
            "All 10 models give the same answers as the reference.",
            "Different from the reference: 1 of 1 model.",
            "Different from the reference: 2 of 10 models.",
        )
        assertEquals(wanted, verdicts)
        assertEquals("other tokens for 1 text", words.difference(Difference.OtherTokens(1)))
        assertEquals("other tokens for 3 texts", words.difference(Difference.OtherTokens(3)))
    }

    @Test
    fun `what differs is said with what was asked for`() {
        val differences = listOf(
            Difference.OldRuntime("LiteRT", "1.1.9", "1.2.0") to "LiteRT 1.1.9 is older than 1.2.0, which the file asks for",
            Difference.LessSimilar(0.91, 0.99) to "least similar text 0.91000, at least 0.99000 is asked for",
            Difference.LessSimilar(null, 0.99) to "a text has no answer to compare, at least 0.99000 is asked for",
            Difference.Noisier(12.0, 20.0) to "SQNR 12.0 dB, at least 20.0 dB is asked for",
            Difference.NotConfirmed("GPU") to "the runtime does not confirm that the GPU ran it",
        )
        for ((difference, wanted) in differences) assertEquals(wanted, words.difference(difference))
        assertEquals("no noise", words.decibels(Double.POSITIVE_INFINITY))
    }

    @Test
    fun `a run says how it ended`() {
        val ends = State.entries.filter { it.isFinal }.map { words.run(RunProgress(it, 0.5, it.word, "why.")) }
        assertEquals(6, ends.toSet().size)
        assertTrue("$ends", ends.all { it.endsWith(".") && !it.endsWith("..") && it[0].isUpperCase() })
        assertEquals("length 16, round 2 of 3", words.run(RunProgress(State.RUNNING, 0.1, "length 16, round 2 of 3")))
        assertEquals("The run failed: no reason was given.", words.run(RunProgress(State.FAILED, 0.5, "measuring")))
    }

    @Test
    fun `what is missing and what is wrong with a set`() {
        assertEquals(Missing.entries.size, Missing.entries.map(words::missing).toSet().size)
        assertEquals("large.txt is larger than 8.39 MB.", words.problem(SearchModel.Problem.TooLarge("large.txt", 8L shl 20)))
        assertEquals("Only the first 5000 lines of 5002 were taken.", words.problem(SearchModel.Problem.Cut(5_000, 5_002)))
        assertEquals(listOf("1 passage is searched", "10000 passages are searched"), listOf(1, 10_000).map(words::passages))
        assertEquals(Rest.entries.size, Rest.entries.map(words::rest).toSet().size)
    }

    @Test
    fun `a record's time is in the form of the phone's language`() {
        val folder = File(RuntimeEnvironment.getApplication().cacheDir, "run").also { it.mkdirs() }
        File(folder, "record.json").writeText(
            """{"run_id": "run", "started_utc": "2026-11-25T22:49:48+00:00", "source": "device",
                "backend": {"runtime": "LiteRT", "version": "2.1.5", "threads": 2, "share_by_unit": {"CPU": 1.0}},
                "timing": {"load_ms": 1.0, "first_inference_ms": 2.0, "lengths": [],
                "texts": {"passes": 1, "latencies_ms": [3.0], "tokenise_ms": [0.1]}}, "memory": {}}""",
        )
        val before = TimeZone.getDefault()
        try {
            TimeZone.setDefault(TimeZone.getTimeZone("Europe/Berlin"))
            val record = RunRecord.read(folder)
            val american = words.made(record).replace('\u202f', ' ')
            RuntimeEnvironment.setQualifiers("de-rDE")
            val german = words.made(record)
            assertEquals("Nov 25, 2026, 11:49 PM · CPU · 2 threads", american)
            assertEquals("25.11.2026, 23:49 · CPU · 2 threads", german)
        } finally {
            TimeZone.setDefault(before)
            Locale.setDefault(Locale.US)
        }
    }
}
