package pocketbert.models

import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.double
import kotlinx.serialization.json.int
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.long
import pocketbert.core.benchmark.Percentiles
import pocketbert.core.benchmark.Statistics
import pocketbert.core.contract.Headless
import java.io.File

/**
 * What a screen shows of a `record.json`.
 *
 * @property file the record itself, for sharing.
 * @property started when it began, as the record writes it: texts of that form sort as times do.
 * @property textMs the mean over the texts of each one's median.
 * @property tokenizeMs the same of their tokenisation.
 * @property operations those that the delegate computes, and all; null where the runtime does not tell.
 */
class RunRecord private constructor(
    val file: File,
    val run: String,
    val started: String,
    val model: String,
    val runtime: String,
    val lengths: List<Length>,
    val textMs: Double,
    val tokenizeMs: Double,
    val loadMs: Double,
    val firstMs: Double,
    val peakBytes: Long?,
    val operations: Pair<Int, Int>?,
) {
    /**
     * Full rows of one length.
     *
     * @property ranAt the length of the function that ran them.
     */
    class Length(val length: Int, val ranAt: Int, val latencies: Percentiles)

    companion object {
        /** Reads the record of a run's folder; fails where there is none that can be read. */
        fun read(folder: File): RunRecord {
            val file = File(folder, Headless.RECORD)
            val json = Json.parseToJsonElement(file.readText()).jsonObject
            val (backend, timing, model) = listOf("backend", "timing", "model").map(json::child)
            val texts = timing.child("texts")
            val passes = texts.whole("passes")
            val units = listOf("delegate", "compute_units").mapNotNull { backend.present(it)?.jsonPrimitive?.content }
            val runtime = listOf("${backend.text("runtime")} ${backend.text("version")}") + units + "${backend.whole("threads")} threads"
            val (delegated, all) = listOf("ops_delegated", "ops_total").map { backend.present(it)?.jsonPrimitive?.int }
            return RunRecord(
                file,
                json.text("run_id"),
                json.text("started_utc"),
                "${model.text("id")}, ${Formats.megabytes(model.getValue("bytes").jsonPrimitive.long)}",
                runtime.joinToString(" · "),
                timing.getValue("lengths").jsonArray.map { it.jsonObject }.map {
                    Length(it.whole("seq_len"), it.whole("ran_at"), Statistics.percentiles(it.numbers("latencies_ms")))
                },
                Statistics.meanOfMedians(texts.numbers("latencies_ms"), passes),
                Statistics.meanOfMedians(texts.numbers("tokenise_ms"), passes),
                timing.getValue("load_ms").jsonPrimitive.double,
                timing.getValue("first_inference_ms").jsonPrimitive.double,
                json.child("memory").present("peak_bytes")?.jsonPrimitive?.long,
                if (delegated == null || all == null) null else delegated to all,
            )
        }
    }
}

private fun JsonObject.present(name: String) = this[name]?.takeUnless { it is JsonNull }

private fun JsonObject.child(name: String) = getValue(name).jsonObject

private fun JsonObject.text(name: String) = getValue(name).jsonPrimitive.content

private fun JsonObject.whole(name: String) = getValue(name).jsonPrimitive.int

private fun JsonObject.numbers(name: String) = getValue(name).jsonArray.map { it.jsonPrimitive.double }
