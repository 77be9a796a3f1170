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
        val found = COUNT.find(String(codes, at, minOf(codes.size - at, LONGEST_COUNT))) ?: return null
        at += found.value.length
        val (least, comma, most) = found.destructured
        val low = least.toIntOrNull() ?: 0
        return low to if (comma.isEmpty()) low else most.toIntOrNull() ?: Int.MAX_VALUE
    }

    private fun single(): Node = when {
        takes("(") -> group()
        takes("[") -> One(characterClass())
        takes(".") -> One { it != '\n'.code }
        takes("^") -> Anchor { codes, at -> at == 0 || codes[at - 1] == '\n'.code }
        takes("$") -> Anchor { codes, at -> at == codes.size || codes[at] == '\n'.code }
        takes("\\") -> escaped()
        codes[at] == '*'.code || codes[at] == '+'.code || codes[at] == '?'.code -> fail("a repetition of nothing")
        else -> codes[at++].let { code -> One { it == code } }
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
        takes("A") -> Anchor { _, at -> at == 0 }
        takes("z") -> Anchor { codes, at -> at == codes.size }
        takes("Z") -> Anchor { codes, at -> at == codes.size || (at == codes.size - 1 && codes[at] == '\n'.code) }
        takes("b") -> Anchor { codes, at -> wordAt(codes, at - 1) != wordAt(codes, at) }
        takes("B") -> Anchor { codes, at -> wordAt(codes, at - 1) == wordAt(codes, at) }
        else -> One(classOrCharacter())
    }

    private fun wordAt(codes: IntArray, at: Int) = at in codes.indices && codes[at] in CharacterTables.set("regex_word")

    /** Reads what stands behind a backslash, in a class or outside. */
    private fun classOrCharacter(): CharacterTest {
        if (at >= codes.size) fail("a backslash at its end")
        val negated = at
        for ((letter, name) in CLASSES) {
            if (takes(letter)) return named(name)
            if (takes(letter.uppercase())) return not(named(name))
        }
        if (takes("p{")) return property(false)
        if (takes("P{")) return property(true)
        at = negated
        val code = character()
        return CharacterTest { it == code }
    }

    /** Reads one character behind a backslash. */
    private fun character(): Int {
        if (takes("x{")) return until('}').toIntOrNull(HEX) ?: fail("a number that is none")
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

    private fun property(negated: Boolean): CharacterTest {
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
        val test = CharacterTest { it in set }
        return if (negated != written.startsWith("^")) not(test) else test
    }

    private fun named(name: String): CharacterTest {
        val set = if (name == "digit") CharacterTables.set("category_Nd") else CharacterTables.set("regex_$name")
        return CharacterTest { it in set }
    }

    private fun not(test: CharacterTest) = CharacterTest { !test.test(it) }

    private fun characterClass(): CharacterTest {
        val negated = takes("^")
        val all = ArrayList<CharacterTest>()
        var options = ArrayList<CharacterTest>()
        var empty = true
        while (true) {
            if (at >= codes.size) fail("an open class")
            if (!empty && takes("]")) break
            empty = false
            when {
                takes("&&") -> all.add(any(options)).also { options = ArrayList() }
                takes("[:") -> fail("[:")
                takes("[") -> options.add(characterClass())
                else -> options.add(range())
            }
        }
        all.add(any(options))
        val inside = all.singleOrNull() ?: CharacterTest { code -> all.all { it.test(code) } }
        return if (negated) not(inside) else inside
    }

    private fun any(options: List<CharacterTest>) = options.singleOrNull() ?: CharacterTest { code -> options.any { it.test(code) } }

    private fun range(): CharacterTest {
        val begins = at
        val first = if (takes("\\")) {
            if (at < codes.size && codes[at].toChar() in "dDsSwWpP") return classOrCharacter()
            character()
        } else {
            codes[at++]
        }
        val dash = at + 1 < codes.size && codes[at] == '-'.code && codes[at + 1] != ']'.code
        if (!dash) return CharacterTest { it == first }
        at++
        val last = if (takes("\\")) character() else codes[at++]
        if (last < first) {
            at = begins
            fail("a range that ends before it begins")
        }
        return CharacterTest { it in first..last }
    }

    private companion object {
        const val HEX = 16
        const val FORM_FEED = 0x0C
        const val VERTICAL_TAB = 0x0B
        const val LONGEST_COUNT = 24
        val COUNT = Regex("""^\{(\d*)(,?)(\d*)\}""")
        val LOOKS = mapOf("?=" to (true to true), "?!" to (true to false), "?<=" to (false to true), "?<!" to (false to false))
        val CLASSES = mapOf("d" to "digit", "s" to "space", "w" to "word")
        val LONG_NAMES = mapOf(
            "letter" to "L", "mark" to "M", "number" to "N", "punctuation" to "P", "symbol" to "S", "separator" to "Z",
            "punct" to "P", "control" to "Cc", "cntrl" to "Cc", "format" to "Cf",
        )
    }
}
