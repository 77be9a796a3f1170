package pocketbert.core.benchmark

import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import pocketbert.core.Cancellation
import pocketbert.core.contract.BenchmarkRequest
import pocketbert.core.contract.Model
import pocketbert.core.contract.PaddedRow
import pocketbert.core.model.Runner
import pocketbert.core.model.RunnerOptions
import pocketbert.core.model.Runtime
import pocketbert.core.tokenizer.Tokenizer
import java.security.MessageDigest
import java.text.SimpleDateFormat
import java.util.Date
import java.util.Locale
import java.util.TimeZone

/** The time that a benchmark may take has passed. */
class OutOfTime(message: String) : Exception(message)

/** The phone did not cool down in time. */
class TooHot(message: String) : Exception(message)

/**
 * Measures one model on one runtime, as the pipeline measures on the host: full rows of each length in rounds, then real
 * texts as they come, tokenisation apart.
 *
 * @property tell is called with what is being done, and the share that is done, between two runs.
 */
class Benchmark(
    private val phone: Phone,
    private val runtime: Runtime,
    private val cancellation: Cancellation,
    private val tell: (cooling: Boolean, done: Double, doing: String) -> Unit,
) {
    /** Whether the app was in front whenever it was looked at; null before, or where nobody knows. */
    private var foreground: Boolean? = null

    private class Opened(val tokenizer: Tokenizer, val runner: Runner, val tokenizerMs: Double, val loadMs: Double, val firstMs: Double)

    /**
     * Runs a benchmark and returns its record.
     *
     * @param units the compute units that the request means, see [pocketbert.core.model.SelfTested.choose].
     * @throws OutOfTime the request's limit passed.
     * @throws TooHot the phone did not cool down within the limit.
     * @throws pocketbert.core.Cancelled somebody asked for it.
     * @throws pocketbert.core.model.RunnerRefused the runtime cannot run the file as it was asked.
     * @throws pocketbert.core.model.RunnerFailed the runtime gave up.
     */
    fun run(request: BenchmarkRequest, model: Model, units: String): JsonObject {
        val deadline = System.nanoTime() + (request.timeLimitS.coerceAtMost(LONGEST_S) * NANOS_IN_S).toLong()
        coolDown(request, deadline)
        // What it was left for until now is no part of the run.
        phone.isInFront()
        val started = utc()
        val before = phone.moment()
        val baseline = phone.residentBytes()
        val proportional = phone.proportionalBytes()
        val opened = open(request, model, units)
        val lengths: List<LengthSamples>
        val texts: TextSamples
        val sustained: JsonElement
        val open: Long?
        val backend: JsonObject
        try {
            lengths = timeLengths(request, model, opened, deadline)
            texts = timeTexts(request, model, opened, deadline)
            sustained = timeSustained(request, model, opened, deadline)
            open = phone.proportionalBytes()
            backend = backend(request, opened.runner)
        } finally {
            opened.runner.close()
        }
        val memory = Record.fields(
            "baseline_bytes" to Record.json(baseline),
            "peak_bytes" to Record.json(phone.peakBytes()),
            "retained_bytes" to Record.json(phone.residentBytes()),
            "kind" to Record.json(phone.memoryKind),
            "pss_baseline_bytes" to Record.json(proportional),
            "pss_open_bytes" to Record.json(open),
            "pss_retained_bytes" to Record.json(phone.proportionalBytes()),
        )
        return Record.checked(
            Record.fields(
                "schema_version" to Record.json(1),
                "run_id" to Record.json(request.runId),
                "started_utc" to Record.json(started),
                "source" to Record.json(phone.source),
                "device" to Record.machine(phone.machine),
                "app" to JsonObject(phone.versions.mapValues { Record.json(it.value) }),
                "model" to info(model),
                "backend" to backend,
                "timing" to timing(request, opened, lengths, texts, sustained),
                "memory" to memory,
                "conditions" to Record.conditions(before, phone.moment(), foreground),
                "errors" to JsonArray(emptyList()),
                "turns" to Record.json(1),
            ),
        )
    }

    private fun coolDown(request: BenchmarkRequest, deadline: Long) {
        if (request.startBelowC == null && request.startThermal == null) return
        while (true) {
            val (wanted, found) = tooHot(request, phone.moment()) ?: return
            tell(true, 0.0, "waiting for $wanted, at $found")
            if (System.nanoTime() > deadline) {
                throw TooHot("it did not cool down to $wanted in ${request.timeLimitS} s; it is at $found")
            }
            cancellation.check()
            Thread.sleep(COOLING_PAUSE_MS)
        }
    }

    /** Returns what is waited for and what is found; null where the phone is cool enough, or does not tell. */
    private fun tooHot(request: BenchmarkRequest, now: Moment): Pair<String, String>? {
        val (below, degrees) = request.startBelowC to now.temperatureC
        if (below != null && degrees != null && degrees >= below) return "$below °C" to "$degrees °C"
        val (wanted, found) = request.startThermal to now.thermal
        if (wanted == null || found == null || phone.thermalStates.run { indexOf(found) <= indexOf(wanted) }) return null
        return "thermal state $wanted" to found
    }

    private fun open(request: BenchmarkRequest, model: Model, units: String): Opened {
        tell(false, 0.0, "opening ${model.entry.folder}")
        val (tokenizer, tokenizerMs) = timed { model.tokenizer() }
        val (runner, loadMs) = timed { runtime.open(model, RunnerOptions(request.threads, units)) }
        val (_, firstMs) = try {
            val first = model.pad(tokenizer.encode(request.texts.first(), maxLength = model.signature.maxLength))
            timed { runner.run(first) }
        } catch (error: Throwable) {
            runner.close()
            throw error
        }
        return Opened(tokenizer, runner, tokenizerMs, loadMs, firstMs)
    }

    private fun timeLengths(request: BenchmarkRequest, model: Model, opened: Opened, deadline: Long): List<LengthSamples> {
        val rows = request.lengths.map { fullRow(model, opened, it) }
        val samples = request.lengths.zip(rows) { length, row -> LengthSamples(length, row.length) }
        for (round in 0 until request.rounds) {
            for ((one, row) in samples.zip(rows)) {
                check(deadline)
                val done = LENGTHS_SHARE * round / request.rounds
                val doing = "length ${one.length}, round ${round + 1} of ${request.rounds}"
                tell(false, done, doing)
                opened.runner.run(row)
                var spent = 0.0
                var runs = 0
                while (runs < request.runsPerRound || spent < request.roundMs) {
                    check(deadline)
                    tell(false, done, doing)
                    spent += time(opened.runner, row, one.wall, one.cpu)
                    runs++
                }
            }
        }
        return samples
    }

    /** Passes over all texts; the first is for warming up and is not kept. */
    private fun timeTexts(request: BenchmarkRequest, model: Model, opened: Opened, deadline: Long): TextSamples {
        val kept = TextSamples(request.textPasses)
        for (pass in 0..request.textPasses) {
            val samples = if (pass == 0) TextSamples(0) else kept
            for ((number, text) in request.texts.withIndex()) {
                check(deadline)
                val share = (pass + number.toDouble() / request.texts.size) / (request.textPasses + 1)
                tell(false, LENGTHS_SHARE + (1 - LENGTHS_SHARE) * share, "texts, pass $pass of ${request.textPasses}")
                val (row, tokenizeMs) = timed {
                    model.pad(opened.tokenizer.encode(text, maxLength = model.signature.maxLength))
                }
                samples.tokenize.add(tokenizeMs)
                time(opened.runner, row, samples.wall, samples.cpu)
                if (pass == 1) {
                    kept.tokens.add(row.inputs.getValue("attention_mask").sum())
                    kept.ranAt.add(row.length)
                }
            }
        }
        return kept
    }

    /** One inference after another at the longest length, in parts; the file is warm already. */
    private fun timeSustained(request: BenchmarkRequest, model: Model, opened: Opened, deadline: Long): JsonElement {
        if (request.sustainedS <= 0) return JsonNull
        val length = request.lengths.max()
        val row = fullRow(model, opened, length)
        val parts = ArrayList<SustainedPart>()
        val began = System.nanoTime()
        var begins = 0.0
        while (begins < request.sustainedS) {
            val until = minOf(begins + request.sustainedPartS, request.sustainedS)
            val wall = ArrayList<Double>()
            do {
                check(deadline)
                tell(false, begins / request.sustainedS, "sustained, ${begins.toInt()} of ${request.sustainedS.toInt()} s")
                val (_, ms) = timed { opened.runner.run(row) }
                wall.add(ms)
            } while (seconds(began) < until)
            val ends = seconds(began)
            parts.add(SustainedPart(begins, ends - begins, wall, phone.moment()))
            begins = ends
        }
        return Record.sustained(LengthSamples(length, row.length), parts)
    }

    private fun fullRow(model: Model, opened: Opened, length: Int): PaddedRow {
        val words = List(length) { WORD }.joinToString(" ")
        return model.pad(opened.tokenizer.encode(words, maxLength = length))
    }

    private fun check(deadline: Long) {
        cancellation.check()
        phone.isInFront()?.let { foreground = foreground != false && it }
        if (System.nanoTime() > deadline) throw OutOfTime("the time limit passed before all was measured")
    }

    private fun time(runner: Runner, row: PaddedRow, wall: MutableList<Double>, cpu: MutableList<Double?>): Double {
        val cpuBefore = phone.cpuMs()
        val (_, ms) = timed { runner.run(row) }
        val cpuAfter = phone.cpuMs()
        wall.add(ms)
        val isCoarse = ms < LEAST_CPU_STEPS * phone.cpuStepMs
        cpu.add(if (cpuBefore == null || cpuAfter == null || isCoarse) null else cpuAfter - cpuBefore)
        return ms
    }

    private fun info(model: Model) = Record.fields(
        "id" to Record.json("${model.signature.backend}-${model.signature.scheme}"),
        "file" to Record.json(model.signature.file),
        "sha256" to Record.json(model.entry.digest),
        "file_sha256" to Record.json(model.fileDigest),
        "bytes" to Record.json(model.entry.bytes),
        "scheme" to Record.json(model.signature.scheme),
        "lengths" to Record.list(model.signature.functions.map { it.maxLength }.takeIf { model.signature.functions.all { it.fixed } }),
    )

    private fun backend(request: BenchmarkRequest, runner: Runner) = Record.fields(
        "runtime" to Record.json(runtime.name),
        "version" to Record.json(runtime.version),
        "delegate" to Record.json(runner.delegate),
        "compute_units" to Record.json(request.computeUnits),
        "threads" to Record.json(request.threads),
        // No runtime of Android tells an app of its operations.
        "ops_delegated" to JsonNull,
        "ops_total" to JsonNull,
        "ops_by_unit" to JsonNull,
        "share_by_unit" to Record.shares(runner.shareByUnit),
        "pool_threads" to Record.json(runner.poolThreads),
    )

    private fun timing(
        request: BenchmarkRequest,
        opened: Opened,
        lengths: List<LengthSamples>,
        texts: TextSamples,
        sustained: JsonElement,
    ): JsonObject {
        val isCold = !measuredBefore
        measuredBefore = true
        val cold = Record.fields(
            "process_to_ready_ms" to Record.json(phone.processToReadyMs),
            "tokenizer_ms" to Record.json(opened.tokenizerMs),
            "load_ms" to Record.json(opened.loadMs),
            "first_inference_ms" to Record.json(opened.firstMs),
        )
        return Record.fields(
            "clock" to Record.json("System.nanoTime (wall), the process's processor time (cpu, all threads)"),
            "load_ms" to Record.json(opened.loadMs),
            "first_inference_ms" to Record.json(opened.firstMs),
            "cold_start" to if (isCold) cold else JsonNull,
            "warmup_runs" to Record.json(request.rounds),
            "lengths" to JsonArray(lengths.map(Record::length)),
            "texts" to Record.texts(texts),
            "texts_sha256" to Record.json(digest(request.texts)),
            "sustained" to sustained,
        )
    }

    /** Returns the digest of texts, each followed by a line feed. */
    private fun digest(texts: List<String>): String {
        val digest = MessageDigest.getInstance("SHA-256")
        for (text in texts) digest.update("$text\n".toByteArray())
        return digest.digest().joinToString("") { "%02x".format(it) }
    }

    private fun utc(): String = SimpleDateFormat("yyyy-MM-dd'T'HH:mm:ss'+00:00'", Locale.ROOT)
        .apply { timeZone = TimeZone.getTimeZone("UTC") }
        .format(Date())

    private companion object {
        const val NANOS_IN_S = 1e9

        /** A year: a clock in nanoseconds has an end. */
        const val LONGEST_S = 3.2e7
        const val NANOS_IN_MS = 1e6

        /** A run that is shorter has no processor time: a step of its clock would be more than a twentieth of it. */
        const val LEAST_CPU_STEPS = 20
        const val COOLING_PAUSE_MS = 1000L
        const val LENGTHS_SHARE = 0.8

        /** One WordPiece token in every vocabulary at hand; a row of n of them is a full row of n tokens. */
        const val WORD = "ocean"

        /** Only the first benchmark of a process sees a cold start. */
        @Volatile
        var measuredBefore = false

        fun seconds(began: Long): Double = (System.nanoTime() - began) / NANOS_IN_S

        inline fun <T> timed(work: () -> T): Pair<T, Double> {
            val began = System.nanoTime()
            val result = work()
            return result to (System.nanoTime() - began) / NANOS_IN_MS
        }
    }
}
