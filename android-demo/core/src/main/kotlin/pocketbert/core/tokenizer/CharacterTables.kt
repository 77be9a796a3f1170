package pocketbert.core.tokenizer

/**
 * What the reference tokenizer knows of characters, as `characters.txt` has it.
 *
 * A phone's own Unicode tables are of another version (Android 8 has Unicode 9), so none of them is asked.
 */
internal object CharacterTables {
    private val lines = readLines()
    private val sets = HashMap<String, CharacterSet>()
    private val maps = HashMap<String, CharacterMap>()

    /** Returns the set of a name; it is read when it is asked for first. */
    fun set(name: String): CharacterSet = checkNotNull(find(name)) { "characters.txt has no set $name" }

    /** Returns the set of a name, or null where there is none. */
    fun find(name: String): CharacterSet? = synchronized(sets) {
        sets[name] ?: lines[name]?.let { line -> readSet(line).also { sets[name] = it } }
    }

    /** Returns the map of a name; it is read when it is asked for first. */
    fun map(name: String): CharacterMap = synchronized(maps) {
        maps.getOrPut(name) { readMap(checkNotNull(lines[name]) { "characters.txt has no map $name" }) }
    }

    /** Returns the general categories whose names begin so, as one set: `L`, `Lu`, `P`. */
    fun category(name: String): CharacterSet? {
        find("category_$name")?.let { return it }
        val parts = categories(name)
        val whole = when {
            name == "Cn" -> unassigned()
            name == "C" -> CharacterSet.union(parts + unassigned())
            parts.isEmpty() -> return null
            else -> CharacterSet.union(parts)
        }
        return synchronized(sets) { sets.getOrPut("category_$name") { whole } }
    }

    private fun categories(beginning: String) = lines.keys.filter { it.startsWith("category_$beginning") }.map(::set)

    private fun unassigned() = CharacterSet.union(categories("") + CharacterSet.of(SURROGATES.first, SURROGATES.last)).inverted()

    private val SURROGATES = 0xD800..0xDFFF

    /** The numbers of each line by its name. They are read when they are asked for: few tokenizers need many. */
    private fun readLines(): Map<String, String> {
        val stream = checkNotNull(CharacterTables::class.java.getResourceAsStream("/pocketbert/characters.txt")) {
            "characters.txt is missing from the library"
        }
        val text = String(stream.use { it.readBytes() }, Charsets.ISO_8859_1)
        val found = HashMap<String, String>()
        var first = 0
        while (first < text.length) {
            val end = text.indexOf('\n', first)
            if (text[first] != '#') {
                // `set` or `map`, which the name tells as well.
                val name = text.indexOf(' ', first) + 1
                val space = text.indexOf(' ', name)
                val last = if (space in name..<end) space else end
                found[text.substring(name, last)] = text.substring(minOf(last + 1, end), end)
            }
            first = end + 1
        }
        return found
    }

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
        var keys = IntArray(INITIAL)
        val becomes = ArrayList<IntArray>()
        val to = IntArray(LONGEST)
        var from = 0
        while (!numbers.ended) {
            if (becomes.size == keys.size) keys = keys.copyOf(2 * keys.size)
            from += numbers.next()
            numbers.takes('=')
            var count = 0
            do {
                if (numbers.atNumber) to[count++] = numbers.next()
            } while (numbers.takes('.'))
            numbers.takes(' ')
            keys[becomes.size] = from
            becomes.add(to.copyOf(count))
        }
        return CharacterMap(keys.copyOf(becomes.size), becomes)
    }

    private const val INITIAL = 64

    // U+FDFA becomes eighteen characters.
    private const val LONGEST = 32

    /** Reads hexadecimal numbers one after the other. */
    private class Numbers(private val line: String) {
        private var at = 0
        val ended get() = at >= line.length
        val atNumber get() = at < line.length && line[at].isHexadecimal

        fun next(): Int {
            var value = 0
            while (atNumber) value = (value shl 4) or line[at++].let { if (it <= '9') it - '0' else it - 'a' + 10 }
            return value
        }

        private val Char.isHexadecimal get() = this in '0'..'9' || this in 'a'..'f'

        fun takes(sign: Char): Boolean {
            val there = at < line.length && line[at] == sign
            if (there) at++
            return there
        }
    }
}
