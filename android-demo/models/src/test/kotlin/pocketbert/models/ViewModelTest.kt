package pocketbert.models

import kotlinx.coroutines.delay
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNotNull
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assumptions.assumeTrue
import org.junit.jupiter.api.BeforeEach
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pocketbert.core.contract.Folder
import pocketbert.core.contract.Policy
import pocketbert.core.contract.State
import pocketbert.core.contract.TrustedKeys
import java.io.File

/** What the screens show where something is missing, wrong, slow or given up. */
class ViewModelTest {
    @TempDir
    lateinit var home: File

    @BeforeEach
    fun `students are there`() = assumeTrue(Served.areThere, "`make apps-check` makes the students and serves the runtimes")

    private suspend fun opened(equipment: Equipment) = ShelfModel(equipment).also { it.open() }.state.value

    @Test
    fun `nothing was shipped`() = Served.test {
        val state = opened(Served.equipment(home, files = Folder(home)))
        assertTrue("Run `pocketbert ship`" in (state as ShelfModel.State.Failed).why)
    }

    @Test
    fun `an index that is broken is a sentence`() = Served.test {
        File(home, "models.json").writeText("{")
        val state = opened(Served.equipment(home, files = Folder(home)))
        assertTrue((state as ShelfModel.State.Failed).why.startsWith("Models.json: it cannot be read"), state.why)
    }

    @Test
    fun `other keys are not trusted, and a release takes nothing unsigned`() = Served.test {
        val none = Policy(TrustedKeys(emptyList()))
        val shelf = (opened(Served.equipment(home, policy = none)) as ShelfModel.State.Ready).shelf
        assertTrue(shelf.usable.isEmpty() && shelf.refused.size == 10)
        assertTrue(shelf.refused.all { "(other_key)" in it.why })
        val copy = File(home, "copy")
        File(Served.folder, "models").copyRecursively(copy)
        copy.walk().filter { it.name == "model.sig" }.forEach { it.delete() }
        val strict = (opened(Served.equipment(home, files = Folder(copy))) as ShelfModel.State.Ready).shelf
        assertTrue(strict.refused.all { "(unsigned)" in it.why })
        val debug = Policy(TrustedKeys(emptyList()), unsigned = true)
        val taken = (opened(Served.equipment(home, files = Folder(copy), policy = debug)) as ShelfModel.State.Ready).shelf
        assertTrue(taken.usable.size == 10 && taken.usesUnsigned)
    }

    @Test
    fun `a file without its runtime is listed with the reason`() = Served.test {
        val litert = listOf(LinkedRuntime(Served.runtimes.first { it.backend == "litert" }))
        val shelf = Shelf.open(Served.equipment(home, linked = litert))
        assertEquals(5 to 5, shelf.usable.size to shelf.refused.size)
        assertTrue(shelf.refused.all { it.why.endsWith("is a file for executorch, and this app runs LiteRT.") })
    }

    @Test
    fun `a runtime that goes away is a sentence, and what is missing too`() = Served.test {
        val shelf = Shelf.open(Served.equipment(home))
        val tries = TryModel(shelf.usable, SearchModel(), this)
        tries.choose("mood/litert-int8_dynamic")
        tries.writeFirst("  ")
        tries.ask()
        assertEquals("Write a text.", (tries.form.value.state as TryModel.State.Idle).missing)
        Served.runtimes.forEach { it.hangsUpAfter = 1 }
        tries.choose("alike/litert-int8_dynamic")
        tries.ask()
        tries.settled()
        Served.runtimes.forEach { it.hangsUpAfter = null }
        assertTrue((tries.form.value.state as TryModel.State.Failed).why.startsWith("The connection"), "${tries.form.value}")
    }

    @Test
    fun `a new question cancels the one before`() = Served.test {
        val tries = TryModel(Shelf.open(Served.equipment(home)).usable, SearchModel(), this)
        tries.choose("mood/litert-int8_dynamic")
        for (text in listOf("One.", "Two.", "A third and last text.")) {
            tries.writeFirst(text)
            tries.ask()
        }
        tries.settled()
        assertEquals("A third and last text.", (tries.form.value.state as TryModel.State.Answered).question.first)
        tries.ask()
        tries.cancel()
        assertTrue(tries.form.value.state is TryModel.State.Idle)
    }

    @Test
    fun `a text that is cut is said to be`() = Served.test {
        val tries = TryModel(Shelf.open(Served.equipment(home)).usable, SearchModel(), this)
        tries.choose("mood/litert-int8_dynamic")
        tries.writeFirst("word ".repeat(500))
        tries.ask()
        tries.settled()
        assertEquals(128, (tries.form.value.state as TryModel.State.Answered).reply.cutAt)
    }

