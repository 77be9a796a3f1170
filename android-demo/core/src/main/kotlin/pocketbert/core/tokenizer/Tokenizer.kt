package pocketbert.core.tokenizer

import kotlinx.serialization.json.JsonObject
import pocketbert.core.Cancellation
import pocketbert.core.WrongJson
import pocketbert.core.child
import pocketbert.core.number
import pocketbert.core.objects
import pocketbert.core.present
import pocketbert.core.readJson
import pocketbert.core.text

/**
 * One row of tokens.
 *
 * @property ids the token ids, special ones included.
 * @property types the segment of each token: 0 for the first text, 1 for the second where the model tells them apart.
 * @property texts which text each token is of (0 or 1); -1 for special tokens.
 * @property from where each token begins in its text, as an index into the string; 0 for special tokens. Spans leave out
 *     spaces around a token, and include the accents that belong to its last character.
 * @property to where it ends.
 * @property unpooled how many tokens at its beginning are attended to and not pooled: a prompt's, where the model leaves them out.
 */
class Encoding internal constructor(
    val ids: IntArray,
    val types: IntArray,
    val texts: IntArray,
    val from: IntArray,
    val to: IntArray,
    val unpooled: Int = 0,
) {
    /** The number of tokens. */
    val size get() = ids.size

    /** Returns the same row, of which so many tokens at the beginning are not pooled. */
    internal fun unpooling(tokens: Int) = Encoding(ids, types, texts, from, to, minOf(tokens, size))
}

/**
 * The tokenizer of a `tokenizer.json`: WordPiece, SentencePiece unigram or byte-level BPE, with its normaliser.
 *
 * Gives the ids of the reference library (Hugging Face `tokenizers`), on every Android version. Safe to use from several
 * threads at once.
 */
