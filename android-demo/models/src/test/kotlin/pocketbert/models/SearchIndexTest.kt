package pocketbert.models

import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.cancel
import kotlinx.coroutines.delay
import kotlinx.coroutines.plus
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pocketbert.core.contract.Files
import pocketbert.core.contract.Folder
import pocketbert.core.endtoend.HostPhone
import pocketbert.core.search.FlatIndex
import pocketbert.core.search.IndexSpec
import pocketbert.core.search.Passage
import pocketbert.core.search.Storage
import java.io.File

/** An index in place of the sentences: a person's own texts, and the one that was shipped. */
class SearchIndexTest {
    @TempDir
    lateinit var home: File
    private val bag by lazy { Served.orSkip().let { BagOfTokens("executorch", Served.runtime("executorch").version) } }

    private fun models(models: File = Served.models) =
        Shelf.open(Served.equipment(mapOf("executorch" to bag), unsigned = true, models = models)).usable

    private fun texts(count: Int, from: Int = 0) = List(count) { at ->
        val number = from + at
        "Note $number: ${WORDS[number % WORDS.size]}${" and then some more".repeat(number % 5)}"
    }

    private suspend fun TryModel.asked(text: String): SearchModel.Set {
        writeFirst(text)
        ask()
        settled()
        assertTrue(form.value.state is TryModel.State.Answered, "${form.value.state}")
        return search.set.value
    }

    private suspend fun filled(search: SearchModel, count: Int) = eventually("$count texts are in the index: ${search.set.value}") {
        search.set.value.index.let { it?.texts == null && it?.passages == count }
    }

    /** Does something with the search of a model that embeds, and leaves it. */
    private suspend fun CoroutineScope.searching(
        search: SearchModel,
        models: List<ShelvedModel> = models(),
        act: suspend (TryModel) -> Unit,
    ) {
        val model = TryModel(models, search, this, warmRuns = 0)
        model.choose("near/executorch-int8_dynamic")
        act(model)
        model.leave()
        search.settled()
    }

    @Test
    fun `many texts are put into an index, which is there at the next start`() = Served.test {
        Served.orSkip()
        val all = texts(1_300)
        val search = SearchModel(home = home)
        searching(search) { model ->
            search.importFrom("notes.txt") { (all + all.take(3)).joinToString("\n\n").byteInputStream() }
            assertEquals(SearchModel.Indexed(isOwn = true, passages = 0, texts = 1_303), search.set.value.index)
            model.asked(all[700])
            filled(search, 1_300)
            assertEquals(all[700], model.asked(all[700]).found.first().text)
            assertEquals(1f, search.set.value.found.first().cosine, 0.01f)
            assertEquals(10, search.set.value.found.size)
        }
        assertEquals(1_302, bag.runs)
        // Within a window, from the shortest to the longest.
        val window = bag.lengths.subList(1, 513)
        assertEquals(window.sorted(), window)
        val next = SearchModel(home = home)
        searching(next) { model ->
            model.asked(all[9])
            filled(next, 1_300)
            assertEquals(all[9], next.set.value.found.first().text)
        }
        assertEquals(1_303, bag.runs)
        // A damaged one is made again: the texts are kept.
        checkNotNull(home.listFiles()).first { it.isDirectory }.let { File(it, "vectors.bin").writeBytes(ByteArray(5)) }
        val last = SearchModel(home = home)
        searching(last) { model ->
            model.asked(all[9])
            filled(last, 1_300)
            assertEquals(all[9], model.asked(all[9]).found.first().text)
            assertNull(last.set.value.problem)
        }
    }

    @Test
    fun `a kill while texts are indexed loses a batch at most`() = Served.test {
        Served.orSkip()
        val all = texts(1_000)
        val killed = this + Job()
        val search = SearchModel(home = File(home, "killed"))
        val model = TryModel(models(), search, killed, warmRuns = 0)
        model.choose("near/executorch-int8_dynamic")
        search.importFrom("notes.txt") { all.joinToString("\n").byteInputStream() }
        bag.before = { if (bag.runs == 601) killed.cancel() }
        model.ask()
        eventually("600 texts were embedded") { bag.runs >= 601 }
        // What a process that ends does not do: close the index. Its lock ends with it.
        delay(50)
        val before = bag.runs
        File(home, "killed").copyRecursively(File(home, "next"))
        val next = SearchModel(home = File(home, "next"))
        searching(next) {
            it.ask()
            filled(next, 1_000)
            assertEquals(all[4], it.asked(all[4]).found.first().text)
        }
        assertTrue(bag.runs - before in 400..440, "${bag.runs - before} runs after the kill")
        model.leave()
    }

    @Test
    fun `indexing rests while the phone is hot or its battery low`() = Served.test {
        Served.orSkip()
        val phone = HostPhone(emptyList(), listOf("none", "light", "severe", "severe", "light"))
        phone.batteries.addAll(listOf(0.9, 0.9, 0.9, 0.9, 0.5, 0.1, 0.1))
        val search = SearchModel(home = home, gate = EnergyGate(phone), restMs = 40)
        searching(search) { model ->
            search.importFrom("notes.txt") { texts(600).joinToString("\n").byteInputStream() }
            model.ask()
            eventually("it rests because of the heat") { search.set.value.index?.rest == Rest.HOT }
            val runs = bag.runs
            assertTrue(runs in 64..65, "$runs runs before")
            eventually("it goes on, and rests because of the battery") { search.set.value.index?.rest == Rest.LOW_BATTERY }
            assertTrue(bag.runs > runs)
            filled(search, 600)
            assertNull(search.set.value.index?.rest)
        }
        val saving = HostPhone(emptyList()).also { it.lowPower.add(true) }
        assertEquals(listOf(Rest.LOW_BATTERY, null), List(2) { EnergyGate(saving).rest() })
    }

