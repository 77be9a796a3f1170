package pocketbert.core.model

import pocketbert.core.contract.Model
import pocketbert.core.contract.PaddedRow

/**
 * How a file is run.
 *
 * @property threads of the runtime.
 * @property computeUnits as the runtime names them; null for the first of the file's own.
 */
class RunnerOptions(val threads: Int = 1, val computeUnits: String? = null)

/** The runtime cannot do what was asked for; the message is a sentence for a screen. */
class RunnerRefused(message: String) : Exception(message)

/** The runtime failed, or gave what the file does not promise; the message is a sentence for a screen. */
class RunnerFailed(message: String, cause: Throwable? = null) : Exception(message, cause)

/** A file that is open in a runtime; one call at a time, off the main thread. */
interface Runner : AutoCloseable {
    /** What computes the operations, such as `XNNPACK`; null where the runtime does not tell. */
    val delegate: String?

    /**
     * Share of the graph that each compute unit runs, such as `CPU` or `GPU`, as the runtime confirmed it; null where it
     * confirmed nothing.
     */
    val shareByUnit: Map<String, Double>?

    /** Threads of the runtime's process-wide pool as it is now; null where each file has threads of its own. */
    val poolThreads: Int?

    /**
     * Runs a row.
     *
     * @return each output by its name, row-major.
     * @throws RunnerFailed the runtime gave up.
     */
    fun run(row: PaddedRow): Map<String, FloatArray>
}

/** A runtime as an app has it. */
interface Runtime {
    /** As records name it: `LiteRT`, `ExecuTorch`, `Core ML`. */
    val name: String
    val version: String

    /** The backend whose files it runs, as `signature.json` names it. */
    val backend: String

    /**
     * Opens a model's file.
     *
     * @throws RunnerRefused the file needs a newer version, or there are no such compute units here.
     * @throws RunnerFailed the file cannot be opened.
     */
    fun open(model: Model, options: RunnerOptions): Runner
}
