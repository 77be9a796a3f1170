package pocketbert.app

import android.content.Intent
import android.os.Bundle
import android.view.WindowManager
import androidx.activity.ComponentActivity
import androidx.activity.compose.setContent
import androidx.activity.enableEdgeToEdge
import androidx.compose.runtime.LaunchedEffect
import androidx.compose.runtime.getValue
import androidx.lifecycle.compose.collectAsStateWithLifecycle
import kotlinx.coroutines.delay
import pocketbert.app.screens.HeadlessScreen
import pocketbert.app.screens.PocketBertTheme
import pocketbert.app.screens.RootScreen
import pocketbert.core.contract.Headless

/** Shows the screens; or, started with the name of a run, carries that out. */
class MainActivity : ComponentActivity() {
    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        enableEdgeToEdge()
        show()
    }

    override fun onNewIntent(intent: Intent) {
        super.onNewIntent(intent)
        setIntent(intent)
        show()
    }

    override fun onStop() {
        super.onStop()
        // A phone that is turned stays in front.
        if (!isChangingConfigurations) (application as App).desk.stop()
    }

    private fun show() {
        val desk = (application as App).desk
        val run = intent.getStringExtra(Headless.RUN)
        if (run == null) {
            desk.open()
            setContent { PocketBertTheme { RootScreen(desk) } }
            return
        }
        // A screen that goes dark lets the processor sleep.
        window.addFlags(WindowManager.LayoutParams.FLAG_KEEP_SCREEN_ON)
        val model = desk.headless(run)
        setContent {
            val progress by model.progress.collectAsStateWithLifecycle()
            PocketBertTheme { HeadlessScreen(run, progress, model::cancel) }
            LaunchedEffect(progress.state.isFinal) {
                if (!progress.state.isFinal) return@LaunchedEffect
                delay(SHOWN_MS)
                desk.forget(run)
                finishAndRemoveTask()
            }
        }
    }

    private companion object {
        /** How long the end of a run is seen. */
        const val SHOWN_MS = 3_000L
    }
}
