package pocketbert.core.output

import pocketbert.core.tokenizer.CharacterTables
import kotlin.math.exp
import kotlin.math.ln
import kotlin.math.sqrt

/**
 * A label with its probability.
 *
 * @property isGiven whether the text has it, where each label is decided by itself; null where they share one decision.
 */
data class Share(val label: String, val share: Double, val isGiven: Boolean? = null)

/** One number of a regression that gives several. */
data class NamedValue(val name: String, val value: Float)

/**
 * A part of a text.
 *
 * @property from its first character, as an index into the string.
 * @property to one past its last character.
 * @property score the sum of two logits for an answer; the mean probability of its tag for an entity.
 * @property kind what an entity is; null for an answer.
 */
data class Found(val from: Int, val to: Int, val score: Double, val kind: String? = null)

/** A window over a passage: where its tokens are (-1 for those that are not of the passage), and their logits. */
class AnsweredWindow(val from: IntArray, val to: IntArray, val starts: FloatArray, val ends: FloatArray)

/** Outputs that do not fit what is asked of them; the message is a sentence. */
class OutputError(message: String) : Exception(message)

/** What people read out of a model's outputs; the same arithmetic as `pipeline/metrics/outputs.py`. */
object Outputs {
    /** The longest answer in tokens. Source: `max_answer_length` of google-research/bert, run_squad.py. */
    const val LONGEST_ANSWER = 30
    private const val HALF = 0.5

    /** Returns probabilities. */
    fun softmax(logits: FloatArray): DoubleArray {
        val largest = logits.max().toDouble()
        val sum = ln(logits.sumOf { exp(it - largest) })
        return DoubleArray(logits.size) { exp(logits[it] - largest - sum) }
    }

    /**
     * Returns each label with its probability, the most probable first.
     *
     * @throws OutputError there are not as many labels as logits.
     */
    fun labels(labels: List<String>, logits: FloatArray): List<Share> {
        if (labels.size != logits.size) throw OutputError("there are ${labels.size} labels for ${logits.size} logits")
        return labels.zip(softmax(logits).asList()) { label, share -> Share(label, share) }.sortedByDescending { it.share }
    }

    /**
     * Returns each label with a probability of its own, the most probable first, and whether the text has it.
     *
     * @param thresholds from which probability on a label is given; null for one half.
     * @throws OutputError there are not as many labels as logits.
     */
    fun eachLabel(labels: List<String>, logits: FloatArray, thresholds: List<Double>? = null): List<Share> {
        if (labels.size != logits.size) throw OutputError("there are ${labels.size} labels for ${logits.size} logits")
        val shares = labels.mapIndexed { number, label ->
            val share = sigmoid(logits[number].toDouble())
            Share(label, share, share >= (thresholds?.get(number) ?: HALF))
        }
        return shares.sortedByDescending { it.share }
    }

    /**
     * Returns the numbers of a regression by their names, in the file's order.
     *
     * @throws OutputError there are not as many names as numbers.
     */
    fun values(names: List<String>, numbers: FloatArray): List<NamedValue> {
        if (names.size != numbers.size) throw OutputError("there are ${names.size} labels for ${numbers.size} numbers")
        return names.zip(numbers.asList(), ::NamedValue)
    }

    /** Returns the logistic function of a number, between 0 and 1. */
    fun sigmoid(number: Double): Double = 1 / (1 + exp(-number))

    /** Returns the cosine of two embeddings of unit length, which is what the files give. */
    fun cosine(one: FloatArray, other: FloatArray): Float {
        require(one.size == other.size) { "the embeddings have ${one.size} and ${other.size} numbers" }
        var sum = 0.0
        for (at in one.indices) sum += one[at].toDouble() * other[at]
        return sum.toFloat()
    }

    /** Returns the length of an embedding: 1, or 0 for a row of padding. */
    fun length(embedding: FloatArray): Float = sqrt(embedding.fold(0f) { sum, value -> sum + value * value })

    /** Returns the places of the nearest embeddings with their cosines, the nearest first. */
    fun nearest(one: FloatArray, among: List<FloatArray>, top: Int): List<Pair<Int, Float>> =
        among.map { cosine(one, it) }.withIndex().sortedByDescending { it.value }.take(top).map { it.index to it.value }

