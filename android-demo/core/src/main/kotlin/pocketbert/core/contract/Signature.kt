package pocketbert.core.contract

import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.intOrNull
import pocketbert.core.WrongJson
import pocketbert.core.array
import pocketbert.core.child
import pocketbert.core.doubles
import pocketbert.core.flag
import pocketbert.core.number
import pocketbert.core.objects
import pocketbert.core.present
import pocketbert.core.text
import pocketbert.core.textOrNull
import pocketbert.core.texts
import pocketbert.core.tokenizer.Encoding

/** One input or output of a file; a null in the shape is the length, free between the function's bounds. */
class Tensor(val name: String, val type: String, val shape: List<Int?>)

/**
 * One entry point: a LiteRT signature, a `.pte` method, a Core ML function.
 *
 * @property minLength the shortest row that it takes, in tokens; equal to [maxLength] where the length is fixed.
 */
class Function(val name: String, val minLength: Int, val maxLength: Int, val inputs: List<Tensor>, val outputs: List<Tensor>) {
    /** Whether it runs at one length only. */
    val fixed get() = minLength == maxLength
}

/** A row at the length at which it runs: each input by its name, padded. */
class PaddedRow(val function: Function, val length: Int, val inputs: Map<String, IntArray>)

/** A row is longer than a file takes. */
class RowTooLong(message: String) : IllegalArgumentException(message)

/** A model has no prompt of that name; the message says which it has. */
class NoSuchPrompt(message: String) : IllegalArgumentException(message)

/**
 * What `signature.json` says: what an app needs to know to call a converted file.
 *
 * @property labels names of the logits in order; null where the outputs have none.
 * @property functions from the shortest to the longest.
 * @property prompts texts that an embedding model wants before a text, by name.
 * @property defaultPrompt the prompt of a text that is embedded without naming one; null for no prompt.
 * @property includePrompt whether the prompt's tokens are pooled.
 * @property activation what a regression's number goes through before a person reads it: `identity` or `sigmoid`.
 * @property thresholds for several labels at once: the probability of each from which on it is given; null for one half.
 * @property vectors the space of an embedding model's vectors; null for other models, and for files that older versions made.
 */
