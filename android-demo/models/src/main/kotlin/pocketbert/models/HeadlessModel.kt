package pocketbert.models

import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import pocketbert.core.Cancellation
import pocketbert.core.contract.State

/**
 * A run that a computer started the app for: nobody touches the phone, and the screen shows how far it is.
 *
 * @property run its name, as the intent extra gives it.
 */
class HeadlessModel(val run: String, private val equipment: Equipment, private val scope: CoroutineScope) {
    private val current = MutableStateFlow(RunProgress(State.RUNNING, 0.0, "starting"))
    val progress: StateFlow<RunProgress> = current.asStateFlow()
    private val cancellation = Cancellation()
    private var work: Job? = null

    /** Carries it out, once. */
    fun start() {
        if (work != null) return
        work = scope.launch {
            current.value = try {
                val folder = withContext(Dispatchers.IO) { equipment.runs.folder(run) }
                RunInFolder.carryOut(folder, equipment, cancellation) { if (!current.value.state.isFinal) current.value = it }
            } catch (error: WrongRun) {
                // There is no folder for a status: whoever waits sees the process end.
                RunProgress(State.REFUSED, 0.0, "refused", error.sentence)
            } catch (cancelled: CancellationException) {
                throw cancelled
            } catch (error: Exception) {
                RunProgress(State.FAILED, 0.0, "failed", error.sentence)
            }
        }
    }

    /** Asks the run to end. */
    fun cancel() = cancellation.cancel()

    /** Waits until it has ended, and returns how. */
    suspend fun settled(): RunProgress {
        work?.join()
        return current.value
    }
}
