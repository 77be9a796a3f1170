package pocketbert.models

/** The view models of all screens. One screen is looked at at a time: the others hold no model in memory, and measure nothing. */
class Screens(
    val shelf: Shelf,
    val tries: TryModel,
    val compare: CompareModel,
    val selfTest: SelfTestModel,
    val benchmark: BenchmarkModel,
) {
    enum class Screen { TRY, COMPARE, SELF_TEST, BENCHMARK }

    /** Leaves every screen. */
    fun leave() = show(null)

    /** Leaves every other screen. */
    fun show(screen: Screen?) {
        if (screen != Screen.TRY) tries.leave()
        if (screen != Screen.COMPARE) compare.leave()
        if (screen != Screen.SELF_TEST) selfTest.leave()
        if (screen != Screen.BENCHMARK) benchmark.leave()
    }

    /** Gives up what goes on: in the background a system slows an app down, and a phone is asked for other things. */
    fun stop() {
        tries.cancel()
        tries.search.pause()
        compare.pause()
        selfTest.cancel()
        benchmark.cancel()
    }
}
