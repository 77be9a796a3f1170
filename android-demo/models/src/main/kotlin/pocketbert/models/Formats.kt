package pocketbert.models

import java.util.Locale

/** How numbers are written on every screen. */
object Formats {
    private const val SMALL = 10.0
    private const val LARGE = 100.0
    private const val MS_IN_S = 1_000.0
    private const val SECONDS_FROM_MS = 10_000.0
    private const val BYTES_IN_MB = 1e6
    private const val PERCENT = 100.0

    /** Returns a latency as it is read beside an answer: with one digit behind the point, since what follows is noise. */
    fun ms(ms: Double): String = latency(ms, if (ms < 1) 2 else 1)

    /** Returns a latency of a record, with three digits or so. */
    fun recordMs(ms: Double): String = latency(ms, if (ms < SMALL) 2 else 1)

    private fun latency(ms: Double, digits: Int) = when {
        ms >= SECONDS_FROM_MS -> "${fixed(ms / MS_IN_S, 1)} s"
        ms >= LARGE -> "${fixed(ms, 0)} ms"
        else -> "${fixed(ms, digits)} ms"
    }

    /** Returns a size in MB of a million bytes, as the pipeline reports it. */
    fun megabytes(bytes: Long): String = (bytes / BYTES_IN_MB).let { "${fixed(it, if (it < SMALL) 2 else 1)} MB" }

    /** Returns how many times as long something takes. */
    fun times(ratio: Double): String = fixed(ratio, if (ratio < SMALL) 1 else 0)

    /** Returns a probability in percent. */
    fun percent(share: Double): String = "${fixed(PERCENT * share, 1)}%"

    /** Returns a share in whole percent. */
    fun wholePercent(share: Double): String = "${fixed(PERCENT * share, 0)}%"

    /** Returns a cosine with the digits that a quantised file moves. */
    fun cosine(cosine: Double): String = fixed(cosine, 5)

    /** Returns the value of a regression. */
    fun value(value: Float): String = fixed(value.toDouble(), 3)

    /** Returns a ratio of signal to noise. */
    fun decibels(decibels: Double): String = "${fixed(decibels, 1)} dB"

    /** Returns the middle one of some latencies, null where there is none: for a screen, not for a record. */
    fun median(samples: List<Double>): Double? {
        if (samples.isEmpty()) return null
        val sorted = samples.sorted()
        val half = sorted.size / 2
        return if (sorted.size % 2 == 1) sorted[half] else (sorted[half - 1] + sorted[half]) / 2
    }

    /** Returns a number with so many digits behind the point; the same on every phone, as the app's words are. */
    private fun fixed(number: Double, digits: Int) = String.format(Locale.ROOT, "%.${digits}f", number)
}

/** The error as a sentence for a screen. */
val Throwable.sentence: String
    get() {
        val text = message?.takeIf { it.isNotBlank() } ?: "${javaClass.simpleName} happened, and does not say why"
        return text.replaceFirstChar { it.uppercase(Locale.ROOT) } + if (text.last() in ".!?") "" else "."
    }
