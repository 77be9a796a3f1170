package pocketbert.app

import androidx.activity.compose.setContent
import androidx.compose.material3.Surface
import androidx.compose.ui.semantics.SemanticsProperties
import androidx.compose.ui.test.SemanticsMatcher
import androidx.compose.ui.test.assertHeightIsAtLeast
import androidx.compose.ui.test.assertIsDisplayed
import androidx.compose.ui.test.assertIsSelected
import androidx.compose.ui.test.hasClickAction
import androidx.compose.ui.test.hasText
import androidx.compose.ui.test.isHeading
import androidx.compose.ui.test.onAllNodesWithTag
import androidx.compose.ui.test.onAllNodesWithText
import androidx.compose.ui.test.onNodeWithTag
import androidx.compose.ui.test.onNodeWithText
import androidx.compose.ui.test.performClick
import androidx.compose.ui.test.performScrollTo
import androidx.compose.ui.test.performTextReplacement
import androidx.compose.ui.unit.dp
import androidx.core.graphics.Insets
import androidx.core.view.ViewCompat
import androidx.core.view.WindowInsetsCompat
import androidx.lifecycle.Lifecycle
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode
import pocketbert.app.screens.AnswerBlock
import pocketbert.app.screens.Cards
import pocketbert.app.screens.IndexBlock
import pocketbert.app.screens.PocketBertTheme
import pocketbert.core.contract.Folder
import pocketbert.core.contract.Headless
import pocketbert.core.output.Found
import pocketbert.models.Answer
import pocketbert.models.Question
import pocketbert.models.Reply
import pocketbert.models.Rest
import pocketbert.models.SearchModel
import pocketbert.models.TryModel
import java.io.File

