package pocketbert.core.tokenizer

/** Reads a pattern in Oniguruma's syntax. */
internal class PatternReader(source: String) {
    private val codes = source.codePoints().toArray()
    private val shown = source
    private var at = 0

    /** Reads the whole pattern. Throws [UnsupportedTokenizer] where it holds what is not supported. */
    fun read(): Node {
        val node = either()
        if (at < codes.size) fail("an unmatched bracket")
        return node
    }

    private fun fail(what: String): Nothing =
        throw UnsupportedTokenizer("the pattern ${shown.take(80)} in tokenizer.json has $what at character $at, which is not supported")

    private fun takes(text: String): Boolean {
        val there = text.indices.all { at + it < codes.size && codes[at + it] == text[it].code }
        if (there) at += text.length
        return there
    }

    private fun either(): Node {
        val options = arrayListOf(sequence())
        while (takes("|")) options.add(sequence())
        return options.singleOrNull() ?: Either(options)
    }

    private fun sequence(): Node {
        val parts = ArrayList<Node>()
        while (at < codes.size && codes[at] != '|'.code && codes[at] != ')'.code) parts.add(repeated(single()))
        return parts.singleOrNull() ?: Sequence(parts)
    }

    private fun repeated(node: Node): Node {
        var all = node
        while (true) {
            val (least, most) = when {
                takes("*") -> 0 to Int.MAX_VALUE
                takes("+") -> 1 to Int.MAX_VALUE
                takes("?") -> 0 to 1
                else -> counted() ?: return all
            }
            val kind = when {
                takes("?") -> Repeat.Kind.LAZY
                takes("+") -> Repeat.Kind.POSSESSIVE
                else -> Repeat.Kind.GREEDY
            }
            if (kind == Repeat.Kind.POSSESSIVE && all !is One) fail("a possessive group")
            all = Repeat(all, least, most, kind)
        }
    }

    private fun counted(): Pair<Int, Int>? {
        val begins = at
        if (takes("{")) {
            val least = digits()
            val comma = takes(",")
            val most = digits()
            if (takes("}") && (least != null || most != null)) {
                return (least ?: 0) to if (comma) most ?: Int.MAX_VALUE else least ?: 0
            }
        }
        at = begins
        return null
    }

    private fun digits(): Int? {
        var value: Int? = null
        while (at < codes.size && codes[at] in '0'.code..'9'.code && (value ?: 0) < Node.UNBOUNDED) {
            value = (value ?: 0) * 10 + (codes[at++] - '0'.code)
        }
        return value
    }

    private fun single(): Node = when {
        takes("(") -> group()
        takes("[") -> One(characterClass())
        takes(".") -> One(CharacterSet.of('\n'.code).inverted())
        takes("^") -> Anchor { slice, at -> at == slice.first || slice.codes[at - 1] == '\n'.code }
        takes("$") -> Anchor { slice, at -> at == slice.end || slice.codes[at] == '\n'.code }
        takes("\\") -> escaped()
        codes[at] == '*'.code || codes[at] == '+'.code || codes[at] == '?'.code -> fail("a repetition of nothing")
        else -> One(CharacterSet.of(codes[at++]))
    }

    private fun group(): Node {
        // What stands behind the bracket, and whether it looks ahead and for what is there; null for a plain group.
        val look = LOOKS.entries.firstOrNull { takes(it.key) }?.value
        if (look == null && !takes("?:") && takes("?")) fail("(?")
        val inside = either()
        if (!takes(")")) fail("an open bracket")
        return if (look == null) inside else Look(inside, ahead = look.first, wanted = look.second)
    }

    private fun escaped(): Node = when {
        takes("A") -> Anchor { slice, at -> at == slice.first }
        takes("z") -> Anchor { slice, at -> at == slice.end }
        takes("Z") -> Anchor { slice, at -> at == slice.end || (at == slice.end - 1 && slice.codes[at] == '\n'.code) }
        takes("b") -> edge(wanted = true)
        takes("B") -> edge(wanted = false)
        else -> One(classOrCharacter())
    }

    /** Where a word begins or ends, or every other place. */
    private fun edge(wanted: Boolean): Node {
        val words = CharacterTables.set("regex_word")
        fun inWord(slice: Slice, at: Int) = at in slice.first..<slice.end && slice.codes[at] in words
        return Anchor { slice, at -> (inWord(slice, at - 1) != inWord(slice, at)) == wanted }
    }

