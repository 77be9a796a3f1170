package pocketbert.core.search

import pocketbert.core.output.OutputError
import java.nio.Buffer
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.BitSet
import kotlin.math.abs
import kotlin.math.min
import kotlin.math.sqrt

/** A row that was found. */
class Scored(val row: Int, val cosine: Float)

/** Compares a query with every row of an index, in numbers that are equal in Python, Kotlin and Swift. */
internal object Scan {
    private const val MOST_CODE = 127.0
    private const val BLOCK_BYTES = 1 shl 16

    /**
     * Puts the int8 codes of a vector, or its numbers, as they lie in `vectors.bin`. Codes are of the numbers as they are; numbers of
     * a vector that is cut are scaled to unit length again, where the model's embeddings are.
     *
     * @param vector whole; an index of a smaller width keeps its first numbers.
     * @throws OutputError it is none of the model's, or not finite.
     */
    fun store(vector: FloatArray, spec: IndexSpec, into: ByteBuffer) {
        val cut = cut(vector, spec)
        val scales = spec.scales
        if (scales != null) {
            for (at in cut.indices) into.put(Math.rint(cut[at] / scales[at]).coerceIn(-MOST_CODE, MOST_CODE).toInt().toByte())
            return
        }
        val length = if (spec.isUnitLength && cut.size < vector.size) length(cut) else 1.0
        for (number in cut) into.putFloat(if (length == 0.0) 0f else (number / length).toFloat())
    }

    private fun cut(vector: FloatArray, spec: IndexSpec): FloatArray {
        if (vector.size < spec.width) throw OutputError("the embedding has ${vector.size} numbers, and the index keeps ${spec.width}")
        if (!vector.all(Float::isFinite)) throw OutputError("the embedding has a number that is not finite")
        return vector.copyOf(spec.width)
    }

    private fun length(numbers: FloatArray) = sqrt(numbers.sumOf { it.toDouble() * it })

    /** Returns the lengths of rows, for indexes whose rows are not of unit length because the model's are not, or cut. */
    fun norms(rows: ByteBuffer, count: Int, spec: IndexSpec): FloatArray {
        val norms = FloatArray(count)
        val factors = spec.scales?.toDoubleArray()
        if (factors == null) {
            val row = FloatArray(spec.width)
            forBlocks(rows, count, spec) { first, block, inBlock ->
                val floats = floats(block)
                repeat(inBlock) { norms[first + it] = length(row.also(floats::get)).toFloat() }
            }
            return norms
        }
        forBlocks(rows, count, spec) { first, block, inBlock ->
            for (number in 0 until inBlock) {
                var sum = 0.0
                for (at in factors.indices) sum += (block[number * factors.size + at] * factors[at]).let { it * it }
                norms[first + number] = sqrt(sum).toFloat()
            }
        }
        return norms
    }

    /**
     * Returns the rows that are nearest to a query, the nearest first; of equal ones the first row.
     *
     * @param query a whole embedding.
     * @param norms of the rows; null where all are 1.
     * @param removed rows that are passed over.
     */
    fun nearest(
        query: FloatArray,
        rows: ByteBuffer,
        count: Int,
        spec: IndexSpec,
        norms: FloatArray?,
        top: Int,
        removed: BitSet,
    ): List<Scored> {
        val cut = cut(query, spec)
        val best = Best(top, norms, removed, spec.isByDot)
        val step = if (spec.scales == null) {
            dotFloats(cut, rows, count, spec) { row, dot -> best.offer(row, dot.toFloat().toDouble()) }
            1.0
        } else {
            val codes = QueryCodes(cut, spec.scales.toDoubleArray())
            dotCodes(codes.codes, rows, count, spec) { row, dot -> best.offer(row, dot.toDouble()) }
            codes.step
        }
        val length = length(cut)
        return best.rows { quotient(it * step, length).toFloat() }
    }

    /** What has no direction has cosine 0. */
    fun quotient(number: Double, length: Double) = if (length > 0) number / length else 0.0

    private inline fun dotCodes(query: IntArray, rows: ByteBuffer, count: Int, spec: IndexSpec, take: (Int, Int) -> Unit) =
        forBlocks(rows, count, spec) { first, block, inBlock -> for (row in 0 until inBlock) take(first + row, dot(query, block, row)) }

