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
        val built = AlignedText.Builder(text.size)
        var first = 0
        while (first < text.size) {
            val end = Graphemes.end(text.codes, first)
            val bytes = (first until end).sumOf { utf8Length(text.codes[it]) }
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
        val key = String(codes, first, end - first).toByteArray()
        var place = 0
        var unit = trie[0]
        place = place xor offset(unit)
        for (byte in key) {
            val value = byte.toInt() and BYTE
            if (value == 0) return null
            place = place xor value
            unit = trie.getOrElse(place) { return null }
            if (unit and LABEL != value) return null
            place = place xor offset(unit)
            if (unit ushr HAS_LEAF and 1 == 1) return text(trie[place] and VALUE)
        }
        return null
    }

    private fun offset(unit: Int) = (unit ushr OFFSET_SHIFT) shl ((unit and WIDE) ushr WIDE_SHIFT)

    private fun text(at: Int): IntArray {
        var end = at
        while (end < texts.size && texts[end] != 0.toByte()) end++
        return String(texts, at, end - at, Charsets.UTF_8).codePoints().toArray()
    }

    companion object {
        private const val LARGEST_GROUP = 6
        private const val BYTE = 0xFF
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

        private fun utf8Length(code: Int) = when {
            code < 0x80 -> 1
            code < 0x800 -> 2
            code < 0x10000 -> 3
            else -> 4
        }
    }
}

/** Where a group of code points that is shown as one character ends (Unicode's text segmentation, UAX 29). */
internal object Graphemes {
    private val kinds = listOf("Control", "Prepend", "Extend", "Regional_Indicator", "SpacingMark", "L", "V", "T", "LV", "LVT", "ZWJ")
        .associateWith { CharacterTables.set("break_$it") }
    private val pictographic = CharacterTables.set("break_Pictographic")

    fun end(codes: IntArray, first: Int): Int {
        var at = first + 1
        var flags = if (kind(codes[first]) == "Regional_Indicator") 1 else 0
        var picture = codes[first] in pictographic
        while (at < codes.size && joins(codes[at - 1], codes[at], flags, picture)) {
            val kind = kind(codes[at])
            if (kind == "Regional_Indicator") flags++
            picture = codes[at] in pictographic || (picture && (kind == "Extend" || kind == "ZWJ"))
            at++
        }
        return at
    }

    private fun joins(one: Int, other: Int, flags: Int, picture: Boolean): Boolean {
        if (one == '\r'.code && other == '\n'.code) return true
        val left = kind(one)
        val right = kind(other)
        return when {
            left == "Control" || right == "Control" -> false
            left == "L" && right in AFTER_L -> true
            (left == "LV" || left == "V") && (right == "V" || right == "T") -> true
            (left == "LVT" || left == "T") && right == "T" -> true
            right == "Extend" || right == "ZWJ" || right == "SpacingMark" || left == "Prepend" -> true
            left == "ZWJ" && picture && other in pictographic -> true
            else -> left == "Regional_Indicator" && right == left && flags % 2 == 1
        }
    }

    private fun kind(code: Int): String? = if (code in ' '.code..'~'.code) null else kinds.entries.firstOrNull { code in it.value }?.key

    private val AFTER_L = setOf("L", "V", "LV", "LVT")
}
