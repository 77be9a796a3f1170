package pocketbert.core.output

import pocketbert.core.contract.Signature
import pocketbert.core.tokenizer.CharacterTables

/** Labels or a template that a model cannot be asked with; the message says why. */
class WrongLabels(message: String) : IllegalArgumentException(message)

/**
 * Labels that a model never saw, each a hypothesis about a text; the same rules as `pipeline/convert/zero_shot.py`.
 *
 * @param signature of a classifier of natural language inference.
 * @param written labels, two or more that differ; one is enough where each is decided by itself. White space around them is left
 * out, and so is one that was there before.
 * @param template a sentence with one pair of braces, into which each label is put.
 * @property multiLabel decide each label by itself: its probability is that of entailment beside contradiction alone.
 * @throws WrongLabels the model has no label of entailment, or labels or template are none.
 *
 * Source: Yin et al. 2019 (Benchmarking zero-shot text classification); transformers' pipeline `zero-shot-classification`.
 */
class ZeroShot(signature: Signature, written: List<String>, template: String = TEMPLATE, private val multiLabel: Boolean = false) {
    private val entailment = entailment(signature) ?: throw WrongLabels("${said(signature)}; $NEEDED")
    private val contradiction = contradiction(signature)

    /** The labels as they are put into the template. */
    val labels: List<String>

    /** What is run behind the text, one after the other. */
    val hypotheses: List<String>

    init {
        if (multiLabel && contradiction == null) {
            throw WrongLabels("${said(signature)}; to decide each label by itself needs a label contradiction")
        }
        if (!isTemplate(template)) throw WrongLabels("the template is $template; it has to have $PLACE once, where a label is put")
        labels = written.map(::stripped).distinct()
        if (labels.size < least(multiLabel) || labels.any(String::isEmpty)) {
            val least = if (multiLabel) "one or more" else "two or more"
            throw WrongLabels("the labels are $written; give $least that differ, none of them empty")
        }
        val (before, behind) = template.split(PLACE)
        hypotheses = labels.map { before + it + behind }
    }

    /**
     * Returns each label with its probability, the most probable first; where each is decided by itself, also whether entailment
     * is more probable than contradiction.
     *
     * @param logits of the text with each hypothesis.
     */
    fun shares(logits: List<FloatArray>): List<Share> {
        val against = contradiction
        val shares = if (multiLabel && against != null) {
            logits.map { Outputs.softmax(floatArrayOf(it[against], it[entailment]))[1] }
        } else {
            Outputs.softmax(FloatArray(logits.size) { logits[it][entailment] }).asList()
        }
        return labels.zip(shares) { label, share -> Share(label, share, if (multiLabel) share >= HALF else null) }
            .sortedByDescending { it.share }
    }

    companion object {
        const val TEMPLATE = "This example is {}."
        private const val PLACE = "{}"
        private const val HALF = 0.5
        private const val NEEDED = "labels of one's own need a model of natural language inference, which has a label entailment"

        /** Returns whether a model takes labels of a person's own. */
        fun isPossible(signature: Signature) = entailment(signature) != null

        /** Returns whether it can also decide each of them by itself. */
        fun decidesEach(signature: Signature) = isPossible(signature) && contradiction(signature) != null

        /** Returns whether a label can be put into a template. */
        fun isTemplate(template: String) = template.split(PLACE).size == 2

        /** Returns how many labels have to be there. */
        fun least(multiLabel: Boolean) = if (multiLabel) 1 else 2

        /** Returns the labels of a field, where commas or ends of lines stand between them. */
        fun split(field: String): List<String> = field.split(',', '\n', '\r').map(::stripped).filter(String::isNotEmpty).distinct()

        private fun stripped(label: String): String {
            val spaces = CharacterTables.set("text_space")
            return label.trim { it.code in spaces }
        }

        /** Returns the place of the logit of entailment, or null where the model is none of inference. */
        private fun entailment(signature: Signature) = place(signature, "entail").takeIf { signature.outputKind == "logits" }

        /** Returns the place of the logit of contradiction; of two labels it is the other one, whatever its name. */
        private fun contradiction(signature: Signature): Int? {
            val entailment = entailment(signature) ?: return null
            return if (signature.labels?.size == 2) 1 - entailment else place(signature, "contradict")
        }

        private fun place(signature: Signature, beginning: String): Int? =
            signature.labels?.indexOfFirst { it.lowercase().startsWith(beginning) }?.takeIf { it >= 0 }

        private fun said(signature: Signature): String =
            "${signature.file} gives ${signature.labels?.joinToString()?.ifEmpty { null } ?: signature.outputKind}"
    }
}
