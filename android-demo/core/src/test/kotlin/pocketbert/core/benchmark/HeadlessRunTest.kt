package pocketbert.core.benchmark

import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pocketbert.core.child
import pocketbert.core.contract.BenchmarkStatus
import pocketbert.core.contract.Headless
import pocketbert.core.contract.State
import pocketbert.core.endtoend.HostPhone
import pocketbert.core.flag
import pocketbert.core.flagOrNull
import pocketbert.core.model.SelfTested
import pocketbert.core.number
import pocketbert.core.objects
import pocketbert.core.readJson
import pocketbert.core.text
import pocketbert.core.textOrNull
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
            // As where models of hundreds of MB are read for their signatures. A busy machine may beat late.
            var looks = 0
            while (looks++ < 120 && (seen.isEmpty() || seen.last() < seen.first() + 2)) {
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

    private fun run(
        changes: Map<String, String> = emptyMap(),
        phone: HostPhone = HostPhone(emptyList()),
        selfTested: SelfTested = SelfTested(),
        runtime: TinyRuntime = TinyRuntime(),
    ): Pair<BenchmarkStatus, JsonObject?> {
        val folder = File(home, "slow").apply { mkdir() }
        val asked = changes.entries.fold(REQUEST.replace("[16]", "[8]").replace("a/litert", "tiny/litert")) { request, (key, value) ->
            val changed = request.replace(Regex("\"$key\": [^,}]+"), "\"$key\": $value")
            check(changed != request) { key }
            changed
        }
        File(folder, Headless.REQUEST).writeText(asked)
        val ended = HeadlessRun(folder, TinyModel::listed, listOf(runtime), phone, selfTested = selfTested).run()
        val record = File(folder, Headless.RECORD).takeIf { ended.state == State.FINISHED }?.let { readJson(it.readText()) }
        return ended to record
    }

    @Test
    fun `a record says what the runtime confirmed`() {
        val (ended, record) = run(mapOf("threads" to "2"))
        assertEquals(State.FINISHED, ended.state, ended.message)
        val backend = checkNotNull(record?.child("backend"))
        assertEquals("""{"CPU":1.0}""", "${backend.child("share_by_unit")}")
        assertEquals(2 to null, backend.number("pool_threads") to backend.textOrNull("compute_units"))
    }

    @Test
    fun `an untried unit is refused until its self-test has passed there`() {
        val (gpu, _) = run(mapOf("compute_units" to "\"GPU\""))
        val wanted = "GPU is untried for tiny/litert-fp32; there is CPU, and GPU once its self-test has passed there. " +
            "No phone's GPU has run one yet."
        assertEquals(State.REFUSED to wanted, gpu.state to gpu.message)
        val selfTested = SelfTested().also { it.add(TinyModel.model, "GPU") }
        val runtime = TinyRuntime()
        val (tried, record) = run(mapOf("compute_units" to "\"GPU\""), selfTested = selfTested, runtime = runtime)
        assertEquals(State.FINISHED, tried.state, tried.message)
        assertEquals(listOf("GPU"), runtime.opened.map { it.computeUnits })
        assertEquals("""{"GPU":1.0}""", "${record?.child("backend")?.child("share_by_unit")}")
        val (npu, _) = run(mapOf("compute_units" to "\"NPU\""), selfTested = selfTested)
        val none = "there are no compute units NPU for tiny/litert-fp32; there are CPU, GPU"
        assertEquals(State.REFUSED to none, npu.state to npu.message)
    }

    @Test
    fun `a cooler thermal state is waited for`() {
        val light = mapOf("start_thermal" to "\"light\"")
        val (ended, record) = run(light, HostPhone(emptyList(), listOf("severe", "light")))
        assertEquals(State.FINISHED, ended.state, ended.message)
        assertEquals("light", record?.child("conditions")?.text("thermal_before"))
        val (hot, _) = run(light + ("time_limit_s" to "0.5"), HostPhone(emptyList(), listOf("moderate")))
        assertEquals(State.TOO_HOT, hot.state)
        assertEquals("it did not cool down to thermal state light in 0.5 s; it is at moderate", hot.message)
        val (other, _) = run(mapOf("start_thermal" to "\"nominal\""), HostPhone(emptyList(), listOf("none")))
        assertEquals(State.REFUSED, other.state)
        assertTrue("start_thermal is nominal; the thermal states of this phone are [none, light," in other.message.orEmpty(), other.message)
        // A phone that does not tell is not waited for.
        assertEquals(State.FINISHED, run(light, HostPhone(emptyList())).first.state)
    }

    @Test
    fun `one look in the background, and power saving at either end, are told`() {
        fun conditions(phone: HostPhone) = checkNotNull(run(phone = phone).second?.child("conditions"))
        val front = conditions(HostPhone(emptyList()))
        assertEquals(listOf(true, null), listOf(front.flag("foreground"), front.flagOrNull("low_power")))
        for (leftAt in 0..2) assertFalse(conditions(HostPhone(emptyList()).also { it.leftAt = leftAt }).flag("foreground"), "$leftAt")
        for (said in listOf(listOf(true, false), listOf(false, true))) {
            assertTrue(conditions(HostPhone(emptyList()).also { it.lowPower.addAll(said) }).flag("low_power"))
        }
        assertFalse(conditions(HostPhone(emptyList()).also { it.lowPower.addAll(listOf(false, false)) }).flag("low_power", default = true))
    }

    @Test
    fun `a clock of coarse steps tells nothing of short runs`() {
        fun cpu(stepMs: Double, runMs: Long): JsonElement {
            val phone = HostPhone(emptyList()).also { it.cpuStepMs = stepMs }
            val (ended, record) = run(phone = phone, runtime = TinyRuntime { Thread.sleep(runMs) })
            assertEquals(State.FINISHED, ended.state, ended.message)
            return checkNotNull(record?.child("timing")?.objects("lengths")?.single()?.get("cpu_ms"))
        }
        assertEquals(JsonNull, cpu(stepMs = 1.0, runMs = 5))
        assertTrue(cpu(stepMs = 1.0, runMs = 30) is JsonArray)
        assertTrue(cpu(stepMs = 0.0, runMs = 1) is JsonArray)
    }

    @Test
    fun `whatever a runtime throws is how the run ended`() {
        for (thrown in listOf(StackOverflowError("deep"), NoClassDefFoundError("lib"), AssertionError("wrong"), Exception("checked"))) {
            val (ended, _) = run(runtime = TinyRuntime { throw thrown })
            assertEquals(State.FAILED, ended.state)
            assertTrue(checkNotNull(thrown.message) in ended.message.orEmpty(), ended.message)
        }
    }

    private companion object {
        const val REQUEST = """{"schema_version": 1, "run_id": "slow", "model": "a/litert-fp32", "compute_units": null,
            "threads": 1, "lengths": [16], "texts": ["A text."], "rounds": 1, "runs_per_round": 1, "round_ms": 1.0,
            "text_passes": 1, "time_limit_s": 60.0, "start_below_c": null, "start_thermal": null, "sustained_s": 0.0,
            "sustained_part_s": 60.0}"""
    }
}
