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
            val built = Builder(text.length)
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

    /** Collects a text code point by code point. */
    class Builder(capacity: Int) {
        private var codes = IntArray(maxOf(capacity, 16))
        private var from = IntArray(codes.size)
        private var to = IntArray(codes.size)
        var size = 0
            private set

        fun add(code: Int, first: Int, end: Int) {
            if (size == codes.size) {
                codes = codes.copyOf(2 * size)
                from = from.copyOf(2 * size)
                to = to.copyOf(2 * size)
            }
            codes[size] = code
            from[size] = first
            to[size++] = end
        }

        fun add(text: AlignedText, at: Int) = add(text.codes[at], text.from[at], text.to[at])

        fun text() = AlignedText(codes.copyOf(size), from.copyOf(size), to.copyOf(size))
    }
}
