package pocketbert.core.benchmark

import kotlin.math.floor

/** Percentiles of samples in ms; null where the samples are too few to tell. */
class Percentiles(val p50: Double?, val p90: Double?, val p99: Double?, val mean: Double?, val n: Int)

/** Statistics of latencies; the same arithmetic as `pipeline/benchmark/record.py`. */
object Statistics {
    /** A percentile is given only where at least so many samples lie beyond it. */
    private const val TAIL_SAMPLES = 2
    private const val TINY = 1e-9

    fun percentiles(samples: List<Double>): Percentiles {
        val sorted = samples.sorted()
        return Percentiles(at(sorted, 0.5), at(sorted, 0.9), at(sorted, 0.99), samples.takeIf { it.isNotEmpty() }?.average(), samples.size)
    }

    /** Interpolates between neighbours, as numpy's default does. */
    private fun at(sorted: List<Double>, fraction: Double): Double? {
        if (sorted.size * (1 - fraction) < TAIL_SAMPLES - TINY) return null
        val place = fraction * (sorted.size - 1)
        val below = floor(place).toInt()
        val above = minOf(below + 1, sorted.size - 1)
        return sorted[below] + (sorted[above] - sorted[below]) * (place - below)
    }

    /** Returns the mean over texts of each text's median pass: one slow pass does not count. */
    fun meanOfMedians(samples: List<Double>, passes: Int): Double {
        val texts = samples.size / passes
        return (0 until texts).map { text -> median((0 until passes).map { samples[it * texts + text] }) }.average()
    }

    private fun median(values: List<Double>): Double {
        val sorted = values.sorted()
        val half = sorted.size / 2
        return if (sorted.size % 2 == 1) sorted[half] else (sorted[half - 1] + sorted[half]) / 2
    }
}
