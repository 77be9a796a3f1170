package pocketbert.core.benchmark

import kotlinx.serialization.json.JsonObject
import pocketbert.core.Cancellation
import pocketbert.core.Cancelled
import pocketbert.core.WrongJson
import pocketbert.core.contract.BenchmarkRequest
import pocketbert.core.contract.BenchmarkStatus
import pocketbert.core.contract.Folder
import pocketbert.core.contract.Headless
import pocketbert.core.contract.Listed
import pocketbert.core.contract.Model
import pocketbert.core.contract.State
import pocketbert.core.contract.UnreadableFile
import pocketbert.core.contract.Unusable
import pocketbert.core.contract.parse
import pocketbert.core.model.RunnerFailed
import pocketbert.core.model.RunnerRefused
import pocketbert.core.model.Runtime
import pocketbert.core.model.SelfTested
import java.io.File
import java.io.IOException

/**
 * One run of the headless contract: reads the request, measures, and writes status and record. Whatever happens, the last
 * status says how it ended, unless the process is killed; then the status stops beating.
 *
 * @property folder of the run; its name is the run's.
 * @property models opens the models that were shipped; [pocketbert.core.contract.Models.open].
 * @property selfTested the untried compute units that may be used all the same.
 */
class HeadlessRun(
    private val folder: File,
    private val models: () -> List<Listed>,
    private val runtimes: List<Runtime>,
    private val phone: Phone,
    private val cancellation: Cancellation = Cancellation(),
    private val selfTested: SelfTested = SelfTested(),
) {
    private class Refused(message: String) : Exception(message)

    /** Runs to an end, in the thread that calls, and returns the last status. */
    fun run(): BenchmarkStatus = StatusFile(folder).use { status ->
        val (state, message) = try {
            status.tell(false, 0.0, "reading the request")
            measured(request(), status).writeTo(File(folder, Headless.RECORD))
            State.FINISHED to null
        } catch (error: Refused) {
            State.REFUSED to error.message
        } catch (error: Unusable) {
            State.REFUSED to error.message
        } catch (error: RunnerRefused) {
            State.REFUSED to error.message
        } catch (_: Cancelled) {
            State.CANCELLED to "it was cancelled"
        } catch (error: OutOfTime) {
            State.OUT_OF_TIME to error.message
        } catch (error: TooHot) {
            State.TOO_HOT to error.message
        } catch (error: RunnerFailed) {
            State.FAILED to error.message
        } catch (error: IOException) {
            State.FAILED to "a file cannot be written: ${error.message}"
        } catch (error: OutOfMemoryError) {
            State.FAILED to "there is not enough memory: ${error.message}"
        } catch (error: WrongJson) {
            State.FAILED to "the record does not fit its schema: ${error.message}"
        } catch (error: LinkageError) {
            State.FAILED to "the runtime's library cannot be loaded: ${error.message}"
        } catch (error: Throwable) {
            // A runtime's own exceptions are not known here, and whoever waits has to learn of all of them.
            State.FAILED to "${error.javaClass.simpleName}: ${error.message}"
        }
        status.end(state, message)
    }

    private fun request(): BenchmarkRequest {
        val request = try {
            Folder(folder).parse(Headless.REQUEST, "benchmark-request", BenchmarkRequest::read)
        } catch (error: UnreadableFile) {
            throw Refused(error.message.orEmpty().replace("; ship the model again", ""))
        }
        if (request.runId != folder.name) throw Refused("request.json is of run ${request.runId}, and lies in the folder ${folder.name}")
        return request
    }

    private fun measured(request: BenchmarkRequest, status: StatusFile): JsonObject {
        val model = model(request.model)
        val runtime = runtimes.firstOrNull { it.backend == model.signature.backend }
            ?: throw Refused("there is no runtime for ${model.signature.backend} here; there are ${runtimes.map { it.name }}")
        request.lengths.firstOrNull { it > model.signature.maxLength }?.let {
            throw Refused("length $it does not fit; ${model.file} takes at most ${model.signature.maxLength} tokens")
        }
        val thermal = request.startThermal
        if (thermal != null && phone.thermalStates.isNotEmpty() && thermal !in phone.thermalStates) {
            throw Refused("start_thermal is $thermal; the thermal states of this phone are ${phone.thermalStates}")
        }
        val units = selfTested.choose(model, request.computeUnits)
        return Benchmark(phone, runtime, cancellation, status::tell).run(request, model, units)
    }

    private fun model(wanted: String): Model {
        val all = models()
        for (listed in all) {
            when (listed) {
                is Listed.Broken -> if (listed.entry.folder == wanted) throw listed.error
                is Listed.Usable -> if (listed.model.entry.folder == wanted) return listed.model
            }
        }
        throw Refused("$wanted was not shipped; there are: ${all.joinToString { it.entry.folder }}")
    }
}