    /** Reads what stands behind a backslash, in a class or outside. */
    private fun classOrCharacter(): CharacterSet {
        if (at >= codes.size) fail("a backslash at its end")
        for ((letter, name) in CLASSES) {
            if (takes(letter)) return CharacterTables.set(name)
            if (takes(letter.uppercase())) return CharacterTables.set(name).inverted()
        }
        if (takes("p{")) return property(false)
        if (takes("P{")) return property(true)
        return CharacterSet.of(character())
    }

    /** Reads one character behind a backslash. */
    private fun character(): Int {
        if (takes("x{")) return until('}').toIntOrNull(HEX)?.takeIf { it in 0..Character.MAX_CODE_POINT } ?: fail("a number that is none")
        if (at >= codes.size) fail("a backslash at its end")
        val sign = codes[at++]
        return when (sign.toChar()) {
            'x' -> String(codes, at, minOf(2, codes.size - at)).toIntOrNull(HEX)?.also { at += 2 } ?: fail("a number that is none")
            'n' -> '\n'.code
            't' -> '\t'.code
            'r' -> '\r'.code
            'f' -> FORM_FEED
            'v' -> VERTICAL_TAB
            'a', 'e', in '0'..'9', in 'A'..'Z', in 'a'..'z' -> fail("\\${sign.toChar()}")
            else -> sign
        }
    }

    private fun until(end: Char): String {
        val first = at
        while (at < codes.size && codes[at] != end.code) at++
        if (at == codes.size) fail("no $end")
        return String(codes, first, at++ - first)
    }

    private fun property(negated: Boolean): CharacterSet {
        val written = until('}')
        val name = written.removePrefix("^")
        val plain = name.lowercase().filter { it.isLetterOrDigit() }
        val set = when (plain) {
            "cased" -> CharacterTables.set("regex_cased")
            "caseignorable" -> CharacterTables.set("regex_case_ignorable")
            "space", "whitespace" -> CharacterTables.set("regex_space")
            "word" -> CharacterTables.set("regex_word")
            else -> CharacterTables.category(LONG_NAMES[plain] ?: plain.replaceFirstChar { it.uppercase() })
        } ?: fail("the property $name")
        return if (negated != written.startsWith("^")) set.inverted() else set
    }

    private fun characterClass(): CharacterSet {
        val negated = takes("^")
        val all = ArrayList<CharacterSet>()
        var options = ArrayList<CharacterSet>()
        var empty = true
        while (true) {
            if (at >= codes.size) fail("an open class")
            if (!empty && takes("]")) break
            empty = false
            when {
                takes("&&") -> all.add(CharacterSet.union(options)).also { options = ArrayList() }
                takes("[:") -> fail("[:")
                takes("[") -> options.add(characterClass())
                else -> options.add(range())
            }
        }
        all.add(CharacterSet.union(options))
        val inside = CharacterSet.intersection(all)
        return if (negated) inside.inverted() else inside
    }

    private fun range(): CharacterSet {
        val begins = at
        val first = if (takes("\\")) {
            if (at < codes.size && codes[at].toChar() in "dDsSwWpP") return classOrCharacter()
            character()
        } else {
            codes[at++]
        }
        val dash = at + 1 < codes.size && codes[at] == '-'.code && codes[at + 1] != ']'.code
        if (!dash) return CharacterSet.of(first)
        at++
        val last = if (takes("\\")) character() else codes[at++]
        if (last < first) {
            at = begins
            fail("a range that ends before it begins")
        }
        return CharacterSet.of(first, last)
    }

    private companion object {
        const val HEX = 16
        const val FORM_FEED = 0x0C
        const val VERTICAL_TAB = 0x0B
        val LOOKS = mapOf("?=" to (true to true), "?!" to (true to false), "?<=" to (false to true), "?<!" to (false to false))
        val CLASSES = mapOf("d" to "category_Nd", "s" to "regex_space", "w" to "regex_word")
        val LONG_NAMES = mapOf(
            "letter" to "L", "mark" to "M", "number" to "N", "punctuation" to "P", "symbol" to "S", "separator" to "Z",
            "punct" to "P", "control" to "Cc", "cntrl" to "Cc", "format" to "Cf",
        )
    }
}
