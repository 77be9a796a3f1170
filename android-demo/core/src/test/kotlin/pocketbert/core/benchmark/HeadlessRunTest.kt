package pocketbert.core.benchmark

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pocketbert.core.contract.Headless
import pocketbert.core.contract.State
import pocketbert.core.endtoend.HostPhone
import pocketbert.core.number
import pocketbert.core.readJson
import pocketbert.core.text
import java.io.File

class HeadlessRunTest {
    @TempDir
    lateinit var home: File

    @Test
    fun `the status beats while a single step takes long`() {
        val folder = File(home, "slow").apply { mkdir() }
        File(folder, Headless.REQUEST).writeText(REQUEST)

        fun status() = readJson(File(folder, Headless.STATUS).readText())
        val seen = ArrayList<Int>()
        val slowly = {
            // As where models of hundreds of MB are read for their signatures.
            repeat(12) {
                Thread.sleep(500)
                seen.add(status().number("beats"))
            }
            emptyList<Nothing>()
        }
        val ended = HeadlessRun(folder, slowly, emptyList(), HostPhone(emptyList())).run()
        assertTrue(seen.last() >= seen.first() + 2, "$seen")
        assertEquals(State.REFUSED, ended.state)
        Thread.sleep(3000)
        // What beats no more has ended.
        assertEquals("refused" to ended.beats, status().text("state") to status().number("beats"))
    }

    private companion object {
        const val REQUEST = """{"schema_version": 1, "run_id": "slow", "model": "a/litert-fp32", "compute_units": null,
            "threads": 1, "lengths": [16], "texts": ["A text."], "rounds": 1, "runs_per_round": 1, "round_ms": 1.0,
            "text_passes": 1, "time_limit_s": 60.0, "start_below_c": null, "sustained_s": 0.0,
            "sustained_part_s": 60.0}"""
    }
}
