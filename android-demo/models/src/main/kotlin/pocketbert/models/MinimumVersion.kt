package pocketbert.models

/** The runtime that is linked in, against the oldest that a file may be run with: an older one may run it and be wrong. */
enum class MinimumVersion {
    ENOUGH,
    TOO_OLD,

    /** One of the two is no row of numbers: the system's own runtime refuses a file that is too new for it, by itself. */
    NOT_COMPARABLE,
    ;

    companion object {
        fun of(minimum: String, linked: String): MinimumVersion {
            val wanted = numbers(minimum) ?: return NOT_COMPARABLE
            val found = numbers(linked) ?: return NOT_COMPARABLE
            val places = 0 until maxOf(wanted.size, found.size)
            val differs = places.firstOrNull { wanted.getOrElse(it) { 0 } != found.getOrElse(it) { 0 } } ?: return ENOUGH
            return if (found.getOrElse(differs) { 0 } < wanted.getOrElse(differs) { 0 }) TOO_OLD else ENOUGH
        }

        /** Returns `1.4.1` as three numbers, with what follows a dash or a plus left out; null for other texts. */
        private fun numbers(version: String): List<Int>? {
            val parts = version.takeWhile { it != '-' && it != '+' }.split('.').map(String::toIntOrNull)
            return parts.filterNotNull().takeIf { it.size == parts.size }
        }
    }
}
