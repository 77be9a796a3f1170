package pocketbert.peers

import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.int
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import java.io.File

/** One text or pair, with what the reference library gives for it. */
class Row(
    val first: String,
    val second: String?,
    val longest: Int?,
    val ids: List<Int>,
    val types: List<Int>,
    val group: String,
    /** Whether a text holds a special token, such as `[MASK]`. */
    val special: Boolean,
)

/** One tokenizer of the conformance kit, in the forms in which libraries want it. */
class Kit(private val folder: File) {
    val name: String = folder.name
    val json = File(folder, "tokenizer.json")

    /** `wordpiece`, `unigram` or `byte_level`. */
    val kind = name.substringBefore("_spaced").substringBefore("_cased").substringBefore("_uncased").let {
        if (it.startsWith("unigram")) "unigram" else it
    }
    private val document = Json.parseToJsonElement(json.readText()).jsonObject
    private val model = checkNotNull(document["model"]).jsonObject

    /** Ids by token; a Unigram model's are its places. */
    val vocabulary: Map<String, Int> = when (val words = checkNotNull(model["vocab"])) {
        is JsonObject -> words.mapValues { it.value.jsonPrimitive.int }
        is JsonArray -> words.mapIndexed { at, piece -> piece.jsonArray[0].jsonPrimitive.content to at }.toMap()
        else -> error("$json has no vocabulary")
    }

    /** The special tokens. */
    val special: Set<String> = checkNotNull(document["added_tokens"]).jsonArray
        .map { it.jsonObject.getValue("content").jsonPrimitive.content }
        .toSet()
    private val tokens = vocabulary.entries.associate { it.value to it.key }

    /** The vocabulary as BERT's own file, one token a line. */
    val vocabTxt: File by lazy {
        File(folder, "vocab.txt").apply { writeText(vocabulary.keys.sortedBy(vocabulary::getValue).joinToString("\n")) }
    }

    /** SentencePiece's own file, from which the tokenizer was made. */
    val sentencePiece: File = File(folder, "sentencepiece.model")
    val lower = name != "wordpiece_cased"

    /** Whether a space is put before the first word. */
    val spaced = name.endsWith("_spaced")

    fun id(token: String) = vocabulary[token] ?: vocabulary.getValue("[UNK]")

    fun token(id: Int) = tokens[id] ?: "?$id"

    /** All rows; of those with generated texts, so many are of single characters. */
    fun rows(characters: Int): List<Row> {
        var generated = 0
        return File(folder, "rows.jsonl").useLines { lines ->
            lines.map { line ->
                val row = Json.parseToJsonElement(line).jsonArray
                val group = when {
                    row[5] !is JsonNull -> "texts"
                    generated++ < characters -> "characters"
                    else -> "strings"
                }
                val first = row[0].jsonPrimitive.content
                val second = row[1].takeUnless { it is JsonNull }?.jsonPrimitive?.content
                Row(
                    first,
                    second,
                    row[2].takeUnless { it is JsonNull }?.jsonPrimitive?.int,
                    numbers(row[3]),
                    numbers(row[4]),
                    group,
                    special.any { it in first || second != null && it in second },
                )
            }.toList()
        }
    }

    private fun numbers(element: JsonElement) = element.jsonArray.map { it.jsonPrimitive.int }
}
