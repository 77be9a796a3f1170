package pocketbert.core.model

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

class SharedPoolTest {
    private val pool = SharedPool("ExecuTorch")

    @Test
    fun `an open file keeps the pool at its size`() {
        val (first, second) = pool.hold(1) to pool.hold(1)
        val refused = assertThrows(RunnerRefused::class.java) { pool.hold(4) }
        assertTrue("2 models that are open set it to 1, not 4" in refused.message.orEmpty(), refused.message)
        first.close()
        // A hold that is closed twice does not stand for another one.
        first.close()
        assertThrows(RunnerRefused::class.java) { pool.hold(4) }
        second.close()
        assertEquals(4, pool.hold(4).threads)
    }

    @Test
    fun `of files that are opened at the same time, those of one size are`() {
        val sizes = (1..64).map { 1 + it % 2 }
        val held = sizes.parallelStream().map { size -> runCatching { pool.hold(size) }.getOrNull() }.toList().filterNotNull()
        assertEquals(1, held.map { it.threads }.distinct().size)
        assertEquals(32, held.size)
        held.forEach { it.close() }
        pool.hold(3)
    }
}
