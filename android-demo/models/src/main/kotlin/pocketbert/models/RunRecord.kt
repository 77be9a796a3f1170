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
import java.time.Instant
import java.time.OffsetDateTime

/**
 * What a screen shows of a `record.json`.
 *
 * @property file the record itself, for sharing.
 * @property started when it began.
 * @property model the folder of the model, as the request beside the record names it; null where there is none.
 * @property ranOn compute units that ran the file, as the runtime confirmed it, the largest share first.
 * @property textMs the mean over the texts of each one's median.
 * @property peakBytes null where no phone was measured: a computer's process holds much beside the app.
 */
class RunRecord private constructor(
    val file: File,
    val run: String,
    val started: Instant,
    val model: String?,
    val runtime: String,
    val version: String,
    val ranOn: List<String>,
    val threads: Int,
    val lengths: List<Length>,
    val textMs: Double,
    val loadMs: Double,
    val firstMs: Double,
    val peakBytes: Long?,
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
            val (backend, timing) = listOf("backend", "timing").map(json::child)
            val texts = timing.child("texts")
            val shares = backend.present("share_by_unit")?.jsonObject.orEmpty().mapValues { it.value.jsonPrimitive.double }
            return RunRecord(
                file,
                json.text("run_id"),
                OffsetDateTime.parse(json.text("started_utc")).toInstant(),
                runCatching { Json.parseToJsonElement(File(folder, Headless.REQUEST).readText()).jsonObject.text("model") }.getOrNull(),
                backend.text("runtime"),
                backend.text("version"),
                shares.confirmed(),
                backend.whole("threads"),
                timing.getValue("lengths").jsonArray.map { it.jsonObject }.map {
                    Length(it.whole("seq_len"), it.whole("ran_at"), Statistics.percentiles(it.numbers("latencies_ms")))
                },
                Statistics.meanOfMedians(texts.numbers("latencies_ms"), texts.whole("passes")),
                timing.getValue("load_ms").jsonPrimitive.double,
                timing.getValue("first_inference_ms").jsonPrimitive.double,
                json.child("memory").present("peak_bytes")?.jsonPrimitive?.long?.takeIf { json.text("source") == "device" },
            )
        }
    }
}

/** Returns the units that ran some of a file, the largest share first. */
internal fun Map<String, Double>.confirmed() = entries.filter { it.value > 0 }.sortedByDescending { it.value }.map { it.key }

private fun JsonObject.present(name: String) = this[name]?.takeUnless { it is JsonNull }

private fun JsonObject.child(name: String) = getValue(name).jsonObject

private fun JsonObject.text(name: String) = getValue(name).jsonPrimitive.content

private fun JsonObject.whole(name: String) = getValue(name).jsonPrimitive.int

private fun JsonObject.numbers(name: String) = getValue(name).jsonArray.map { it.jsonPrimitive.double }
