package pocketbert.core.model

import pocketbert.core.Cancellation
import pocketbert.core.contract.Golden
import pocketbert.core.contract.GoldenRow
import pocketbert.core.contract.Model
import pocketbert.core.contract.Signature
import pocketbert.core.output.AnsweredWindow
import pocketbert.core.output.Found
import pocketbert.core.output.NamedValue
import pocketbert.core.output.OutputError
import pocketbert.core.output.Outputs
import pocketbert.core.output.Share
import pocketbert.core.output.ZeroShot
import pocketbert.core.tokenizer.Encoding
import pocketbert.core.tokenizer.Tokenizer
import kotlin.math.log10
import kotlin.math.sqrt

/**
 * What came out, and how long it took.
 *
 * @property tokens of the row, or of the longest of several; special ones included.
 * @property length at which it ran; of several rows the longest.
 * @property tokenizeMs from the text to padded arrays.
 * @property inferenceMs in the runtime.
 */
class Answered<T>(val value: T, val tokens: Int, val length: Int, val tokenizeMs: Double, val inferenceMs: Double)

/** How far a golden row is off; no cosine where its ids differ, or an output is zero, not finite or of another size. */
class GoldenResult(val row: GoldenRow, val sameIds: Boolean, val cosine: Double?)

/**
 * What the golden rows show of a file on this phone.
 *
 * @property sqnrDb signal to quantisation noise over all rows; null where a row cannot be compared.
 * @property failures what is wrong, in sentences; empty where the file is what was verified.
 */
class GoldenVerdict(val rows: List<GoldenResult>, val worstCosine: Double?, val sqnrDb: Double?, val failures: List<String>)

/** A model with its tokenizer and a runner: from a text to what a person reads. One call at a time, off the main thread. */
class Student(val model: Model, private val tokenizer: Tokenizer, private val runner: Runner) : AutoCloseable {
    private val signature = model.signature
    private val labels get() = signature.labels.orEmpty()

    /**
     * Returns the embedding of a text, of unit length.
     *
     * @param prompt name of the prompt before the text; null for the model's default one, an empty name for none.
     * @throws pocketbert.core.contract.NoSuchPrompt the model has none of that name.
     */
    fun embedding(text: String, prompt: String? = null, cancellation: Cancellation? = null): Answered<FloatArray> =
        one("embedding", text, null, cancellation, prompt) { _, output -> output }

    /**
     * Returns each label with its probability, the most probable first; of a model that decides each label by itself, also
     * whether it is given.
     */
    fun labels(first: String, second: String? = null, cancellation: Cancellation? = null): Answered<List<Share>> {
        if (signature.outputKind != "multi_label") {
            return one("logits", first, second, cancellation) { _, output -> Outputs.labels(labels, output) }
        }
        return one("multi_label", first, second, cancellation) { _, output -> Outputs.eachLabel(labels, output, signature.thresholds) }
    }

    /** Returns the value of a regression behind its activation, such as how alike two texts are. */
    fun value(first: String, second: String? = null, cancellation: Cancellation? = null): Answered<Float> =
        one("value", first, second, cancellation) { _, output ->
            activated(output.firstOrNull() ?: throw RunnerFailed("the runtime gave no number"))
        }

    /** Returns the values of a regression that gives several, each behind the activation, in the file's order. */
    fun values(first: String, second: String? = null, cancellation: Cancellation? = null): Answered<List<NamedValue>> =
        one("values", first, second, cancellation) { _, output ->
            Outputs.values(labels, output).map { it.copy(value = activated(it.value)) }
        }

    private fun activated(number: Float): Float = when (signature.activation) {
        "sigmoid" -> Outputs.sigmoid(number.toDouble()).toFloat()
        else -> number
    }

    /** Returns the entities of a text; what is longer than the file takes is cut off and has none. */
    fun entities(text: String, cancellation: Cancellation? = null): Answered<List<Found>> =
        one("token_logits", text, null, cancellation) { row, output ->
            val width = if (row.size == 0) labels.size else output.size / row.size
            if (width != labels.size) throw OutputError("there are ${labels.size} labels for $width logits")
            val logits = List(row.size) { token -> output.copyOfRange(token * width, (token + 1) * width) }
            Outputs.entities(text, labels, row.from, row.to, logits)
        }

    /**
     * Returns the best answer to a question over all windows of a passage; null where the passage is empty, or where no
     * answer is better than one by [noAnswerMargin]; see [Outputs.answer].
     */
    fun answer(question: String, passage: String, noAnswerMargin: Double? = null, cancellation: Cancellation? = null): Answered<Found?> {
        expect("spans")
        return several({ windows(question, passage, signature.maxLength, cancellation) }, cancellation) { rows, outputs ->
            val windows = rows.zip(outputs) { row, output ->
                val inPassage = { token: Int -> row.texts[token] == 1 }
                AnsweredWindow(
                    IntArray(row.size) { if (inPassage(it)) row.from[it] else -1 },
                    IntArray(row.size) { if (inPassage(it)) row.to[it] else -1 },
                    FloatArray(row.size) { output[2 * it] },
                    FloatArray(row.size) { output[2 * it + 1] },
                )
            }
            Outputs.answer(windows, noAnswerMargin)
        }
    }

