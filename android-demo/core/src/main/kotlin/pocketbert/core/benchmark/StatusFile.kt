package pocketbert.core.benchmark

import kotlinx.serialization.json.JsonObject
import pocketbert.core.contract.BenchmarkStatus
import pocketbert.core.contract.Headless
import pocketbert.core.contract.Schema
import pocketbert.core.contract.State
import java.io.File
import java.io.IOException
import java.nio.file.Files
import java.nio.file.StandardCopyOption
import java.util.Timer
import kotlin.concurrent.timer

/**
 * The status of a run as whoever started it reads it. It is written at most four times a second, and again by a timer where a
 * single step, such as loading a large model, takes longer than the time between two writes may be.
 */
internal class StatusFile(private val folder: File) : AutoCloseable {
    private val schema = Schema.of("benchmark-status")
    private var last = BenchmarkStatus(folder.name, State.RUNNING, 0.0, "starting", null, 0)
    private var told = 0L
    private val heartbeat: Timer = timer("pocketbert-heartbeat", daemon = true, initialDelay = LOOK_MS, period = LOOK_MS) { beat() }

    /** Says what is being done. */
    @Synchronized
    fun tell(cooling: Boolean, done: Double, doing: String) {
        val now = System.nanoTime()
        val state = if (cooling) State.COOLING else State.RUNNING
        if (last.beats > 0 && now - told < PAUSE_NS) {
            last = BenchmarkStatus(last.runId, state, done, doing, null, last.beats)
        } else {
            write(state, done, doing, null)
        }
    }

    /** Writes the last status, behind which no other one comes, and returns it. */
    @Synchronized
    fun end(state: State, message: String?): BenchmarkStatus {
        heartbeat.cancel()
        return write(state, if (state == State.FINISHED) 1.0 else last.done, state.word, message)
    }

    @Synchronized
    private fun beat() {
        val due = !last.state.isFinal && last.beats > 0 && System.nanoTime() - told >= SILENCE_NS
        if (due) write(last.state, last.done, last.doing, last.message)
    }

    /** A status that cannot be written ends nothing: the record may still find room. */
    private fun write(state: State, done: Double, doing: String, message: String?): BenchmarkStatus {
        last = BenchmarkStatus(last.runId, state, done, doing, message, last.beats + 1)
        told = System.nanoTime()
        val json = last.json()
        schema.check(json)
        try {
            json.writeTo(File(folder, Headless.STATUS))
        } catch (_: IOException) {
            return last
        }
        return last
    }

    override fun close() = heartbeat.cancel()

    private companion object {
        const val NANOS_IN_MS = 1_000_000L
        const val PAUSE_NS = 2_000 * NANOS_IN_MS

        /** With the time between two looks, less than [Headless.HEARTBEAT_S]. */
        const val SILENCE_NS = 2_500 * NANOS_IN_MS
        const val LOOK_MS = 1_000L
    }
}

/** Writes beside the place and renames, so that a reader finds all of it or nothing. */
internal fun JsonObject.writeTo(place: File) {
    val aside = File("$place.new")
    aside.writeText("$this\n")
    Files.move(aside.toPath(), place.toPath(), StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING)
}
