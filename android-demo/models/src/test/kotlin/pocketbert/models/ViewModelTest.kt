package pocketbert.models

import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.async
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.delay
import kotlinx.coroutines.launch
import kotlinx.coroutines.yield
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNotEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertSame
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.BeforeEach
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pocketbert.core.contract.Files
import pocketbert.core.contract.Folder
import pocketbert.core.contract.State
import java.io.File
import java.io.InputStream
import java.util.concurrent.CountDownLatch
import java.util.concurrent.atomic.AtomicInteger

/** States, errors and cancellation, on the real students. */
class ViewModelTest {
    @TempDir
    lateinit var home: File

    @BeforeEach
    fun `students are there`() = Served.orSkip()

    private suspend fun opened(equipment: Equipment) = ShelfModel(equipment).let { model ->
        assertEquals(ShelfModel.State.Loading, model.state.value)
        model.open()
        model.state.value
    }

    private suspend fun shelf(equipment: Equipment) = (opened(equipment) as ShelfModel.State.Ready).shelf

    // --- the shelf -----------------------------------------------------------------------------------------------------

    @Test
    fun `an empty app says what to do`() = Served.test {
        assertEquals(ShelfModel.State.Empty, opened(Served.equipment(models = home)))
    }

    @Test
    fun `a broken index is said`() = Served.test {
        File(home, "models.json").writeText("{")
        val why = (opened(Served.equipment(models = home)) as ShelfModel.State.Failed).why
        assertTrue(why.startsWith("Models.json: it cannot be read"), why)
    }

    @Test
    fun `a damaged model is refused and the others stay`() = Served.test {
        val models = Served.copy(File(home, "models")) { File(it, "mood/litert-int8_dynamic/labels.txt").writeText("no\nyes\n") }
        val found = shelf(Served.equipment(models = models))
        assertEquals(15 to 1, found.usable.size to found.refused.size)
        assertTrue("refused (changed)" in found.refused.single().why, found.refused.single().why)
    }

    @Test
    fun `unsigned models need a debug build, and other keys are not trusted`() = Served.test {
        val models = Served.copy(File(home, "models")) { File(it, "near/litert-int8_dynamic/model.sig").delete() }
        val release = shelf(Served.equipment(models = models))
        assertEquals(15 to 1, release.usable.size to release.refused.size)
        assertTrue("(unsigned)" in release.refused.single().why, release.refused.single().why)
        assertFalse(release.usesUnsigned)
        val debug = shelf(Served.equipment(models = models, unsigned = true))
        assertEquals(16, debug.usable.size)
        assertTrue(debug.usesUnsigned)
        val others = shelf(Served.equipment(keys = emptyList(), unsigned = true))
        assertEquals(0 to 16, others.usable.size to others.refused.size)
        assertTrue(others.refused.all { "(other_key)" in it.why })
    }

    @Test
    fun `a model without a runtime is said`() = Served.test {
        val all = Served.equipment()
        val one = Equipment(all.models, all.policy, all.runtimes.filter { it.runtime.backend == "litert" }, all.phone, all.runs)
        val shelf = Shelf.open(one)
        assertEquals(8 to 8, shelf.usable.size to shelf.refused.size)
        assertTrue(shelf.refused.all { it.why.endsWith("is a file for executorch, and this app runs LiteRT.") })
    }

    @Test
    fun `the models are read once, and again by the next who looks where one has gone`() = Served.test {
        val files = SlowFiles(Folder(Served.models))
        val equipment = Served.equipment().let { Equipment(files, it.policy, it.runtimes, it.phone, it.runs) }
        val model = ShelfModel(equipment)
        val gone = launch(start = CoroutineStart.UNDISPATCHED) { model.open() }
        eventually("it is read") { files.indexes.get() == 1 }
        gone.cancelAndJoin()
        assertEquals(ShelfModel.State.Loading, model.state.value)
        // A screen that is turned meanwhile asks again.
        val both = List(2) { async(start = CoroutineStart.UNDISPATCHED) { model.open() } }
        files.sign.countDown()
        both.forEach { it.await() }
        assertTrue(model.state.value is ShelfModel.State.Ready, "${model.state.value}")
        // The one that was given up and the one that was not; each opens the index to see whether it is there, and to read it.
        assertEquals(2 * 2, files.indexes.get())
    }

