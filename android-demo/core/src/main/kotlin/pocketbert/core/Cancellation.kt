package pocketbert.core

import java.util.concurrent.Callable
import java.util.concurrent.ExecutorService
import java.util.concurrent.Executors

/** Work was given up because somebody asked for it. */
class Cancelled : Exception("cancelled")

/** Gives up work that goes on in another thread: whoever started it calls [cancel], the work calls [check] now and then. */
class Cancellation {
    @Volatile
    var isCancelled = false
        private set

    fun cancel() {
        isCancelled = true
    }

    /** @throws Cancelled somebody called [cancel]. */
    fun check() {
        if (isCancelled) throw Cancelled()
    }
}

/**
 * Runs work one after the other in a thread of its own: reading a model and running it takes too long for the main thread,
 * and a runner takes one call at a time.
 */
class Background : AutoCloseable {
    private val executor: ExecutorService = Executors.newSingleThreadExecutor { work ->
        Thread(work, "pocketbert").apply { isDaemon = true }
    }

    /**
     * Starts work and returns at once.
     *
     * @param done is called in the background thread, with what the work returned or threw; also for work that was cancelled.
     */
    fun <T> start(work: (Cancellation) -> T, done: (Result<T>) -> Unit): Cancellation {
        val cancellation = Cancellation()
        executor.submit(
            Callable {
                done(
                    runCatching {
                        cancellation.check()
                        work(cancellation)
                    },
                )
            },
        )
        return cancellation
    }

    /** Takes no more work; what was started goes on to its end. */
    override fun close() = executor.shutdown()
}
