package pocketbert.core.contract

import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.floatOrNull
import pocketbert.core.Cancellation
import pocketbert.core.WrongJson
import pocketbert.core.array
import pocketbert.core.child
import pocketbert.core.doubleOrNull
import pocketbert.core.flag
import pocketbert.core.long
import pocketbert.core.number
import pocketbert.core.numbers
import pocketbert.core.objects
import pocketbert.core.present
import pocketbert.core.readJson
import pocketbert.core.text
import pocketbert.core.textOrNull
import pocketbert.core.texts
import pocketbert.core.tokenizer.Encoding
import pocketbert.core.tokenizer.Tokenizer
import pocketbert.core.tokenizer.UnsupportedTokenizer

/**
 * One model of the index.
 *
 * @property folder where it lies, relative to the index: `<recipe>/<target>`.
 * @property digest the content digest of the model that was verified.
 */
class Entry(
    val folder: String,
    val recipe: String,
    val backend: String,
    val scheme: String,
    val task: String,
    val digest: String,
    val bytes: Long,
)

/**
 * A text with the ids and outputs that a correct implementation gives.
 *
 * @property window number of the window over the passage [second]; null for the text as a whole.
 * @property output the reference's numbers, token after token for tasks that have some for each token.
 * @property prompt name of the prompt before [first]; null for none, not even the default one.
 */
class GoldenRow(
    val first: String,
    val second: String?,
    val window: Int?,
    val ids: List<Int>,
    val types: List<Int>,
    val output: FloatArray,
    val prompt: String? = null,
)

/** What `golden.json` says: rows, and how far a file may be off in its worst one. */
class Golden(val task: String, val maxLength: Int, val minCosine: Double?, val minSqnrDb: Double?, val rows: List<GoldenRow>)

/** Large tokenizers have it beside `tokenizer.json`: the same one, opened in milliseconds. */
private const val BINARY = "tokenizer.bin"

/**
 * One shipped model.
 *
 * @property verdict `passed`, or `not_run` where the file could not be run when it was verified.
 * @property computeUnits those on which its file may run, as the runtime names them; the first is the default.
 * @property untriedUnits those on which no such file has passed yet, each with a sentence that says what is known; see
 * [pocketbert.core.model.SelfTested].
 * @property hasRandomWeights whether nobody trained it: its latency says something, and its answers nothing.
 * @property signedBy the fingerprint of the trusted key that signed it; null for one that is used unsigned, under a banner.
 */
class Model internal constructor(
    private val files: Files,
    val entry: Entry,
    val signature: Signature,
    val verdict: String,
    val reasons: List<String>,
    val licence: String?,
    val computeUnits: List<String>,
    val untriedUnits: Map<String, String>,
    val hasRandomWeights: Boolean,
    val signedBy: String?,
    private val digests: Map<String, String>,
) {
    /** Where the model file or package lies, relative to the index. */
    val file get() = "${entry.folder}/${signature.file}"

    /** The model file in the file system; null where it lies within an app. */
    val onDisk get() = files.onDisk(file)

    /** The sha256 of the model file, as it was shipped; null for a package of several files. */
    val fileDigest get() = digests[signature.file]

    /** Reads the tokenizer. @throws UnreadableFile it is missing, broken or not supported. */
    fun tokenizer(): Tokenizer {
        val name = if (BINARY in digests) BINARY else "tokenizer.json"
        val path = "${entry.folder}/$name"
        val bytes = files.read(path)
        return try {
            if (name == BINARY) Tokenizer.read(bytes) else Tokenizer.read(String(bytes, Charsets.UTF_8))
        } catch (error: UnsupportedTokenizer) {
            throw UnreadableFile(path, error.message.orEmpty().removePrefix("$name: "))
        }
    }

    /** Rows of the table of words: runtimes read beside it, or end the process, where an id is outside. */
    private val vocabulary: Int by lazy {
        val path = "${entry.folder}/config.json"
        try {
            readJson(String(files.read(path), Charsets.UTF_8)).number("vocab_size")
        } catch (error: WrongJson) {
            throw UnreadableFile(path, error.message.orEmpty())
        }
    }

    /** Pads a row as [Signature.pad] does. @throws UnreadableFile the tokenizer gave an id that the file has no row for. */
    fun pad(row: Encoding): PaddedRow {
        val odd = row.ids.firstOrNull { it !in 0 until vocabulary } ?: return signature.pad(row)
        val rows = "the table of words has $vocabulary rows, and tokenizer.json gives the id $odd"
        throw UnreadableFile("${entry.folder}/config.json", "$rows; ship the model again")
    }

    /** Reads the golden rows. @throws UnreadableFile they are missing or broken. */
    fun golden(): Golden = files.parse("${entry.folder}/golden.json", "golden") { json ->
        Golden(
            json.text("task"),
            json.number("max_length"),
            json.doubleOrNull("min_cosine"),
            json.doubleOrNull("min_sqnr_db"),
            json.objects("rows").map(::row),
        )
    }

    private fun row(json: JsonObject) = GoldenRow(
        json.text("first"),
        json.textOrNull("second"),
        json.present("window")?.let { json.number("window") },
        json.numbers("input_ids"),
        json.numbers("token_type_ids"),
        json.array("output").map { (it as? JsonPrimitive)?.floatOrNull ?: throw WrongJson("output holds $it") }.toFloatArray(),
        json.textOrNull("prompt"),
    )
}