    /** Files that wait for a sign before the index is opened; they count how often it was. */
    private class SlowFiles(private val inner: Files) : Files by inner {
        val sign = CountDownLatch(1)
        val indexes = AtomicInteger()

        override fun open(path: String): InputStream {
            if (path == "models.json" && indexes.incrementAndGet() == 1) sign.await()
            return inner.open(path)
        }
    }

    // --- one model -----------------------------------------------------------------------------------------------------

    @Test
    fun `a new request cancels the one before`() = Served.test {
        val (halting, models) = Served.halting()
        val model = TryModel(models, SearchModel(), this, warmRuns = 0)
        model.choose("mood/litert-int8_dynamic")
        model.writeFirst("A charming film.")
        model.ask()
        assertEquals(TryModel.State.Working, model.form.value.state)
        eventually("the first one runs") { halting.runs == 1 }
        model.writeFirst("A dull film that never ends.")
        model.ask()
        // Now it waits behind the first.
        yield()
        model.writeFirst("A fine film, seen twice.")
        model.ask()
        halting.release()
        model.settled()
        val answered = model.form.value.state as TryModel.State.Answered
        assertEquals("A fine film, seen twice." to 9, answered.question.first to answered.reply.tokens)
        // The one in the middle had not begun, and never does.
        assertEquals(2, halting.runs)
    }

    @Test
    fun `what is given up leaves no answer`() = Served.test {
        val (halting, models) = Served.halting()
        val model = TryModel(models, SearchModel(), this)
        model.choose("mood/litert-int8_dynamic")
        model.ask()
        eventually("it runs") { halting.runs == 1 }
        model.cancel()
        assertEquals(TryModel.State.Idle(), model.form.value.state)
        halting.release()
        model.settled()
        assertEquals(TryModel.State.Idle(), model.form.value.state)
    }

    @Test
    fun `an answer stands at once, and the warm median of the same row follows`() = Served.test {
        val (halting, models) = Served.halting()
        halting.free = 1
        val model = TryModel(models, SearchModel(), this)
        model.choose("mood/litert-int8_dynamic")
        model.ask()
        eventually("it has answered and runs again") { halting.runs == 2 }
        val first = model.form.value.state as TryModel.State.Answered
        assertNull(first.warmMs)
        assertEquals(listOf("CPU"), first.reply.ranOn)
        halting.release()
        model.settled()
        val warm = model.form.value.state as TryModel.State.Answered
        assertSame(first.reply, warm.reply)
        assertEquals(1 + TryModel.WARM_RUNS, halting.runs)
        assertTrue(checkNotNull(warm.warmMs) > 0)
    }

    @Test
    fun `the runs for a warm median end where the app is left, and the answer stays`() = Served.test {
        val (halting, models) = Served.halting()
        halting.free = 1
        val model = TryModel(models, SearchModel(), this)
        model.choose("mood/litert-int8_dynamic")
        model.ask()
        eventually("it has answered and runs again") { halting.runs == 2 }
        model.cancel()
        halting.release()
        model.settled()
        delay(50)
        assertEquals(2, halting.runs)
        assertNull((model.form.value.state as TryModel.State.Answered).warmMs)
    }

