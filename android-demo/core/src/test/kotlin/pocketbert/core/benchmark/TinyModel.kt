package pocketbert.core.benchmark

import pocketbert.core.contract.Entry
import pocketbert.core.contract.Files
import pocketbert.core.contract.FoundFile
import pocketbert.core.contract.Function
import pocketbert.core.contract.Listed
import pocketbert.core.contract.Model
import pocketbert.core.contract.PaddedRow
import pocketbert.core.contract.Signature
import pocketbert.core.contract.Tensor
import pocketbert.core.model.Runner
import pocketbert.core.model.RunnerOptions
import pocketbert.core.model.Runtime
import java.io.IOException
import java.io.InputStream

/** A model of three words, whose runtime a test makes: for what a run does around it. */
internal object TinyModel {
    private const val TOKENIZER = """{"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
        "vocab": {"[UNK]": 0, "ocean": 1, "text": 2}}}"""
    private val files = object : Files {
        override fun open(path: String): InputStream = when (path.substringAfterLast('/')) {
            "tokenizer.json" -> TOKENIZER.byteInputStream()
            "config.json" -> """{"vocab_size": 3}""".byteInputStream()
            else -> throw IOException("there is no $path")
        }

        override fun list(folder: String): List<FoundFile> = emptyList()
    }
    private val function = Function(
        "seq_8",
        8,
        8,
        listOf(Tensor("input_ids", "int32", listOf(1, 8)), Tensor("attention_mask", "int32", listOf(1, 8))),
        listOf(Tensor("sentence_embedding", "float32", listOf(1, 2))),
    )
    val model = Model(
        files,
        Entry("tiny/litert-fp32", "tiny", "litert", "fp32", "embedding", "ab".repeat(32), 9L),
        Signature("litert", "fp32", "embedding", "embedding", "model.tflite", "1.2.0", 0, null, listOf(function), 1),
        "passed",
        emptyList(),
        null,
        listOf("CPU"),
        mapOf("GPU" to "No phone's GPU has run one yet."),
        false,
        null,
        mapOf("model.tflite" to "cd".repeat(32)),
    )

    fun listed() = listOf(Listed.Usable(model))
}

/** A runtime that counts nothing but what it was asked for. */
internal class TinyRuntime(private val run: () -> Unit = { }) : Runtime {
    val opened = ArrayList<RunnerOptions>()
    override val name = "Tiny"
    override val version = "1.0"
    override val backend = "litert"

    override fun open(model: Model, options: RunnerOptions): Runner {
        opened.add(options)
        return object : Runner {
            override val delegate: String? = null
            override val shareByUnit = mapOf(checkNotNull(options.computeUnits) to 1.0)
            override val poolThreads = options.threads

            override fun run(row: PaddedRow): Map<String, FloatArray> {
                this@TinyRuntime.run()
                return mapOf("sentence_embedding" to floatArrayOf(1f, 0f))
            }

            override fun close() = Unit
        }
    }
}
