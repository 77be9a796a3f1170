package pocketbert.models

import kotlinx.coroutines.CoroutineScope
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.contentOrNull
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.BeforeEach
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pocketbert.core.benchmark.Moment
import pocketbert.core.benchmark.Phone
import pocketbert.core.contract.Headless
import pocketbert.core.contract.State
import pocketbert.core.endtoend.HostPhone
import pocketbert.core.model.RunnerRefused
import java.io.File

/** Benchmarks that a screen or a computer asks for: the same code, and the same folders. */
class RunTest {
    @TempDir
    lateinit var home: File

    @BeforeEach
    fun `students are there`() = Served.orSkip()

    private fun CoroutineScope.benchmark() = BenchmarkModel(Served.usable(), Served.equipment(), this)

    private val BenchmarkModel.progress get() = (form.value.state as? BenchmarkModel.State.Running)?.progress

    @Test
    fun `a benchmark of the screen leaves a record`() = Served.test {
        val model = benchmark()
        assertTrue(model.tellsTemperature)
        model.choose("mood/litert-int8_dynamic")
        assertEquals(listOf(32, 128), model.form.value.lengthsOffered)
        model.chooseUnits("NPU")
        model.choose("mood/executorch-int8_dynamic")
        // The file lists none but the CPU.
        assertEquals(null, model.form.value.computeUnits)
        assertEquals(listOf(16, 32, 64, 128), model.form.value.lengthsOffered)
        for (length in listOf(32, 64)) model.chooseLength(length, false)
        model.chooseThreads(20)
        assertEquals(2, model.form.value.threads)
        // Measured to its end, which takes nearly half of them.
        model.chooseMinutes(2.0)
        model.start()
        val first = model.form.value.state
        assertTrue(first is BenchmarkModel.State.Running)
        model.start()
        assertTrue(first === model.form.value.state, "a run that goes on is not begun again")
        model.settled()
        val ended = model.form.value.state as BenchmarkModel.State.Ended
        assertEquals(State.FINISHED, ended.progress.state, ended.progress.message)
        val found = checkNotNull(ended.record)
        assertEquals(listOf(16, 128), found.lengths.map { it.length })
        assertTrue(found.lengths.all { one -> one.latencies.let { it.n >= 30 && (it.p50 ?: 0.0) > 0 && (it.p90 ?: 0.0) > 0 } })
        assertTrue(found.textMs > 0 && found.loadMs > 0 && found.firstMs > 0)
        assertEquals("ExecuTorch" to 2, found.runtime to found.threads)
        assertEquals("mood/executorch-int8_dynamic" to listOf("CPU"), found.model to found.ranOn)
        // A computer's process is no app.
        assertEquals(null, found.peakBytes)
        val records = model.form.value.records
        assertEquals(found.run, records.first().run)
        model.remove(found)
        assertEquals(records.map { it.run } - found.run, model.form.value.records.map { it.run })
    }

    @Test
    fun `a benchmark has the phone for itself, and the screens have it again afterwards`() = Served.test {
        val equipment = Served.equipment(mapOf("executorch" to Pooled(Served.runtime("executorch"))))
        val models = Shelf.open(equipment).usable
        val worker = Worker(models.first { it.id == "mood/executorch-int8_dynamic" })
        val other = Worker(models.first { it.id == "near/executorch-int8_dynamic" })
        val question = Question("A charming film.")
        val before = worker.ask(question)
        other.ask(question)
        val benchmark = BenchmarkModel(models, equipment, this)
        benchmark.choose("mood/executorch-int8_dynamic")
        for (length in listOf(32, 64, 128)) benchmark.chooseLength(length, false)
        benchmark.chooseThreads(2)
        benchmark.chooseMinutes(1.0)
        benchmark.start()
        eventually("it measures") { benchmark.progress?.doing.orEmpty().startsWith("length") }
        val refused = runCatching { worker.ask(question) }.exceptionOrNull()
        assertTrue(refused is RunnerRefused && "a benchmark goes on" in refused.message.orEmpty(), "$refused")
        // One that is closed meanwhile is not waited for.
        other.close()
        benchmark.settled()
        val ended = benchmark.form.value.state as BenchmarkModel.State.Ended
        assertEquals(State.FINISHED, ended.progress.state, ended.progress.message)
        val record = Json.parseToJsonElement(checkNotNull(ended.record).file.readText()).jsonObject
        assertEquals("2", "${record.getValue("backend").jsonObject["pool_threads"]}")
        assertEquals((before.answer as Answer.Labels).shares, (worker.ask(question).answer as Answer.Labels).shares)
        worker.release()
        worker.close()
        worker.close()
        worker.release()
    }

    @Test
    fun `a run whose phone fails in the worst way ends with a sentence`() = Served.test {
        val broken = object : Phone by HostPhone(listOf(30.0)) {
            override fun moment(): Moment = throw StackOverflowError("deep")
        }
        val case = Served.cases.getValue("runs").jsonArray.map { it.jsonObject }.first { it.text("state") == "finished" }
        val folder = Served.runs.folder(case.text("run"))
        File(folder, Headless.REQUEST).writeText(case.text("request"))
        val end = HeadlessModel(case.text("run"), Served.equipment(phone = broken), this).also { it.start() }.settled()
        assertEquals(State.FAILED to "StackOverflowError: deep", end.state to end.message)
    }