    @Test
    fun `a screen that is left holds no model, and comes back as it was`() = Served.test {
        val count = AtomicInteger()
        val runtimes = listOf("litert", "executorch").associateWith { Resident(Served.runtime(it), count) }
        val equipment = Served.equipment(runtimes)
        val shelf = Shelf.open(equipment)
        val screens = Screens(
            shelf,
            TryModel(shelf.usable, SearchModel(), this),
            CompareModel(shelf.usable, this),
            SelfTestModel(shelf, this),
            BenchmarkModel(shelf.usable, equipment, this),
        )
        screens.tries.choose("mood/litert-int8_dynamic")
        screens.tries.writeFirst("Mine.")
        screens.tries.ask()
        screens.tries.settled()
        assertEquals(1, count.get())
        screens.show(Screens.Screen.COMPARE)
        eventually("Try holds nothing") { count.get() == 0 }
        screens.compare.run()
        eventually("both run") { screens.compare.form.value.sides.all { it.runs > 0 } }
        assertEquals(2, count.get())
        // In the background half of a comparison is forgotten, and the models stay.
        screens.stop()
        assertTrue(screens.compare.form.value.let { form -> !form.isRunning && form.sides.all { it.samples.isEmpty() } })
        screens.show(Screens.Screen.BENCHMARK)
        eventually("Compare holds nothing") { count.get() == 0 }
        screens.show(Screens.Screen.TRY)
        assertEquals("Mine.", screens.tries.form.value.first)
        screens.tries.ask()
        screens.tries.settled()
        assertTrue(screens.tries.form.value.state is TryModel.State.Answered)
        assertEquals(1, count.get())
        screens.tries.leave()
        eventually("nothing is held") { count.get() == 0 }
    }

    @Test
    fun `a benchmark ends where its screen is left`() = Served.test {
        val equipment = Served.equipment()
        val shelf = Shelf.open(equipment)
        val screens = Screens(
            shelf,
            TryModel(shelf.usable, SearchModel(), this),
            CompareModel(shelf.usable, this),
            SelfTestModel(shelf, this),
            BenchmarkModel(shelf.usable, equipment, this),
        )
        screens.benchmark.chooseMinutes(10.0)
        screens.benchmark.start()
        screens.show(Screens.Screen.SELF_TEST)
        screens.benchmark.settled()
        val ended = screens.benchmark.form.value.state as BenchmarkModel.State.Ended
        assertEquals(State.CANCELLED, ended.progress.state)
    }

    @Test
    fun `what is missing and what fails is said`() = Served.test {
        val model = TryModel(Served.usable(), SearchModel(), this)
        model.choose("ask/litert-int8_dynamic")
        assertTrue(model.form.value.second.isNotEmpty())
        model.writeSecond(" ")
        model.ask()
        assertEquals(TryModel.State.Idle(Missing.QUESTION_AND_PASSAGE), model.form.value.state)
        val broken = TryModel(Served.usable(mapOf("litert" to Served.goneRuntime("litert"))), SearchModel(), this)
        broken.choose("mood/litert-int8_dynamic")
        broken.ask()
        broken.settled()
        assertTrue(broken.form.value.state is TryModel.State.Failed, "${broken.form.value.state}")
        val hungUp = TryModel(Served.usable(mapOf("litert" to Served.runtime("litert", hangsUpAfter = 1))), SearchModel(), this)
        hungUp.choose("mood/litert-int8_dynamic")
        hungUp.ask()
        hungUp.settled()
        val why = (hungUp.form.value.state as TryModel.State.Failed).why
        assertTrue(why.startsWith("The connection to the runtime broke"), why)
    }

    @Test
    fun `a library that cannot be loaded and a lack of memory are sentences on every screen`() = Served.test {
        val errors = mapOf<Throwable, String>(
            UnsatisfiedLinkError("no libx.so") to "The runtime's library cannot be loaded: no libx.so.",
            OutOfMemoryError("40 MB") to "There is not enough memory: 40 MB.",
        )
        for ((error, sentence) in errors) {
            var opened = 0
            val failing = Failing(Served.runtime("litert")) { error.also { opened++ } }
            val models = Served.usable(mapOf("litert" to failing))
                .filter { it.model.signature.backend == "litert" }
            val tries = TryModel(models, SearchModel(), this)
            tries.ask()
            tries.settled()
            assertEquals(TryModel.State.Failed(sentence), tries.form.value.state)
            val compare = CompareModel(models, this)
            opened = 0
            compare.run()
            compare.settled()
            // What has failed is not tried thirty times.
            assertEquals(2, opened)
            assertEquals(listOf(sentence, sentence), compare.form.value.sides.map { it.problem })
            val selfTest = SelfTestModel(Shelf(models.take(1), emptyList()), this)
            selfTest.run()
            selfTest.settled()
            assertEquals(SelfTestModel.State.Failed(sentence), selfTest.table.value.rows.single().units.single().state)
        }
    }