    @Test
    fun `indexing is stopped, goes on, and gives way to other texts`() = Served.test {
        Served.orSkip()
        val search = SearchModel(home = home)
        searching(search) { model ->
            search.replace(texts(900).joinToString("\n"))
            bag.before = { if (bag.runs == 300) search.stop() }
            model.ask()
            eventually("it was stopped") { search.set.value.index?.isStopped == true }
            delay(50)
            val runs = bag.runs
            assertTrue(runs < 400, "$runs runs")
            model.asked("Note 3")
            assertEquals(runs + 1, bag.runs)
            bag.before = {}
            search.goOn()
            filled(search, 900)
            // 700 of them are there already.
            val before = bag.runs
            search.importFrom("others.txt") { texts(1_000, from = 200).joinToString("\n").byteInputStream() }
            filled(search, 1_000)
            assertEquals(300, bag.runs - before)
            assertFalse(model.asked(texts(1)[0]).found.any { it.text == texts(1)[0] })
            search.importFrom("odd.txt") { byteArrayOf(-1, -2, 0x41).inputStream() }
            assertEquals(SearchModel.Problem.NotText("odd.txt"), search.set.value.problem)
            assertEquals(1_000, search.set.value.index?.passages)
            search.reset()
            assertNull(search.set.value.index)
            model.asked("When does the shop close?")
            assertEquals(10, search.set.value.found.size)
        }
        assertEquals(emptyList<String>(), home.list().orEmpty().toList())
    }

    @Test
    fun `more texts than an index takes are cut`() = Served.test {
        val search = SearchModel(home = home)
        search.importFrom("large.txt") { List(100_002) { "Line $it." }.joinToString("\n").byteInputStream() }
        assertEquals(SearchModel.Problem.Cut(100_000, 100_002), search.set.value.problem)
        assertEquals(SearchModel.Indexed(isOwn = true, passages = 0, texts = 100_000), search.set.value.index)
        search.importFrom("small.txt") { "One.\n\n Two. ".byteInputStream() }
        assertEquals(SearchModel.Set(listOf("One.", "Two.")), search.set.value)
    }

    /** Writes an index as `pocketbert index` does, of texts that an app's model embeds. */
    private suspend fun write(folder: File, texts: List<String>, space: String? = null) {
        val shelved = models().first { it.id == "near/executorch-int8_dynamic" }
        val vectors = checkNotNull(shelved.model.signature.vectors)
        val spec = IndexSpec(space ?: vectors.id, vectors.width, Storage.INT8, vectors.scales, true, null, null, "executorch-int8_dynamic")
        val worker = Worker(shelved)
        FlatIndex.openOrCreate(folder, spec, spec.width).use { index ->
            index.add(texts.map { Passage(it, it, (worker.ask(Question(it)).answer as Answer.Embedding).embedding) })
        }
        worker.close()
    }

    @Test
    fun `a shipped index is searched where it is of the model's space`() = Served.test {
        Served.orSkip()
        val all = texts(100)
        val shipped = Served.copy(File(home, "models")) {}
        for (place in listOf("index", "near/index")) {
            write(File(shipped, place), all)
            searching(SearchModel(), models(shipped)) { model ->
                val set = model.asked(all[42])
                assertEquals(SearchModel.Indexed(isOwn = false, passages = 100), set.index)
                assertEquals(all[42] to 10, set.found.first().text to set.found.size)
                // A person's own sentences are searched in its place.
                model.search.replace("One.\nTwo.")
                assertEquals(setOf("One.", "Two."), model.asked("One.").found.map { it.text }.toSet())
                model.search.reset()
                assertEquals(all[7], model.asked(all[7]).found.first().text)
            }
            File(shipped, place).deleteRecursively()
        }
        write(File(shipped, "index"), all, space = "0123456789abcdef")
        searching(SearchModel(), models(shipped)) { model ->
            val set = model.asked("When does the shop close?")
            assertNull(set.index)
            assertNull(set.problem)
            assertEquals(16, set.sentences.size)
        }
        File(shipped, "index/vectors.bin").writeBytes(ByteArray(3))
        searching(SearchModel(), models(shipped)) { model ->
            val problem = model.asked("When does the shop close?").problem
            assertTrue("damaged" in (problem as SearchModel.Problem.Unreadable).why, problem.why)
        }
    }

    @Test
    fun `a shipped index within the app is copied out of it once`() = Served.test {
        Served.orSkip()
        val all = texts(50)
        val shipped = Served.copy(File(home, "models")) {}
        val copies = File(home, "copies")
        for (count in listOf(50, 30)) {
            write(File(shipped, "index"), all.take(count))
            // Assets have no place in the file system.
            val assets = object : Files by Folder(shipped) {
                override fun onDisk(path: String): File? = null
            }
            val equipment = Served.equipment(mapOf("executorch" to bag), unsigned = true)
            val within = Equipment(assets, equipment.policy, equipment.runtimes, equipment.phone, equipment.runs)
            repeat(2) {
                searching(SearchModel(home = copies), Shelf.open(within).usable) { model ->
                    val set = model.asked(all[12])
                    assertEquals(SearchModel.Indexed(isOwn = false, passages = count) to all[12], set.index to set.found.first().text)
                }
                assertEquals(1, copies.list().orEmpty().size)
            }
            File(shipped, "index").deleteRecursively()
        }
        searching(SearchModel(), Shelf.open(Served.equipment(mapOf("executorch" to bag))).usable) { assertNull(it.asked("One.").index) }
    }

    private companion object {
        val WORDS = listOf("the lamp is lit", "bread from the oven", "a train at noon", "snow on the hill", "six blue cups", "an old song")
    }
}