/** Every screen with the real students, photographed in each form that a phone may show it in. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [35], application = TestApp::class, qualifiers = "w412dp-h892dp-xhdpi")
@GraphicsMode(GraphicsMode.Mode.NATIVE)
class ScreensTest : OnScreen() {
    /** Students of all forms on the first screen, and the three other screens. */
    private fun walk(form: String) = launched { scenario ->
        await { isThere("Self-test") }
        for (model in listOf("near", "mood", "names", "ask", "infer", "alike")) {
            choose(model)
            await { isThere("warm median") }
            photograph(scenario, "try-$model-$form")
        }
        tab("Compare")
        await { hasTag("comparison") }
        photograph(scenario, "compare-$form")
        tab("Self-test")
        rule.onNodeWithText("Test all models").performClick()
        await(300) { isThere("All 16 models give the same answers as the reference.") }
        photograph(scenario, "self-test-$form")
        rule.onNodeWithTag("tested-alike/litert-int8_dynamic").performScrollTo().performClick()
        photograph(scenario, "self-test-details-$form")
        tab("Benchmark")
        photograph(scenario, "benchmark-$form")
    }

    @Test
    fun light() = walk("light")

    @Test
    @Config(qualifiers = "+night")
    fun dark() = walk("dark")

    @Test
    @Config(qualifiers = "w892dp-h412dp-land")
    fun landscape() = walk("landscape")

    @Test
    @Config(qualifiers = "w320dp-h568dp")
    fun small() = walk("small")

    @Test
    fun `letters of twice the size`() {
        RuntimeEnvironment.setFontScale(2f)
        walk("font-2")
    }

    @Test
    fun `what is written is asked, and stays where the phone is turned`() = launched { scenario ->
        choose("mood")
        rule.onNodeWithTag("first").performTextReplacement("A dull and joyless bore.")
        await { hasTag("answer") }
        scenario.recreate()
        rule.onNodeWithTag("first").assertIsDisplayed()
        assertTrue(isThere("A dull and joyless bore."))
        rule.onNodeWithTag("first").performTextReplacement(" ")
        await { isThere("Write a text.") }
        photograph(scenario, "try-missing")
        // The tab stays as well.
        tab("Benchmark")
        scenario.recreate()
        assertTrue(isThere("Lengths, in tokens"))
    }

    @Test
    fun `labels of one's own are asked, and stay where the phone is turned`() = launched { scenario ->
        choose("infer")
        await { isThere("warm median") }
        assertTrue(isThere("film") && isThere("food") && !hasTag("second"))
        rule.onNodeWithTag("labels").performTextReplacement("rain, sun")
        rule.onNodeWithTag("template").performTextReplacement("It is about {}.")
        rule.onNodeWithTag("several-true").performScrollTo().assertHeightIsAtLeast(32.dp).performClick()
        scenario.recreate()
        await { hasTag("answer") && !isThere("food") }
        assertTrue(isThere("rain, sun") && isThere("It is about {}."))
        rule.onNodeWithTag("several-true").assertIsSelected()
        rule.onNodeWithTag("template").performTextReplacement("It is about it.")
        await { isThere("Write {} once in the template, where a label is put.") }
        photograph(scenario, "try-template-missing")
        rule.onNodeWithTag("labels-of-model").performScrollTo().performClick()
        await { isThere("contradiction") }
        assertTrue(hasTag("second") && !hasTag("template"))
        photograph(scenario, "try-infer-built-in")
    }

    @Test
    fun `sentences are edited and searched`() = launched {
        choose("near")
        rule.onNodeWithText("Edit the 16 sentences").performScrollTo().performClick()
        rule.onNodeWithTag("sentences").performTextReplacement("The store shuts at six o'clock.\n\nIt snowed.")
        rule.onNodeWithText("Done").performScrollTo().performClick()
        await { isThere("Edit the 2 sentences") && hasTag("answer") }
        assertTrue(isThere("The store shuts at six o'clock."))
    }

    /** Waits until a run measures; the screen looks every ten seconds, and may find any length. */
    private fun awaitRound() = await { isThere(", round ") }

    @Test
    fun `a benchmark is measured, recorded and cancelled`() {
        launched { scenario ->
            tab("Benchmark")
            rule.onNodeWithText("Measure").performScrollTo().performClick()
            awaitRound()
            photograph(scenario, "benchmark-running")
            rule.onNodeWithText("Stop").performScrollTo().performClick()
            await { isThere("The run was stopped.") }
            photograph(scenario, "benchmark-stopped")
        }
        // Shorter than the screen offers: a test need not wait a minute.
        val app = context as TestApp
        val request = File(Students.folder, "runs-kotlin/litert/request.json").readText().replace("\"litert\"", "\"short\"")
        File(app.filesDir, "runs/short").mkdirs()
        File(app.filesDir, "runs/short/request.json").writeText(request)
        launched(Headless.RUN to "short") { headless ->
            await { isThere("Run short") }
            photograph(headless, "headless")
            await(60) { isThere("The run finished, and wrote its record.") }
            photograph(headless, "headless-finished")
        }
        launched { again ->
            tab("Benchmark")
            await { hasTag("record") }
            rule.onNode(hasText("Share the record")).performScrollTo()
            photograph(again, "benchmark-record")
        }
    }

    @Test
    fun `a run without a request is refused`() = launched(Headless.RUN to "nothing") { scenario ->
        await { isThere("The run was refused: request.json: it is missing.") }
        photograph(scenario, "headless-refused")
    }

    @Test
    fun `no model has been shipped`() {
        TestApp.withNothing()
        launched { scenario ->
            await { isThere("No model has been shipped into this app. Run `pocketbert ship`") }
            photograph(scenario, "nothing-shipped")
            rule.onNodeWithText("Try again").assertHeightIsAtLeast(40.dp).performClick()
        }
    }

    @Test
    fun `models that are not as they were signed are refused, and the others stay`() {
        val spoilt = File(context.cacheDir, "spoilt")
        File(Students.folder, "models").copyRecursively(spoilt, overwrite = true)
        File(spoilt, "near/litert-int8_dynamic/golden.json").apply { setWritable(true) }.appendText(" ")
        TestApp.files = Folder(spoilt)
        launched { scenario ->
            tab("Self-test")
            await { isThere("near/litert-int8_dynamic") }
            rule.onNode(hasText("Refused: near/litert-int8_dynamic")).performScrollTo()
            assertTrue(isThere("is refused (changed)"))
            photograph(scenario, "refused")
            assertEquals(1, rule.onAllNodesWithText("Refused", substring = true).fetchSemanticsNodes().size)
        }
    }

    @Test
    fun `a comparison is about the one that was trained`() {
        val models = File(context.cacheDir, "random")
        File(Students.folder, "models").copyRecursively(models, overwrite = true)
        val folder = File(models, "mood/litert-int8_dynamic")
        File(folder, "model.sig").apply { setWritable(true) }.delete()
        val shipped = File(folder, "shipped.json").apply { setWritable(true) }
        shipped.writeText(shipped.readText().replace("\"random_weights\": false", "\"random_weights\": true"))
        TestApp.files = Folder(models)
        TestApp.unsigned = true
        launched { scenario ->
            tab("Compare")
            choose("mood", "First model")
            choose("near", "Second model")
            await { hasTag("comparison") }
            assertTrue(textOf("headline"), Regex("near answers in [0-9.]+\u00a0ms").matches(textOf("headline")))
            val says = Regex("mood takes [0-9.]+ ms: .*\\. Its weights are random: only its time means something\\.")
            assertTrue(textOf("comparison"), says.matches(textOf("comparison")))
            photograph(scenario, "compare-random")
        }
    }

    @Test
    fun `a guess does not look like a hit, nor sound like one`() = launched { scenario ->
        await { isThere("Self-test") }
        val text = "Just landed in Lisbon with Anna Berg, on my way to the Apple store."
        val found = listOf("Lisbon" to 0.97, "Anna Berg" to 0.56, "Apple" to 0.27).map { (name, score) ->
            Found(text.indexOf(name), text.indexOf(name) + name.length, score, if (' ' in name) "person" else "location")
        }
        val reply = Reply(Answer.Entities(found), 9.2, 0.1, 18, 32, null, 100.0, listOf("CPU"))
        val form = TryModel.Form(null, text, "", TryModel.State.Answered(Question(text), reply))
        scenario.onActivity { activity ->
            activity.setContent { PocketBertTheme { Surface { Cards { AnswerBlock(form, SearchModel.Set(emptyList())) } } } }
        }
        await { isThere("location, unsure, 27%") }
        assertTrue(isThere("location, 97%") && isThere("person, 56%"))
        photograph(scenario, "confidence")
    }

    @Test
    fun `an index says what it holds, why it rests, that it is stopped, and what can fill it`() = launched { scenario ->
        await { isThere("Self-test") }
        val search = SearchModel()
        val filling = SearchModel.Indexed(isOwn = true, passages = 4_096, texts = 10_000, rest = Rest.HOT)
        val all = listOf(filling, filling.copy(rest = null, isStopped = true), SearchModel.Indexed(isOwn = false, passages = 10_000))
        scenario.onActivity { activity ->
            activity.setContent { PocketBertTheme { Surface { Cards { for (one in all) IndexBlock(one, search) } } } }
        }
        await { isThere("4096 of 10000 texts are in the index") }
        assertTrue(isThere("The phone is hot") && isThere("Stop indexing") && isThere("Go on indexing"))
        assertTrue(isThere("10000 passages are searched"))
        photograph(scenario, "index")
        val one = filling.copy(rest = null)
        val offers = listOf(one.copy(other = "minilm-static"), one.copy(other = "minilm", isFast = true))
        scenario.onActivity { activity ->
            activity.setContent { PocketBertTheme { Surface { Cards { for (offer in offers) IndexBlock(offer, search) } } } }
        }
        await { isThere("Index with minilm-static, which is faster and less exact") }
        assertTrue(isThere("Index with minilm again"))
        photograph(scenario, "index-faster")
    }

    @Test
    fun `only a final figure is announced`() = launched {
        choose("mood")
        await { isThere("warm median") }
        for (tag in listOf("said", "caption")) assertTrue(tag, isAnnounced(tag))
        tab("Compare")
        var measuring = 0
        await {
            val node = rule.onAllNodesWithTag("headline").fetchSemanticsNodes().singleOrNull()
            if (node != null && SemanticsProperties.LiveRegion !in node.config) measuring++
            val says = node?.let(::text).orEmpty()
            assertTrue(says, node == null || (SemanticsProperties.LiveRegion in node.config) == ("answers in" in says))
            "answers in" in says
        }
        assertTrue("it was not looked at while it measured", measuring > 0)
        assertTrue(isAnnounced("comparison"))
    }

    @Test
    fun `a screen is read from the title over the input to the answer, its caption and what can be done`() = launched {
        choose("near")
        await { isThere("warm median") }
        val nodes = listOf(
            rule.onNode(hasText("Try") and isHeading()),
            rule.onNodeWithTag("picker-Model"),
            rule.onNodeWithTag("first"),
            rule.onNodeWithTag("said"),
            rule.onNodeWithTag("caption"),
            rule.onNode(hasText("Edit the", substring = true)),
        ).map { it.fetchSemanticsNode() }
        // TalkBack goes by place, unless an index says otherwise.
        val all = rule.onAllNodes(SemanticsMatcher.keyIsDefined(SemanticsProperties.TraversalIndex)).fetchSemanticsNodes()
        assertTrue("$all", all.all { it.config[SemanticsProperties.TraversalIndex] == 0f })
        val tops = nodes.map { it.positionInRoot.y }
        assertEquals(tops.sorted(), tops)
        assertEquals(tops.size, tops.toSet().size)
    }

    @Test
    fun `the keyboard covers no field`() = launched { scenario ->
        choose("ask")
        await { hasTag("answer") }
        rule.onNodeWithTag("second").performScrollTo().performClick()
        var top = 0
        scenario.onActivity { activity ->
            val view = activity.window.decorView
            val keyboard = view.height * 6 / 10
            top = view.height - keyboard
            val insets = WindowInsetsCompat.Builder().setInsets(WindowInsetsCompat.Type.ime(), Insets.of(0, 0, 0, keyboard))
                .setVisible(WindowInsetsCompat.Type.ime(), true).build()
            ViewCompat.dispatchApplyWindowInsets(view, insets)
        }
        await {
            val field = rule.onNodeWithTag("second").fetchSemanticsNode()
            // The screen ends above the keyboard, and scrolls there to the line that is written.
            field.boundsInRoot.bottom <= top && field.boundsInRoot.height >= field.size.height / 3
        }
        photograph(scenario, "keyboard")
    }

    @Test
    fun `a benchmark goes on where the phone is turned, and ends where the app is left`() = launched { scenario ->
        tab("Benchmark")
        rule.onNodeWithText("Measure").performScrollTo().performClick()
        awaitRound()
        scenario.recreate()
        await { hasTag("progress") }
        scenario.moveToState(Lifecycle.State.CREATED)
        scenario.moveToState(Lifecycle.State.RESUMED)
        await { isThere("The run was stopped.") }
    }

    @Test
    fun `what a finger hits is large enough`() = launched {
        await { isThere("Self-test") }
        for (title in listOf("Try", "Compare", "Self-test", "Benchmark")) {
            tab(title)
            rule.waitForIdle()
            for (node in rule.onAllNodes(hasClickAction()).fetchSemanticsNodes()) {
                // What the edge of a screen that scrolls cuts is hit where it is whole.
                if (node.boundsInRoot.height < node.size.height - 1) continue
                val height = node.touchBoundsInRoot.height / node.layoutInfo.density.density
                assertTrue("$title: ${node.config} is $height dp high", height >= 47.9f)
            }
        }
    }
}
