package pocketbert.core.tokenizer

/** A set of code points, kept as ranges. */
internal class CharacterSet(private val firsts: IntArray, private val lasts: IntArray) {
    private val low = BooleanArray(LOW) { search(it) }

    operator fun contains(code: Int): Boolean = if (code < LOW) low[code] else search(code)

    private fun search(code: Int): Boolean {
        val at = firsts.binarySearch(code)
        return at >= 0 || (at < -1 && code <= lasts[-at - 2])
    }

    companion object {
        private const val LOW = 0x180
        private const val BITS = 0x110000

        val NONE = CharacterSet(IntArray(0), IntArray(0))

        /** Returns the set of the code points for which [has] is true. Looks at each of them, so it is for few sets. */
        fun of(has: (Int) -> Boolean): CharacterSet {
            val firsts = ArrayList<Int>()
            val lasts = ArrayList<Int>()
            for (code in 0 until BITS) {
                if (!has(code)) continue
                if (lasts.isNotEmpty() && lasts.last() == code - 1) {
                    lasts[lasts.size - 1] = code
                } else {
                    firsts.add(code)
                    lasts.add(code)
                }
            }
            return CharacterSet(firsts.toIntArray(), lasts.toIntArray())
        }
    }
}

/**
 * What the reference tokenizer knows of characters, as `characters.txt` has it.
 *
 * A phone's own Unicode tables are of another version (Android 8 has Unicode 9), so none of them is asked.
 */
internal object CharacterTables {
    private val lines: Map<String, String> by lazy {
        val stream = checkNotNull(CharacterTables::class.java.getResourceAsStream("/pocketbert/characters.txt")) {
            "characters.txt is missing from the library"
        }
        val kept = HashMap<String, String>()
        stream.bufferedReader().useLines { all ->
            for (line in all) {
                if (line.startsWith("#")) continue
                val kind = line.indexOf(' ')
                val name = line.indexOf(' ', kind + 1).let { if (it < 0) line.length else it }
                kept[line.substring(0, name)] = line.substring(minOf(name + 1, line.length))
            }
        }
        kept
    }
    private val sets = HashMap<String, CharacterSet>()
    private val maps = HashMap<String, CharacterMap>()

    /** Returns the set of a name; it is read when it is asked for first. */
    fun set(name: String): CharacterSet = checkNotNull(find(name)) { "characters.txt has no set $name" }

    /** Returns the set of a name, or null where there is none. */
    fun find(name: String): CharacterSet? = synchronized(sets) {
        sets[name] ?: lines["set $name"]?.let { line -> readSet(line).also { sets[name] = it } }
    }

    /** Returns the map of a name; it is read when it is asked for first. */
    fun map(name: String): CharacterMap = synchronized(maps) {
        maps.getOrPut(name) { readMap(checkNotNull(lines["map $name"]) { "characters.txt has no map $name" }) }
    }

    /** Returns the general categories whose names begin so, as one set: `L`, `Lu`, `P`. */
    fun category(name: String): CharacterSet? {
        find("category_$name")?.let { return it }
        val parts = lines.keys.filter { it.startsWith("set category_$name") }.map { set(it.substring(4)) }
        val unassigned = name == "C" || name == "Cn"
        if (parts.isEmpty() && !unassigned) return null
        val all = if (unassigned) lines.keys.filter { it.startsWith("set category_") }.map { set(it.substring(4)) } else parts
        return synchronized(sets) {
            sets.getOrPut("category_$name") {
                if (!unassigned) {
                    CharacterSet.of { code -> parts.any { code in it } }
                } else {
                    val others = if (name == "C") parts else emptyList()
                    CharacterSet.of { code -> code !in SURROGATES && (others.any { code in it } || all.none { code in it }) }
                }
            }
        }
    }

    private val SURROGATES = 0xD800..0xDFFF

    private fun readSet(line: String): CharacterSet {
        val numbers = Numbers(line)
        var firsts = IntArray(INITIAL)
        var lasts = IntArray(INITIAL)
        var count = 0
        var before = 0
        while (!numbers.ended) {
            if (count == firsts.size) {
                firsts = firsts.copyOf(2 * count)
                lasts = lasts.copyOf(2 * count)
            }
            val first = before + numbers.next()
            before = if (numbers.takes('-')) first + numbers.next() else first
            numbers.takes(' ')
            firsts[count] = first
            lasts[count++] = before
        }
        return CharacterSet(firsts.copyOf(count), lasts.copyOf(count))
    }

    private fun readMap(line: String): CharacterMap {
        val numbers = Numbers(line)
        val becomes = HashMap<Int, IntArray>()
        var from = 0
        while (!numbers.ended) {
            from += numbers.next()
            numbers.takes('=')
            val to = ArrayList<Int>(2)
            do {
                if (numbers.atNumber) to.add(numbers.next())
            } while (numbers.takes('.'))
            numbers.takes(' ')
            becomes[from] = to.toIntArray()
        }
        return CharacterMap(becomes)
    }

    private const val INITIAL = 64
    private const val RADIX = 16

    /** Reads hexadecimal numbers one after the other. */
    private class Numbers(private val line: String) {
        private var at = 0
        val ended get() = at >= line.length
        val atNumber get() = at < line.length && Character.digit(line[at], RADIX) >= 0

        fun next(): Int {
            var value = 0
            while (atNumber) value = value * RADIX + Character.digit(line[at++], RADIX)
            return value
        }

        fun takes(sign: Char): Boolean {
            val there = at < line.length && line[at] == sign
            if (there) at++
            return there
        }
    }
}

/** What characters become; those that are not in it stay. */
internal class CharacterMap(private val becomes: Map<Int, IntArray>) {
    private val lowest = becomes.keys.minOrNull() ?: Int.MAX_VALUE

    /** Returns what a character becomes, or null where it stays. */
    operator fun get(code: Int): IntArray? = if (code < lowest) null else becomes[code]

    /** All characters that become something else. */
    val entries get() = becomes.entries
}
