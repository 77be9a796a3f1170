package pocketbert.core.tokenizer

/** A set of code points, kept as ranges that go up and do not overlap. */
internal class CharacterSet(private val firsts: IntArray, private val lasts: IntArray) {
    // Most of a text is here, and looking it up is faster than searching.
    private val low = BooleanArray(LOW).also { low ->
        for (at in firsts.indices) if (firsts[at] < LOW) low.fill(true, firsts[at], minOf(LOW, lasts[at] + 1))
    }

    operator fun contains(code: Int): Boolean = if (code < LOW) low[code] else search(code)

    private fun search(code: Int): Boolean {
        val at = firsts.binarySearch(code)
        return at >= 0 || (at < -1 && code <= lasts[-at - 2])
    }

    /** Every code point that is not in this set. */
    fun inverted(): CharacterSet {
        val begins = IntArray(firsts.size + 1)
        val ends = IntArray(firsts.size + 1)
        var count = 0
        var next = 0
        for (at in firsts.indices) {
            if (next < firsts[at]) {
                begins[count] = next
                ends[count++] = firsts[at] - 1
            }
            next = lasts[at] + 1
        }
        if (next < END) {
            begins[count] = next
            ends[count++] = END - 1
        }
        return CharacterSet(begins.copyOf(count), ends.copyOf(count))
    }

    /** Calls [found] with the first and the last code point of each range, the lowest first. */
    inline fun each(found: (Int, Int) -> Unit) {
        for (at in firsts.indices) found(firsts[at], lasts[at])
    }

    companion object {
        private const val LOW = 0x180
        private const val END = 0x110000

        /** The code points from [first] to [last]. */
        fun of(first: Int, last: Int = first) = CharacterSet(intArrayOf(first), intArrayOf(last))

        /** What is in any of the sets. */
        fun union(sets: List<CharacterSet>): CharacterSet {
            sets.singleOrNull()?.let { return it }
            // A range is one number here, so that they are sorted without an object for each.
            val ranges = LongArray(sets.sumOf { it.firsts.size })
            var size = 0
            for (set in sets) for (at in set.firsts.indices) ranges[size++] = (set.firsts[at].toLong() shl 32) or set.lasts[at].toLong()
            ranges.sort()
            val firsts = IntArray(size)
            val lasts = IntArray(size)
            var count = 0
            for (range in ranges) {
                val first = (range shr 32).toInt()
                val last = range.toInt()
                if (count > 0 && first <= lasts[count - 1] + 1) {
                    lasts[count - 1] = maxOf(lasts[count - 1], last)
                } else {
                    firsts[count] = first
                    lasts[count++] = last
                }
            }
            return CharacterSet(firsts.copyOf(count), lasts.copyOf(count))
        }

        /** What is in all of the sets. */
        fun intersection(sets: List<CharacterSet>): CharacterSet = sets.singleOrNull() ?: union(sets.map(CharacterSet::inverted)).inverted()
    }
}