    /**
     * Returns the best answer over the windows of a passage, or null where no window has a token of it.
     *
     * @param noAnswerMargin for models that were trained to say that there is no answer: null is returned where the score of
     *     the first token (`[CLS]`) as start and end, in the window where it is lowest, is higher than the answer's by more
     *     than this. Null takes the best answer, however poor.
     *
     * Source: Devlin et al. 2019, section 4.2: the pair of a start and a later end with the largest sum of logits; section
     * 4.3 and `null_score_diff_threshold` of run_squad.py for no answer.
     */
    fun answer(windows: List<AnsweredWindow>, noAnswerMargin: Double? = null): Found? {
        var best: Found? = null
        for (window in windows) {
            val found = answer(window) ?: continue
            if (best == null || found.score > best.score) best = found
        }
        if (best == null || noAnswerMargin == null) return best
        val scores = windows.mapNotNull { window -> window.starts.firstOrNull()?.let { it.toDouble() + window.ends[0] } }
        val none = scores.minOrNull() ?: return best
        return best.takeUnless { none - it.score > noAnswerMargin }
    }

    private fun answer(window: AnsweredWindow): Found? {
        val inside = window.from.indices.filter { window.from[it] >= 0 }
        var best: Found? = null
        for ((number, first) in inside.withIndex()) {
            for (last in inside.subList(number, minOf(number + LONGEST_ANSWER, inside.size))) {
                val score = window.starts[first].toDouble() + window.ends[last].toDouble()
                if (best == null || score > best.score) best = Found(window.from[first], window.to[last], score)
            }
        }
        return best
    }

    /** Returns where each word of a text is; white space separates words. */
    fun words(text: String): List<IntRange> {
        val spaces = CharacterTables.set("text_space")
        val words = ArrayList<IntRange>()
        var first = -1
        for (at in 0..text.length) {
            val outside = at == text.length || text[at].code in spaces
            if (!outside && first < 0) first = at
            if (outside && first >= 0) {
                words.add(first until at)
                first = -1
            }
        }
        return words
    }

    /**
     * Tags each word of a text by its first token, and joins the tags into entities, without the punctuation at their ends: the
     * comma of `Berlin,` is no part of the city.
     *
     * @param text the text.
     * @param labels `B-person`, `I-person`, `O` …, in the order of the logits.
     * @param from where each token of the row begins in the text; the same as [to] for special tokens.
     * @param to where it ends.
     * @param logits one array for each token of the row.
     *
     * Source: Ramshaw and Marcus 1995, as conlleval reads it: an `I-` after another kind begins an entity.
     */
    fun entities(text: String, labels: List<String>, from: IntArray, to: IntArray, logits: List<FloatArray>): List<Found> {
        val found = ArrayList<Found>()
        var scores = ArrayList<Double>()
        // Not an empty text, which a label may be as well.
        var open: String? = null
        for (word in words(text)) {
            val token = from.indices.firstOrNull { from[it] <= word.last && to[it] > word.first } ?: continue
            val shares = softmax(logits[token])
            val best = shares.indices.maxBy { shares[it] }
            val tag = labels[best]
            val begins = tag.startsWith("B-")
            val kind = if (begins || tag.startsWith("I-")) tag.substring(2) else tag
            when {
                tag == "O" -> open = null
                kind == open && !begins -> {
                    scores.add(shares[best])
                    found[found.size - 1] = Found(found.last().from, word.last + 1, scores.average(), kind)
                }
                else -> {
                    open = kind
                    scores = arrayListOf(shares[best])
                    found.add(Found(word.first, word.last + 1, shares[best], kind))
                }
            }
        }
        return found.map { withoutPunctuation(text, it) }
    }

    /** Returns an entity less the punctuation at its ends; one that is all punctuation stays as it is. */
    private fun withoutPunctuation(text: String, one: Found): Found {
        val punctuation = checkNotNull(CharacterTables.category("P")) { "characters.txt has no punctuation" }
        val spaces = CharacterTables.set("text_space")

        // Spaces too: `Anna —` may be two words of one entity.
        fun outside(code: Int) = code in punctuation || code in spaces
        var (from, to) = one.from to one.to
        while (from < to && outside(text.codePointAt(from))) from += Character.charCount(text.codePointAt(from))
        if (from == to) return one
        while (outside(text.codePointBefore(to))) to -= Character.charCount(text.codePointBefore(to))
        return one.copy(from = from, to = to)
    }
}
