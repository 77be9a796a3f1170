package pocketbert.core.benchmark

import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import pocketbert.core.contract.Schema

/** The machine that was measured; what it does not tell is null. */
class Machine(
    val platform: String,
    val modelId: String,
    val soc: String?,
    val os: String,
    val osBuild: String?,
    val ramBytes: Long,
    val cores: Int,
    val abi: String,
    val pageSize: Int,
    val coreMaxMhz: List<Int>?,
    val cpuFeatures: List<String>,
)

/** The machine's state before or after a run; what it does not tell is null. */
class Moment(
    val thermal: String? = null,
    val temperatureC: Double? = null,
    val clocksMhz: List<Int>? = null,
    val batteryFraction: Double? = null,
    val batteryChargeUah: Long? = null,
    val charging: Boolean? = null,
    val lowPower: Boolean? = null,
    val loadAverage: Double? = null,
    val batteryMillivolts: Int? = null,
    val governors: List<String>? = null,
    val coresAllowed: List<Int>? = null,
)

/** What an app knows of the phone that it runs on, and of itself. */
interface Phone {
    /** `device`, `simulator`, `host` or `emulated-arm64`. */
    val source: String
    val machine: Machine

    /** Versions of the app and of what it runs, by name. */
    val versions: Map<String, String>

    /** From the start of the process until the app could take a request; null where the system does not tell. */
    val processToReadyMs: Double?

    /** What [residentBytes] and [peakBytes] count: `rss`, `pss` or `footprint`. */
    val memoryKind: String

    /** The words of [Moment.thermal], the coolest first; empty where the system does not tell. */
    val thermalStates: List<String>

    fun moment(): Moment

    /** Whether the app is in front; asked between all runs, so it has to cost next to nothing. Null where nobody knows. */
    fun isInFront(): Boolean?

    fun residentBytes(): Long?

    /** The highest since the process began, or since the system was asked to begin again. */
    fun peakBytes(): Long?

    /** The proportional set, in which a page shared by n processes counts as an nth; null where the system does not tell. */
    fun proportionalBytes(): Long?

    /** Processor time of the process, all threads; null where the system does not tell. */
    fun cpuMs(): Double?

    /** The steps in which [cpuMs] counts: a difference of two is off by up to one of them. */
    val cpuStepMs: Double
}

/** Times of full rows of one length. */
internal class LengthSamples(val length: Int, val ranAt: Int) {
    val wall = ArrayList<Double>()
    val cpu = ArrayList<Double?>()
}

/** Times of texts as they come, pass by pass. */
internal class TextSamples(val passes: Int) {
    val tokens = ArrayList<Int>()
    val ranAt = ArrayList<Int>()
    val wall = ArrayList<Double>()
    val cpu = ArrayList<Double?>()
    val tokenize = ArrayList<Double>()
}

/** Times of a part of a sustained run, and the phone's state at its end. */
internal class SustainedPart(val beginsS: Double, val seconds: Double, val wall: List<Double>, val after: Moment)

/** What was measured, put into the schema of a `BenchmarkRecord` (`docs/schemas/benchmark-record.schema.json`). */
internal object Record {
    private val schema by lazy { Schema.of("benchmark-record") }

    /** Returns a record that fits the schema. */
    fun checked(record: JsonObject): JsonObject = record.also { schema.check(it) }

    fun machine(machine: Machine) = fields(
        "platform" to json(machine.platform),
        "model_id" to json(machine.modelId),
        "soc" to json(machine.soc),
        "os" to json(machine.os),
        "os_build" to json(machine.osBuild),
        "ram_bytes" to json(machine.ramBytes),
        "cores" to json(machine.cores),
        "abi" to json(machine.abi),
        "page_size" to json(machine.pageSize),
        "core_max_mhz" to list(machine.coreMaxMhz),
        "cpu_features" to texts(machine.cpuFeatures),
    )