    @Test
    fun `sentences are kept, searched and imported`() = Served.test {
        val storage = File(home, "sentences.txt")
        val tries = TryModel(Shelf.open(Served.equipment(home)).usable, SearchModel(storage), this)
        tries.choose("near/litert-int8_dynamic")
        tries.search.importFrom("texts.txt", "The store shuts at six o'clock.\n\n  It snowed. \n".byteInputStream())
        tries.ask()
        tries.settled()
        val set = tries.search.set.value
        assertEquals(listOf("The store shuts at six o'clock.", "It snowed."), set.found.map { it.text })
        assertTrue(set.found[0].cosine > set.found[1].cosine && set.embedded == null)
        assertEquals(listOf("The store shuts at six o'clock.", "It snowed."), SearchModel(storage).set.value.sentences)
        tries.search.importFrom("bytes.bin", byteArrayOf(-1, -2).inputStream())
        assertEquals("bytes.bin is no text in UTF-8.", tries.search.set.value.problem)
        tries.search.replace((0..SearchModel.MOST_SENTENCES).joinToString("\n"))
        assertEquals("Only the first 5000 lines of 5001 were taken.", tries.search.set.value.problem)
    }

    @Test
    fun `two models are compared, and random weights have no answer`() = Served.test {
        val copy = File(home, "copy")
        File(Served.folder, "models").copyRecursively(copy)
        val random = File(copy, "near/litert-int8_dynamic")
        File(random, "model.sig").delete()
        File(random, "shipped.json").apply {
            setWritable(true)
        }.let { it.writeText(it.readText().replace("\"random_weights\": false", "\"random_weights\": true")) }
        val policy = Policy(TrustedKeys(Served.keys), unsigned = true)
        val shelf = Shelf.open(Served.equipment(home, files = Folder(copy), policy = policy))
        val compare = CompareModel(shelf.usable, this)
        compare.choose("mood/litert-int8_dynamic", 0)
        compare.choose("near/litert-int8_dynamic", 1)
        compare.writeFirst("A charming film.")
        compare.run()
        compare.settled()
        val form = compare.form.value
        assertEquals(listOf(CompareModel.RUNS, CompareModel.RUNS), form.sides.map { it.runs })
        assertTrue(form.sides[0].reply?.answer is Answer.Labels && form.sides[1].reply?.answer === Answer.Hidden)
        assertNotNull(form.verdict)
        compare.run()
        compare.cancel()
        assertTrue(!compare.form.value.isRunning && compare.form.value.verdict == null)
    }

    @Test
    fun `a benchmark is cancelled, and refused without a length`() = Served.test {
        val shelf = Shelf.open(Served.equipment(home))
        val model = BenchmarkModel(shelf.usable, Served.equipment(home), this)
        model.choose("near/litert-int8_dynamic")
        assertEquals(setOf(32, 128), model.form.value.lengths)
        for (length in listOf(32, 128)) model.chooseLength(length, false)
        model.start()
        assertEquals("Choose a length, at least one.", (model.form.value.state as BenchmarkModel.State.Failed).why)
        model.chooseLength(32, true)
        model.start()
        while ((model.form.value.state as? BenchmarkModel.State.Running)?.progress?.doing?.startsWith("length") != true) delay(50)
        model.cancel()
        model.settled()
        val ended = model.form.value.state as BenchmarkModel.State.Ended
        assertEquals(State.CANCELLED to null, ended.progress.state to ended.record)
        model.chooseUnits("NPU")
        model.start()
        model.settled()
        assertTrue("there are no compute units NPU" in (model.form.value.state as BenchmarkModel.State.Ended).progress.sentence)
    }

    @Test
    fun `a run's name cannot lead out of the folder`() = Served.test {
        val headless = HeadlessModel("../out", Served.equipment(home), this)
        headless.start()
        val ended = headless.settled()
        assertEquals(State.REFUSED, ended.state)
        assertTrue("is no name of a run" in ended.sentence)
    }

    @Test
    fun `numbers are written alike on every phone`() {
        assertEquals(listOf("0.12 ms", "12.3 ms", "123 ms", "12.3 s", "–"), listOf(0.123, 12.34, 123.4, 12_345.0, null).map(Formats::ms))
        assertEquals(
            listOf("71% less time", "50% more time", "the same time"),
            listOf(0.319, 1.5, 1.001).zip(listOf(1.118, 1.0, 1.0)) {
                    one,
                    other,
                ->
                Formats.percentLess(one, other)
            },
        )
        assertNull(Formats.percentLess(null, 1.0))
        assertEquals("9.50 MB", Formats.megabytes(9_500_000))
        assertEquals(MinimumVersion.TOO_OLD, MinimumVersion.of("1.2.0", "1.1.9"))
        assertEquals(MinimumVersion.ENOUGH, MinimumVersion.of("1.4", "1.4.0+cpu"))
        assertEquals(MinimumVersion.NOT_COMPARABLE, MinimumVersion.of("iOS 18", "18.1"))
    }
}
