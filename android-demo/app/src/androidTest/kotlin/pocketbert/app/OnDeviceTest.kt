package pocketbert.app

import android.content.Intent
import androidx.test.ext.junit.runners.AndroidJUnit4
import androidx.test.platform.app.InstrumentationRegistry
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import org.junit.Assert.assertEquals
import org.junit.Test
import org.junit.runner.RunWith
import pocketbert.core.contract.Headless
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
        val status = File(app.getExternalFilesDir(null), "${Headless.FOLDER}/$run/${Headless.STATUS}")
        status.parentFile?.deleteRecursively()
        val intent = Intent(app, MainActivity::class.java).putExtra(Headless.RUN, run).addFlags(Intent.FLAG_ACTIVITY_NEW_TASK)
        app.startActivity(intent)
        val until = System.currentTimeMillis() + TIME_LIMIT_MS
        while (System.currentTimeMillis() < until && !(status.exists() && "refused" in status.readText())) Thread.sleep(PAUSE_MS)
        assertEquals(true, status.exists() && "\"refused\"" in status.readText())
    }

    private companion object {
        const val TIME_LIMIT_MS = 300_000L
        const val PAUSE_MS = 200L
    }
}
