package pocketbert.core.tokenizer

import kotlinx.serialization.json.JsonObject
import pocketbert.core.flag
import pocketbert.core.objects
import pocketbert.core.text
import pocketbert.core.textOrNull

/** A text, and where its words are in it. */
internal class Words(val text: AlignedText, val ranges: List<IntRange>) {
    /** Calls [found] with each word. */
    inline fun each(found: (Slice) -> Unit) {
        for (range in ranges) found(Slice(text.codes, range.first, range.last + 1))
    }
}

/** A step that cuts the words of a normalised text into smaller ones; at first the whole text is one. */
internal fun interface PreTokenizer {
    fun cut(words: Words): Words
}

/** The `pre_tokenizer` of `tokenizer.json`. */
internal object PreTokenizers {
    /** Reads one step, or several. Throws [UnsupportedTokenizer] for a kind that is not known here. */
    fun read(step: JsonObject): PreTokenizer = when (val kind = step.text("type")) {
        "Sequence" -> {
            val steps = step.objects("pretokenizers").map(::read)
            PreTokenizer { words -> steps.fold(words) { cut, one -> one.cut(cut) } }
        }
        "BertPreTokenizer" -> {
            val spaces = atEach("space", Behaviour.REMOVED)
            val signs = atEach("bert_punctuation", Behaviour.ISOLATED)
            PreTokenizer { words -> signs.cut(spaces.cut(words)) }
        }
        "WhitespaceSplit" -> atEach("space", Behaviour.REMOVED)
        "Whitespace" -> split(Pattern.of("""\w+|[^\w\s]+"""), Behaviour.REMOVED, invert = true)
        "Punctuation" -> atEach("bert_punctuation", Behaviour.read(step.textOrNull("behavior") ?: "Isolated"))
        "Digits" -> {
            val digits = if (step.flag("individual_digits")) Pattern.of("""\p{N}""") else Pattern.of("""\p{N}+""")
            split(digits, Behaviour.ISOLATED, invert = false)
        }
        "Split" -> split(step.pattern(), Behaviour.read(step.text("behavior")), step.flag("invert"))
        "Metaspace" -> metaspace(step)
        "ByteLevel" -> byteLevel(step.flag("add_prefix_space", true), step.flag("use_regex", true))
        else -> throw UnsupportedTokenizer("tokenizer.json has the pre_tokenizer $kind, which is not supported")
    }

    private enum class Behaviour {
        REMOVED,
        ISOLATED,
        MERGED_WITH_PREVIOUS,
        MERGED_WITH_NEXT,
        CONTIGUOUS,
        ;

        companion object {
            fun read(name: String) = entries.firstOrNull { it.name.replace("_", "").equals(name, ignoreCase = true) }
                ?: throw UnsupportedTokenizer("tokenizer.json splits with the behavior $name, which is not supported")
        }
    }

    private fun atEach(set: String, behaviour: Behaviour): PreTokenizer {
        val members = CharacterTables.set(set)
        return PreTokenizer { words ->
            val cuts = Cuts(behaviour)
            words.each { word ->
                cuts.begin(word)
                for (at in word.first until word.end) if (word.codes[at] in members) cuts.match(at, at + 1)
                cuts.end(word)
            }
            Words(words.text, cuts.words)
        }
    }

    private fun split(pattern: Pattern, behaviour: Behaviour, invert: Boolean) = PreTokenizer { words ->
        val cuts = Cuts(behaviour, invert)
        words.each { word ->
            cuts.begin(word)
            pattern.each(word) { first, end -> cuts.match(first, end) }
            cuts.end(word)
        }
        Words(words.text, cuts.words)
    }

    /** Takes matches and what lies between them, and puts them together as the behaviour says. */
    private class Cuts(private val behaviour: Behaviour, private val invert: Boolean = false) {
        val words = ArrayList<IntRange>()

        // The piece that may still grow, and whether what it has last is a match.
        private var first = 0
        private var last = 0
        private var matched = false

        fun begin(word: Slice) {
            first = word.first
            last = first
        }

        fun match(first: Int, end: Int) {
            add(first, invert)
            add(end, !invert)
        }

        fun end(word: Slice) {
            add(word.end, invert)
            finish()
        }

        private fun add(end: Int, match: Boolean) {
            if (end <= last) return
            val joins = when (behaviour) {
                Behaviour.REMOVED, Behaviour.ISOLATED -> false
                Behaviour.MERGED_WITH_PREVIOUS -> !matched && match
                Behaviour.MERGED_WITH_NEXT -> matched && !match
                Behaviour.CONTIGUOUS -> matched == match
            }
            if (!joins) finish()
            last = end
            matched = match
        }

        private fun finish() {
            if (first < last && (behaviour != Behaviour.REMOVED || !matched)) words.add(first until last)
            first = last
        }
    }

    private fun metaspace(step: JsonObject): PreTokenizer {
        val mark = step.text("replacement").codePointAt(0)
        val scheme = step.textOrNull("prepend_scheme") ?: if (step.flag("add_prefix_space", true)) "always" else "never"
        val split = split(Pattern.literal(step.text("replacement")), Behaviour.MERGED_WITH_NEXT, false).takeIf { step.flag("split", true) }
        return PreTokenizer { words ->
            val codes = words.text.codes.copyOf()
            for (at in codes.indices) if (codes[at] == ' '.code) codes[at] = mark
            val marked = Words(AlignedText(codes, words.text.from, words.text.to), words.ranges)
            val prefixed = prefixed(marked, mark) { scheme == "always" || (scheme == "first" && words.text.from[it] == 0) }
            split?.cut(prefixed) ?: prefixed
        }
    }

    /** Puts a character before each word that does not begin with it, where [wanted] says so of the word's first place. */
    private inline fun prefixed(words: Words, code: Int, wanted: (Int) -> Boolean): Words {
        val text = words.text
        return rebuilt(words, text.size + words.ranges.size) { built, word ->
            if (text.codes[word.first] != code && wanted(word.first)) built.add(code, text.from[word.first], text.from[word.first])
            for (at in word.first until word.end) built.add(text, at)
        }
    }

    private inline fun rebuilt(words: Words, size: Int, write: (Spans, Slice) -> Unit): Words {
        val built = Spans(size)
        val ranges = ArrayList<IntRange>(words.ranges.size)
        words.each { word ->
            val first = built.size
            if (word.size > 0) write(built, word)
            ranges.add(first until built.size)
        }
        return Words(built.text(), ranges)
    }

    private fun byteLevel(prefix: Boolean, regex: Boolean): PreTokenizer {
        val split = if (regex) split(Pattern.of(GPT2), Behaviour.ISOLATED, invert = false) else null
        return PreTokenizer { words ->
            val spaced = if (prefix) prefixed(words, ' '.code) { true } else words
            asBytes(split?.cut(spaced) ?: spaced)
        }
    }

    private fun asBytes(words: Words): Words {
        val text = words.text
        return rebuilt(words, text.size + text.size / 2) { built, word ->
            for (at in word.first until word.end) {
                utf8(text.codes[at]) { built.add(ByteCharacters.of(it), text.from[at], text.to[at]) }
            }
        }
    }

    private const val GPT2 = """'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
}

/** GPT-2's characters for bytes: those that can be seen stand for themselves, the others for U+0100 and on. */
internal object ByteCharacters {
    private val characters = IntArray(256).also { all ->
        var next = 256
        for (byte in 0..255) {
            val seen = byte in '!'.code..'~'.code || byte in 0xA1..0xAC || byte in 0xAE..0xFF
            all[byte] = if (seen) byte else next++
        }
    }

    fun of(byte: Int) = characters[byte]
}