    /** Returns the sum of products of codes, which cannot overflow: see [QueryCodes]. */
    private fun dot(query: IntArray, block: ByteArray, row: Int): Int {
        val from = row * query.size
        // Four sums, so that none has to wait for the one before.
        var (one, two) = 0 to 0
        var (three, four) = 0 to 0
        var at = 0
        while (at + 3 < query.size) {
            one += query[at] * block[from + at]
            two += query[at + 1] * block[from + at + 1]
            three += query[at + 2] * block[from + at + 2]
            four += query[at + 3] * block[from + at + 3]
            at += 4
        }
        while (at < query.size) {
            one += query[at] * block[from + at]
            at++
        }
        return one + two + three + four
    }

    private inline fun dotFloats(query: FloatArray, rows: ByteBuffer, count: Int, spec: IndexSpec, take: (Int, Double) -> Unit) {
        val row = FloatArray(query.size)
        forBlocks(rows, count, spec) { first, block, inBlock ->
            val floats = floats(block)
            for (number in 0 until inBlock) {
                floats.get(row)
                var sum = 0.0
                for (at in query.indices) sum += query[at].toDouble() * row[at]
                take(first + number, sum)
            }
        }
    }

    private fun floats(block: ByteArray) = ByteBuffer.wrap(block).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer()

    /** Copies some rows after the other out of the mapping, which is read faster as a whole than number by number. */
    private inline fun forBlocks(rows: ByteBuffer, count: Int, spec: IndexSpec, act: (first: Int, block: ByteArray, inBlock: Int) -> Unit) {
        val rowBytes = spec.width * spec.storage.bytes
        val most = maxOf(BLOCK_BYTES / rowBytes, 1)
        val block = ByteArray(min(most, count) * rowBytes)
        // A view of its own: a position is not for two threads.
        val source = rows.duplicate()
        var first = 0
        while (first < count) {
            val inBlock = min(most, count - first)
            source.goTo(first * rowBytes)
            source.get(block, 0, inBlock * rowBytes)
            act(first, block, inBlock)
            first += inBlock
        }
    }
}

/** A buffer's own `position` came to `ByteBuffer` with Java 9, which Android 8 has not. */
internal fun Buffer.goTo(place: Int) {
    position(place)
}

/**
 * A query as whole numbers, so small that the sum over a row of int8 codes stays within 32 bits.
 *
 * @property step by which a sum of products is multiplied to have the dot product.
 */
internal class QueryCodes(query: FloatArray, scales: DoubleArray) {
    val codes: IntArray
    val step: Double

    init {
        val most = min(MOST_OF_16_BITS, Int.MAX_VALUE / (MOST_CODE * query.size))
        val products = DoubleArray(query.size) { query[it] * scales[it] }
        val largest = products.maxOf(::abs)
        codes = IntArray(query.size) { if (largest == 0.0) 0 else Math.rint(products[it] / largest * most).toInt() }
        step = largest / most
    }

    private companion object {
        const val MOST_OF_16_BITS = 32_767
        const val MOST_CODE = 127
    }
}

/** The rows with the largest scores, offered in the order of their numbers. */
private class Best(private val top: Int, private val norms: FloatArray?, private val removed: BitSet, private val isByDot: Boolean) {
    private val scores = DoubleArray(top)
    private val numbers = IntArray(top)
    private var count = 0

    fun offer(row: Int, dot: Double) {
        val score = if (isByDot) dot else perNorm(row, dot)
        // Of equal ones the earlier row stays before.
        if (removed[row] || (count == top && (top == 0 || score <= scores[top - 1]))) return
        var at = if (count < top) count++ else top - 1
        while (at > 0 && scores[at - 1] < score) {
            scores[at] = scores[at - 1]
            numbers[at] = numbers[at - 1]
            at--
        }
        scores[at] = score
        numbers[at] = row
    }

    /** Divides as a float of 32 bits, which is what all languages have at hand. */
    private fun perNorm(row: Int, dot: Double) = if (norms == null) dot else Scan.quotient(dot.toFloat().toDouble(), norms[row].toDouble())

    fun rows(cosine: (Double) -> Float) =
        List(count) { Scored(numbers[it], cosine(if (isByDot) perNorm(numbers[it], scores[it]) else scores[it])) }
}
