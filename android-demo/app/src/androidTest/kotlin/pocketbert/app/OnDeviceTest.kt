package pocketbert.app

import android.content.Intent
import androidx.test.ext.junit.runners.AndroidJUnit4
import androidx.test.platform.app.InstrumentationRegistry
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import pocketbert.core.contract.Headless
import pocketbert.core.contract.State
import pocketbert.models.RunFolders
import pocketbert.models.RunRequest
import pocketbert.models.SelfTestModel
import java.io.File

/** On a phone or an emulator, with the real runtimes: whether every shipped model computes there what was verified. */
@RunWith(AndroidJUnit4::class)
class OnDeviceTest {
    private val app get() = InstrumentationRegistry.getInstrumentation().targetContext.applicationContext as App

    @Test
    fun everyShippedModelHolds() = runBlocking {
        app.desk.open()
        val models = withTimeout(TIME_LIMIT_MS) { checkNotNull(app.desk.models.first { it != null }) }
        models.selfTest.run()
        val table = withTimeout(TIME_LIMIT_MS) { models.selfTest.table.first { it.verdict != null } }
        val differing = table.rows.filter { it.agrees != true }.map { it.model.id to it.differing?.state }
        assertEquals(emptyList<Pair<String, SelfTestModel.State?>>(), differing)
    }

    @Test
    fun aRunWithoutRequestIsRefused() {
        val run = "no-request"
        File(app.getExternalFilesDir(null), "${Headless.FOLDER}/$run").deleteRecursively()
        val status = endOf(run)
        assertTrue(status, "\"refused\"" in status)
    }

    /** Starts the app as a computer does, and returns the last status of the run; an earlier one where it has not ended in time. */
    private fun endOf(run: String): String {
        val status = File(app.getExternalFilesDir(null), "${Headless.FOLDER}/$run/${Headless.STATUS}").also { it.delete() }
        app.startActivity(Intent(app, MainActivity::class.java).putExtra(Headless.RUN, run).addFlags(Intent.FLAG_ACTIVITY_NEW_TASK))
        val until = System.currentTimeMillis() + TIME_LIMIT_MS
        var said = ""
        while (System.currentTimeMillis() < until && ENDS.none { "\"$it\"" in said }) {
            Thread.sleep(PAUSE_MS)
            said = runCatching { status.readText() }.getOrDefault(said)
        }
        return said
    }

    /** On an emulator its latencies say nothing; that it is valid does. AGP fetches what lies in the folder that it names. */
    @Test
    fun aBenchmarkLeavesARecord() = runBlocking {
        app.desk.open()
        val model = withTimeout(TIME_LIMIT_MS) { checkNotNull(app.desk.models.first { it != null }) }.shelf.usable.first()
        val shortest = model.model.signature.functions.first().maxLength
        val runs = RunFolders(File(app.getExternalFilesDir(null), Headless.FOLDER))
        val folder = runs.write(
            RunRequest("emulator", model.id, null, 1, listOf(shortest), listOf("A fine film."), minutes = 2.0, startBelowC = null),
        )
        val status = endOf(folder.name)
        InstrumentationRegistry.getArguments().getString("additionalTestOutputDir")?.let { folder.copyRecursively(File(it, folder.name)) }
        assertTrue(status, "\"finished\"" in status)
        assertEquals(1, runs.records().count { it.run == folder.name })
    }

    private companion object {
        const val TIME_LIMIT_MS = 300_000L
        const val PAUSE_MS = 200L
        val ENDS = State.entries.filter { it.isFinal }.map { it.word }
    }
}
