package pocketbert.models

import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.cancel
import kotlinx.coroutines.delay
import kotlinx.coroutines.plus
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.int
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pocketbert.core.contract.Files
import pocketbert.core.contract.Folder
import pocketbert.core.endtoend.HostPhone
import pocketbert.core.model.RunnerFailed
import pocketbert.core.search.FlatIndex
import pocketbert.core.search.IndexSpec
import pocketbert.core.search.Passage
import pocketbert.core.search.Storage
import java.io.File
import java.util.concurrent.CountDownLatch

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

    private fun kin(recipe: String, parameters: Int, said: String = "{}", facts: String = "{}"): Served.Kin {
        val named = Json.parseToJsonElement(facts).jsonObject + ("parameters" to JsonPrimitive(parameters))
        return Served.Kin(recipe, JsonObject(named).toString(), said)
    }

    @Test
    fun `the smallest model of the same space that is smaller and of another recipe is the faster one`() {
        Served.orSkip()
        val signature = Json.parseToJsonElement(File(Served.models, "near/litert-int8_dynamic/signature.json").readText()).jsonObject
        val (vectors, parameters) = signature.getValue("vectors").jsonObject to signature.getValue("parameters").jsonPrimitive.int
        fun with(vararg facts: Pair<String, JsonElement>) = JsonObject(mapOf("vectors" to JsonObject(vectors + facts))).toString()
        val scales = JsonArray(vectors.getValue("scales").jsonArray.take(192))
        val narrow = with("width" to JsonPrimitive(192), "widths" to JsonArray(listOf(JsonPrimitive(192))), "scales" to scales)
        val functions = signature.getValue("functions").toString().replace("[1,384]", "[1,192]")
        val kin = listOf(
            kin("near", 1),
            kin("fast", parameters - 1),
            kin("fastest", 2),
            kin("equal", parameters),
            kin("larger", parameters + 1),
            kin("random", 1, said = """{"random_weights": true}"""),
            kin("elsewhere", 1, facts = with("space" to JsonPrimitive("0123456789abcdef"))),
            kin("unscaled", 1, facts = with("unit_length" to JsonPrimitive(false))),
            kin("narrow", 1, facts = narrow.dropLast(1) + ""","functions":$functions}"""),
        )
        val all = models(Served.copyWithKin(File(home, "models"), kin))
        assertEquals(kin.size + 1, all.size)
        val near = all.first { it.id == "near/executorch-int8_dynamic" }
        assertEquals(listOf("fast", "fastest"), all.filter { near.faster(listOf(near, it)) != null }.map { it.name }.sorted())
        assertEquals("fastest", near.faster(all)?.name)
        assertEquals("fastest", near.faster(all.reversed())?.name)
        assertNull(all.first { it.name == "fastest" }.faster(listOf(near, all.first { it.name == "fast" })))
    }

    private val fast by lazy { BagOfTokens("litert", Served.runtime("litert").version) }

    /** Does something with the search of a model that has a smaller one of its space beside it, which [fast] runs. */
    private suspend fun CoroutineScope.searchingWithFast(search: SearchModel, act: suspend (TryModel) -> Unit) {
        val folder = Served.copyWithKin(File(home, "models"), listOf(kin("fast", 1, facts = """{"prompts": {"passage": "passage: "}}""")))
        val equipment = Served.equipment(mapOf("executorch" to bag, "litert" to fast), unsigned = true, models = folder)
        searching(search, Shelf.open(equipment).usable, act)
        eventually("all are closed") { bag.open + fast.open == 0 }
    }

    private fun SearchModel.fills() = set.value.index.let { it?.other to it?.isFast }

    @Test
    fun `a faster model of the space indexes texts when asked to, and is asked no question`() = Served.test {
        Served.orSkip()
        val all = texts(1_500)
        val search = SearchModel(home = File(home, "home"))
        searchingWithFast(search) { model ->
            search.importFrom("notes.txt") { all.joinToString("\n").byteInputStream() }
            val slow = CountDownLatch(1)
            bag.before = { if (bag.runs == 600) slow.await() }
            model.ask()
            eventually("the model that is asked embeds the 600th text") { bag.runs == 600 }
            assertEquals(Pair("fast", false) to 0, search.fills() to fast.runs)
            val there = checkNotNull(search.set.value.index).passages
            assertTrue(there > 512, "$there passages")
            search.preferFast(true)
            assertEquals("near" to true, search.fills())
            filled(search, 1_500)
            // What was there is not embedded again.
            assertEquals(1_500 - there, fast.runs)
            eventually("the faster model is closed") { fast.open == 0 }
            assertEquals(SearchModel.Indexed(isOwn = true, passages = 1_500), search.set.value.index)
            slow.countDown()
            for (place in listOf(3, 1_400)) assertEquals(all[place], model.asked(all[place]).found.first().text)
            // Behind the prompt of the faster model, since the other one has none.
            assertEquals(1f, model.asked("passage: ${all[1_400]}").found.first().cosine, 0.01f)
            assertEquals(604 to 1_500 - there, bag.runs to fast.runs)
            // Other texts are indexed by it as well, until it is given up.
            val halted = CountDownLatch(1)
            fast.before = { if (fast.runs == 1_700 - there) halted.await() }
            search.importFrom("others.txt") { texts(2_000, from = 1_000).joinToString("\n").byteInputStream() }
            eventually("the faster model embeds the 200th of them") { fast.runs == 1_700 - there }
            assertEquals(Pair("near", true) to 604, search.fills() to bag.runs)
            val now = checkNotNull(search.set.value.index).passages
            search.preferFast(false)
            assertEquals("fast" to false, search.fills())
            filled(search, 2_000)
            assertEquals(604 + 2_000 - now, bag.runs)
            halted.countDown()
        }
    }

    @Test
    fun `a faster model that fails is closed, and another model that is asked does without it`() = Served.test {
        Served.orSkip()
        val search = SearchModel(home = File(home, "home"))
        searchingWithFast(search) { model ->
            bag.before = { if (bag.runs > 100) throw RunnerFailed("it is slow") }
            search.importFrom("notes.txt") { texts(600).joinToString("\n").byteInputStream() }
            model.ask()
            eventually("it is stopped") { search.set.value.index?.isStopped == true }
            fast.before = { throw RunnerFailed("it is fast") }
            search.preferFast(true)
            eventually("it is stopped") { search.set.value.problem == SearchModel.Problem.Unreadable("It is fast.") }
            eventually("the faster model is closed") { fast.open == 0 }
            assertEquals(Pair("near", true) to true, search.fills() to search.set.value.index?.isStopped)
            val halted = CountDownLatch(1)
            fast.before = { halted.await() }
            model.choose("near/litert-int8_dynamic")
            search.goOn()
            model.ask()
            eventually("the faster one is offered") { search.fills() == "fast" to false }
            halted.countDown()
            filled(search, 600)
        }
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
