package pocketbert.core.model

/**
 * The owner of a thread pool that a runtime has once a process, and that opening a file sets to another size: a file that is
 * open keeps pointing to the pool of its own opening, and computes with freed memory when that is replaced.
 *
 * @property runtime its name, for the sentence of a refusal.
 */
class SharedPool(private val runtime: String) {
    private var threads = 0
    private var open = 0

    /** The hold of one open file on the pool; closed behind the file. */
    inner class Hold internal constructor(val threads: Int) : AutoCloseable {
        private var isHeld = true

        override fun close() = synchronized(this@SharedPool) {
            if (isHeld) open--
            isHeld = false
        }
    }

    /**
     * Holds the pool at a size, before a file is opened.
     *
     * @throws RunnerRefused files are open at another size.
     */
    @Synchronized
    fun hold(threads: Int): Hold {
        if (open > 0 && threads != this.threads) {
            val files = if (open == 1) "the model that is open" else "$open models that are open"
            val held = "$files set it to ${this.threads}, not $threads; close first"
            throw RunnerRefused("$runtime has one pool of threads for all models, and $held")
        }
        this.threads = threads
        open++
        return Hold(threads)
    }
}
