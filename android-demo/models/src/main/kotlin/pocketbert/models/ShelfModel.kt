package pocketbert.models

import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import pocketbert.core.Background

/** The models that were shipped into the app. */
class ShelfModel(val equipment: Equipment) {
    sealed class State {
        data object Loading : State()

        /** No model was shipped into the app. */
        data object Empty : State()

        /** There is nothing to show; the message is a sentence. */
        data class Failed(val why: String) : State()

        data class Ready(val shelf: Shelf) : State()
    }

    private val background = Background()
    private val reading = Mutex()
    private val current = MutableStateFlow<State>(State.Loading)
    val state: StateFlow<State> = current.asStateFlow()

    /**
     * Reads the models once, which takes a while: every byte is compared with what was signed. Whoever asks meanwhile, such as a
     * screen that is turned, waits for the same reading.
     */
    suspend fun open(): Unit = reading.withLock {
        if (current.value is State.Ready) return
        current.value = State.Loading
        current.value = try {
            State.Ready(background.run { Shelf.open(equipment, it) })
        } catch (cancelled: CancellationException) {
            // Whoever asked has gone; it is asked again when somebody looks.
            throw cancelled
        } catch (_: NoModels) {
            State.Empty
        } catch (error: Exception) {
            State.Failed(error.sentence)
        }
    }
}
