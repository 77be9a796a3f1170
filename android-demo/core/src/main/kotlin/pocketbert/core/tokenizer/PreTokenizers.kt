package pocketbert.core.tokenizer

import kotlinx.serialization.json.JsonObject
import pocketbert.core.flag
import pocketbert.core.objects
import pocketbert.core.text
import pocketbert.core.textOrNull

/** A step that cuts a normalised text into words. */
internal fun interface PreTokenizer {
    fun cut(text: AlignedText): List<AlignedText>
}

/** The `pre_tokenizer` of `tokenizer.json`. */
internal object PreTokenizers {
    /** Reads one step, or several. Throws [UnsupportedTokenizer] for a kind that is not known here. */
    fun read(step: JsonObject): PreTokenizer = when (val kind = step.text("type")) {
        "Sequence" -> {
            val steps = step.objects("pretokenizers").map(::read)
            PreTokenizer { text -> steps.fold(listOf(text)) { words, one -> words.flatMap(one::cut) } }
        }
        "BertPreTokenizer" -> {
            val spaces = atEach("space", Behaviour.REMOVED)
            val signs = atEach("bert_punctuation", Behaviour.ISOLATED)
            PreTokenizer { text -> spaces.cut(text).flatMap(signs::cut) }
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
        return PreTokenizer { text ->
            val cuts = Cuts(text, behaviour)
            for (at in 0 until text.size) if (text.codes[at] in members) cuts.match(at, at + 1)
            cuts.words()
        }
    }

    private fun split(pattern: Pattern, behaviour: Behaviour, invert: Boolean) = PreTokenizer { text ->
        val cuts = Cuts(text, behaviour, invert)
        pattern.each(text.codes, cuts::match)
        cuts.words()
    }

    /** Collects matches and what lies between them, and puts them together as the behaviour says. */
    private class Cuts(private val text: AlignedText, private val behaviour: Behaviour, private val invert: Boolean = false) {
        private val ends = ArrayList<Int>()
        private val matched = ArrayList<Boolean>()

        fun match(first: Int, end: Int) {
            add(first, invert)
            add(end, !invert)
        }

        private fun add(end: Int, match: Boolean) {
            if (end > (ends.lastOrNull() ?: 0)) {
                ends.add(end)
                matched.add(match)
            }
        }

        fun words(): List<AlignedText> {
            add(text.size, invert)
            val words = ArrayList<AlignedText>()
            var first = 0
            for (at in ends.indices) {
                val joins = at + 1 < ends.size &&
                    when (behaviour) {
                        Behaviour.REMOVED, Behaviour.ISOLATED -> false
                        Behaviour.MERGED_WITH_PREVIOUS -> !matched[at] && matched[at + 1]
                        Behaviour.MERGED_WITH_NEXT -> matched[at] && !matched[at + 1]
                        Behaviour.CONTIGUOUS -> matched[at] == matched[at + 1]
                    }
                if (joins) continue
                if (behaviour != Behaviour.REMOVED || !matched[at]) words.add(text.slice(first, ends[at]))
                first = ends[at]
            }
            return words
        }
    }

    private fun metaspace(step: JsonObject): PreTokenizer {
        val mark = step.text("replacement").codePointAt(0)
        val scheme = step.textOrNull("prepend_scheme") ?: if (step.flag("add_prefix_space", true)) "always" else "never"
        val split = if (step.flag(
                "split",
                true,
            )
        ) {
            split(Pattern.literal(step.text("replacement")), Behaviour.MERGED_WITH_NEXT, false)
        } else {
            null
        }
        return PreTokenizer { text ->
            val codes = IntArray(text.size) { if (text.codes[it] == ' '.code) mark else text.codes[it] }
            var marked = AlignedText(codes, text.from, text.to)
            val wanted = scheme == "always" || (scheme == "first" && text.size > 0 && text.from[0] == 0)
            if (wanted && codes.firstOrNull() != mark) marked = prefixed(marked, mark)
            split?.cut(marked) ?: listOf(marked)
        }
    }

    private fun prefixed(text: AlignedText, code: Int): AlignedText {
        val built = AlignedText.Builder(text.size + 1)
        val at = text.from.firstOrNull() ?: 0
        built.add(code, at, at)
        for (index in 0 until text.size) built.add(text, index)
        return built.text()
    }

    private fun byteLevel(prefix: Boolean, regex: Boolean): PreTokenizer {
        val words = if (regex) split(Pattern.of(GPT2), Behaviour.ISOLATED, invert = false) else null
        return PreTokenizer { text ->
            val spaced = if (prefix && text.codes.firstOrNull() != ' '.code) prefixed(text, ' '.code) else text
            (words?.cut(spaced) ?: listOf(spaced)).map(::asBytes)
        }
    }

    private fun asBytes(text: AlignedText): AlignedText {
        val built = AlignedText.Builder(text.size + text.size / 2)
        for (at in 0 until text.size) {
            for (byte in String(text.codes, at, 1).toByteArray()) {
                built.add(ByteCharacters.of(byte), text.from[at], text.to[at])
            }
        }
        return built.text()
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

    fun of(byte: Byte) = characters[byte.toInt() and 0xFF]
}