    /** @param foreground whether the app was in front all the time. */
    fun conditions(before: Moment, after: Moment, foreground: Boolean?) = fields(
        "thermal_before" to json(before.thermal),
        "thermal_after" to json(after.thermal),
        "temperature_before_c" to json(before.temperatureC),
        "temperature_after_c" to json(after.temperatureC),
        "clocks_before_mhz" to list(before.clocksMhz),
        "clocks_after_mhz" to list(after.clocksMhz),
        "governors" to words(after.governors),
        "cores_allowed" to list(after.coresAllowed),
        "low_power" to json(listOfNotNull(before.lowPower, after.lowPower).takeIf { it.isNotEmpty() }?.any { it }),
        "battery_fraction" to json(before.batteryFraction),
        "battery_after_fraction" to json(after.batteryFraction),
        "battery_charge_before_uah" to json(before.batteryChargeUah),
        "battery_charge_after_uah" to json(after.batteryChargeUah),
        "charging" to json(before.charging),
        "foreground" to json(foreground),
        "busy_before_fraction" to JsonNull,
        "load_average_before" to json(before.loadAverage),
        "load_average_after" to json(after.loadAverage),
    )

    fun length(samples: LengthSamples) = fields(
        "seq_len" to json(samples.length),
        "ran_at" to json(samples.ranAt),
        "latencies_ms" to list(samples.wall.map(::rounded)),
        "cpu_ms" to cpu(samples.cpu),
    )

    fun texts(samples: TextSamples) = fields(
        "passes" to json(samples.passes),
        "texts" to json(samples.tokens.size),
        "tokens" to list(samples.tokens),
        "ran_at" to list(samples.ranAt),
        "latencies_ms" to list(samples.wall.map(::rounded)),
        "cpu_ms" to cpu(samples.cpu),
        "tokenise_ms" to list(samples.tokenize.map(::rounded)),
    )

    fun sustained(samples: LengthSamples, parts: List<SustainedPart>) = fields(
        "seq_len" to json(samples.length),
        "ran_at" to json(samples.ranAt),
        "parts" to JsonArray(parts.map(::part)),
    )

    private fun part(part: SustainedPart): JsonObject {
        val found = Statistics.percentiles(part.wall)
        return fields(
            "begins_s" to json(part.beginsS),
            "seconds" to json(part.seconds),
            "runs" to json(part.wall.size),
            "p50_ms" to json(found.p50?.let(::rounded)),
            "p90_ms" to json(found.p90?.let(::rounded)),
            "thermal" to json(part.after.thermal),
            "temperature_c" to json(part.after.temperatureC),
            "clocks_mhz" to list(part.after.clocksMhz),
            "battery_charge_uah" to json(part.after.batteryChargeUah),
            "battery_mv" to json(part.after.batteryMillivolts),
        )
    }

    fun fields(vararg fields: Pair<String, JsonElement>) = JsonObject(linkedMapOf(*fields))

    fun json(text: String?): JsonElement = JsonPrimitive(text)

    fun json(number: Number?): JsonElement = JsonPrimitive(number)

    fun json(flag: Boolean?): JsonElement = JsonPrimitive(flag)

    fun list(numbers: List<Number>?): JsonElement = numbers?.let { all -> JsonArray(all.map { JsonPrimitive(it) }) } ?: JsonNull

    fun words(words: List<String>?): JsonElement = words?.let(::texts) ?: JsonNull

    fun shares(shares: Map<String, Double>?): JsonElement = shares?.let { all -> JsonObject(all.mapValues { json(it.value) }) } ?: JsonNull

    fun texts(texts: List<String>) = JsonArray(texts.map { JsonPrimitive(it) })

    private fun cpu(samples: List<Double?>): JsonElement = if (null in
        samples
    ) {
        JsonNull
    } else {
        list(samples.map { rounded(checkNotNull(it)) })
    }

    /** Keeps tenths of a microsecond; more is noise and makes the records large. */
    private fun rounded(ms: Double) = Math.round(ms * TENTHS_OF_US) / TENTHS_OF_US

    private const val TENTHS_OF_US = 1e4
}
