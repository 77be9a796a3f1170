package pocketbert.app

import androidx.activity.compose.setContent
import androidx.compose.material3.Surface
import androidx.compose.ui.test.assertHeightIsAtLeast
import androidx.compose.ui.test.assertIsSelected
import androidx.compose.ui.test.onNodeWithTag
import androidx.compose.ui.test.onNodeWithText
import androidx.compose.ui.test.performClick
import androidx.compose.ui.test.performScrollTo
import androidx.compose.ui.unit.dp
import org.json.JSONObject
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode
import pocketbert.app.screens.AnswerBlock
import pocketbert.app.screens.Cards
import pocketbert.app.screens.PocketBertTheme
import pocketbert.core.contract.Folder
import pocketbert.core.output.NamedValue
import pocketbert.core.output.Share
import pocketbert.models.Answer
import pocketbert.models.Question
import pocketbert.models.Reply
import pocketbert.models.SearchModel
import pocketbert.models.TryModel
import java.io.File

/** What the facts of a signature change on the screens: prompts, labels that are decided one by one, several values. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [35], application = TestApp::class, qualifiers = "w412dp-h892dp-xhdpi")
@GraphicsMode(GraphicsMode.Mode.NATIVE)
class FactsOnScreenTest : OnScreen() {
    @Test
    fun `labels that are given stand first and are marked, and values have names`() = launched { scenario ->
        await { isThere("Self-test") }
        val (toxic, insult) = Share("toxic", 0.9, false) to Share("insult", 0.8, true)
        val answers = listOf(
            Answer.Labels(listOf(toxic, insult)),
            Answer.Labels(listOf(toxic)),
            Answer.Values(listOf(NamedValue("clear_style", 0.5f), NamedValue("LABEL_1", -2f))),
        )
        for ((answer, photo) in answers.zip(listOf("labels-given", "labels-none", "values"))) {
            val reply = Reply(answer, 9.2, 0.1, 18, 32, null, 100.0, listOf("CPU"))
            val form = TryModel.Form(null, "A text.", "", TryModel.State.Answered(Question("A text."), reply))
            scenario.onActivity { activity ->
                activity.setContent { PocketBertTheme { Surface { Cards { AnswerBlock(form, SearchModel.Set(emptyList())) } } } }
            }
            rule.waitForIdle()
            photograph(scenario, photo)
            if (answer === answers[0]) {
                val tops = listOf("given, 80.0%", "90.0%").map { rule.onNodeWithText(it, useUnmergedTree = true).fetchSemanticsNode() }
                assertTrue("$tops", tops[0].positionInRoot.y < tops[1].positionInRoot.y)
            } else {
                assertTrue(photo, isThere(if (answer is Answer.Values) "clear style" else "No label reaches its threshold."))
            }
        }
    }

    @Test
    fun `a prompt is chosen, and none is said where there are some`() {
        val models = File(context.cacheDir, "prompts")
        Students.withFacts(models, "near/litert-int8_dynamic", "prompts", JSONObject(mapOf("query" to "query: ")))
        TestApp.files = Folder(models)
        TestApp.unsigned = true
        launched { scenario ->
            choose("near")
            await { isThere("warm median") }
            rule.onNodeWithTag("prompt-query").assertIsSelected()
            assertEquals(false, isThere("embedded without a prompt"))
            rule.onNodeWithTag("prompt-").performScrollTo().assertHeightIsAtLeast(32.dp).performClick()
            await { isThere("The text was embedded without a prompt. This model has: query.") }
            photograph(scenario, "prompt-none")
        }
    }
}
