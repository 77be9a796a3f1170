package pocketbert.models

import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.asCoroutineDispatcher
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import pocketbert.core.contract.Files
import pocketbert.core.contract.Folder
import pocketbert.core.contract.Policy
import pocketbert.core.contract.TrustedKeys
import pocketbert.core.endtoend.HostPhone
import pocketbert.core.endtoend.SocketRuntime
import java.io.File
import java.util.concurrent.Executors

/** The real students, with the real LiteRT and ExecuTorch behind a socket. */
internal object Served {
    private val named = System.getProperty("pocketbert.endtoend").orEmpty()
    val areThere = named.isNotEmpty()
    val folder = File(named)
    val cases: JsonObject by lazy { Json.parseToJsonElement(File(folder, "cases.json").readText()).jsonObject }
    val keys by lazy { cases.getValue("keys").jsonArray.map { it.jsonPrimitive.content } }
    val runtimes by lazy {
        val versions = listOf("litert", "executorch").associateWith { cases.getValue(it).jsonPrimitive.content }
        versions.keys.map { SocketRuntime(File(folder.parentFile, "runtime.sock"), it, versions) }
    }
    val models: Files by lazy { Folder(File(folder, "models")) }

    fun equipment(
        runs: File,
        files: Files = models,
        policy: Policy = Policy(TrustedKeys(keys)),
        linked: List<LinkedRuntime> = runtimes.map {
            LinkedRuntime(
                it,
                if (it.backend ==
                    "litert"
                ) {
                    listOf("CPU", "NPU")
                } else {
                    emptyList()
                },
                1..4,
            )
        },
    ) = Equipment(files, policy, linked, HostPhone(listOf(30.0)), RunFolders(runs))

    /** Runs a test in one thread of its own, as view models run in an app's main thread. */
    fun test(act: suspend CoroutineScope.() -> Unit) = Executors.newSingleThreadExecutor().asCoroutineDispatcher().use { main ->
        val job = Job()
        runBlocking(main) { CoroutineScope(coroutineContext + main).act() }
        job.cancel()
    }
}
