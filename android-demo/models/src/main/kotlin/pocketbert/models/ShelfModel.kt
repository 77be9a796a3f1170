package pocketbert.models

import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import pocketbert.core.Background
import pocketbert.core.Cancelled

/** The models that were shipped into the app. */
class ShelfModel(val equipment: Equipment) {
    sealed class State {
        object Loading : State()

        /** There is nothing to show; the message is a sentence. */
        class Failed(val why: String) : State()

        class Ready(val shelf: Shelf) : State()
    }

    private val background = Background()
    private val current = MutableStateFlow<State>(State.Loading)
    val state: StateFlow<State> = current.asStateFlow()

    /** Reads the models once, which takes a while: every byte is compared with what was signed. */
    suspend fun open() {
        if (current.value is State.Ready) return
        current.value = State.Loading
        current.value = try {
            State.Ready(background.run { Shelf.open(equipment, it) })
        } catch (cancelled: Cancelled) {
            // Whoever asked has gone; it is asked again when somebody looks.
            throw cancelled
        } catch (error: Exception) {
            State.Failed(error.sentence)
        }
    }
}