    @Test
    fun `a benchmark can be cancelled`() = Served.test {
        val model = benchmark()
        model.choose("near/litert-int8_dynamic")
        model.chooseMinutes(10.0)
        model.start()
        eventually("it measures") { model.progress?.doing.orEmpty().startsWith("length") }
        model.cancel()
        model.settled()
        val ended = model.form.value.state as BenchmarkModel.State.Ended
        assertEquals(State.CANCELLED to null, ended.progress.state to ended.record)
    }

    @Test
    fun `a benchmark without a length is not begun, and one on other units is refused`() = Served.test {
        val model = benchmark()
        model.choose("near/litert-int8_dynamic")
        for (length in listOf(32, 128)) model.chooseLength(length, false)
        model.start()
        assertEquals(BenchmarkModel.State.NoLength, model.form.value.state)
        model.chooseLength(32, true)
        model.chooseUnits("NPU")
        model.start()
        model.settled()
        val ended = model.form.value.state as BenchmarkModel.State.Ended
        assertEquals(State.REFUSED to null, ended.progress.state to ended.record)
        assertTrue("there are no compute units NPU" in ended.progress.message.orEmpty(), ended.progress.message)
    }

    @Test
    fun `a name that is none ends the headless run`() = Served.test {
        for (name in listOf("", "../good", "a/b")) {
            val model = HeadlessModel(name, Served.equipment(), this)
            model.start()
            val end = model.settled()
            assertEquals(State.REFUSED, end.state)
            assertTrue("is no name of a run" in end.message.orEmpty(), end.message)
        }
    }

    @Test
    fun `headless runs end as they have to`() = Served.test {
        val cases = Served.cases.getValue("runs").jsonArray.map { it.jsonObject }
        Served.runs.root.deleteRecursively()
        for (case in cases) {
            val name = case.text("run")
            val end = run(case)
            assertEquals(case.text("state"), end.state.word, "$name: ${end.message}")
            assertTrue(case.text("message") in end.message.orEmpty(), "$name: ${end.message}")
            assertEquals(end.state == State.FINISHED, runCatching { RunRecord.read(Served.runs.folder(name)) }.isSuccess, name)
        }
        println("headless runs of the app: ${cases.size} cases, each ended as it has to")
    }

    @Test
    fun `a model that was pushed with a run is measured, and verified like the app's own`() = Served.test {
        val case = Served.cases.getValue("runs").jsonArray.map { it.jsonObject }.first { it.text("state") == "finished" }
        val name = "pushed"
        val folder = Served.runs.folder(name).also { it.deleteRecursively() }.also { it.mkdirs() }
        val request = case.text("request").replace("\"${case.text("run")}\"", "\"$name\"")
        File(folder, Headless.REQUEST).writeText(request)
        // The app itself has nothing.
        val nothing = File(home, "nothing").also { it.mkdirs() }
        val equipment = Served.equipment(models = nothing)
        val without = HeadlessModel(name, equipment, this).also { it.start() }.settled()
        assertEquals(State.REFUSED, without.state, without.message)
        Served.models.copyRecursively(File(folder, Headless.MODELS))
        File(folder, Headless.MODELS).walk().forEach { it.setWritable(true) }
        val end = HeadlessModel(name, equipment, this).also { it.start() }.settled()
        assertEquals(State.FINISHED, end.state, end.message)
        assertTrue(RunRecord.read(folder).lengths.isNotEmpty())
        assertFalse(File("${Served.runs.root}-pushed").exists())
        val unsigned = File(folder, Headless.MODELS).walk().filter { it.name == "model.sig" }.onEach { it.delete() }.count()
        assertTrue(unsigned > 0)
        val refused = HeadlessModel(name, equipment, this).also { it.start() }.settled()
        assertEquals(State.REFUSED, refused.state, refused.message)
        assertTrue("(unsigned)" in refused.message.orEmpty(), refused.message)
        folder.deleteRecursively()
    }

    private suspend fun CoroutineScope.run(case: JsonObject): RunProgress {
        val (name, does) = case.text("run") to case.text("does")
        val folder = Served.runs.folder(name)
        // What an earlier run left may not be taken for this one's.
        File(folder, Headless.STATUS).writeText("{}")
        case["request"]?.jsonPrimitive?.contentOrNull?.let { File(folder, Headless.REQUEST).writeText(it) }
        if (does == "no room") File(folder, "${Headless.RECORD}.new").mkdir()
        val phone = HostPhone(if (does == "cools") listOf(40.0, 38.0, 30.0) else listOf(37.0))
        val model = HeadlessModel(name, Served.equipment(phone = phone, hangsUpAfter = if (does == "hangs up") 5 else null), this)
        model.start()
        model.start()
        if (does == "cancels") {
            eventually("it measures") { "length" in model.progress.value.doing }
            model.cancel()
        }
        return model.settled()
    }

    private fun JsonObject.text(name: String) = getValue(name).jsonPrimitive.contentOrNull.orEmpty()
}
