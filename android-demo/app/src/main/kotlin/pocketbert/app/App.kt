package pocketbert.app

import android.app.Application
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import pocketbert.app.runners.ExecuTorch
import pocketbert.app.runners.LiteRt
import pocketbert.core.contract.Headless
import pocketbert.models.BenchmarkModel
import pocketbert.models.CompareModel
import pocketbert.models.EnergyGate
import pocketbert.models.Equipment
import pocketbert.models.HeadlessModel
import pocketbert.models.LinkedRuntime
import pocketbert.models.RunFolders
import pocketbert.models.Screens
import pocketbert.models.SearchModel
import pocketbert.models.SelfTestModel
import pocketbert.models.Shelf
import pocketbert.models.ShelfModel
import pocketbert.models.TryModel
import java.io.File

/** The process: it holds what the screens show, so that turning the phone loses nothing. */
open class App : Application() {
    val desk by lazy {
        val scope = CoroutineScope(SupervisorJob() + Dispatchers.Main.immediate)
        Desk(equipment(), filesDir, scope) { shelf ->
            // What an earlier version of the app has copied is of no more use.
            copies.keep(shelf.usable.map { it.model.entry.digest }.toSet())
        }
    }
    private val copies by lazy { CopiedModels(AssetFiles(assets), File(noBackupFilesDir, "models")) }

    /** Returns what the app runs with; tests have runtimes of their own. */
    protected open fun equipment(): Equipment {
        val files = AssetFiles(assets)
        val cores = Runtime.getRuntime().availableProcessors()
        val runtimes = listOf(
            LinkedRuntime(LiteRt(copies), 1..cores),
            LinkedRuntime(ExecuTorch(copies), 1..cores),
        )
        // Others reach the runs through a cable; where there is no such storage, they stay within.
        val runs = RunFolders(File(getExternalFilesDir(null) ?: filesDir, Headless.FOLDER), File(noBackupFilesDir, "pushed"))
        return Equipment(files, TrustedKeysOfApp.policy(AndroidPhone.isDebug(this)), runtimes, AndroidPhone(this), runs)
    }
}

/**
 * The view models of all screens, which are made when the models have been read.
 *
 * @property home the folder for what is searched.
 * @property onRead is called off the main thread with what was read.
 */
class Desk(
    private val equipment: Equipment,
    private val home: File,
    private val scope: CoroutineScope,
    private val onRead: (Shelf) -> Unit,
) {
    val shelf = ShelfModel(equipment)
    private val made = MutableStateFlow<Screens?>(null)
    val models: StateFlow<Screens?> = made.asStateFlow()
    private val headless = HashMap<String, HeadlessModel>()

    /** Reads the models, where that was not done yet. */
    fun open() {
        scope.launch {
            shelf.open()
            val read = (shelf.state.value as? ShelfModel.State.Ready)?.shelf ?: return@launch
            withContext(Dispatchers.IO) { onRead(read) }
            // A phone that is turned meanwhile asks twice.
            if (made.value != null) return@launch
            made.value = Screens(
                read,
                TryModel(read.usable, search(), scope),
                CompareModel(read.usable, scope),
                SelfTestModel(read, scope),
                BenchmarkModel(read.usable, equipment, scope),
            )
        }
    }

    private fun search() = SearchModel(File(home, "sentences.txt"), File(home, "index"), EnergyGate(equipment.phone))

    /** Ends what screens do in the background; a run that a computer has started goes on, and says that it was there. */
    fun stop() {
        made.value?.stop()
    }

    /** Returns the run of a name, which is started once and goes on while the phone is turned. */
    fun headless(run: String): HeadlessModel = headless.getOrPut(run) {
        // Its record tells the app's memory, in which no other model is to lie.
        made.value?.leave()
        HeadlessModel(run, equipment, scope).also { it.start() }
    }

    /** Forgets a run that has ended, so that one of its name can be started again. */
    fun forget(run: String) = headless.remove(run)

    /** Does work in the background that outlives a screen. */
    fun launch(work: suspend () -> Unit) {
        scope.launch { work() }
    }
}
