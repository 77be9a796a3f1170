package pocketbert.core.search

/**
 * The rows of passages by their ids, in twelve bytes or so a row: an id is kept as a number made of it, and read from the file
 * where that number is found.
 *
 * @property idOf reads a row's id.
 */
internal class Ids(rows: Int, private val idOf: (Int) -> String) {
    // A row and one; none is 0.
    private var slots = IntArray(Integer.highestOneBit(maxOf(rows, LEAST)) * ROOM)
    private var hashes = LongArray(maxOf(rows, LEAST))
    private var used = 0

    /** Returns the row of an id, or null. */
    fun find(id: String): Int? = slot(id).let { slots[it] }.takeIf { it > 0 }?.minus(1)

    /** Takes a row for an id, in place of the one that it had. */
    fun put(id: String, row: Int) {
        if (row >= hashes.size) hashes = hashes.copyOf(maxOf(row + 1, 2 * hashes.size))
        if (2 * (used + 1) > slots.size) grow()
        hashes[row] = hash(id)
        val slot = slot(id)
        if (slots[slot] == 0) used++
        slots[slot] = row + 1
    }

    /** Forgets an id. */
    fun remove(id: String) {
        var hole = slot(id)
        if (slots[hole] == 0) return
        used--
        slots[hole] = 0
        // What was put behind it because it was in the way moves up, or it would not be found any more.
        var at = next(hole)
        while (slots[at] != 0) {
            val home = home(hashes[slots[at] - 1])
            val isBetween = if (hole < at) home in hole + 1..at else home > hole || home <= at
            if (!isBetween) {
                slots[hole] = slots[at]
                slots[at] = 0
                hole = at
            }
            at = next(at)
        }
    }

    private fun slot(id: String): Int {
        val hash = hash(id)
        var at = home(hash)
        while (slots[at] != 0) {
            val row = slots[at] - 1
            if (hashes[row] == hash && idOf(row) == id) return at
            at = next(at)
        }
        return at
    }

    private fun grow() {
        val old = slots
        slots = IntArray(2 * old.size)
        for (one in old) {
            if (one == 0) continue
            var at = home(hashes[one - 1])
            while (slots[at] != 0) at = next(at)
            slots[at] = one
        }
    }

    private fun home(hash: Long) = (hash xor (hash ushr HALF)).toInt() and (slots.size - 1)

    private fun next(at: Int) = (at + 1) and (slots.size - 1)

    private companion object {
        const val LEAST = 64
        const val ROOM = 4
        const val HALF = 32
        const val BASIS = -0x340d631b7bdddcdbL
        const val PRIME = 0x100000001b3L

        /** Source: FNV-1a of 64 bits, Fowler, Noll and Vo. */
        fun hash(id: String) = id.toByteArray().fold(BASIS) { hash, byte -> (hash xor (byte.toLong() and 0xFF)) * PRIME }
    }
}
