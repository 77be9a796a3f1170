package pocketbert.core.contract

import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import pocketbert.core.WrongJson
import pocketbert.core.doubleOrNull
import pocketbert.core.number
import pocketbert.core.numbers
import pocketbert.core.text
import pocketbert.core.textOrNull
import pocketbert.core.texts

/** What `request.json` asks for; see `pipeline/devices/headless.py`, which says how a run is started and how it can end. */
class BenchmarkRequest internal constructor(
    val runId: String,
    val model: String,
    val computeUnits: String?,
    val threads: Int,
    val lengths: List<Int>,
    val texts: List<String>,
    val rounds: Int,
    val runsPerRound: Int,
    val roundMs: Double,
    val textPasses: Int,
    val timeLimitS: Double,
    val startBelowC: Double?,
    val startThermal: String?,
    val sustainedS: Double,
    val sustainedPartS: Double,
) {
    internal companion object {
        fun read(json: JsonObject) = BenchmarkRequest(
            json.text("run_id"),
            json.text("model"),
            json.textOrNull("compute_units"),
            json.number("threads"),
            json.numbers("lengths"),
            json.texts("texts"),
            json.number("rounds"),
            json.number("runs_per_round"),
            checkNotNull(json.doubleOrNull("round_ms")),
            json.number("text_passes"),
            checkNotNull(json.doubleOrNull("time_limit_s")),
            json.doubleOrNull("start_below_c"),
            json.textOrNull("start_thermal"),
            checkNotNull(json.doubleOrNull("sustained_s")),
            checkNotNull(json.doubleOrNull("sustained_part_s")),
        ).also { request ->
            if (!Headless.isRunId(request.runId)) throw WrongJson("run_id is ${request.runId}, which is no plain name")
            if (request.texts.isEmpty()) throw WrongJson("texts is empty; the first one is the first inference")
            if (request.lengths.isEmpty() || request.lengths.any { it < SHORTEST }) {
                throw WrongJson("lengths is ${request.lengths}; it has to hold lengths of $SHORTEST tokens or more")
            }
        }

        private const val SHORTEST = 3
    }
}

/** How a run stands: two states go on, the others are its end. */
enum class State {
    COOLING,
    RUNNING,
    FINISHED,
    REFUSED,
    FAILED,
    CANCELLED,
    OUT_OF_TIME,
    TOO_HOT,
    ;

    val word get() = name.lowercase()
    val isFinal get() = this != COOLING && this != RUNNING
}

/** What `status.json` says. */
class BenchmarkStatus(val runId: String, val state: State, val done: Double, val doing: String, val message: String?, val beats: Int) {
    internal fun json() = JsonObject(
        linkedMapOf(
            "schema_version" to JsonPrimitive(1),
            "run_id" to JsonPrimitive(runId),
            "state" to JsonPrimitive(state.word),
            "done" to JsonPrimitive(done.coerceIn(0.0, 1.0)),
            "doing" to JsonPrimitive(doing),
            "message" to JsonPrimitive(message),
            "beats" to JsonPrimitive(beats),
        ),
    )
}

/** The names of the headless contract. */
object Headless {
    /** Name of the intent extra, and of the launch argument, that carries a run's name. */
    const val RUN = "pocketbert.run"

    /** The folder of runs, in the app's external files. */
    const val FOLDER = "runs"

    /** The folder, within a run's own, of models that were pushed with it. */
    const val MODELS = "models"
    const val REQUEST = "request.json"
    const val STATUS = "status.json"
    const val RECORD = "record.json"

    /** The longest time between two writes of the status. */
    const val HEARTBEAT_S = 5.0

    private val RUN_ID = Regex("[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

    /** Returns whether a name cannot lead out of the folder of runs. */
    fun isRunId(name: String) = RUN_ID.matches(name)
}
