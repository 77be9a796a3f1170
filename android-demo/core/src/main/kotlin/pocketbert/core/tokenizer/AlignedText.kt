package pocketbert.core.tokenizer

/**
 * Code points, and for each the part of the user's text that it came from.
 *
 * @property codes the code points.
 * @property from where each one's part begins, as an index into the user's string.
 * @property to where it ends.
 */
internal class AlignedText(val codes: IntArray, val from: IntArray, val to: IntArray) {
    val size get() = codes.size

    fun slice(first: Int, end: Int) = if (first == 0 && end == size) {
        this
    } else {
        AlignedText(codes.copyOfRange(first, end), from.copyOfRange(first, end), to.copyOfRange(first, end))
    }

    override fun toString() = String(codes, 0, size)

    companion object {
        /** Takes a user's text apart; half a surrogate pair becomes a question mark, as in the reference. */
        fun of(text: String): AlignedText {
            val built = Spans(text.length)
            var at = 0
            while (at < text.length) {
                val code = text.codePointAt(at)
                val end = at + Character.charCount(code)
                built.add(if (code in 0xD800..0xDFFF) REPLACEMENT else code, at, end)
                at = end
            }
            return built.text()
        }

        private const val REPLACEMENT = '?'.code
    }
}

/** A part of a text that a pattern or a model looks at; what lies outside of it is not seen. */
internal class Slice(val codes: IntArray, val first: Int = 0, val end: Int = codes.size) {
    val size get() = end - first
}

/** Collects numbers (code points, or ids of tokens), and for each the part of the user's text that it came from. */
internal class Spans(capacity: Int) {
    var values = IntArray(capacity)
        private set
    var from = IntArray(capacity)
        private set
    var to = IntArray(capacity)
        private set
    var size = 0
        private set

    fun add(value: Int, first: Int, end: Int) {
        if (size == values.size) resize(2 * size + 8)
        values[size] = value
        from[size] = first
        to[size++] = end
    }

    fun add(text: AlignedText, at: Int) = add(text.codes[at], text.from[at], text.to[at])

    /** Returns what was collected as a text. It is the end of collecting: the text has the arrays themselves. */
    fun text(): AlignedText {
        if (size < values.size) resize(size)
        return AlignedText(values, from, to)
    }

    private fun resize(capacity: Int) {
        values = values.copyOf(capacity)
        from = from.copyOf(capacity)
        to = to.copyOf(capacity)
    }
}

/** Calls [found] with each byte of a code point in UTF-8. */
internal inline fun utf8(code: Int, found: (Int) -> Unit) {
    val more = if (code < 0x80) {
        0
    } else if (code < 0x800) {
        1
    } else if (code < 0x10000) {
        2
    } else {
        3
    }
    for (left in more downTo 0) {
        val bits = code shr (6 * left)
        // The first byte tells how many follow, and each of those has six bits.
        found(
            if (left < more) {
                0x80 or (bits and 0x3F)
            } else if (more == 0) {
                bits
            } else {
                (0xFF00 shr (more + 1) and 0xFF) or bits
            },
        )
    }
}