    @Test
    fun `a choice keeps the text of the same task`() = Served.test {
        val model = TryModel(Served.usable(), SearchModel(), this)
        model.choose("mood/litert-int8_dynamic")
        model.writeFirst("Mine.")
        model.choose("mood/executorch-int8_dynamic")
        assertEquals("Mine.", model.form.value.first)
        model.choose("names/litert-int8_dynamic")
        assertNotEquals("Mine.", model.form.value.first)
        model.choose("no/such-model")
        assertEquals("names/litert-int8_dynamic", model.form.value.chosen?.id)
    }

    @Test
    fun `labels of one's own stay where another model is chosen, and are asked where it takes some`() = Served.test {
        val model = TryModel(Served.usable(), SearchModel(), this, warmRuns = 0)
        val asked: suspend () -> Question = {
            model.ask()
            model.settled()
            (model.form.value.state as TryModel.State.Answered).question
        }
        model.choose("infer/litert-int8_dynamic")
        assertEquals(OwnLabels(listOf("film", "travel", "food"), "This example is {}.", false), asked().own)
        model.writeLabels("rain\nsun, rain")
        model.writeTemplate("It is about {}.")
        model.decideEach(true)
        val own = OwnLabels(listOf("rain", "sun"), "It is about {}.", true)
        assertEquals(own to null, asked().run { this.own to second })
        model.choose("mood/litert-int8_dynamic")
        assertNull(asked().own)
        model.leave()
        model.choose("infer/executorch-int8_dynamic")
        assertEquals(own, asked().own)
        // Its own labels, of a text and another.
        model.preferOwn(false)
        model.writeSecond("It rains.")
        assertEquals("It rains." to null, asked().run { second to this.own })
        val shares = ((model.form.value.state as TryModel.State.Answered).reply.answer as Answer.Labels).shares
        assertEquals(setOf("contradiction", "entailment", "neutral"), shares.map { it.label }.toSet())
        model.preferOwn(true)
        for ((labels, template, missing) in listOf(
            Triple(" ,", "It is {}.", Missing.LABEL),
            Triple("rain", "It is.", Missing.TEMPLATE),
        )) {
            model.writeLabels(labels)
            model.writeTemplate(template)
            model.ask()
            assertEquals(TryModel.State.Idle(missing), model.form.value.state)
        }
        model.decideEach(false)
        model.ask()
        assertEquals(TryModel.State.Idle(Missing.TWO_LABELS), model.form.value.state)
    }

    @Test
    fun `a long text with labels of one's own is said to be cut`() = Served.test {
        val model = TryModel(Served.usable(), SearchModel(), this, warmRuns = 0)
        model.choose("infer/litert-int8_dynamic")
        model.writeTemplate("{}")
        model.writeLabels("food, sea sea")
        // The longest of the rows fits: [CLS], the text, [SEP], two words, [SEP].
        for ((words, cutAt) in listOf(123 to null, 124 to 128)) {
            model.writeFirst("ocean ".repeat(words))
            model.ask()
            model.settled()
            val reply = (model.form.value.state as TryModel.State.Answered).reply
            assertEquals(Triple(128, 128, cutAt), Triple(reply.tokens, reply.length, reply.cutAt))
        }
    }

    @Test
    fun `an answer of random weights is hidden`() = Served.test {
        val models = Served.copyWithRandom(File(home, "models"), "mood/litert-int8_dynamic")
        val model = TryModel(Shelf.open(Served.equipment(models = models, unsigned = true)).usable, SearchModel(), this)
        model.choose("mood/litert-int8_dynamic")
        model.ask()
        model.settled()
        val reply = (model.form.value.state as TryModel.State.Answered).reply
        assertEquals(Answer.Hidden, reply.answer)
        assertTrue(reply.inferenceMs > 0)
    }

