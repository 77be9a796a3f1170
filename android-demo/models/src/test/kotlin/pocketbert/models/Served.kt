package pocketbert.models

import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.delay
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import org.junit.jupiter.api.Assertions.fail
import org.junit.jupiter.api.Assumptions.assumeTrue
import pocketbert.core.benchmark.Phone
import pocketbert.core.contract.Folder
import pocketbert.core.contract.Model
import pocketbert.core.contract.PaddedRow
import pocketbert.core.contract.Policy
import pocketbert.core.contract.TrustedKeys
import pocketbert.core.endtoend.HostPhone
import pocketbert.core.endtoend.SocketRuntime
import pocketbert.core.model.Runner
import pocketbert.core.model.RunnerOptions
import pocketbert.core.model.Runtime
import pocketbert.core.model.SharedPool
import java.io.File
import java.security.MessageDigest
import java.util.concurrent.CountDownLatch
import java.util.concurrent.atomic.AtomicInteger

/** The real students, with the real LiteRT and ExecuTorch behind a socket, as equipment of an app (`tests/apps/end_to_end.py`). */
internal object Served {
    private val named = System.getProperty("pocketbert.endtoend").orEmpty()
    private val folder = File(named)
    val cases: JsonObject by lazy { Json.parseToJsonElement(File(folder, "cases.json").readText()).jsonObject }
    val keys by lazy { cases.getValue("keys").jsonArray.map { it.jsonPrimitive.content } }
    val models = File(folder, "models")

    /** A ready index, which lies apart: where one lies beside the models, it is searched in place of the sentences. */
    val index = File(folder, "index")

    /** A transformer, and a static table of its space. */
    val twoSpeeds = File(folder, "two-speeds")

    /** The folder of the runs that these tests carry out; Python can check what they leave there. */
    val runs = RunFolders(File(folder, "runs-models"))
    private val versions by lazy { listOf("litert", "executorch").associateWith { cases.getValue(it).jsonPrimitive.content } }

    /** Skips a test where the folder of the students is not named. */
    fun orSkip() = assumeTrue(named.isNotEmpty(), "`make apps-check` makes the students and serves the runtimes")

    fun runtime(backend: String, hangsUpAfter: Int? = null) =
        SocketRuntime(File(folder.parentFile, "runtime.sock"), backend, versions).also { it.hangsUpAfter = hangsUpAfter }

    /** A runtime that nobody serves. */
    fun goneRuntime(backend: String) = SocketRuntime(File("/nowhere.sock"), backend, versions)

    /**
     * Returns an app's equipment.
     *
     * @param instead runtimes in place of those that are served, by their backends.
     * @param keys those that are trusted.
     * @param unsigned whether a model without a signature is taken.
     */
    fun equipment(
        instead: Map<String, Runtime> = emptyMap(),
        keys: List<String> = this.keys,
        unsigned: Boolean = false,
        models: File = this.models,
        phone: Phone = HostPhone(listOf(37.0)),
        hangsUpAfter: Int? = null,
    ): Equipment {
        val linked = versions.keys.map { backend -> LinkedRuntime(instead[backend] ?: runtime(backend, hangsUpAfter), 1..2) }
        return Equipment(Folder(models), Policy(TrustedKeys(keys), unsigned), linked, phone, runs)
    }

    fun usable(instead: Map<String, Runtime> = emptyMap()) = Shelf.open(equipment(instead)).usable

    /** Returns a LiteRT whose runs wait for a sign, and the models for it. */
    fun halting(): Pair<Halting, List<ShelvedModel>> {
        val halting = Halting(runtime("litert"))
        return halting to usable(mapOf("litert" to halting)).filter { it.model.signature.backend == "litert" }
    }

    /** Copies the students into a folder, so that they can be damaged. */
    fun copy(place: File, damage: (File) -> Unit): File {
        models.copyRecursively(place)
        place.walk().forEach { it.setWritable(true) }
        damage(place)
        return place
    }

    /** Copies the students, and says of one that nobody trained it; then its signature is gone too. */
    fun copyWithRandom(place: File, model: String) = copyWith(place, model, "\"random_weights\": false", "\"random_weights\": true")

    /** Copies the students, and says of one that its file is untried on a GPU. */
    fun copyWithUntried(place: File, model: String, known: String) =
        copyWith(place, model, "\"untried_units\": {}", "\"untried_units\": {\"GPU\": \"$known\"}")

    /** Copies the students, and gives one other facts in its signature; nobody signs it then. */
    fun copyWithFacts(place: File, model: String, facts: String) = copy(place) { all ->
        change(File(all, model), facts)
    }

    private fun change(folder: File, facts: String) {
        File(folder, "model.sig").delete()
        val (signature, shipped) = File(folder, "signature.json") to File(folder, "shipped.json")
        signature.writeText(JsonObject(read(signature) + Json.parseToJsonElement(facts).jsonObject).toString())
        val sha256 = MessageDigest.getInstance("SHA-256").digest(signature.readBytes()).joinToString("") { "%02x".format(it) }
        val files = read(shipped).getValue("files").jsonArray.map { it.jsonObject }.map { file ->
            if (file.getValue("path").jsonPrimitive.content != signature.name) return@map file
            JsonObject(file + mapOf("sha256" to JsonPrimitive(sha256), "bytes" to JsonPrimitive(signature.length())))
        }
        shipped.writeText(JsonObject(read(shipped) + mapOf("files" to JsonArray(files))).toString())
    }

