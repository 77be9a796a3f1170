package pocketbert.core.contract

import kotlinx.serialization.json.JsonObject
import pocketbert.core.WrongJson
import pocketbert.core.doubles
import pocketbert.core.flagOrNull
import pocketbert.core.number
import pocketbert.core.numbers
import pocketbert.core.text
import pocketbert.core.wrong

/**
 * What `signature.json` says of an embedding model's vectors: whether those of two files may lie in one index, and how they are
 * stored.
 *
 * @property id of the space: two files share an index where it is equal.
 * @property width numbers of a whole embedding.
 * @property isUnitLength whether embeddings are scaled to unit length.
 * @property similarity `cosine` or `dot`; of vectors of unit length both are the same number.
 * @property widths of which the first numbers are worth keeping, the whole one first.
 * @property scales of int8 codes, one for each number, calibrated on text.
 */
class VectorSpace internal constructor(
    val id: String,
    val width: Int,
    val isUnitLength: Boolean,
    val similarity: String,
    val widths: List<Int>,
    val scales: List<Double>,
) {
    /** Whether an index orders its rows by the dot product; otherwise by the cosine, also of vectors of unit length. */
    val isByDot get() = similarity == DOT && !isUnitLength

    internal companion object {
        const val COSINE = "cosine"
        const val DOT = "dot"
        val SIMILARITIES = setOf(COSINE, DOT)
        private val ID = Regex("[0-9a-f]{16}")

        /** Whether a text can be the id of a space. */
        fun isId(text: String) = ID.matches(text)

        /** Reads the fields of `vectors`, and refuses what no space can be. */
        fun read(json: JsonObject): VectorSpace {
            val space = VectorSpace(
                json.text("space"),
                json.number("width"),
                json.flagOrNull("unit_length") ?: json.wrong("unit_length", "true or false"),
                json.text("similarity"),
                json.numbers("widths"),
                json.doubles("scales"),
            )
            space.check()
            return space
        }

        private fun VectorSpace.check() {
            if (!isId(id)) throw WrongJson("vectors: space is $id, which is not 16 hexadecimal digits")
            if (width < 1) throw WrongJson("vectors: width is $width")
            if (similarity !in SIMILARITIES) throw WrongJson("vectors: similarity is $similarity, and there are $SIMILARITIES")
            val fall = widths.all { it > 0 } && widths.zipWithNext().all { (one, next) -> one > next }
            if (widths.firstOrNull() != width || !fall) {
                throw WrongJson("vectors: widths are $widths, which have to fall from $width")
            }
            checkScales(scales, width)?.let { throw WrongJson("vectors: $it") }
        }

        /** Says what is wrong with scales of int8 codes, or null. */
        fun checkScales(scales: List<Double>, width: Int): String? = when {
            scales.size != width -> "there are ${scales.size} scales for $width numbers"
            scales.any { !it.isFinite() || it <= 0 } -> "scales: not all are above 0"
            else -> null
        }
    }
}