    @Test
    fun `a long text is said to be cut`() = Served.test {
        val model = TryModel(Served.usable(), SearchModel(), this)
        model.choose("mood/litert-int8_dynamic")
        val fits = "ocean ".repeat(126)
        val replies = listOf(fits, "${fits}ocean").map { text ->
            model.writeFirst(text)
            model.ask()
            model.settled()
            (model.form.value.state as TryModel.State.Answered).reply
        }
        assertEquals(listOf(Triple(128, 128, null), Triple(128, 128, 128)), replies.map { Triple(it.tokens, it.length, it.cutAt) })
    }

    // --- two models ----------------------------------------------------------------------------------------------------

    @Test
    fun `two models are compared, and random weights have no answer`() = Served.test {
        val models = Served.copyWithRandom(File(home, "models"), "near/litert-int8_dynamic")
        val model = CompareModel(Shelf.open(Served.equipment(models = models, unsigned = true)).usable, this)
        assertEquals(2, model.form.value.sides.size)
        model.choose("mood/litert-int8_dynamic", 0)
        model.choose("near/litert-int8_dynamic", 1)
        assertNull(model.form.value.verdict)
        model.writeFirst("A charming film.")
        model.run()
        assertTrue(model.form.value.isRunning)
        model.settled()
        val form = model.form.value
        assertFalse(form.isRunning)
        // The headline is about the one that was trained, whichever side it stands on.
        val verdict = checkNotNull(form.verdict)
        assertEquals("mood" to "near", verdict.student.model.name to verdict.other.model.name)
        assertEquals(checkNotNull(form.sides[1].medianMs) / checkNotNull(form.sides[0].medianMs), verdict.ratio)
        assertTrue(form.sides.all { it.samples.size == 20 && it.runs == CompareModel.RUNS && it.problem == null })
        assertEquals(2, (form.sides[0].reply?.answer as Answer.Labels).shares.size)
        assertEquals(Answer.Hidden, form.sides[1].reply?.answer)
        model.choose("near/litert-int8_dynamic", 0)
        model.choose("mood/litert-int8_dynamic", 1)
        model.run()
        model.settled()
        assertEquals("mood", model.form.value.verdict?.student?.model?.name)
        model.choose("near/litert-int8_dynamic", 1)
        assertEquals(List(2) { "near/litert-int8_dynamic" }, model.form.value.sides.map { it.model.id })
        assertTrue(model.form.value.sides.all { it.samples.isEmpty() })
    }

    @Test
    fun `one model alone is not compared`() = Served.test {
        val model = CompareModel(Served.usable().take(1), this)
        assertTrue(model.form.value.sides.isEmpty())
        model.run()
        model.settled()
        assertNull(model.form.value.verdict)
    }

    @Test
    fun `a comparison says what is missing and can be stopped`() = Served.test {
        val (halting, models) = Served.halting()
        val model = CompareModel(models, this)
        model.choose("ask/litert-int8_dynamic", 0)
        model.choose("mood/litert-int8_dynamic", 1)
        assertTrue(model.form.value.takesTwo)
        model.writeFirst("Who built it?")
        model.writeSecond("")
        model.run()
        eventually("it runs") { halting.runs == 1 }
        assertEquals(Missing.QUESTION_AND_PASSAGE, model.form.value.sides[0].missing)
        model.cancel()
        assertFalse(model.form.value.isRunning)
        halting.release()
        model.run()
        model.settled()
        assertEquals(20, model.form.value.sides[1].samples.size)
        assertNull(model.form.value.verdict)
        model.forget()
        assertTrue(model.form.value.sides.all { it.samples.isEmpty() && it.reply == null && it.missing == null })
    }

    // --- the self-test -------------------------------------------------------------------------------------------------

    private fun SelfTestModel.Row.reports() = units.map { (it.state as SelfTestModel.State.Done).report }

