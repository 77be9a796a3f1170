package pocketbert.models

import pocketbert.core.contract.Model
import pocketbert.core.contract.PaddedRow
import pocketbert.core.model.Runner
import pocketbert.core.model.RunnerOptions
import pocketbert.core.model.Runtime
import java.util.concurrent.atomic.AtomicInteger
import kotlin.math.sqrt

/**
 * An encoder that is cheap: a text's embedding is the sum of a fixed vector of each of its tokens, at unit length. It runs in
 * microseconds, so that tests can index thousands of texts.
 */
internal class BagOfTokens(override val backend: String, override val version: String, private val keepsLengths: Boolean = true) :
    Runtime {
    private val count = AtomicInteger()
    private val opened = AtomicInteger()
    override val name = "bag of tokens"

    /** Rows that were run. */
    val runs get() = count.get()

    /** Models that are open. */
    val open get() = opened.get()

    /** How many tokens each of them had, padding left out, where that is kept. */
    val lengths = ArrayList<Int>()

    /** Is called before each run, in the thread that runs. */
    @Volatile
    var before: () -> Unit = {}

    override fun open(model: Model, options: RunnerOptions) = object : Runner {
        init {
            opened.incrementAndGet()
        }

        override val delegate: String? = null
        override val shareByUnit: Map<String, Double>? = null
        override val poolThreads: Int? = null

        override fun run(row: PaddedRow): Map<String, FloatArray> {
            before()
            count.incrementAndGet()
            val mask = row.inputs.getValue("attention_mask")
            if (keepsLengths) synchronized(lengths) { lengths.add(mask.sum()) }
            val ids = row.inputs.getValue("input_ids").filterIndexed { at, _ -> mask[at] > 0 }
            return mapOf("sentence_embedding" to embedding(ids, checkNotNull(row.function.outputs.first().shape.last())))
        }

        override fun close() {
            opened.decrementAndGet()
        }
    }

    private fun embedding(ids: List<Int>, width: Int): FloatArray {
        val sum = DoubleArray(width)
        for (id in ids) {
            // Source: SplitMix64, Steele, Lea and Flood 2014.
            var state = id * -0x61c8864680b583ebL
            for (at in sum.indices) {
                state -= 0x61c8864680b583ebL
                val mixed = (state xor (state ushr 30)) * -0x40a7b892e31b1a47L
                sum[at] += (mixed xor (mixed ushr 27)) / Long.MAX_VALUE.toDouble()
            }
        }
        val length = sqrt(sum.sumOf { it * it })
        return FloatArray(width) { (sum[it] / length).toFloat() }
    }
}
