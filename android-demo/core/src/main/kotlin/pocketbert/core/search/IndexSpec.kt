package pocketbert.core.search

import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import pocketbert.core.WrongJson
import pocketbert.core.contract.VectorSpace
import pocketbert.core.doubles
import pocketbert.core.flagOrNull
import pocketbert.core.number
import pocketbert.core.present
import pocketbert.core.text
import pocketbert.core.textOrNull
import pocketbert.core.wrong

/** An index cannot be used; the message is a sentence for a screen. */
sealed class IndexRefused(message: String) : Exception(message)

/** Files of an index are not what its `state.json` says. */
class DamagedIndex(folder: String, why: String) : IndexRefused("the index $folder is damaged: $why; index the texts again")

/** An index holds vectors of another space than a model gives. */
class OtherSpace(folder: String, index: String, model: String) :
    IndexRefused(
        "the index $folder is of the space $index, and this model's vectors are of $model, so that they cannot be compared; " +
            "index the texts again, or ask `pocketbert compatible` whether the old vectors may stay",
    )

/** Somebody else writes the index. */
class IndexInUse(folder: String) : IndexRefused("the index $folder is being written by somebody else; ask again when that has ended")

/** How an index keeps a number of a vector. */
enum class Storage(val word: String, val bytes: Int) {
    INT8("int8", 1),
    FLOAT32("float32", 4),
}

/**
 * What `index.json` says, which never changes.
 *
 * @property space id of the vector space.
 * @property width numbers that are kept of a vector.
 * @property scales of int8 codes, one for each number; null where numbers are kept as they are.
 * @property isUnitLength whether the model's embeddings are of unit length.
 * @property isByDot whether rows are ordered by the dot product, and not by the cosine.
 * @property documentPrompt name of the prompt of the passages; null for the default one.
 * @property queryPrompt name of the prompt of what is looked for; likewise.
 * @property madeBy the file whose vectors were the first, such as `litert-int8_dynamic`.
 */
class IndexSpec(
    val space: String,
    val width: Int,
    val storage: Storage,
    val scales: List<Double>?,
    val isUnitLength: Boolean,
    val documentPrompt: String?,
    val queryPrompt: String?,
    val madeBy: String,
    val isByDot: Boolean = false,
) {
    internal val similarity get() = if (isByDot) VectorSpace.DOT else VectorSpace.COSINE

    internal fun json() = JsonObject(
        linkedMapOf(
            "schema_version" to JsonPrimitive(SCHEMA),
            "space" to JsonPrimitive(space),
            "width" to JsonPrimitive(width),
            "storage" to JsonPrimitive(storage.word),
            "scales" to (scales?.let { all -> JsonArray(all.map { JsonPrimitive(it) }) } ?: JsonNull),
            "unit_length" to JsonPrimitive(isUnitLength),
            "similarity" to JsonPrimitive(similarity),
            "document_prompt" to JsonPrimitive(documentPrompt),
            "query_prompt" to JsonPrimitive(queryPrompt),
            "made_by" to JsonPrimitive(madeBy),
        ),
    )

    companion object {
        private const val SCHEMA = 1
        private val KEYS = setOf(
            "schema_version",
            "space",
            "width",
            "storage",
            "scales",
            "unit_length",
            "similarity",
            "document_prompt",
            "query_prompt",
            "made_by",
        )

        /** Returns what an index of a model's vectors says. */
        fun of(
            vectors: VectorSpace,
            storage: Storage,
            width: Int = vectors.width,
            documentPrompt: String? = null,
            queryPrompt: String? = null,
            madeBy: String,
        ) = IndexSpec(
            vectors.id,
            width,
            storage,
            vectors.scales.take(width).takeIf { storage == Storage.INT8 },
            vectors.isUnitLength,
            documentPrompt,
            queryPrompt,
            madeBy,
            vectors.isByDot,
        )

        /** Reads the fields, and refuses what no index can be. */
        internal fun read(json: JsonObject): IndexSpec {
            val version = json.number("schema_version")
            if (version != SCHEMA) throw WrongJson("its schema_version is $version, and this version reads $SCHEMA; update the app")
            (json.keys - KEYS).firstOrNull()?.let { throw WrongJson("$it is no field of it; there are $KEYS") }
            val storage = json.text("storage")
            val similarity = json.textOrNull("similarity") ?: VectorSpace.COSINE
            if (similarity !in VectorSpace.SIMILARITIES) {
                throw WrongJson("similarity is $similarity, and there are ${VectorSpace.SIMILARITIES}")
            }
            val spec = IndexSpec(
                json.text("space"),
                json.number("width"),
                Storage.entries.firstOrNull { it.word == storage } ?: throw WrongJson("storage is $storage, and there are int8, float32"),
                json.present("scales")?.let { json.doubles("scales") },
                json.flagOrNull("unit_length") ?: json.wrong("unit_length", "true or false"),
                json.textOrNull("document_prompt"),
                json.textOrNull("query_prompt"),
                json.text("made_by"),
                similarity == VectorSpace.DOT,
            )
            if (!VectorSpace.isId(spec.space)) throw WrongJson("space is ${spec.space}, which is not 16 hexadecimal digits")
            if (spec.isByDot && spec.isUnitLength) throw WrongJson("similarity is dot, and of unit length the cosine is the same")
            if (spec.width < 1) throw WrongJson("width is ${spec.width}")
            when (spec.storage) {
                Storage.INT8 -> VectorSpace.checkScales(spec.scales.orEmpty(), spec.width)?.let { throw WrongJson(it) }
                Storage.FLOAT32 -> if (spec.scales != null) throw WrongJson("scales: float32 has none")
            }
            return spec
        }
    }
}