    /**
     * Returns labels of one's own with their probabilities, the most probable first: one run for each label. See [ZeroShot].
     *
     * @throws pocketbert.core.output.WrongLabels the model is none of inference, or labels or template are none.
     */
    fun zeroShot(
        text: String,
        labels: List<String>,
        template: String = ZeroShot.TEMPLATE,
        multiLabel: Boolean = false,
        cancellation: Cancellation? = null,
    ): Answered<List<Share>> {
        val asked = ZeroShot(signature, labels, template, multiLabel)
        val rows = { asked.hypotheses.map { encoded(text, it, "", signature.maxLength, cancellation) } }
        return several(rows, cancellation) { _, logits -> asked.shares(logits) }
    }

    /**
     * Runs the rows that the pipeline shipped with the file, and compares ids and outputs. Rows that are longer than the file
     * takes are passed over.
     */
    fun check(golden: Golden, cancellation: Cancellation = Cancellation()): GoldenVerdict {
        val outputs = ArrayList<Pair<GoldenRow, FloatArray>>()
        val results = golden.rows.filter { it.ids.size <= signature.maxLength }.map { row ->
            cancellation.check()
            val encoded = when (val window = row.window) {
                null -> encoded(row.first, row.second, row.prompt.orEmpty(), golden.maxLength, cancellation)
                else -> windows(row.first, row.second.orEmpty(), golden.maxLength, cancellation).getOrNull(window)
            }
            val same = encoded != null && encoded.ids.toList() == row.ids && encoded.types.toList() == row.types
            val output = if (same) output(checkNotNull(encoded)) else FloatArray(0)
            val comparable = output.size == row.output.size && output.all(Float::isFinite)
            if (comparable) outputs.add(row to output)
            GoldenResult(row, same, if (comparable) cosine(row.output, output)?.takeIf(Double::isFinite) else null)
        }
        return verdict(results, outputs, golden)
    }

    private fun verdict(results: List<GoldenResult>, outputs: List<Pair<GoldenRow, FloatArray>>, golden: Golden): GoldenVerdict {
        val failures = ArrayList<String>()
        results.firstOrNull { !it.sameIds }?.let { failures.add("other ids for \"${it.row.first.take(SHOWN)}\"") }
        val worst = results.minByOrNull { it.cosine ?: Double.NEGATIVE_INFINITY }
        val sqnr = if (outputs.size == results.size) sqnrDb(outputs) else null
        if (worst == null) failures.add("there is no row that the file takes")
        val least = golden.minCosine ?: Double.NEGATIVE_INFINITY
        if (worst != null && worst.sameIds && !(worst.cosine != null && worst.cosine >= least)) {
            failures.add("worst cosine ${worst.cosine ?: "none"}, $least is asked for, \"${worst.row.first.take(SHOWN)}\"")
        }
        if (golden.minSqnrDb != null && sqnr != null && sqnr < golden.minSqnrDb) {
            failures.add("SQNR $sqnr dB, ${golden.minSqnrDb} is asked for")
        }
        return GoldenVerdict(results, worst?.cosine, sqnr, failures)
    }

    /** Returns the output of a row as the golden rows have it: outputs side by side, token after token, padding left out. */
    fun output(row: Encoding): FloatArray = Rows.output(signature, runner.run(model.pad(row)), row.size)

    override fun close() = runner.close()

    /**
     * Returns how many tokens a text has with its prompt, special ones included, however many the file takes.
     *
     * @param prompt as of [embedding].
     */
    fun tokens(first: String, second: String? = null, prompt: String? = null, cancellation: Cancellation? = null): Int =
        tokenizer.encode(signature.promptText(prompt) + first, second, cancellation = cancellation).size

    /** Returns the row of a text behind a prompt, as sentence-transformers makes it: both are tokenised as one text. */
    private fun encoded(first: String, second: String?, prompt: String?, maxLength: Int, cancellation: Cancellation?): Encoding {
        val before = signature.promptText(prompt)
        val row = tokenizer.encode(before + first, second, maxLength, cancellation)
        if (signature.includePrompt || before.isEmpty()) return row
        val alone = tokenizer.encode(before, maxLength = maxLength)
        // The special token at its end stands behind the text in the whole row.
        return row.unpooling(if (alone.texts.lastOrNull() == -1) alone.size - 1 else alone.size)
    }

    private fun windows(question: String, passage: String, maxLength: Int, cancellation: Cancellation?) =
        tokenizer.windows(question, passage, maxLength, maxLength / OVERLAP, cancellation)

