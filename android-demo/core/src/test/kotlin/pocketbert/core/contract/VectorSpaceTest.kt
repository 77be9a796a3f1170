package pocketbert.core.contract

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pocketbert.core.WrongJson
import pocketbert.core.readJson

/** What a signature says of its vectors. */
class VectorSpaceTest {
    private fun read(vectors: String, kind: String = "embedding", task: String = "embedding"): Signature {
        val inputs = listOf("input_ids", "attention_mask").joinToString { """{"name": "$it", "dtype": "int32", "shape": [1, 32]}""" }
        val output = if (kind == "embedding") "sentence_embedding" else "logits"
        val outputs = """{"name": "$output", "dtype": "float32", "shape": [1, 3]}"""
        val function = """{"name": "a", "min_length": 32, "max_length": 32, "inputs": [$inputs], "outputs": [$outputs]}"""
        return Signature.read(
            readJson(
                """{"backend": "litert", "scheme": "fp32", "task": "$task", "output_kind": "$kind", "file": "m.tflite", "labels": null,
                "minimum_runtime": "1.2.0", "pad_token_id": 0, "parameters": 1, "functions": [$function]$vectors}""",
            ),
        )
    }

    private val good = mapOf(
        "space" to "\"b1946ac92492d234\"",
        "width" to "3",
        "unit_length" to "true",
        "similarity" to "\"cosine\"",
        "widths" to "[3, 1]",
        "scales" to "[0.5, 0.25, 1e-3]",
    )

    private fun with(fields: Map<String, String>) =
        ", \"vectors\": {${(good + fields).entries.joinToString { "\"${it.key}\": ${it.value}" }}}"

    @Test
    fun `a signature may have a space, and older ones have none`() {
        val space = checkNotNull(read(with(emptyMap())).vectors)
        assertEquals("b1946ac92492d234", space.id)
        assertEquals(listOf(3, 1) to listOf(0.5, 0.25, 0.001), space.widths to space.scales)
        assertTrue(space.isUnitLength && space.similarity == "cosine" && space.width == 3)
        assertNull(read("").vectors)
        assertNull(read(", \"vectors\": null").vectors)
        assertEquals("dot", read(with(mapOf("similarity" to "\"dot\""))).vectors?.similarity)
    }

    @Test
    fun `what no space can be is refused`() {
        val cases = listOf(
            mapOf("space" to "\"B1946AC92492D234\"") to "not 16 hexadecimal digits",
            mapOf("space" to "\"b1946ac92492d23\"") to "not 16 hexadecimal digits",
            mapOf("space" to "7") to "a text",
            mapOf("width" to "4", "widths" to "[4]", "scales" to "[1, 1, 1, 1]") to "width is 4, and a gives 3 numbers",
            mapOf("width" to "0") to "width is 0",
            mapOf("unit_length" to "null") to "unit_length is null; it has to be true or false",
            mapOf("similarity" to "\"euclid\"") to "similarity is euclid",
            mapOf("widths" to "[1]") to "have to fall from 3",
            mapOf("widths" to "[3, 3]") to "have to fall from 3",
            mapOf("widths" to "[3, 0]") to "have to fall from 3",
            mapOf("widths" to "[]") to "have to fall from 3",
            mapOf("scales" to "[1, 1]") to "there are 2 scales for 3 numbers",
            mapOf("scales" to "[1, 0, 1]") to "not all are above 0",
            mapOf("scales" to "[1, \"1\", 1]") to "a list of numbers",
        )
        for ((fields, piece) in cases) {
            val error = assertThrows(WrongJson::class.java, { read(with(fields)) }, "$fields")
            assertTrue(piece in error.message.orEmpty(), "${error.message} does not say $piece")
        }
        assertThrows(WrongJson::class.java) { read(", \"vectors\": []") }
        val other = assertThrows(WrongJson::class.java) { read(with(emptyMap()), "value", "regression") }
        assertEquals("vectors: output_kind value has none", other.message)
    }
}
