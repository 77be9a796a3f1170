package pocketbert.core.tokenizer

import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.double
import pocketbert.core.array
import pocketbert.core.child
import pocketbert.core.flag
import pocketbert.core.number
import pocketbert.core.present
import pocketbert.core.text
import pocketbert.core.textOrNull

/** Receives a token: its id, and the first and one past the last code point that it covers, counted as the word counts them. */
internal fun interface TokenSink {
    fun token(id: Int, first: Int, end: Int)
}

/** What makes tokens of a word. */
internal interface TokenModel {
    fun tokens(word: Slice, sink: TokenSink)

    /** The id of a token, or null. */
    fun id(token: String): Int?

    companion object {
        /**
         * Reads the `model` of `tokenizer.json`.
         *
         * @param vocabulary the vocabulary of a `tokenizer.bin`; null where [model] has it.
         * @throws UnsupportedTokenizer it has something that is not known here.
         */
        fun read(model: JsonObject, vocabulary: Vocabulary? = null): TokenModel = when (val kind = model.textOrNull("type")) {
            "WordPiece" -> WordPiece.read(model, vocabulary?.words ?: wordsOf(model))
            "Unigram" -> Unigram.read(model, vocabulary ?: scored(model))
            "BPE" -> BytePairs.read(model)
            else -> throw UnsupportedTokenizer("tokenizer.json has a model of the kind $kind; WordPiece, Unigram and BPE are supported")
        }
    }
}

/** The words of a model, and the score of each id where it has scores. */
internal class Vocabulary(val words: Trie, val scores: DoubleArray)

private inline fun eachWord(model: JsonObject, begin: (Int) -> Unit, found: (String, Int) -> Unit) {
    val words = model.child("vocab") ?: throw UnsupportedTokenizer("tokenizer.json has no vocab")
    begin(words.size)
    for ((word, id) in words) {
        val number = (id as? JsonPrimitive)?.takeUnless(JsonPrimitive::isString)?.content?.toIntOrNull()
        found(word, number ?: throw UnsupportedTokenizer("tokenizer.json: the id of $word is no whole number"))
    }
}

private fun idsOf(model: JsonObject): Map<String, Int> {
    lateinit var ids: HashMap<String, Int>
    eachWord(model, { ids = HashMap(2 * it) }) { word, id -> ids[word] = id }
    return ids
}

private fun wordsOf(model: JsonObject): Trie {
    lateinit var words: GrowingTrie
    eachWord(model, { words = GrowingTrie(it) }) { word, id -> words.add(word, id) }
    return words
}

private fun scored(model: JsonObject): Vocabulary {
    val entries = model.array("vocab")
    val words = GrowingTrie(entries.size)
    val scores = DoubleArray(entries.size) { id ->
        val pair = entries[id] as JsonArray
        words.add((pair[0] as JsonPrimitive).content, id)
        (pair[1] as JsonPrimitive).double
    }
    return Vocabulary(words, scores)
}

/** The longest word first, then the longest continuation. */
internal class WordPiece private constructor(
    private val words: Trie,
    private val continuation: Int,
    private val unknown: Int,
    private val longestWord: Int,
) : TokenModel {
    override fun id(token: String) = words.id(token)

    override fun tokens(word: Slice, sink: TokenSink) {
        if (word.size > longestWord) return sink.token(unknown, word.first, word.end)
        val found = IntArray(2 * word.size)
        var count = 0
        var first = word.first
        while (first < word.end) {
            var longest = -1
            var end = first
            words.each(word, first, if (first > word.first) continuation else Trie.ROOT) { to, id ->
                longest = id
                end = to
            }
            if (longest < 0) return sink.token(unknown, word.first, word.end)
            found[count++] = longest
            found[count++] = end
            first = end
        }
        first = word.first
        for (at in 0 until count step 2) {
            sink.token(found[at], first, found[at + 1])
            first = found[at + 1]
        }
    }

    companion object {
        fun read(model: JsonObject, words: Trie): WordPiece {
            val unknown = model.text("unk_token")
            return WordPiece(
                words,
                words.node(model.textOrNull("continuing_subword_prefix") ?: "##"),
                words.id(unknown) ?: throw UnsupportedTokenizer("tokenizer.json: the unk_token $unknown is not in the vocabulary"),
                model.number("max_input_chars_per_word", 100),
            )
        }
    }
}

