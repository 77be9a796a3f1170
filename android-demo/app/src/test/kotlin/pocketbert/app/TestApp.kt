package pocketbert.app

import org.json.JSONObject
import pocketbert.core.benchmark.Phone
import pocketbert.core.contract.Files
import pocketbert.core.contract.Folder
import pocketbert.core.contract.Policy
import pocketbert.core.contract.TrustedKeys
import pocketbert.core.endtoend.HostPhone
import pocketbert.core.endtoend.SocketRuntime
import pocketbert.models.Equipment
import pocketbert.models.LinkedRuntime
import pocketbert.models.RunFolders
import java.io.File
import java.security.MessageDigest

/** The students that `make apps-check` makes, and the real LiteRT and ExecuTorch behind a socket. */
object Students {
    private val named = System.getProperty("pocketbert.endtoend").orEmpty()
    val areThere = named.isNotEmpty()
    val folder = File(named)
    val cases by lazy { JSONObject(File(folder, "cases.json").readText()) }
    val keys by lazy { cases.getJSONArray("keys").let { keys -> List(keys.length()) { keys.getString(it) } } }
    val runtimes by lazy {
        val versions = mapOf("litert" to cases.getString("litert"), "executorch" to cases.getString("executorch"))
        versions.keys.map { SocketRuntime(File(folder.parentFile, "runtime.sock"), it, versions) }
    }

    /** Copies the students into a folder, and gives one another fact in its signature, which nobody signs then. */
    fun withFacts(place: File, model: String, name: String, fact: Any) {
        File(folder, "models").copyRecursively(place, overwrite = true)
        val home = File(place, model)
        File(home, "model.sig").apply { setWritable(true) }.delete()
        val (signature, shipped) = listOf("signature.json", "shipped.json").map { File(home, it).apply { setWritable(true) } }
        signature.writeText(JSONObject(signature.readText()).put(name, fact).toString())
        val sha256 = MessageDigest.getInstance("SHA-256").digest(signature.readBytes()).joinToString("") { "%02x".format(it) }
        val said = JSONObject(shipped.readText())
        val files = said.getJSONArray("files")
        val listed = (0 until files.length()).map(files::getJSONObject).first { it.getString("path") == signature.name }
        listed.put("sha256", sha256).put("bytes", signature.length())
        shipped.writeText(said.toString())
    }
}

/** The app with the test's models, runtimes and phone in the place of the phone's; everything else is the app's own. */
class TestApp : App() {
    override fun equipment(): Equipment {
        val linked = if (Students.areThere) {
            Students.runtimes.map { LinkedRuntime(it, 1..4) }
        } else {
            emptyList()
        }
        return Equipment(files, Policy(TrustedKeys(keys), unsigned), linked, phone(), RunFolders(File(filesDir, "runs")))
    }

    companion object {
        /** What the next app that starts has; a test sets it before. */
        var files: Files = Folder(File("nowhere"))
        var keys = emptyList<String>()
        var unsigned = false
        var phone: () -> Phone = { HostPhone(listOf(31.0)) }

        fun withStudents() {
            files = Folder(File(Students.folder, "models"))
            keys = Students.keys
            unsigned = false
        }

        fun withNothing() {
            files = Folder(File("nowhere"))
            keys = emptyList()
            unsigned = true
        }
    }
}
