package pocketbert.app.screens

import android.content.res.Resources
import androidx.compose.runtime.Composable
import androidx.compose.ui.platform.LocalConfiguration
import androidx.compose.ui.platform.LocalContext
import pocketbert.app.R
import pocketbert.core.contract.State
import pocketbert.core.output.Found
import pocketbert.core.output.Share
import pocketbert.models.CompareModel
import pocketbert.models.Confidence
import pocketbert.models.Formats
import pocketbert.models.Missing
import pocketbert.models.Rest
import pocketbert.models.RunProgress
import pocketbert.models.RunRecord
import pocketbert.models.SearchModel
import pocketbert.models.SelfTestModel
import pocketbert.models.ShelvedModel
import pocketbert.models.TryModel
import java.time.ZoneId
import java.time.format.DateTimeFormatter
import java.time.format.FormatStyle

/** The sentences of the screens: what the view models know, in the app's resources. */
class Words(private val resources: Resources) {
    private fun text(id: Int, vararg values: Any) = resources.getString(id, *values)

    private fun plural(id: Int, number: Int, vararg values: Any) = resources.getQuantityString(id, number, *values)

    // --- models and answers --------------------------------------------------------------------------------------------

    /** Returns a scheme as people call it. */
    fun scheme(name: String) = SCHEMES[name]?.let { text(it) } ?: name.replace('_', ' ')

    fun model(model: ShelvedModel) = text(R.string.model_and_scheme, model.name, scheme(model.model.signature.scheme))

    fun modelAndRuntime(model: ShelvedModel) = text(R.string.model_and_runtime, model(model), model.linked.runtime.name)

    /** Returns what tells a model from the other files of its recipe. */
    fun detail(model: ShelvedModel): String {
        val scheme = scheme(model.model.signature.scheme)
        return text(R.string.model_and_size, model.linked.runtime.name, scheme, Formats.megabytes(model.model.entry.bytes))
    }

    /** Returns a label in words; a generic one has no other name than its number. */
    fun label(label: String): String {
        val number = GENERIC.matchEntire(label)?.groupValues?.get(1) ?: return label.replace('_', ' ')
        return text(R.string.class_n, number)
    }

    /** Returns the name of one of several values, as [label] does. */
    fun value(name: String): String {
        val number = GENERIC.matchEntire(name)?.groupValues?.get(1) ?: return name.replace('_', ' ')
        return text(R.string.value_n, number)
    }

    /** Returns a label's probability, and whether the text has it where each label is decided by itself. */
    fun share(one: Share): String {
        val share = Formats.percent(one.share)
        return if (one.isGiven == true) text(R.string.given, share) else share
    }

    /** Returns a prompt's name; an empty one is none. */
    fun prompt(name: String) = name.ifEmpty { text(R.string.no_prompt) }

    /** Says that a model has prompts, and was asked without one. */
    fun unused(prompts: List<String>) = text(R.string.without_prompt, prompts.joinToString())

    /** Returns what was found and how sure that is. */
    fun entity(one: Found): String {
        val unsure = Confidence.of(one.score) == Confidence.UNSURE
        val share = Formats.wholePercent(one.score)
        return text(if (unsure) R.string.entity_unsure else R.string.entity, label(one.kind.orEmpty()), share)
    }

    /** Returns how long an answer took, and what gave it. */
    fun caption(answered: TryModel.State.Answered, model: ShelvedModel): String {
        val reply = answered.reply
        val (first, ran) = Formats.ms(reply.inferenceMs) to ran(model, reply.ranOn)
        val warm = answered.warmMs ?: return text(R.string.caption_first, first, reply.tokens, reply.length, ran)
        return text(R.string.caption_warm, Formats.ms(warm), first, reply.tokens, reply.length, ran)
    }

