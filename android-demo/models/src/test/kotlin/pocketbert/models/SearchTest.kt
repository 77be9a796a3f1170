package pocketbert.models

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import java.io.File
import java.io.InputStream

/** The set that is searched: what is kept of it, what is imported, and what is found. */
class SearchTest {
    @TempDir
    lateinit var home: File

    @Test
    fun `a set is searched and each sentence is embedded once`() = Served.test {
        Served.orSkip()
        val halting = Halting(Served.runtime("executorch"), isOpen = true)
        val search = SearchModel()
        val model = TryModel(Served.usable(mapOf("executorch" to halting)), search, this, warmRuns = 0)
        model.choose("near/executorch-int8_dynamic")
        search.replace("The shop closes at six.\nA man is playing a guitar.\nIt rained all day.")
        model.writeFirst("The store shuts at six o'clock.")
        model.ask()
        model.settled()
        assertTrue(model.form.value.state is TryModel.State.Answered, "${model.form.value.state}")
        val set = search.set.value
        assertEquals("The shop closes at six." to 3, set.found.first().text to set.found.size)
        assertTrue(set.found.zipWithNext().all { (one, next) -> one.cosine >= next.cosine })
        assertTrue(set.found.all { it.text == set.sentences[it.place] })
        assertNull(set.embedded)
        assertEquals(4, halting.runs)
        search.replace((set.sentences + "The kitchen is yellow.").joinToString("\n"))
        assertTrue(search.set.value.found.isEmpty())
        model.writeFirst("Music on six strings.")
        model.ask()
        model.settled()
        assertEquals(6, halting.runs)
        assertEquals("A man is playing a guitar.", search.set.value.found.first().text)
    }

    @Test
    fun `a set that is replaced while it is embedded spoils nothing`() = Served.test {
        Served.orSkip()
        val (halting, models) = Served.halting()
        // The question and the first sentence.
        halting.free = 2
        val search = SearchModel()
        val model = TryModel(models, search, this)
        model.choose("near/litert-int8_dynamic")
        search.replace("One.\nTwo.\nThree.")
        model.ask()
        eventually("the second sentence is embedded") { halting.runs == 3 }
        assertEquals(0, search.set.value.embedded)
        search.replace("Two.\nFour.")
        halting.release()
        model.settled()
        assertTrue(model.form.value.state is TryModel.State.Answered, "${model.form.value.state}")
        assertEquals(SearchModel.Set(listOf("Two.", "Four.")), search.set.value)
        model.ask()
        model.settled()
        assertEquals(setOf("Two.", "Four."), search.set.value.found.map { it.text }.toSet())
    }

    @Test
    fun `a set of sentences is kept`() = Served.test {
        val file = File(home, "sentences.txt")
        val search = SearchModel(file)
        assertEquals(Examples.sentences, search.set.value.sentences)
        search.replace("  One. \n\nTwo.\r\nThree.\n")
        assertEquals(listOf("One.", "Two.", "Three."), search.set.value.sentences)
        assertEquals(search.set.value.sentences, SearchModel(file).set.value.sentences)
        assertEquals(listOf(file.name), home.list().orEmpty().toList())
        search.importFrom("odd.txt") { byteArrayOf(-1, -2, 0x41).inputStream() }
        assertEquals(SearchModel.Problem.NotText("odd.txt"), search.set.value.problem)
        search.importFrom("large.txt") { Endless }
        assertEquals(SearchModel.Problem.TooLarge("large.txt", 8L shl 20), search.set.value.problem)
        assertEquals(3, search.set.value.sentences.size)
        search.replace((0..5_001).joinToString("\n") { "Line $it." })
        assertEquals(SearchModel.MOST_SENTENCES, search.set.value.sentences.size)
        assertEquals(SearchModel.Problem.Cut(5_000, 5_002), search.set.value.problem)
        search.reset()
        assertNull(search.set.value.problem)
    }

    @Test
    fun `a set that cannot be kept is said to be`() {
        val search = SearchModel(File(home, "no such folder/sentences.txt"))
        search.replace("One.")
        assertEquals(listOf("One."), search.set.value.sentences)
        assertTrue(search.set.value.problem is SearchModel.Problem.NotKept, "${search.set.value.problem}")
    }

    /** A file without an end. */
    private object Endless : InputStream() {
        override fun read() = 'a'.code
    }
}