class Tokenizer private constructor(
    private val added: AddedTokens,
    private val preTokenizer: PreTokenizer?,
    private val model: TokenModel,
    private val template: Template,
    private val addedIds: Map<String, Int>,
) {
    /**
     * Encodes a text, or a pair of texts.
     *
     * @param first the text; the question, where there is a passage.
     * @param second the second text.
     * @param maxLength how many tokens the row may have, special ones included; of two texts the longer one is cut first.
     *     Null cuts nothing.
     * @param cancellation gives up a long text word by word.
     */
    fun encode(first: String, second: String? = null, maxLength: Int? = null, cancellation: Cancellation? = null): Encoding {
        val one = tokens(first, cancellation)
        val two = second?.let { tokens(it, cancellation) }
        var (room, more) = one.size to (two?.size ?: 0)
        if (maxLength != null) {
            val both = maxOf(0, maxLength - template.added(two != null))
            if (room + more > both) {
                if (two == null) {
                    room = minOf(room, both)
                } else {
                    longestFirst(room, more, both).let {
                        room = it.first
                        more = it.second
                    }
                }
            }
        }
        return row(one, 0, room, two, 0, more)
    }

    /**
     * Encodes a question with a passage in as many windows as the passage needs.
     *
     * @param question is never cut.
     * @param passage is cut where needed; an empty one gives one window.
     * @param maxLength how many tokens a window may have, special ones included.
     * @param stride how many tokens of the passage each window shares with the one before.
     * @param cancellation gives up a long passage word by word.
     * @throws IllegalArgumentException the question leaves no room for a token of the passage that the window before lacks.
     */
    fun windows(question: String, passage: String, maxLength: Int, stride: Int, cancellation: Cancellation? = null): List<Encoding> {
        val one = tokens(question, cancellation)
        val two = tokens(passage, cancellation)
        val room = maxLength - template.added(true) - one.size
        require(room >= 1) {
            "the question has ${one.size} tokens; a row of $maxLength has no room for a passage beside it"
        }
        require(stride in 0 until room) { "stride is $stride; beside this question it has to be 0 to ${room - 1}" }
        val rows = ArrayList<Encoding>()
        var begin = 0
        do {
            val end = minOf(begin + room, two.size)
            rows.add(row(one, 0, one.size, two, begin, end))
            begin += room - stride
        } while (end < two.size)
        return rows
    }

    /** Returns the id of a token as the vocabulary spells it, or null. */
    fun id(token: String): Int? = addedIds[token] ?: model.id(token)

    private class Tokens(val text: String) {
        val spans = Spans(text.length / 4 + 8)
        val size get() = spans.size
    }

    private fun tokens(text: String, cancellation: Cancellation?): Tokens {
        cancellation?.check()
        val found = Tokens(text)
        for (part in added.split(AlignedText.of(text))) {
            if (part.id != null) {
                found.spans.add(part.id, part.text.from[0], part.text.to[part.text.size - 1])
                continue
            }
            val whole = Words(part.text, listOf(0 until part.text.size))
            val words = preTokenizer?.cut(whole) ?: whole
            words.each { word ->
                cancellation?.check()
                if (word.size == 0) return@each
                model.tokens(word) { id, first, end -> found.spans.add(id, words.text.from[first], words.text.to[end - 1]) }
            }
        }
        return found
    }

    /** Returns how many tokens of each text stay. The same arithmetic as the reference's `longest_first`. */
    private fun longestFirst(first: Int, second: Int, both: Int): Pair<Int, Int> {
        var shorter = minOf(first, second)
        var longer = if (shorter > both) shorter else maxOf(shorter, both - shorter)
        if (shorter + longer > both) {
            shorter = both / 2
            longer = shorter + both % 2
        }
        return if (first > second) minOf(first, longer) to minOf(second, shorter) else minOf(first, shorter) to minOf(second, longer)
    }

    private fun row(one: Tokens, oneBegin: Int, oneEnd: Int, two: Tokens?, twoBegin: Int, twoEnd: Int): Encoding {
        val slots = template.slots(two != null)
        val size = template.added(two != null) + oneEnd - oneBegin + if (two == null) 0 else twoEnd - twoBegin
        val row = Encoding(IntArray(size), IntArray(size), IntArray(size) { -1 }, IntArray(size), IntArray(size))
        var at = 0
        for (slot in slots) {
            if (slot.id != null) {
                row.ids[at] = slot.id
                row.types[at++] = slot.type
                continue
            }
            val (tokens, begin, end) = if (slot.text == 0) Triple(one, oneBegin, oneEnd) else Triple(checkNotNull(two), twoBegin, twoEnd)
            for (token in begin until end) {
                row.ids[at] = tokens.spans.values[token]
                row.types[at] = slot.type
                row.texts[at] = slot.text
                row.from[at] = tokens.spans.from[token]
                row.to[at++] = tokens.spans.to[token]
            }
        }
        tidy(row, 0, one.text)
        if (two != null) tidy(row, 1, two.text)
        return row
    }

    /** Leaves out spaces around tokens, and includes accents that were stripped behind a token. */
    private fun tidy(row: Encoding, of: Int, text: String) {
        // From the end on, since what follows a token ends where the next one begins.
        var following = text.length
        for (at in row.size - 1 downTo 0) {
            if (row.texts[at] != of) continue
            var first = row.from[at]
            var end = row.to[at]
            val next = following
            following = first
            // The space that SentencePiece puts in front of a text has no character there.
            if (row.ids[at] == spaceMark && !(end - first == 1 && text[first] == SPACE_MARK)) end = first
            while (first < end && text[first].code in spaces) first++
            while (first < end && text[end - 1].code in spaces) end--
            while (end in first + 1..<next && text.codePointAt(end) in accents) end += Character.charCount(text.codePointAt(end))
            row.from[at] = first
            row.to[at] = end
        }
    }

    private val spaceMark = model.id(SPACE_MARK.toString())
    private val spaces = CharacterTables.set("text_space")
    private val accents = CharacterTables.set("category_Mn")

    companion object {
        private const val SPACE_MARK = '▁'

        /**
         * Reads the text of a `tokenizer.json`.
         *
         * @throws UnsupportedTokenizer it is broken, or uses a step that is not known here.
         */
        fun read(json: String): Tokenizer = try {
            of(readJson(json))
        } catch (error: WrongJson) {
            throw UnsupportedTokenizer("tokenizer.json: ${error.message}")
        }

        /**
         * Reads a `tokenizer.bin`, which large tokenizers have beside their `tokenizer.json`.
         *
         * @throws UnsupportedTokenizer it is broken, of another version, or uses a step that is not known here.
         */
        fun read(binary: ByteArray): Tokenizer {
            val stored = StoredTokenizer.read(binary)
            return try {
                of(readJson(stored.json), stored.vocabulary)
            } catch (error: WrongJson) {
                throw UnsupportedTokenizer("tokenizer.bin: ${error.message}")
            }
        }

        private fun of(file: JsonObject, vocabulary: Vocabulary? = null): Tokenizer {
            val steps = file.child("model") ?: throw UnsupportedTokenizer("tokenizer.json has no model")
            val model = TokenModel.read(steps, vocabulary)
            val normalizer = file.child("normalizer")?.let(Normalizers::read)
            val entries = if (file.present("added_tokens") == null) emptyList() else file.objects("added_tokens")
            return Tokenizer(
                AddedTokens(entries, normalizer),
                file.child("pre_tokenizer")?.let(PreTokenizers::read),
                model,
                Template.read(file.child("post_processor")),
                entries.associate { it.text("content") to it.number("id") },
            )
        }
    }
}
