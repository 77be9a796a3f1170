package pocketbert.models

/** How sure a model is of what it has found, so that a poor guess does not look like a hit. */
enum class Confidence {
    SURE,
    LIKELY,
    UNSURE,
    ;

    companion object {
        private const val SURE_FROM = 0.8
        private const val LIKELY_FROM = 0.5

        fun of(probability: Double) = when {
            probability >= SURE_FROM -> SURE
            probability >= LIKELY_FROM -> LIKELY
            else -> UNSURE
        }
    }
}
