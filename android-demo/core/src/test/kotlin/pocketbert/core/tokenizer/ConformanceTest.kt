package pocketbert.core.tokenizer

import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.int
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonPrimitive
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assertions.fail
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.TestFactory
import pocketbert.core.VECTORS
import java.io.File

/**
 * Every id is that of the reference library, for each folder of vectors that `tests/apps/tokenizers` wrote.
 *
 * A folder has a `tokenizer.json`, most have the same tokenizer as `tokenizer.bin`, and `rows.jsonl` has
 * `[first, second, longest row, ids, types, from, to]` in each line.
 */
class ConformanceTest {
    @TestFactory
    fun vectors(): List<DynamicTest> {
        val folders = checkNotNull(VECTORS.listFiles { file -> File(file, "rows.jsonl").isFile }).sorted()
        assertTrue(folders.isNotEmpty(), "$VECTORS has no vectors")
        return folders.flatMap { folder ->
            val json = DynamicTest.dynamicTest(folder.name) {
                compare(folder.name, folder, Tokenizer.read(File(folder, "tokenizer.json").readText()))
            }
            val binary = File(folder, "tokenizer.bin")
            val name = "${folder.name} (${binary.name})"
            listOf(json) +
                if (binary.isFile) {
                    listOf(DynamicTest.dynamicTest(name) { compare(name, folder, Tokenizer.read(binary.readBytes())) })
                } else {
                    emptyList()
                }
        }
    }

    private fun compare(name: String, folder: File, tokenizer: Tokenizer) {
        var rows = 0
        var tokens = 0L
        var wrong = 0
        var smallest: Pair<Int, String>? = null
        File(folder, "rows.jsonl").forEachLine { line ->
            val row = Json.parseToJsonElement(line).jsonArray
            val difference = difference(tokenizer, row)
            rows++
            tokens += row[3].jsonArray.size
            if (difference != null) {
                wrong++
                val size = row[0].jsonPrimitive.content.length
                if (smallest == null || size < smallest!!.first) smallest = size to "$line\n$difference"
            }
        }
        println("$name: $rows rows, $tokens tokens, $wrong rows differ")
        if (wrong > 0) fail<Unit>("$wrong of $rows rows differ; the smallest is ${smallest?.second}")
    }

    private fun difference(tokenizer: Tokenizer, row: JsonArray): String? {
        val second = row[1].takeUnless { it is JsonNull }?.jsonPrimitive?.content
        val longest = row[2].takeUnless { it is JsonNull }?.jsonPrimitive?.int
        val found = tokenizer.encode(row[0].jsonPrimitive.content, second, longest)
        val got = mapOf("ids" to found.ids, "types" to found.types, "from" to found.from, "to" to found.to)
        for ((at, entry) in got.entries.withIndex()) {
            val (name, values) = entry
            if (row[3 + at] is JsonNull) continue
            val wanted = row[3 + at].jsonArray.map { (it as JsonPrimitive).int }
            if (wanted != values.toList()) return "$name are ${values.toList()}, and should be $wanted"
        }
        return null
    }
}