class Signature internal constructor(
    val backend: String,
    val scheme: String,
    val task: String,
    val outputKind: String,
    val file: String,
    val minimumRuntime: String,
    val padTokenId: Int,
    val labels: List<String>?,
    val functions: List<Function>,
    val parameters: Int,
    val prompts: Map<String, String> = emptyMap(),
    val defaultPrompt: String? = null,
    val includePrompt: Boolean = true,
    val activation: String = IDENTITY,
    val thresholds: List<Double>? = null,
    val vectors: VectorSpace? = null,
) {
    /** The longest row that the file takes, special tokens included. */
    val maxLength get() = functions.maxOf { it.maxLength }

    /**
     * Returns the text that is put before a text.
     *
     * @param prompt its name; null for the default prompt, which may be none, and an empty one for no prompt.
     * @throws NoSuchPrompt the model has none of that name.
     */
    fun promptText(prompt: String?): String {
        val name = prompt ?: defaultPrompt.orEmpty()
        if (name.isEmpty()) return ""
        return prompts[name] ?: throw NoSuchPrompt("there is no prompt $name for $file; ${there()}")
    }

    private fun there() = if (prompts.isEmpty()) "it has none" else "it has ${prompts.keys.sorted().joinToString()}"

    /** Returns the function and the length at which a row of so many tokens runs: the smallest that fits. */
    fun choose(tokens: Int): Pair<Function, Int> {
        val function = functions.firstOrNull { tokens <= it.maxLength }
            ?: throw RowTooLong("a row of $tokens tokens does not fit; $file takes at most $maxLength")
        return function to maxOf(tokens, function.minLength)
    }

    /** Pads a row to the length at which it runs; padding has mask 0 and type 0, and what is not pooled has mask 2. */
    fun pad(row: Encoding): PaddedRow {
        val (function, length) = choose(row.size)
        val inputs = function.inputs.associate { input ->
            val values = when (input.name) {
                "input_ids" -> IntArray(length) { if (it < row.size) row.ids[it] else padTokenId }
                "attention_mask" -> IntArray(length) { mask(row, it) }
                else -> IntArray(length) { if (it < row.size) row.types[it] else 0 }
            }
            input.name to values
        }
        return PaddedRow(function, length, inputs)
    }

    private fun mask(row: Encoding, token: Int) = when {
        token < row.unpooled -> UNPOOLED
        token < row.size -> 1
        else -> 0
    }

    internal companion object {
        private const val IDENTITY = "identity"

        /** The mask of a token that is attended to and not pooled. */
        private const val UNPOOLED = 2
        private val NAMED = setOf("multi_label", "values")
        private val INPUTS = setOf("input_ids", "attention_mask", "token_type_ids")
        private val PLAIN = Regex("[A-Za-z0-9][A-Za-z0-9._-]*")

        /** Names of the outputs by their kind, in the order in which they stand side by side. */
        val OUTPUTS = mapOf(
            "embedding" to listOf("sentence_embedding"),
            "logits" to listOf("logits"),
            "multi_label" to listOf("logits"),
            "value" to listOf("logits"),
            "values" to listOf("logits"),
            "token_logits" to listOf("logits"),
            "spans" to listOf("start_logits", "end_logits"),
        )

        /** Reads the fields, and refuses what no converted file can be; the same checks as the pipeline's. */
        fun read(json: JsonObject): Signature {
            val signature = Signature(
                json.text("backend"), json.text("scheme"), json.text("task"), json.text("output_kind"), json.text("file"),
                json.text("minimum_runtime"), json.number("pad_token_id"), json.present("labels")?.let { json.texts("labels") },
                json.objects("functions").map(::function), json.number("parameters"),
                json.child("prompts").orEmpty().let { all -> all.keys.associateWith { JsonObject(all).text(it) } },
                json.textOrNull("default_prompt"), json.flag("include_prompt", true), json.textOrNull("activation") ?: IDENTITY,
                json.present("thresholds")?.let { json.doubles("thresholds") }, json.child("vectors")?.let(VectorSpace::read),
            )
            signature.check()
            return signature
        }

        private fun Signature.check() {
            if (!PLAIN.matches(file)) throw WrongJson("file is $file, which is no plain name of a file in this folder")
            val lengths = functions.map { it.maxLength }
            val rise = lengths.isNotEmpty() && lengths == lengths.distinct().sorted()
            if (!rise) throw WrongJson("functions have the lengths $lengths, which have to rise")
            if (padTokenId < 0) throw WrongJson("pad_token_id is $padTokenId")
            checkPrompts()
            if (thresholds != null && outputKind != "multi_label") throw WrongJson("thresholds: output_kind $outputKind has none")
            if (thresholds != null && thresholds.size != labels?.size) {
                throw WrongJson("thresholds: there are ${thresholds.size} for ${labels?.size ?: 0} labels")
            }
            if (vectors != null && outputKind != "embedding") throw WrongJson("vectors: output_kind $outputKind has none")
            for (function in functions) {
                if (function.minLength !in 1..function.maxLength) {
                    throw WrongJson("functions: ${function.name} takes ${function.minLength} to ${function.maxLength} tokens")
                }
                val names = function.inputs.map { it.name }
                if (names.toSet().size < names.size || !INPUTS.containsAll(names) || "input_ids" !in names || "attention_mask" !in names) {
                    throw WrongJson("functions: ${function.name} has the inputs $names")
                }
                val length = function.maxLength.takeIf { it == function.minLength }
                function.inputs.firstOrNull { it.type != "int32" || it.shape != listOf(1, length) }?.let {
                    throw WrongJson("functions: ${function.name}: ${it.name} is ${it.type} ${it.shape}")
                }
                val outputs = function.outputs.map { it.name }
                if (outputs.sorted() !=
                    OUTPUTS[outputKind]?.sorted()
                ) {
                    throw WrongJson("functions: ${function.name} has the outputs $outputs")
                }
                val width = function.outputs.firstOrNull()?.shape?.lastOrNull()
                if (vectors != null && vectors.width != width) {
                    throw WrongJson("vectors: width is ${vectors.width}, and ${function.name} gives $width numbers")
                }
                // Without names, numbers side by side mean nothing to a person.
                if ((labels != null || outputKind in NAMED) && labels.orEmpty().size != width) {
                    throw WrongJson("labels: there are ${labels.orEmpty().size} for $width outputs of ${function.name}")
                }
            }
        }

        private fun Signature.checkPrompts() {
            if (prompts.isNotEmpty() && outputKind != "embedding") {
                throw WrongJson("prompts: output_kind $outputKind takes none, and there are ${prompts.keys.sorted()}")
            }
            if (defaultPrompt != null && defaultPrompt !in prompts) {
                throw WrongJson("default_prompt is $defaultPrompt, and prompts has ${prompts.keys.sorted()}")
            }
        }

        private fun function(json: JsonObject) = Function(
            json.text("name"),
            json.number("min_length"),
            json.number("max_length"),
            json.objects("inputs").map(::tensor),
            json.objects("outputs").map(::tensor),
        )

        private fun tensor(json: JsonObject) = Tensor(
            json.text("name"),
            json.text("dtype"),
            json.array("shape").map { size ->
                if (size is JsonNull) null else (size as? JsonPrimitive)?.intOrNull ?: throw WrongJson("shape holds $size")
            },
        )
    }
}