/** The most probable split of a word (Viterbi). */
internal class Unigram private constructor(
    private val words: Trie,
    private val scores: DoubleArray,
    private val unknown: Int?,
    private val byteFallback: Boolean,
) : TokenModel {
    private val unknownScore = scores.min() - PENALTY

    override fun id(token: String) = words.id(token)

    override fun tokens(word: Slice, sink: TokenSink) {
        val best = DoubleArray(word.size + 1)
        val begins = IntArray(word.size + 1) { -1 }
        val chosen = IntArray(word.size + 1)
        for (first in 0 until word.size) {
            var single = false
            words.each(word, word.first + first, Trie.ROOT) { end, id ->
                relax(best, begins, chosen, first, end - word.first, id, scores[id])
                if (end - word.first == first + 1) single = true
            }
            if (!single) {
                val id = unknown ?: throw IllegalArgumentException("a character has no token, and tokenizer.json has no unk_id")
                relax(best, begins, chosen, first, first + 1, id, unknownScore)
            }
        }
        emit(word, begins, chosen, sink)
    }

    private fun relax(best: DoubleArray, begins: IntArray, chosen: IntArray, first: Int, end: Int, id: Int, score: Double) {
        val candidate = score + best[first]
        if (begins[end] < 0 || candidate > best[end]) {
            best[end] = candidate
            begins[end] = first
            chosen[end] = id
        }
    }

    private fun emit(word: Slice, begins: IntArray, chosen: IntArray, sink: TokenSink) {
        // The path is found from its end, and written over what it no longer needs: where each token's next one ends.
        var end = word.size
        var next = 0
        while (end > 0) {
            val begin = begins[end]
            begins[end] = next
            next = end
            end = begin
        }
        var first = 0
        var last = next
        while (last > 0) {
            // Unknown characters side by side are one unknown token.
            while (chosen[last] == unknown && begins[last] > 0 && chosen[begins[last]] == unknown) last = begins[last]
            if (chosen[last] ==
                unknown
            ) {
                unknownTokens(word, first, last, sink)
            } else {
                sink.token(chosen[last], word.first + first, word.first + last)
            }
            first = last
            last = begins[last]
        }
    }

    private fun unknownTokens(word: Slice, first: Int, last: Int, sink: TokenSink) {
        val begin = word.first + first
        val end = word.first + last
        val text = String(word.codes, begin, end - begin)
        val whole = words.id(text)
        val bytes = if (byteFallback && whole == null) text.toByteArray().map { words.id(byteToken(it)) } else listOf(null)
        if (null in bytes) {
            sink.token(whole ?: checkNotNull(unknown), begin, end)
        } else {
            for (id in bytes) sink.token(checkNotNull(id), begin, end)
        }
    }

    companion object {
        private const val PENALTY = 10.0

        fun read(model: JsonObject, vocabulary: Vocabulary): Unigram {
            if (vocabulary.scores.isEmpty()) throw UnsupportedTokenizer("tokenizer.json has an empty vocab")
            val unknown = if (model.present("unk_id") == null) null else model.number("unk_id")
            return Unigram(vocabulary.words, vocabulary.scores, unknown, model.flag("byte_fallback"))
        }
    }
}

private fun byteToken(byte: Byte) = "<0x%02X>".format(byte.toInt() and 0xFF)

/** Merges of neighbours, the earliest learnt first. */
internal class BytePairs private constructor(
    private val ids: Map<String, Int>,
    private val merges: Map<Long, Merge>,
    private val unknown: Int?,
    private val whole: Boolean,
    private val fuse: Boolean,
) : TokenModel {
    private class Merge(val rank: Int, val id: Int)

    override fun id(token: String) = ids[token]

    override fun tokens(word: Slice, sink: TokenSink) {
        if (whole) ids[String(word.codes, word.first, word.size)]?.let { return sink.token(it, word.first, word.end) }
        val parts = IntArray(word.size)
        val ends = IntArray(word.size)
        var count = 0
        for (at in word.first until word.end) {
            val id = ids[String(word.codes, at, 1)] ?: unknown ?: continue
            if (fuse && id == unknown && count > 0 && parts[count - 1] == unknown) {
                ends[count - 1] = at + 1
                continue
            }
            parts[count] = id
            ends[count++] = at + 1
        }
        count = merge(parts, ends, count)
        var first = word.first
        for (at in 0 until count) {
            sink.token(parts[at], first, ends[at])
            first = ends[at]
        }
    }

    /** Merges until no neighbours can be, and returns how many parts are left. */
    private fun merge(parts: IntArray, ends: IntArray, size: Int): Int {
        var count = size
        // What each part makes with the one behind it; only those beside a merge change with it.
        val found = arrayOfNulls<Merge>(size)
        for (at in 0 until count - 1) found[at] = merges[pair(parts[at], parts[at + 1])]
        while (true) {
            var place = -1
            for (at in 0 until count - 1) {
                val merge = found[at] ?: continue
                if (place < 0 || merge.rank < found[place]!!.rank) place = at
            }
            if (place < 0) return count
            parts[place] = found[place]!!.id
            parts.copyInto(parts, place + 1, place + 2, count)
            ends.copyInto(ends, place, place + 1, count)
            found.copyInto(found, place + 1, place + 2, count)
            count--
            found[place] = if (place + 1 < count) merges[pair(parts[place], parts[place + 1])] else null
            if (place > 0) found[place - 1] = merges[pair(parts[place - 1], parts[place])]
        }
    }

    companion object {
        private fun pair(first: Int, second: Int) = (first.toLong() shl 32) or second.toLong()

        fun read(model: JsonObject): BytePairs {
            for (name in listOf("dropout", "continuing_subword_prefix", "end_of_word_suffix")) {
                val value = (model.present(name) as? JsonPrimitive)?.content ?: continue
                if (value.isNotEmpty()) {
                    throw UnsupportedTokenizer(
                        "tokenizer.json: the BPE model's $name is $value, which is not supported",
                    )
                }
            }
            if (model.flag("byte_fallback")) throw UnsupportedTokenizer("tokenizer.json: a BPE model with byte_fallback is not supported")
            val ids = idsOf(model)
            val merges = HashMap<Long, Merge>()
            model.array("merges").forEachIndexed { rank, entry ->
                val (first, second) = parts(entry)
                val found = listOf(first, second, first + second).map {
                    ids[it] ?: throw UnsupportedTokenizer("tokenizer.json merges ${first + second}, and $it is not in the vocabulary")
                }
                merges[pair(found[0], found[1])] = Merge(rank, found[2])
            }
            val unknown = model.textOrNull("unk_token")?.let { ids[it] }
            return BytePairs(ids, merges, unknown, model.flag("ignore_merges"), model.flag("fuse_unk"))
        }

        private fun parts(entry: kotlinx.serialization.json.JsonElement): Pair<String, String> = when (entry) {
            is JsonArray -> (entry[0] as JsonPrimitive).content to (entry[1] as JsonPrimitive).content
            else -> (entry as JsonPrimitive).content.let { it.substringBefore(' ') to it.substringAfter(' ') }
        }
    }
}