    private fun <T> one(
        kind: String,
        first: String,
        second: String?,
        cancellation: Cancellation?,
        prompt: String? = null,
        read: (Encoding, FloatArray) -> T,
    ): Answered<T> {
        expect(kind)
        val began = System.nanoTime()
        val row = encoded(first, second, prompt, signature.maxLength, cancellation)
        val padded = model.pad(row)
        val tokenized = System.nanoTime()
        cancellation?.check()
        val outputs = runner.run(padded)
        val ended = System.nanoTime()
        val value = read(row, Rows.output(signature, outputs, row.size))
        return Answered(value, row.size, padded.length, (tokenized - began) / NANOS_IN_MS, (ended - tokenized) / NANOS_IN_MS)
    }

    /** Runs several rows one after the other, and measures them as one. */
    private fun <T> several(
        encode: () -> List<Encoding>,
        cancellation: Cancellation?,
        read: (List<Encoding>, List<FloatArray>) -> T,
    ): Answered<T> {
        val began = System.nanoTime()
        val rows = encode()
        val padded = rows.map(model::pad)
        val tokenized = System.nanoTime()
        val outputs = rows.zip(padded) { row, inputs ->
            cancellation?.check()
            Rows.output(signature, runner.run(inputs), row.size)
        }
        val ended = System.nanoTime()
        return Answered(
            read(rows, outputs),
            rows.maxOf { it.size },
            padded.maxOf { it.length },
            (tokenized - began) / NANOS_IN_MS,
            (ended - tokenized) / NANOS_IN_MS,
        )
    }

    private fun expect(kind: String) {
        if (signature.outputKind != kind) throw OutputError("${model.entry.folder} gives ${signature.outputKind}, not $kind")
    }

    companion object {
        /** Windows over a passage share a third of their tokens; as `overlap` of the pipeline, and run_squad.py. */
        private const val OVERLAP = 3
        private const val NANOS_IN_MS = 1e6

        /** Opens a model: reads its tokenizer, and its file in a runtime. */
        fun open(model: Model, runtime: Runtime, options: RunnerOptions = RunnerOptions()): Student {
            val tokenizer = model.tokenizer()
            return Student(model, tokenizer, runtime.open(model, options))
        }

        private fun cosine(one: FloatArray, other: FloatArray): Double? {
            var product = 0.0
            var oneSquares = 0.0
            var otherSquares = 0.0
            for (at in one.indices) {
                product += one[at].toDouble() * other[at]
                oneSquares += one[at].toDouble() * one[at]
                otherSquares += other[at].toDouble() * other[at]
            }
            val norms = sqrt(oneSquares) * sqrt(otherSquares)
            return if (norms > 0) product / norms else null
        }

        private fun sqnrDb(outputs: List<Pair<GoldenRow, FloatArray>>): Double {
            var noise = 0.0
            var signal = 0.0
            for ((row, output) in outputs) {
                for (at in output.indices) {
                    val off = row.output[at].toDouble() - output[at]
                    noise += off * off
                    signal += row.output[at].toDouble() * row.output[at]
                }
            }
            return if (noise == 0.0) Double.POSITIVE_INFINITY else TEN * log10(signal / noise)
        }

        private const val SHOWN = 30
        private const val TEN = 10
    }
}

/** The outputs of a row. */
internal object Rows {
    /**
     * Puts a runner's outputs side by side, without padding.
     *
     * @throws RunnerFailed an output is absent, or has another size than the row's.
     */
    fun output(signature: Signature, outputs: Map<String, FloatArray>, tokens: Int): FloatArray {
        val arrays = Signature.OUTPUTS.getValue(signature.outputKind).map {
            outputs[it] ?: throw RunnerFailed("the runtime gave no $it; it gave ${outputs.keys}")
        }
        if (signature.outputKind !in PER_TOKEN) {
            val wanted = lastSize(signature, Signature.OUTPUTS.getValue(signature.outputKind)[0])
            if (arrays[0].size != wanted) throw RunnerFailed("the runtime gave ${arrays[0].size} numbers, and the file says $wanted")
            return arrays[0]
        }
        val widths = arrays.mapIndexed { number, _ -> width(signature, number) }
        for ((array, width) in arrays.zip(widths)) {
            if (width < 1 || array.size < tokens * width || array.size % width != 0) {
                throw RunnerFailed("the runtime gave ${array.size} numbers for $tokens tokens with $width each")
            }
        }
        val joined = FloatArray(tokens * widths.sum())
        var at = 0
        for (token in 0 until tokens) {
            for ((array, width) in arrays.zip(widths)) {
                array.copyInto(joined, at, token * width, (token + 1) * width)
                at += width
            }
        }
        return joined
    }

    /** Numbers of each token in an output: labels, or one; 0 where the file does not say. */
    private fun width(signature: Signature, number: Int): Int = if (signature.outputKind == "spans") {
        1
    } else {
        lastSize(signature, Signature.OUTPUTS.getValue(signature.outputKind)[number]) ?: 0
    }

    private fun lastSize(signature: Signature, name: String): Int? =
        signature.functions.firstOrNull()?.outputs?.firstOrNull { it.name == name }?.shape?.lastOrNull()

    private val PER_TOKEN = setOf("token_logits", "spans")
}