    private fun ran(model: ShelvedModel, units: List<String>): String {
        val runtime = model.linked.runtime.name
        if (units.isEmpty()) return text(R.string.runs_in, model(model), runtime)
        return text(R.string.runs_on, model(model), runtime, units.reduce { all, unit -> text(R.string.and_the, all, unit) })
    }

    fun missing(missing: Missing) = text(
        when (missing) {
            Missing.TEXT -> R.string.missing_text
            Missing.TWO_TEXTS -> R.string.missing_two_texts
            Missing.QUESTION_AND_PASSAGE -> R.string.missing_question_and_passage
            Missing.LABEL -> R.string.missing_label
            Missing.TWO_LABELS -> R.string.missing_two_labels
            Missing.TEMPLATE -> R.string.missing_template
        },
    )

    fun problem(problem: SearchModel.Problem) = when (problem) {
        is SearchModel.Problem.Unreadable -> problem.why
        is SearchModel.Problem.TooLarge -> text(R.string.file_too_large, problem.file, Formats.megabytes(problem.mostBytes))
        is SearchModel.Problem.NotText -> text(R.string.file_no_text, problem.file)
        is SearchModel.Problem.Cut -> plural(R.plurals.set_cut, problem.taken, problem.taken, problem.lines)
        is SearchModel.Problem.NotKept -> text(R.string.set_not_kept, problem.why)
    }

    fun passages(count: Int) = plural(R.plurals.passages, count, count)

    fun rest(rest: Rest) = text(if (rest == Rest.HOT) R.string.rest_hot else R.string.rest_low_battery)

    // --- a comparison --------------------------------------------------------------------------------------------------

    /** Returns a name for each side: the recipe's, and where both read alike more of it. */
    fun names(sides: List<CompareModel.Side>): List<String> {
        val ways = listOf<(ShelvedModel) -> String>({ it.name }, ::model, ::modelAndRuntime)
        val all = ways.map { way -> sides.map { way(it.model) } }
        return all.firstOrNull { it.distinct().size == it.size } ?: all.last()
    }

    fun headline(verdict: CompareModel.Verdict, student: String): String {
        val answers = if (verdict.student.isRandom) R.string.takes else R.string.answers_in
        // A number and its unit stay on one line.
        return text(answers, student, Formats.ms(checkNotNull(verdict.student.medianMs)).replace(' ', '\u00a0'))
    }

    /** Returns how the other side compares, and what its time is worth. */
    fun comparison(verdict: CompareModel.Verdict, other: String): String {
        val time = Formats.ms(checkNotNull(verdict.other.medianMs))
        val compared = when {
            verdict.ratio > ALIKE.endInclusive -> text(R.string.takes_longer, other, time, Formats.times(verdict.ratio))
            verdict.ratio >= ALIKE.start -> text(R.string.takes_as_long, other, time)
            else -> text(R.string.takes_less, other, time, Formats.wholePercent(verdict.ratio))
        }
        val random = when {
            verdict.student.isRandom -> R.string.their_weights_random
            verdict.other.isRandom -> R.string.its_weights_random
            else -> return compared
        }
        return "$compared ${text(random)}"
    }

    private val CompareModel.Side.isRandom get() = model.model.hasRandomWeights

    // --- the self-test -------------------------------------------------------------------------------------------------

    fun verdict(verdict: SelfTestModel.Verdict): String {
        if (verdict.differing == 0) return plural(R.plurals.all_agree, verdict.models, verdict.models)
        return text(R.string.some_differ, verdict.differing, plural(R.plurals.models, verdict.models, verdict.models))
    }

    /** Returns how a model has done, in a line. */
    fun outcome(row: SelfTestModel.Row): String = when {
        row.isRunning -> text(R.string.being_tested)
        row.agrees == null -> text(R.string.not_tested)
        else -> row.differing?.let { outcome(it.state) } ?: text(R.string.same_answers)
    }

    /** Returns how a compute unit has done. */
    fun outcome(one: SelfTestModel.OnUnit) =
        text(if (one.known == null) R.string.on_unit else R.string.on_untried_unit, one.unit, outcome(one.state))