    /**
     * A student with the files of `near` for LiteRT.
     *
     * @property facts in its signature.
     * @property said of it in `shipped.json`.
     */
    class Kin(val recipe: String, val facts: String, val said: String = "{}")

    /** Copies the student `near`, with others of its kind beside it or in place of it; nobody signs those. */
    fun copyWithKin(place: File, kin: List<Kin>): File {
        val target = "litert-int8_dynamic"
        File(models, "near").copyRecursively(File(place, "near"))
        val index = read(File(models, "models.json"))
        val near = index.getValue("models").jsonArray.map { it.jsonObject }.filter { it["recipe"] == JsonPrimitive("near") }
        val entry = near.first { it["backend"] == JsonPrimitive("litert") }
        val others = kin.map { one ->
            val folder = File(place, "${one.recipe}/$target")
            File(models, "near/$target").copyRecursively(folder, overwrite = true)
            folder.walk().forEach { it.setWritable(true) }
            change(folder, one.facts)
            val (shipped, recipe) = File(folder, "shipped.json") to mapOf("recipe" to JsonPrimitive(one.recipe))
            shipped.writeText(JsonObject(read(shipped) + Json.parseToJsonElement(one.said).jsonObject + recipe).toString())
            JsonObject(entry + recipe + ("folder" to JsonPrimitive("${one.recipe}/$target")))
        }
        val all = JsonArray((near + others).associateBy { it.getValue("folder") }.values.toList())
        File(place, "models.json").writeText(JsonObject(index + ("models" to all)).toString())
        return place
    }

    private fun read(file: File) = Json.parseToJsonElement(file.readText()).jsonObject

    private fun copyWith(place: File, model: String, instead: String, said: String) = copy(place) { all ->
        val folder = File(all, model)
        File(folder, "model.sig").delete()
        val file = File(folder, "shipped.json")
        val text = file.readText()
        check(instead in text)
        file.writeText(text.replace(instead, said))
    }

    /** Runs a test in one thread, as view models run in an app's main thread; it ends when all that it has started has. */
    fun test(act: suspend CoroutineScope.() -> Unit): Unit = runBlocking { act() }
}

/** A runtime whose runs wait for a sign, so that a test decides what comes first; it counts those that began. */
internal class Halting(private val inner: Runtime, override val version: String = inner.version, isOpen: Boolean = false) :
    Runtime by inner {
    private val sign = CountDownLatch(if (isOpen) 0 else 1)
    private val count = AtomicInteger()
    val runs get() = count.get()

    /** Runs that need no sign. */
    @Volatile
    var free = 0

    override fun open(model: Model, options: RunnerOptions): Runner {
        val runner = inner.open(model, options)
        return object : Runner by runner {
            override fun run(row: PaddedRow): Map<String, FloatArray> {
                if (count.incrementAndGet() > free) sign.await()
                return runner.run(row)
            }
        }
    }

    /** Lets all runs go on. */
    fun release() = sign.countDown()
}

/**
 * A runtime with a GPU, which may compute wrongly, or leave the work to the CPU without a word as LiteRT does.
 *
 * @property share of the graph that the GPU confirms.
 * @property factor by which the first number of an output is wrong there.
 */
internal class WithGpu(private val inner: Runtime, private val share: Double, private val factor: Float = 1f) : Runtime by inner {
    override fun open(model: Model, options: RunnerOptions): Runner {
        if (options.computeUnits != "GPU") return inner.open(model, options)
        val runner = inner.open(model, RunnerOptions(options.threads))
        return object : Runner by runner {
            override val shareByUnit = mapOf("GPU" to share, "CPU" to 1 - share)

            override fun run(row: PaddedRow) = runner.run(row).onEach { (_, values) -> values[0] *= factor }
        }
    }
}

/** A runtime that counts the models that are open. */
internal class Resident(private val inner: Runtime, private val count: AtomicInteger) : Runtime by inner {
    override fun open(model: Model, options: RunnerOptions): Runner {
        val runner = inner.open(model, options)
        count.incrementAndGet()
        return object : Runner by runner {
            override fun close() {
                runner.close()
                count.decrementAndGet()
            }
        }
    }
}

/** A runtime whose models share one pool of threads, as ExecuTorch's do in a process; those behind the socket have one each. */
internal class Pooled(private val inner: Runtime) : Runtime by inner {
    private val pool = SharedPool(inner.name)

    override fun open(model: Model, options: RunnerOptions): Runner {
        val hold = pool.hold(options.threads)
        val runner = inner.open(model, options)
        return object : Runner by runner {
            override val poolThreads get() = hold.threads

            override fun close() {
                runner.close()
                hold.close()
            }
        }
    }
}

/** A runtime that fails in its own way when a model is opened. */
internal class Failing(private val inner: Runtime, private val how: () -> Throwable) : Runtime by inner {
    override fun open(model: Model, options: RunnerOptions): Runner = throw how()
}

/** Waits until something is so; fails the test where it never is. */
internal suspend fun eventually(what: String, isSo: () -> Boolean) {
    repeat(20_000) {
        if (isSo()) return
        delay(5)
    }
    fail<Unit>("it never came to be that $what")
}
