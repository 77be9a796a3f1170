package pocketbert.app

import android.content.Context
import android.content.Intent
import android.graphics.Bitmap
import android.graphics.Canvas
import android.os.Looper
import androidx.compose.ui.semantics.SemanticsNode
import androidx.compose.ui.semantics.SemanticsProperties
import androidx.compose.ui.test.hasClickAction
import androidx.compose.ui.test.hasText
import androidx.compose.ui.test.junit4.createEmptyComposeRule
import androidx.compose.ui.test.onAllNodesWithTag
import androidx.compose.ui.test.onAllNodesWithText
import androidx.compose.ui.test.onNodeWithTag
import androidx.compose.ui.test.performClick
import androidx.compose.ui.test.performScrollTo
import androidx.test.core.app.ActivityScenario
import org.junit.Assume.assumeTrue
import org.junit.Before
import org.junit.Rule
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import java.io.File
import java.io.FileOutputStream
import java.time.Duration

/** What tests of screens do: launch the app, find what is shown, photograph it. */
abstract class OnScreen {
    @get:Rule
    val rule = createEmptyComposeRule()
    protected val context get() = RuntimeEnvironment.getApplication() as Context

    @Before
    fun `students are there`() {
        assumeTrue("`make apps-check` makes the students and serves the runtimes", Students.areThere)
        TestApp.withStudents()
    }

    protected fun launched(extra: Pair<String, String>? = null, act: (ActivityScenario<MainActivity>) -> Unit) {
        val intent = Intent(context, MainActivity::class.java)
        extra?.let { (name, value) -> intent.putExtra(name, value) }
        ActivityScenario.launch<MainActivity>(intent).use(act)
    }

    /** Waits; what is delayed in the main thread is due only where its clock is moved. */
    protected fun await(seconds: Int = 180, found: () -> Boolean) = rule.waitUntil(seconds * 1000L) {
        shadowOf(Looper.getMainLooper()).idleFor(Duration.ofMillis(50))
        found()
    }

    protected fun isThere(text: String) = rule.onAllNodesWithText(text, substring = true).fetchSemanticsNodes().isNotEmpty()

    protected fun hasTag(tag: String) = rule.onAllNodesWithTag(tag).fetchSemanticsNodes().isNotEmpty()

    protected fun tab(title: String) {
        await { isThere("Self-test") }
        rule.onAllNodesWithText(title).fetchSemanticsNodes()
        rule.onNode(hasText(title) and hasClickAction()).performClick()
    }

    protected fun text(node: SemanticsNode) = node.config[SemanticsProperties.Text].joinToString("") { it.text }

    protected fun textOf(tag: String) = text(rule.onNodeWithTag(tag).fetchSemanticsNode())

    protected fun isAnnounced(tag: String) = SemanticsProperties.LiveRegion in rule.onNodeWithTag(tag).fetchSemanticsNode().config

    protected fun choose(model: String, picker: String = "Model") {
        await { hasTag("picker-$picker") }
        rule.onNodeWithTag("picker-$picker").performScrollTo().performClick()
        rule.onNodeWithTag("model-$model/litert-int8_dynamic").performScrollTo().performClick()
        rule.waitForIdle()
    }

    protected fun photograph(scenario: ActivityScenario<MainActivity>, name: String) {
        rule.waitForIdle()
        scenario.onActivity { activity ->
            val view = activity.window.decorView
            val bitmap = Bitmap.createBitmap(view.width, view.height, Bitmap.Config.ARGB_8888)
            view.draw(Canvas(bitmap))
            val file = File("target/screenshots/$name.png").apply { parentFile?.mkdirs() }
            FileOutputStream(file).use { bitmap.compress(Bitmap.CompressFormat.PNG, 100, it) }
        }
        println("screenshot: $name")
    }
}
