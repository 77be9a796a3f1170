package pocketbert.models

import kotlinx.coroutines.CoroutineScope
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNotEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.BeforeEach
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pocketbert.core.output.Outputs
import java.io.File

/** Real students with other facts in their signatures: prompts, an activation, labels that are decided one by one. */
class FactsTest {
    @TempDir
    lateinit var home: File

    @BeforeEach
    fun `students are there`() = Served.orSkip()

    /** Opens the students, of which one has other facts in its signature. */
    private fun CoroutineScope.model(student: String, facts: String, search: SearchModel = SearchModel()): TryModel {
        val models = Served.copyWithFacts(File(home, "${facts.hashCode()}"), student, facts)
        val shelf = Shelf.open(Served.equipment(models = models, unsigned = true))
        return TryModel(shelf.usable, search, this, warmRuns = 0).also { it.choose(student) }
    }

    private suspend fun TryModel.answer(first: String, second: String = ""): Answer {
        writeFirst(first)
        writeSecond(second)
        ask()
        settled()
        val state = form.value.state
        return (state as? TryModel.State.Answered)?.reply?.answer ?: error("$state")
    }

    private suspend fun TryModel.embedding(text: String) = (answer(text) as Answer.Embedding).embedding

    private suspend fun CoroutineScope.plain(text: String) =
        TryModel(Served.usable(), SearchModel().apply { replace("") }, this, warmRuns = 0).run {
            choose(NEAR)
            embedding(text)
        }

    @Test
    fun `what is looked for and what is searched have prompts of their own`() = Served.test {
        val search = SearchModel().apply { replace("The shop closes at six.\nIt rained all day.") }
        val model = model(NEAR, """{"prompts": {"query": "query: ", "passage": "passage: "}}""", search)
        assertEquals(listOf("passage", "query") to "query", model.form.value.run { chosen?.prompts to prompt })
        val asked = model.embedding("When does the store shut?")
        assertArrayEquals(plain("query: When does the store shut?"), asked)
        assertEquals(emptyList<String>(), model.form.value.unusedPrompts)
        val found = search.set.value.found
        assertEquals("The shop closes at six." to 2, found.first().text to found.size)
        for (one in found) assertEquals(Outputs.cosine(asked, plain("passage: ${one.text}")), one.cosine)
    }

    @Test
    fun `a person chooses a prompt or none, and none is said where there are some`() = Served.test {
        val model = model(NEAR, """{"prompts": {"sts": "sts: ", "topic": "topic: "}, "default_prompt": "sts"}""")
        assertEquals("sts", model.form.value.prompt)
        val text = "A text."
        assertArrayEquals(plain("sts: A text."), model.embedding(text))
        model.choosePrompt("topic")
        // The answer that stands was given with the other one.
        assertEquals(emptyList<String>(), model.form.value.unusedPrompts)
        assertArrayEquals(plain("topic: A text."), model.embedding(text))
        model.choosePrompt("no such prompt")
        assertEquals("topic", model.form.value.prompt)
        model.choosePrompt("")
        assertEquals(emptyList<String>(), model.form.value.unusedPrompts)
        assertArrayEquals(plain(text), model.embedding(text))
        assertEquals(listOf("sts", "topic"), model.form.value.unusedPrompts)
        // The sentences have the default one whatever a person has chosen.
        val sentence = model.search.set.value.found.first()
        assertEquals(Outputs.cosine(plain(text), plain("sts: ${sentence.text}")), sentence.cosine)
        model.choose("near/executorch-int8_dynamic")
        assertEquals(emptyList<String>() to "", model.form.value.run { chosen?.prompts to prompt })
        model.embedding(text)
        assertEquals(emptyList<String>(), model.form.value.unusedPrompts)
    }

    @Test
    fun `without a default prompt none is chosen, and empty prompts are none`() = Served.test {
        val model = model(NEAR, """{"prompts": {"topic": "topic: "}}""")
        assertEquals("", model.form.value.prompt)
        assertArrayEquals(plain("A text."), model.embedding("A text."))
        assertEquals(listOf("topic"), model.form.value.unusedPrompts)
        val empty = model(NEAR, """{"prompts": {"query": "", "document": ""}}""")
        assertArrayEquals(plain("A text."), empty.embedding("A text."))
        assertEquals(emptyList<String>() to emptyList<String>(), empty.form.value.run { chosen?.prompts to unusedPrompts })
    }

    @Test
    fun `a prompt counts among the tokens that a text may have`() = Served.test {
        val model = model(NEAR, """{"prompts": {"query": "query: "}}""", SearchModel().apply { replace("") })
        val text = "ocean ".repeat(126)
        for ((prompt, cutAt) in listOf("" to null, "query" to 128)) {
            model.choosePrompt(prompt)
            model.embedding(text)
            assertEquals(cutAt, (model.form.value.state as TryModel.State.Answered).reply.cutAt)
        }
    }

    @Test
    fun `labels are decided one by one`() = Served.test {
        val text = "A charming film."
        val facts = """{"output_kind": "multi_label", "thresholds": [0.0, 1.0]}"""
        val found = model(MOOD, facts).answer(text) as Answer.Labels
        assertEquals(listOf(found.shares.single { it.isGiven == true }), found.given)
        val all = model(MOOD, """{"output_kind": "multi_label", "thresholds": [0.0, 0.0]}""").answer(text) as Answer.Labels
        assertEquals(all.shares, all.given)
        val none = model(MOOD, """{"output_kind": "multi_label", "thresholds": [1.0, 1.0]}""").answer(text) as Answer.Labels
        assertTrue(none.given.isEmpty() && none.shares.size == 2)
        val one = TryModel(Served.usable(), SearchModel(), this, warmRuns = 0).apply { choose(MOOD) }.answer(text) as Answer.Labels
        assertEquals(one.shares.take(1), one.given)
        assertNull(one.given.single().isGiven)
        assertNotEquals(one.shares.map { it.share }, found.shares.map { it.share })
    }

    @Test
    fun `values have names, and go through the activation`() = Served.test {
        val values = (model(MOOD, """{"output_kind": "values"}""").answer("A charming film.") as Answer.Values).values
        val shares = (model(MOOD, """{"output_kind": "multi_label"}""").answer("A charming film.") as Answer.Labels).shares
        assertEquals(values.map { it.name }.toSet(), shares.map { it.label }.toSet())
        for (one in values) assertEquals(shares.first { it.label == one.name }.share, Outputs.sigmoid(one.value.toDouble()))
        val pair = "A man is playing a guitar." to "Somebody plays an instrument."
        val (raw, activated) = listOf("identity", "sigmoid").map { name ->
            (model(ALIKE, """{"activation": "$name"}""").answer(pair.first, pair.second) as Answer.Value).value
        }
        assertEquals(Outputs.sigmoid(raw.toDouble()).toFloat(), activated)
    }

    private companion object {
        const val NEAR = "near/litert-int8_dynamic"
        const val MOOD = "mood/litert-int8_dynamic"
        const val ALIKE = "alike/litert-int8_dynamic"
    }
}