    private fun outcome(state: SelfTestModel.State): String = when (state) {
        SelfTestModel.State.Waiting -> text(R.string.not_tested)
        SelfTestModel.State.Running -> text(R.string.being_tested)
        is SelfTestModel.State.Failed -> text(R.string.differs_in, state.why)
        is SelfTestModel.State.Done -> state.report.differences.firstOrNull()?.let { text(R.string.differs_in, difference(it)) }
            ?: text(R.string.same_answers)
    }

    fun difference(one: SelfTestModel.Difference): String = when (one) {
        is SelfTestModel.Difference.OldRuntime -> text(R.string.difference_old, one.runtime, one.version, one.minimum)
        is SelfTestModel.Difference.OtherTokens -> plural(R.plurals.difference_tokens, one.texts, one.texts)
        is SelfTestModel.Difference.LessSimilar -> one.cosine?.let {
            text(R.string.difference_similarity, Formats.cosine(it), Formats.cosine(one.least))
        } ?: text(R.string.difference_incomparable, Formats.cosine(one.least))
        is SelfTestModel.Difference.Noisier -> text(R.string.difference_noise, decibels(one.sqnrDb), decibels(one.least))
        is SelfTestModel.Difference.NotConfirmed -> text(R.string.difference_unit, one.unit)
        is SelfTestModel.Difference.Other -> one.why
    }

    fun decibels(decibels: Double) = if (decibels.isInfinite()) text(R.string.no_noise) else Formats.decibels(decibels)

    // --- runs and records ----------------------------------------------------------------------------------------------

    /** Returns what goes on in a run, or how it ended. */
    fun run(progress: RunProgress): String {
        val why = progress.message?.trimEnd('.') ?: text(R.string.no_reason)
        return when (progress.state) {
            State.COOLING, State.RUNNING -> progress.doing
            State.FINISHED -> text(R.string.ended_finished)
            State.REFUSED -> text(R.string.ended_refused, why)
            State.FAILED -> text(R.string.ended_failed, why)
            State.CANCELLED -> text(R.string.ended_cancelled)
            State.OUT_OF_TIME -> text(R.string.ended_out_of_time, why)
            State.TOO_HOT -> text(R.string.ended_too_hot, why)
        }
    }

    fun threads(threads: Int) = plural(R.plurals.threads, threads, threads)

    /** Returns when a record was made, in the form of the phone's language, and on what. */
    fun made(record: RunRecord): String {
        val locale = resources.configuration.locales[0]
        val time = DateTimeFormatter.ofLocalizedDateTime(FormatStyle.MEDIUM, FormatStyle.SHORT).withLocale(locale)
            .withZone(ZoneId.systemDefault()).format(record.started)
        return (listOf(time) + record.ranOn.joinToString(" + ") + threads(record.threads)).filter { it.isNotEmpty() }
            .reduce { all, next -> text(R.string.when_and_how, all, next) }
    }

    /** Returns what was measured at a length; null where the runs are too few to tell. */
    fun length(one: RunRecord.Length) = one.latencies.p50?.let { median ->
        plural(R.plurals.median_of, one.latencies.n, one.latencies.n, Formats.recordMs(median), one.length)
    }

    private companion object {
        val GENERIC = Regex("(?:LABEL_)?([0-9]+)")
        val ALIKE = 0.95..1.05
        val SCHEMES = mapOf(
            "int8_dynamic" to R.string.scheme_int8_dynamic,
            "int8_static" to R.string.scheme_int8_static,
            "int8_weight_only" to R.string.scheme_int8_weight_only,
            "int4_weight_only" to R.string.scheme_int4_weight_only,
            "palettize_4bit" to R.string.scheme_palettize_4bit,
        )
    }
}

@Composable
fun words(): Words {
    // Another language is another configuration.
    LocalConfiguration.current
    return Words(LocalContext.current.resources)
}
