package pocketbert.models

import pocketbert.core.output.Found

/**
 * A piece of a text, so that a screen can show some of them otherwise.
 *
 * @property found what was found in it; null for what lies between.
 */
data class Segment(val text: String, val found: Found?) {
    companion object {
        /** Returns a text's pieces in order. Parts that do not lie in the text, or over one before, are left out. */
        fun split(text: String, found: List<Found>): List<Segment> {
            val segments = ArrayList<Segment>()
            var at = 0
            for (part in found.sortedBy { it.from }) {
                if (part.from < at || part.from >= part.to || part.to > text.length) continue
                if (isWithinCharacter(text, part.from) || isWithinCharacter(text, part.to)) continue
                if (part.from > at) segments.add(Segment(text.substring(at, part.from), null))
                segments.add(Segment(text.substring(part.from, part.to), part))
                at = part.to
            }
            if (at < text.length) segments.add(Segment(text.substring(at), null))
            return segments
        }

        /** Positions are of UTF-16, and one may lie within a character that has no half. */
        private fun isWithinCharacter(text: String, at: Int) =
            at in 1 until text.length && text[at - 1].isHighSurrogate() && text[at].isLowSurrogate()
    }
}
