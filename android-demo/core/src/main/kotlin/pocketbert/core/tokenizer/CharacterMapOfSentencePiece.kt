package pocketbert.core.tokenizer

import java.util.Base64

/**
 * SentencePiece's own map of characters (`Precompiled`): a trie over UTF-8 in two arrays, and what it leads to.
 *
 * As the reference does, a group of code points that is shown as one character, of fewer than six bytes, is looked up
 * as a whole, and otherwise code point by code point; and of several entries that fit, the shortest is taken.
 */
internal class CharacterMapOfSentencePiece private constructor(private val trie: IntArray, private val texts: ByteArray) : Normalizer {
    override fun apply(text: AlignedText): AlignedText {
        val built = Spans(text.size)
        var first = 0
        while (first < text.size) {
            val end = Graphemes.end(text.codes, first)
            var bytes = 0
            for (at in first until end) utf8(text.codes[at]) { bytes++ }
            val whole = if (bytes < LARGEST_GROUP) find(text.codes, first, end) else null
            if (whole != null) {
                for (code in whole) built.add(code, text.from[first], text.to[end - 1])
            } else {
                for (at in first until end) {
                    val one = find(text.codes, at, at + 1)
                    if (one == null) built.add(text, at) else for (code in one) built.add(code, text.from[at], text.to[at])
                }
            }
            first = end
        }
        return built.text()
    }

    private fun find(codes: IntArray, first: Int, end: Int): IntArray? {
        var place = offset(trie[0])
        for (at in first until end) {
            utf8(codes[at]) { byte ->
                if (byte == 0) return null
                place = place xor byte
                val unit = trie.getOrElse(place) { return null }
                if (unit and LABEL != byte) return null
                place = place xor offset(unit)
                if (unit ushr HAS_LEAF and 1 == 1) return text(trie.getOrElse(place) { return null } and VALUE)
            }
        }
        return null
    }

    private fun offset(unit: Int) = (unit ushr OFFSET_SHIFT) shl ((unit and WIDE) ushr WIDE_SHIFT)

    private fun text(at: Int): IntArray {
        if (at >= texts.size) return IntArray(0)
        var end = at
        while (end < texts.size && texts[end] != 0.toByte()) end++
        return String(texts, at, end - at, Charsets.UTF_8).codePoints().toArray()
    }

    companion object {
        private const val LARGEST_GROUP = 6
        private const val LABEL = (1 shl 31) or 0xFF
        private const val VALUE = 0x7FFFFFFF
        private const val HAS_LEAF = 8
        private const val OFFSET_SHIFT = 10
        private const val WIDE = 1 shl 9
        private const val WIDE_SHIFT = 6

        fun read(base64: String): Normalizer {
            val bytes = try {
                Base64.getDecoder().decode(base64)
            } catch (error: IllegalArgumentException) {
                throw UnsupportedTokenizer("tokenizer.json has a precompiled_charsmap that is not base64: ${error.message}")
            }
            if (bytes.isEmpty()) return Normalizer { it }
            val words = java.nio.ByteBuffer.wrap(bytes).order(java.nio.ByteOrder.LITTLE_ENDIAN)
            val size = if (bytes.size >= Int.SIZE_BYTES) words.int else -1
            if (size < Int.SIZE_BYTES || size % Int.SIZE_BYTES != 0 || size > words.remaining()) {
                throw UnsupportedTokenizer("tokenizer.json has a precompiled_charsmap of ${bytes.size} bytes that ends within its trie")
            }
            val trie = IntArray(size / Int.SIZE_BYTES) { words.int }
            return CharacterMapOfSentencePiece(trie, ByteArray(words.remaining()).also(words::get))
        }
    }
}

/** Where a group of code points that is shown as one character ends (Unicode's text segmentation, UAX 29). */
internal object Graphemes {
    private enum class Kind(val set: String) {
        CONTROL("Control"),
        PREPEND("Prepend"),
        EXTEND("Extend"),
        FLAG("Regional_Indicator"),
        SPACING("SpacingMark"),
        LEADING("L"),
        VOWEL("V"),
        TRAILING("T"),
        SYLLABLE("LV"),
        CLOSED("LVT"),
        JOINER("ZWJ"),
    }

    // The ranges of all kinds together, so that a character is searched for once and not once for each kind.
    private val firsts: IntArray
    private val lasts: IntArray
    private val kinds: Array<Kind>

    init {
        val ranges = ArrayList<Triple<Int, Int, Kind>>()
        for (kind in Kind.entries) CharacterTables.set("break_${kind.set}").each { first, last -> ranges.add(Triple(first, last, kind)) }
        ranges.sortBy { it.first }
        firsts = IntArray(ranges.size) { ranges[it].first }
        lasts = IntArray(ranges.size) { ranges[it].second }
        kinds = Array(ranges.size) { ranges[it].third }
    }

    private val pictographic = CharacterTables.set("break_Pictographic")

    fun end(codes: IntArray, first: Int): Int {
        var at = first + 1
        var left = kind(codes[first])
        var flags = if (left == Kind.FLAG) 1 else 0
        var picture = codes[first] in pictographic
        while (at < codes.size) {
            val right = kind(codes[at])
            val pictured = codes[at] in pictographic
            val line = codes[at - 1] == '\r'.code && codes[at] == '\n'.code
            if (!line && !joins(left, right, flags) && !(left == Kind.JOINER && picture && pictured)) break
            if (right == Kind.FLAG) flags++
            picture = pictured || (picture && (right == Kind.EXTEND || right == Kind.JOINER))
            left = right
            at++
        }
        return at
    }

    private fun joins(left: Kind?, right: Kind?, flags: Int): Boolean = when {
        left == Kind.CONTROL || right == Kind.CONTROL -> false
        right == Kind.EXTEND || right == Kind.JOINER || right == Kind.SPACING || left == Kind.PREPEND -> true
        left == Kind.LEADING -> right == Kind.LEADING || right == Kind.VOWEL || right == Kind.SYLLABLE || right == Kind.CLOSED
        left == Kind.SYLLABLE || left == Kind.VOWEL -> right == Kind.VOWEL || right == Kind.TRAILING
        left == Kind.CLOSED || left == Kind.TRAILING -> right == Kind.TRAILING
        else -> left == Kind.FLAG && right == Kind.FLAG && flags % 2 == 1
    }

    private fun kind(code: Int): Kind? {
        if (code in ' '.code..'~'.code) return null
        val at = firsts.binarySearch(code).let { if (it < 0) -it - 2 else it }
        return if (at >= 0 && code <= lasts[at]) kinds[at] else null
    }
}