/** A model that can be used, or why it cannot. */
sealed class Listed(val entry: Entry) {
    class Usable(val model: Model) : Listed(model.entry)

    class Broken(entry: Entry, val error: Unusable) : Listed(entry)
}

/** The models that were shipped into an app. */
object Models {
    private val FOLDER = Regex("[A-Za-z0-9][A-Za-z0-9._-]*/[a-z]+-[a-z0-9_]+")

    /**
     * Reads `models.json` and what lies below it, and checks who signed it. A model that cannot be used is listed with the
     * reason, and the others stay usable. Reads every byte of every model: call it off the main thread.
     *
     * The index itself is not signed: all that it says is compared with files that are.
     *
     * @throws UnreadableFile the index itself cannot be read.
     */
    fun open(files: Files, policy: Policy, cancellation: Cancellation = Cancellation()): List<Listed> {
        val entries = files.parse("models.json", "models") { json -> json.objects("models").map(::entry) }
        return entries.map { entry ->
            cancellation.check()
            try {
                Listed.Usable(model(files, entry, policy))
            } catch (error: Unusable) {
                Listed.Broken(entry, error)
            }
        }
    }

    private fun entry(json: JsonObject): Entry {
        val folder = json.text("folder")
        if (!FOLDER.matches(folder)) throw WrongJson("folder is $folder, which is not <recipe>/<target>")
        return Entry(
            folder,
            json.text("recipe"),
            json.text("backend"),
            json.text("scheme"),
            json.text("task"),
            json.text("digest"),
            json.long("bytes"),
        )
    }

    private fun model(files: Files, entry: Entry, policy: Policy): Model {
        val bundle = SignedBundle(files, entry.folder)
        val signedBy = try {
            bundle.verify(policy.keys, entry.folder)
        } catch (error: SignatureRefused) {
            if (error.reason != Reason.UNSIGNED || !policy.unsigned) throw error
            null
        }
        val shipped = "${entry.folder}/shipped.json"
        val signature = files.parse("${entry.folder}/signature.json", "signature", Signature::read)
        return files.parse(shipped, "shipped") { json ->
            if ("${json.text("recipe")}/${json.text("target")}" != entry.folder || json.text("digest") != entry.digest) {
                throw WrongJson("it is of another model than models.json says; ship again")
            }
            for ((name, found) in mapOf("backend" to signature.backend, "scheme" to signature.scheme, "task" to signature.task)) {
                val said = listOf(json.text(name), entryField(entry, name))
                if (said.any {
                        it != found
                    }
                ) {
                    throw WrongJson("$name is ${said.first { it != found }}, and signature.json says $found; ship again")
                }
            }
            val listed = json.objects("files").associateBy { it.text("path") }
            val digests = listed.mapValues { it.value.text("sha256") }
            // What is signed was compared with the signature already.
            if (signedBy == null) bundle.compareWith(digests, listed.mapValues { it.value.long("bytes") }, itself = "shipped.json")
            val units = json.texts("compute_units")
            if (units.isEmpty()) throw WrongJson("compute_units is empty; it has to name those on which the file runs")
            Model(
                files,
                entry,
                signature,
                json.text("verdict"),
                json.texts("reasons"),
                json.textOrNull("licence"),
                units,
                json.child("untried_units").orEmpty().let { untried -> untried.keys.associateWith { JsonObject(untried).text(it) } },
                json.flag("random_weights"),
                signedBy,
                digests,
            )
        }
    }

    private fun entryField(entry: Entry, name: String) = when (name) {
        "backend" -> entry.backend
        "scheme" -> entry.scheme
        else -> entry.task
    }
}

/** Reads a file that a schema describes. */
internal fun <T> Files.parse(path: String, schema: String, read: (JsonObject) -> T): T = try {
    read(Schema.of(schema).read(read(path)))
} catch (error: WrongJson) {
    throw UnreadableFile(path, error.message.orEmpty())
}
