package pocketbert.core.tokenizer

import pocketbert.core.WrongJson

/**
 * An object of a `tokenizer.json`: its fields in the order of the file. A value is a text, a number, true or false, null,
 * a list or such an object.
 *
 * The core's other files are read with a library. Here that would cost more than the work itself: in a cold JVM its
 * classes take a tenth of a second to load, and it makes a map of a vocabulary that is wanted as another map.
 */
internal class Fields(val names: List<String>, val values: List<Any?>) {
    val size get() = names.size

    /** Returns a field, or null where it is absent or null; of two with one name, the last. */
    fun present(name: String): Any? = names.lastIndexOf(name).let { if (it < 0) null else values[it] }

    fun text(name: String): String = textOrNull(name) ?: wrong(name, "a text")

    fun textOrNull(name: String): String? = present(name)?.let { it as? String ?: wrong(name, "a text") }

    fun flag(name: String, default: Boolean = false): Boolean = flagOrNull(name) ?: default

    fun flagOrNull(name: String): Boolean? = present(name)?.let { it as? Boolean ?: wrong(name, "true or false") }

    fun number(name: String, default: Int? = null): Int =
        present(name)?.let { it as? Int ?: wrong(name, "a whole number") } ?: default ?: wrong(name, "a whole number")

    fun child(name: String): Fields? = present(name)?.let { it as? Fields ?: wrong(name, "an object") }

    fun array(name: String): List<Any?> = present(name) as? List<*> ?: wrong(name, "a list")

    fun objects(name: String): List<Fields> = array(name).map { it as? Fields ?: wrong(name, "a list of objects") }

    fun wrong(name: String, wanted: String): Nothing {
        val found = when (val value = present(name)) {
            null -> "absent"
            is String -> "\"${value.take(SHOWN)}\""
            is Fields -> "an object"
            is List<*> -> "a list"
            else -> value.toString()
        }
        throw WrongJson("$name is $found; it has to be $wanted")
    }

    private companion object {
        const val SHOWN = 60
    }
}

/** Reads the text of a `tokenizer.json`. */
internal class JsonReader(json: String) {
    // An array is read faster than a string until the JVM has compiled this, and it reads once.
    private val signs = json.toCharArray()
    private var at = 0
    private var depth = 0

    /** Reads the whole file. Throws [WrongJson] where it is broken, or holds no object. */
    fun file(): Fields {
        val value = value()
        space()
        if (at < signs.size) broken("something behind its end")
        return value as? Fields ?: throw WrongJson("it holds no object")
    }

    private fun broken(what: String): Nothing = throw WrongJson("it cannot be read: it has $what at character $at")

    private fun space() {
        while (at < signs.size && (signs[at] == ' ' || signs[at] == '\n' || signs[at] == '\r' || signs[at] == '\t')) at++
    }

    private fun takes(sign: Char): Boolean {
        val there = at < signs.size && signs[at] == sign
        if (there) at++
        return there
    }

    private fun takes(word: String): Boolean {
        if (at + word.length > signs.size || word.indices.any { signs[at + it] != word[it] }) return false
        at += word.length
        return true
    }

    private fun value(): Any? {
        space()
        return when (if (at < signs.size) signs[at] else broken("no value")) {
            '{' -> nested { fields() }
            '[' -> nested { list() }
            '"' -> text()
            't' -> if (takes("true")) true else broken("no value")
            'f' -> if (takes("false")) false else broken("no value")
            'n' -> if (takes("null")) null else broken("no value")
            else -> number()
        }
    }

    private inline fun <T> nested(read: () -> T): T {
        // What is nested is read by a call of its own, and a stack that overflows is no exception to catch.
        if (++depth > DEEPEST) broken("more than $DEEPEST levels")
        at++
        return read().also { depth-- }
    }

    private fun fields(): Fields {
        val names = ArrayList<String>()
        val values = ArrayList<Any?>()
        space()
        if (takes('}')) return Fields(names, values)
        do {
            space()
            if (at == signs.size || signs[at] != '"') broken("no name of a field")
            names.add(text())
            space()
            if (!takes(':')) broken("no colon")
            values.add(value())
            space()
        } while (takes(','))
        if (!takes('}')) broken("an open object")
        return Fields(names, values)
    }

    private fun list(): List<Any?> {
        val values = ArrayList<Any?>()
        space()
        if (takes(']')) return values
        do {
            values.add(value())
            space()
        } while (takes(','))
        if (!takes(']')) broken("an open list")
        return values
    }

    private fun number(): Any {
        val first = at
        var whole = 0
        val negative = takes('-')
        while (at < signs.size && signs[at] in '0'..'9' && at - first < LONGEST_WHOLE) whole = 10 * whole + (signs[at++] - '0')
        val plain = at
        while (at < signs.size && (signs[at] in '0'..'9' || signs[at] in OF_NUMBERS)) at++
        if (at == first || (negative && at == first + 1)) broken("no value")
        if (at == plain) return if (negative) -whole else whole
        return String(signs, first, at - first).let { it.toIntOrNull() ?: it.toDoubleOrNull() ?: broken("no number") }
    }

    private fun text(): String {
        val first = ++at
        while (at < signs.size && signs[at] != '"' && signs[at] != '\\') at++
        if (takes('"')) return String(signs, first, at - 1 - first)
        val read = StringBuilder().append(signs, first, at - first)
        while (at < signs.size) {
            when (val sign = signs[at++]) {
                '"' -> return read.toString()
                '\\' -> escaped(read)
                else -> read.append(sign)
            }
        }
        broken("an open text")
    }

    private fun escaped(read: StringBuilder) {
        if (at == signs.size) broken("an open text")
        when (val sign = signs[at++]) {
            'n' -> read.append('\n')
            't' -> read.append('\t')
            'r' -> read.append('\r')
            'b' -> read.append('\b')
            'f' -> read.append('\u000C')
            '"', '\\', '/' -> read.append(sign)
            'u' -> unit().let { unit ->
                val low = if (unit in HIGH && takes("\\u")) unit() else null
                // Half a pair becomes a question mark, as in the reference.
                when {
                    low != null && low in LOW -> read.append(unit.toChar()).append(low.toChar())
                    unit in HIGH || unit in LOW -> read.append('?')
                    else -> read.append(unit.toChar())
                }
            }
            else -> broken("an escape that is none")
        }
    }

    private fun unit(): Int {
        var unit = 0
        repeat(UNIT) {
            val digit = if (at < signs.size) Character.digit(signs[at++], HEX) else -1
            if (digit < 0) broken("an escape that is none")
            unit = HEX * unit + digit
        }
        return unit
    }

    private companion object {
        const val DEEPEST = 200

        // As many signs are a whole number without overflow.
        const val LONGEST_WHOLE = 9
        const val OF_NUMBERS = ".eE+-"
        const val HEX = 16
        const val UNIT = 4
        val HIGH = 0xD800..0xDBFF
        val LOW = 0xDC00..0xDFFF
    }
}