    @Test
    fun `the self-test finds the same answers`() = Served.test {
        val model = SelfTestModel(Shelf.open(Served.equipment()), this)
        assertNull(model.table.value.verdict)
        model.run()
        model.settled()
        val table = model.table.value
        assertEquals(SelfTestModel.Verdict(0, 16), table.verdict)
        assertTrue(table.rows.all { row -> row.units.map { it.unit } == listOf("CPU") && row.agrees == true && row.differing == null })
        val reports = table.rows.flatMap { it.reports() }
        for (report in reports) {
            assertEquals(report.rows, report.sameTokens)
            assertTrue((report.worstCosine ?: 0.0) > (report.minCosine ?: 0.9))
        }
        println("self-test: ${reports.sumOf { it.rows }} cases of ${reports.size} files, none differs")
    }

    @Test
    fun `an untried unit is offered where its self-test has passed, and nowhere else`() = Served.test {
        val id = "mood/litert-int8_dynamic"
        val models = Served.copyWithUntried(File(home, "models"), id, "Nobody has tried it.")
        val differences = mapOf(
            WithGpu(Served.runtime("litert"), share = 1.0) to emptyList<SelfTestModel.Difference>(),
            // As LiteRT does where nothing is delegated: every answer is right, and the CPU's.
            WithGpu(Served.runtime("litert"), share = 0.0) to listOf(SelfTestModel.Difference.NotConfirmed("GPU")),
            WithGpu(Served.runtime("litert"), share = 1.0, factor = -1f) to null,
            Served.runtime("litert") to null,
        ).map { (runtime, wanted) ->
            val equipment = Served.equipment(mapOf("litert" to runtime), models = models, unsigned = true)
            val shelf = Shelf.open(equipment)
            val mood = shelf.usable.first { it.id == id }
            assertEquals(listOf("CPU"), mood.computeUnits)
            val model = SelfTestModel(Shelf(listOf(mood), emptyList()), this)
            model.run()
            model.settled()
            val row = model.table.value.rows.single()
            assertEquals(listOf("CPU" to null, "GPU" to "Nobody has tried it."), row.units.map { it.unit to it.known })
            // An untried unit does not spoil the verdict on the file.
            assertEquals(true, row.agrees)
            val found = (row.units[1].state as? SelfTestModel.State.Done)?.report?.differences
            if (wanted != null) assertEquals(wanted, found)
            assertEquals(if (found?.isEmpty() == true) listOf("CPU", "GPU") else listOf("CPU"), mood.computeUnits)
            val benchmark = BenchmarkModel(shelf.usable, equipment, this)
            benchmark.choose(id)
            assertEquals(mood.computeUnits, benchmark.form.value.chosen?.computeUnits)
            found?.firstOrNull()?.javaClass?.simpleName
        }
        assertEquals(listOf(null, "NotConfirmed", "Noisier", null), differences)
    }

    @Test
    fun `the self-test sees an old runtime and one that is gone`() = Served.test {
        val old = Halting(Served.runtime("litert"), version = "1.1.9", isOpen = true)
        val gone = Served.goneRuntime("executorch")
        val near = Served.usable(mapOf("litert" to old, "executorch" to gone)).filter { it.name == "near" }
        val model = SelfTestModel(Shelf(near, emptyList()), this)
        model.run()
        model.settled()
        val table = model.table.value
        assertEquals(SelfTestModel.Verdict(2, 2), table.verdict)
        val rows = table.rows.associateBy { it.model.model.signature.backend }
        val differences = rows.getValue("litert").reports().single().differences
        assertEquals(listOf(SelfTestModel.Difference.OldRuntime("LiteRT", "1.1.9", "1.2.0")), differences)
        assertTrue(rows.getValue("executorch").differing?.state is SelfTestModel.State.Failed)
    }

    @Test
    fun `the self-test can be stopped`() = Served.test {
        val (halting, models) = Served.halting()
        val model = SelfTestModel(Shelf(models, emptyList()), this)
        model.run()
        eventually("it runs") { halting.runs == 1 }
        model.cancel()
        assertFalse(model.table.value.isRunning)
        halting.release()
        model.settled()
        assertTrue(model.table.value.rows.all { row -> row.units.all { it.state == SelfTestModel.State.Waiting } })
        assertNull(model.table.value.verdict)
    }
}
