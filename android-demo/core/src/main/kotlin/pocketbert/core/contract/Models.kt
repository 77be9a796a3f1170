package pocketbert.core.contract

import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.floatOrNull
import pocketbert.core.WrongJson
import pocketbert.core.array
import pocketbert.core.doubleOrNull
import pocketbert.core.long
import pocketbert.core.number
import pocketbert.core.numbers
import pocketbert.core.objects
import pocketbert.core.present
import pocketbert.core.readJson
import pocketbert.core.text
import pocketbert.core.textOrNull
import pocketbert.core.texts
import pocketbert.core.tokenizer.Tokenizer
import pocketbert.core.tokenizer.UnsupportedTokenizer
import java.io.IOException

/** A shipped file is missing, broken, or of another version; the message is for a screen. */
class UnreadableFile(val file: String, why: String) : Exception("$file: $why")

/** Where shipped files lie: an app's assets, or a folder. */
fun interface Files {
    /**
     * Returns the content of a file.
     *
     * @throws IOException there is no such file.
     */
    fun read(path: String): ByteArray
}

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
 */
class GoldenRow(val first: String, val second: String?, val window: Int?, val ids: List<Int>, val types: List<Int>, val output: FloatArray)

/** What `golden.json` says: rows, and how far a file may be off in its worst one. */
class Golden(val task: String, val maxLength: Int, val minCosine: Double?, val minSqnrDb: Double?, val rows: List<GoldenRow>)

/**
 * One shipped model.
 *
 * @property verdict `passed`, or `not_run` where the file could not be run when it was verified.
 */
class Model internal constructor(
    private val files: Files,
    val entry: Entry,
    val signature: Signature,
    val verdict: String,
    val reasons: List<String>,
    val licence: String?,
) {
    /** Reads the tokenizer. @throws UnreadableFile it is missing, broken or not supported. */
    fun tokenizer(): Tokenizer {
        val path = "${entry.folder}/tokenizer.json"
        return try {
            Tokenizer.read(String(content(files, path), Charsets.UTF_8))
        } catch (error: UnsupportedTokenizer) {
            throw UnreadableFile(path, error.message.orEmpty().removePrefix("tokenizer.json: "))
        }
    }

    /** Reads the golden rows. @throws UnreadableFile they are missing or broken. */
    fun golden(): Golden = parse(files, "${entry.folder}/golden.json") { json ->
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
    )
}

/** A model that can be used, or why it cannot. */
sealed class Listed {
    class Usable(val model: Model) : Listed()

    class Broken(val entry: Entry, val error: UnreadableFile) : Listed()
}

/** The models that were shipped into an app. */
object Models {
    private const val VERSION = 1
    private val FOLDER = Regex("[A-Za-z0-9][A-Za-z0-9._-]*/[a-z]+-[a-z0-9_]+")

    /**
     * Reads `models.json` and what lies below it. A model that cannot be used is listed with the reason.
     *
     * @throws UnreadableFile the index itself cannot be read.
     */
    fun open(files: Files): List<Listed> {
        val entries = parse(files, "models.json") { json ->
            checkVersion(json, VERSION)
            json.objects("models").map(::entry)
        }
        return entries.map { entry ->
            try {
                Listed.Usable(model(files, entry))
            } catch (error: UnreadableFile) {
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

    private fun model(files: Files, entry: Entry): Model {
        val signature = parse(files, "${entry.folder}/signature.json", Signature::read)
        for ((name, said, found) in listOf(
            Triple("backend", entry.backend, signature.backend),
            Triple("scheme", entry.scheme, signature.scheme),
            Triple("task", entry.task, signature.task),
        )) {
            if (said !=
                found
            ) {
                throw UnreadableFile("${entry.folder}/signature.json", "$name is $found, and models.json says $said; ship again")
            }
        }
        return parse(files, "${entry.folder}/shipped.json") { json ->
            if (json.text("digest") != entry.digest) throw WrongJson("it is of another model than models.json says; ship again")
            Model(files, entry, signature, json.text("verdict"), json.texts("reasons"), json.textOrNull("licence"))
        }
    }
}

private fun content(files: Files, path: String): ByteArray = try {
    files.read(path)
} catch (_: IOException) {
    throw UnreadableFile(path, "it is missing; ship the model again")
}

private fun <T> parse(files: Files, path: String, read: (JsonObject) -> T): T = try {
    read(readJson(String(content(files, path), Charsets.UTF_8)))
} catch (error: WrongJson) {
    throw UnreadableFile(path, error.message.orEmpty())
}
