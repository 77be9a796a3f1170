package pocketbert.core.tokenizer

/**
 * What characters become; those that are not in it stay.
 *
 * @param keys the characters, the lowest first.
 * @param becomes what each of them becomes.
 */
internal class CharacterMap(private val keys: IntArray, private val becomes: List<IntArray>) {
    // As in a set, the characters of most texts are looked up at once.
    private val low = arrayOfNulls<IntArray>(LOW).also { low ->
        for (at in keys.indices) if (keys[at] < LOW) low[keys[at]] = becomes[at]
    }

    /** Returns what a character becomes, or null where it stays. */
    operator fun get(code: Int): IntArray? {
        if (code < LOW) return low[code]
        val at = keys.binarySearch(code)
        return if (at < 0) null else becomes[at]
    }

    /** Calls [found] with each character and what it becomes, the lowest first. */
    inline fun each(found: (Int, IntArray) -> Unit) {
        for (at in keys.indices) found(keys[at], becomes[at])
    }

    private companion object {
        const val LOW = 0x180
    }
}
