package pocketbert.models

import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import pocketbert.core.contract.Files
import pocketbert.core.contract.Folder
import pocketbert.core.contract.Headless
import java.io.File
import java.io.IOException

/** A run's name is none. */
class WrongRun(name: String) : Exception("\"${name.take(60)}\" is no name of a run: letters, digits, dots and dashes make one.")

/**
 * The folder in which benchmarks leave what they were asked and what they found: one folder a run, by the headless contract,
 * whoever asks, a computer or the screen.
 *
 * @property root the folders of runs, which a computer reaches.
 * @property own where models that were pushed with a run are copied to: nobody else writes there, so that what was verified is
 * what is run, and it is no storage through which every page of a file is asked for.
 */
class RunFolders(val root: File, private val own: File = File("$root-pushed")) {
    /**
     * Returns a run's folder, and makes it where there is none yet: whoever waits reads the status there, be it a refusal.
     *
     * @throws WrongRun the name could lead out of the folder of runs.
     * @throws IOException it cannot be made.
     */
    fun folder(run: String): File {
        if (!Headless.isRunId(run)) throw WrongRun(run)
        val folder = File(root, run)
        if (!folder.isDirectory && !folder.mkdirs()) throw IOException("the folder $folder cannot be made")
        return folder
    }

    /** Writes a request into a new run's folder, and returns the folder. */
    fun write(request: RunRequest): File {
        val folder = folder(request.runId)
        File(folder, Headless.REQUEST).replaceBy("${request.json()}\n")
        return folder
    }

    /** Returns the records that lie here, the newest first; what cannot be read is left out. */
    fun records(): List<RunRecord> = root.listFiles().orEmpty()
        .mapNotNull { folder -> runCatching { RunRecord.read(folder) }.getOrNull() }
        .sortedByDescending { it.started }

    /**
     * Returns the models that were pushed with a run, copied; null where there are none, and the app's own are measured.
     *
     * @throws IOException there is no room, or something that is no file lies among them.
     */
    fun pushed(folder: File): Files? {
        val from = File(folder, Headless.MODELS)
        if (!File(from, "models.json").isFile) return null
        val (files, to) = Folder(from) to copy(folder)
        for (found in files.list("")) {
            if (!found.regular) throw IOException("${found.path} among the pushed models is no regular file")
            val place = File(to, found.path)
            place.parentFile?.mkdirs()
            files.open(found.path).use { source -> place.outputStream().use { source.copyTo(it) } }
        }
        return Folder(to)
    }

    /** Removes what [pushed] has copied. */
    fun forgetPushed() {
        own.deleteRecursively()
    }

    private fun copy(folder: File): File {
        // One run at a time: what a killed one left goes too.
        own.deleteRecursively()
        return File(own, folder.name).also { if (!it.mkdirs()) throw IOException("the folder $it cannot be made") }
    }

    /** Removes a run with all that it left. */
    fun remove(run: String) {
        if (!Headless.isRunId(run)) throw WrongRun(run)
        File(root, run).deleteRecursively()
    }
}

/** Writes beside the place and renames, so that a reader, and the next start of the app, finds all of it or what was there. */
internal fun File.replaceBy(text: String) {
    val aside = File("$path.new")
    aside.writeText(text)
    if (!aside.renameTo(this)) throw IOException("$this cannot be written")
}

/**
 * What a screen asks a benchmark for, as `request.json` has it (`docs/schemas/benchmark-request.schema.json`).
 *
 * @property runId a name for it, see [Headless.isRunId].
 * @property model the folder of a shipped model.
 * @property computeUnits as the runtime names them; null for the first of the file's own.
 * @property lengths full rows of these lengths are timed.
 * @property texts are timed as they come.
 * @property minutes after which it ends, finished or not.
 * @property startBelowC waits until the phone is cooler; null does not wait.
 */
class RunRequest(
    val runId: String,
    private val model: String,
    private val computeUnits: String?,
    private val threads: Int,
    private val lengths: List<Int>,
    private val texts: List<String>,
    private val minutes: Double,
    private val startBelowC: Double?,
) {
    private val rounds = (minutes * MS_IN_MINUTE * LENGTHS_SHARE / (ROUND_MS * maxOf(lengths.size, 1))).toInt()
        .coerceIn(LEAST_ROUNDS, MOST_ROUNDS)

    fun json() = JsonObject(
        linkedMapOf(
            "schema_version" to JsonPrimitive(1),
            "run_id" to JsonPrimitive(runId),
            "model" to JsonPrimitive(model),
            "compute_units" to JsonPrimitive(computeUnits),
            "threads" to JsonPrimitive(threads),
            "lengths" to JsonArray(lengths.map { JsonPrimitive(it) }),
            "texts" to JsonArray(texts.map { JsonPrimitive(it) }),
            "rounds" to JsonPrimitive(rounds),
            "runs_per_round" to JsonPrimitive(LEAST_RUNS),
            "round_ms" to JsonPrimitive(ROUND_MS),
            "text_passes" to JsonPrimitive(TEXT_PASSES),
            "time_limit_s" to JsonPrimitive(minutes * S_IN_MINUTE),
            "start_below_c" to JsonPrimitive(startBelowC),
            "start_thermal" to JsonNull,
            // Half an hour without a pause is asked for from outside, by `pocketbert benchmark --sustained`.
            "sustained_s" to JsonPrimitive(0.0),
            "sustained_part_s" to JsonPrimitive(S_IN_MINUTE),
        ),
    )

    private companion object {
        const val ROUND_MS = 1_000.0
        const val LEAST_ROUNDS = 3
        const val MOST_ROUNDS = 1_000
        const val LEAST_RUNS = 3
        const val TEXT_PASSES = 3

        /** Full rows take no more than this share of the time; opening, the texts and the first runs take the rest. */
        const val LENGTHS_SHARE = 0.4
        const val MS_IN_MINUTE = 60_000.0
        const val S_IN_MINUTE = 60.0
    }
}
