package pocketbert.app.screens

import androidx.compose.foundation.layout.Arrangement
import androidx.compose.foundation.layout.Box
import androidx.compose.foundation.layout.BoxWithConstraints
import androidx.compose.foundation.layout.Column
import androidx.compose.foundation.layout.Row
import androidx.compose.foundation.layout.consumeWindowInsets
import androidx.compose.foundation.layout.fillMaxSize
import androidx.compose.foundation.layout.fillMaxWidth
import androidx.compose.foundation.layout.imePadding
import androidx.compose.foundation.layout.padding
import androidx.compose.foundation.layout.safeDrawingPadding
import androidx.compose.foundation.rememberScrollState
import androidx.compose.foundation.verticalScroll
import androidx.compose.material3.Button
import androidx.compose.material3.CircularProgressIndicator
import androidx.compose.material3.ExperimentalMaterial3Api
import androidx.compose.material3.Icon
import androidx.compose.material3.MaterialTheme
import androidx.compose.material3.NavigationBar
import androidx.compose.material3.NavigationBarItem
import androidx.compose.material3.NavigationRail
import androidx.compose.material3.NavigationRailItem
import androidx.compose.material3.Scaffold
import androidx.compose.material3.Surface
import androidx.compose.material3.Text
import androidx.compose.material3.TopAppBar
import androidx.compose.runtime.Composable
import androidx.compose.runtime.CompositionLocalProvider
import androidx.compose.runtime.LaunchedEffect
import androidx.compose.runtime.getValue
import androidx.compose.runtime.mutableIntStateOf
import androidx.compose.runtime.saveable.rememberSaveable
import androidx.compose.runtime.setValue
import androidx.compose.ui.Alignment
import androidx.compose.ui.Modifier
import androidx.compose.ui.platform.LocalDensity
import androidx.compose.ui.res.painterResource
import androidx.compose.ui.res.stringResource
import androidx.compose.ui.semantics.heading
import androidx.compose.ui.semantics.semantics
import androidx.compose.ui.text.style.TextAlign
import androidx.compose.ui.text.style.TextOverflow
import androidx.compose.ui.unit.Density
import androidx.compose.ui.unit.dp
import androidx.lifecycle.compose.collectAsStateWithLifecycle
import pocketbert.app.Desk
import pocketbert.app.R
import pocketbert.models.Screens
import pocketbert.models.Screens.Screen
import pocketbert.models.ShelfModel

private enum class Tab(val screen: Screen, val title: Int, val icon: Int) {
    TRY(Screen.TRY, R.string.try_title, R.drawable.tab_try),
    COMPARE(Screen.COMPARE, R.string.compare_title, R.drawable.tab_compare),
    SELF_TEST(Screen.SELF_TEST, R.string.self_test_title, R.drawable.tab_self_test),
    BENCHMARK(Screen.BENCHMARK, R.string.benchmark_title, R.drawable.tab_benchmark),
}

/** All screens, or why there is none. */
@OptIn(ExperimentalMaterial3Api::class)
@Composable
fun RootScreen(desk: Desk) {
    val shelf by desk.shelf.state.collectAsStateWithLifecycle()
    val models by desk.models.collectAsStateWithLifecycle()
    var chosen by rememberSaveable { mutableIntStateOf(0) }
    val made = models
    if (made == null) {
        Surface(Modifier.fillMaxSize(), color = MaterialTheme.colorScheme.background) {
            val why = when (val state = shelf) {
                ShelfModel.State.Empty -> stringResource(R.string.no_models)
                is ShelfModel.State.Failed -> state.why
                else -> null
            }
            Opening(why, desk::open)
        }
        return
    }
    val tab = Tab.entries[chosen]
    // What another screen holds in memory goes; turning the phone leaves none.
    LaunchedEffect(made, tab) { made.show(tab.screen) }
    BoxWithConstraints {
        // A phone that lies on its side has no height to give away.
        if (maxHeight < LOW_DP.dp) {
            Surface(color = MaterialTheme.colorScheme.background) {
                Row(Modifier.fillMaxSize().safeDrawingPadding()) {
                    NavigationRail(Modifier.verticalScroll(rememberScrollState())) {
                        for (one in Tab.entries) {
                            NavigationRailItem(one == tab, { chosen = one.ordinal }, { TabIcon(one) }, label = { TabLabel(one) })
                        }
                    }
                    Shown(tab, made, desk)
                }
            }
        } else {
            Scaffold(
                topBar = { TopAppBar({ Title(tab) }) },
                bottomBar = {
                    NavigationBar {
                        for (one in Tab.entries) {
                            NavigationBarItem(one == tab, { chosen = one.ordinal }, { TabIcon(one) }, label = { TabLabel(one) })
                        }
                    }
                },
            ) { padding ->
                // The keyboard lies over the bar below, so that only what is higher has to go.
                Box(Modifier.padding(padding).consumeWindowInsets(padding).imePadding()) { Shown(tab, made, desk) }
            }
        }
    }
}

@Composable
private fun Shown(tab: Tab, made: Screens, desk: Desk) {
    Column {
        if (made.shelf.usesUnsigned) Banner(stringResource(R.string.unsigned))
        when (tab) {
            Tab.TRY -> TryScreen(made.tries) { made.benchmark.settled() }
            Tab.COMPARE -> CompareScreen(made.compare) { made.benchmark.settled() }
            Tab.SELF_TEST -> SelfTestScreen(made.selfTest)
            Tab.BENCHMARK -> BenchmarkScreen(made.benchmark, desk)
        }
    }
}

@Composable
private fun Title(tab: Tab) = Text(
    stringResource(tab.title),
    Modifier.semantics { heading() },
    style = MaterialTheme.typography.titleLarge,
    maxLines = 1,
    overflow = TextOverflow.Ellipsis,
)

@Composable
private fun TabIcon(tab: Tab) = Icon(painterResource(tab.icon), null)

/** A tab's name does not grow beyond its tab: a quarter of the width holds no letters of twice the size. */
@Composable
private fun TabLabel(tab: Tab) {
    val density = LocalDensity.current
    val limited = Density(density.density, density.fontScale.coerceAtMost(LARGEST_LABEL))
    CompositionLocalProvider(LocalDensity provides limited) { Text(stringResource(tab.title), maxLines = 1) }
}

private const val LOW_DP = 480
private const val LARGEST_LABEL = 1.2f

@Composable
private fun Banner(text: String) {
    Surface(Modifier.fillMaxWidth(), color = MaterialTheme.colorScheme.tertiaryContainer) {
        Text(
            text,
            Modifier.padding(horizontal = GAP, vertical = 6.dp),
            style = MaterialTheme.typography.labelMedium,
            color = MaterialTheme.colorScheme.onTertiaryContainer,
        )
    }
}

/** What is seen before the models are read, and where they cannot be. */
@Composable
private fun Opening(why: String?, onAgain: () -> Unit) {
    Column(
        Modifier.fillMaxSize().padding(32.dp),
        verticalArrangement = Arrangement.spacedBy(GAP, Alignment.CenterVertically),
        horizontalAlignment = Alignment.CenterHorizontally,
    ) {
        Text(stringResource(R.string.app_name), style = MaterialTheme.typography.headlineMedium, color = MaterialTheme.colorScheme.primary)
        if (why == null) {
            CircularProgressIndicator()
            Text(stringResource(R.string.reading_models), textAlign = TextAlign.Center)
        } else {
            Text(why, textAlign = TextAlign.Center)
            Button(onAgain) { Text(stringResource(R.string.again)) }
        }
    }
}
