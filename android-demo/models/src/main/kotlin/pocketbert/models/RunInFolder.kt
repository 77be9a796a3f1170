package pocketbert.models

import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.delay
import kotlinx.coroutines.launch
import kotlinx.coroutines.suspendCancellableCoroutine
import kotlinx.coroutines.withContext
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.double
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import pocketbert.core.Cancellation
import pocketbert.core.benchmark.HeadlessRun
import pocketbert.core.contract.BenchmarkStatus
import pocketbert.core.contract.Headless
import pocketbert.core.contract.Models
import pocketbert.core.contract.State
import pocketbert.core.model.RunnerFailed
import java.io.File
import kotlin.concurrent.thread

/**
 * Where a run stands, for a screen.
 *
 * @property done from 0 to 1.
 * @property message why it ended, where it did not finish.
 */
data class RunProgress(val state: State, val done: Double, val doing: String, val message: String? = null) {
    companion object {
        /** Reads the last status that was written into a run's folder; null where there is none yet. */
        internal fun read(folder: File): RunProgress? = runCatching {
            val json = Json.parseToJsonElement(File(folder, Headless.STATUS).readText()).jsonObject
            val state = State.entries.first { it.word == json.getValue("state").jsonPrimitive.content }
            val message = json["message"]?.takeUnless { it is JsonNull }?.jsonPrimitive?.content
            RunProgress(state, json.getValue("done").jsonPrimitive.double, json.getValue("doing").jsonPrimitive.content, message)
        }.getOrNull()
    }
}

/** Carries out the run of a folder, as a computer or the screen has asked for it there. */
object RunInFolder {
    /** The first look comes early; each one draws the screen anew, beside what is measured. */
    private const val FIRST_MS = 1_000L
    private const val LATER_MS = 10_000L

    /**
     * Runs to an end and returns it. Models that screens hold in memory are given back first.
     *
     * @param cancellation asks it to end; it then writes that into its folder, and has ended.
     * @param tell is called with where it stands, after a second and then every ten: what the folder says, as a computer would read it.
     */
    suspend fun carryOut(folder: File, equipment: Equipment, cancellation: Cancellation, tell: (RunProgress) -> Unit): RunProgress =
        coroutineScope {
            // What an earlier run of this name left says nothing of this one.
            withContext(Dispatchers.IO) { for (name in listOf(Headless.STATUS, Headless.RECORD)) File(folder, name).delete() }
            val watch = launch {
                var pause = FIRST_MS
                while (true) {
                    delay(pause)
                    pause = LATER_MS
                    withContext(Dispatchers.IO) { RunProgress.read(folder) }?.takeUnless { it.state.isFinal }?.let(tell)
                }
            }
            try {
                val status = equipment.inMemory.without { measured(folder, equipment, cancellation) }
                RunProgress(status.state, status.done, status.doing, status.message)
            } finally {
                watch.cancel()
            }
        }

    private suspend fun measured(folder: File, equipment: Equipment, cancellation: Cancellation): BenchmarkStatus =
        suspendCancellableCoroutine { waiting ->
            waiting.invokeOnCancellation { cancellation.cancel() }
            thread(name = "pocketbert-run", isDaemon = true) {
                val runs = equipment.runs
                val models = { Models.open(runs.pushed(folder) ?: equipment.models, equipment.policy, cancellation) }
                val runtimes = equipment.runtimes.map { it.runtime }
                val ended = runCatching {
                    HeadlessRun(folder, models, runtimes, equipment.phone, cancellation, equipment.selfTested).run()
                }
                runs.forgetPushed()
                // What a thread does not catch ends the process.
                waiting.resumeWith(ended.recoverCatching { throw RunnerFailed("the run broke off: ${it.message ?: it}", it) })
            }
        }
}
