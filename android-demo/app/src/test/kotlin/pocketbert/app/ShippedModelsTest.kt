package pocketbert.app

import android.app.Activity
import android.content.Context
import androidx.core.content.FileProvider
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNull
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Assume.assumeTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.annotation.Config
import pocketbert.core.contract.Folder
import pocketbert.core.contract.Listed
import pocketbert.core.contract.Models
import pocketbert.core.contract.Policy
import pocketbert.core.contract.TrustedKeys
import java.io.File
import java.io.IOException

@RunWith(RobolectricTestRunner::class)
@Config(sdk = [35], application = TestApp::class)
class ShippedModelsTest {
    private val context get() = RuntimeEnvironment.getApplication() as Context

    @Test
    fun `assets that are not there are an error`() {
        val files = AssetFiles(context.assets)
        assertThrows(IOException::class.java) { files.open("models.json").close() }
        assertThrows(IOException::class.java) { files.list("near/litert-int8_dynamic") }
    }

    @Test
    fun `a model is copied once, and removed when it is not shipped any more`() {
        assumeTrue("`make apps-check` makes the students", Students.areThere)
        val files = Folder(File(Students.folder, "models"))
        val models = Models.open(files, Policy(TrustedKeys(Students.keys))).map { (it as Listed.Usable).model }
        val model = models.first { it.signature.backend == "executorch" }
        val folder = File(context.cacheDir, "copies")
        val copies = CopiedModels(files, folder)
        val file = copies.file(model)
        assertEquals(File(Students.folder, "models/${model.file}").length(), file.length())
        val before = file.lastModified()
        assertEquals(before, copies.file(model).lastModified())
        assertEquals(listOf(model.entry.digest), folder.list().orEmpty().toList())
        copies.keep(emptySet())
        assertFalse(file.exists())
    }

    @Test
    fun `a record can be handed to another app, wherever the runs lie`() {
        for (root in listOf(context.getExternalFilesDir(null), context.filesDir)) {
            val record = File(root, "runs/one/record.json").apply {
                parentFile?.mkdirs()
                writeText("{}")
            }
            assertEquals("record.json", FileProvider.getUriForFile(context, "pocketbert.app.records", record).lastPathSegment)
        }
    }

    @Test
    fun `the app is in front until its last activity is stopped, and a phone that is turned changes nothing`() {
        val phone = AndroidPhone(context)
        val activity = Robolectric.buildActivity(Activity::class.java).setup()
        assertTrue(phone.isInFront())
        activity.recreate()
        assertTrue(phone.isInFront())
        activity.pause().stop()
        assertFalse(phone.isInFront())
        activity.restart().start()
        assertTrue(phone.isInFront())
        // Between two looks.
        activity.stop().restart().start()
        assertFalse(phone.isInFront())
        assertTrue(phone.isInFront())
    }

    @Test
    fun `the phone tells what it knows, and null for the rest`() {
        val phone = AndroidPhone(context)
        assertEquals("android", phone.machine.platform)
        assertTrue(phone.machine.cores > 0)
        val moment = phone.moment()
        assertNull(moment.loadAverage)
        assertTrue(moment.thermal, moment.thermal in phone.thermalStates)
        assertTrue(checkNotNull(phone.residentBytes()) > 0 && checkNotNull(phone.peakBytes()) > 0)
        assertTrue(phone.versions.keys.containsAll(listOf("app", "build", "LiteRT", "ExecuTorch")))
    }
}
