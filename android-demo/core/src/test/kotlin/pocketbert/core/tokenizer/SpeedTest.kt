package pocketbert.core.tokenizer

import kotlinx.serialization.json.Json
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonPrimitive
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.condition.EnabledIfSystemProperty
import pocketbert.core.VECTORS
import java.io.File

/** Times and memory, for `make core-speed`; nothing is asserted. */
@EnabledIfSystemProperty(named = "pocketbert.speed", matches = ".+")
class SpeedTest {
    @Test
    fun `times of each tokenizer`() {
        val texts = Json.parseToJsonElement(File(System.getProperty("pocketbert.speed")).readText()).jsonArray.map {
            it.jsonPrimitive.content
        }
        val folders = checkNotNull(VECTORS.listFiles { file -> File(file, "rows.jsonl").isFile }).sorted()
        val files = folders.flatMap { folder -> listOf("tokenizer.json", "tokenizer.bin").map { File(folder, it) } }
        // One alone is the first that this JVM opens.
        val only = System.getProperty("pocketbert.speed.only").orEmpty()
        for (file in files.filter { it.isFile && (only.isEmpty() || it.path.endsWith(only)) }) measure(file, texts)
    }

    private fun measure(file: File, texts: List<String>) {
        val fresh = used()
        val loads = List(OPENED) { millis { open(file) } }
        val tokenizer = open(file)
        val kept = used() - fresh
        val sentence = texts[0]
        repeat(3_000) { tokenizer.encode(sentence) }
        val one = List(7) { millis { repeat(1_000) { tokenizer.encode(sentence) } } }.sorted()[3]
        val before = used()
        val all = millis { for (text in texts) tokenizer.encode(text) }
        println(
            "speed: {\"tokenizer\": \"${file.parentFile.name}\", \"file\": \"${file.name}\", \"cold_load_ms\": ${loads[0]}, " +
                "\"load_ms\": ${loads.drop(1).sorted()[OPENED / 2]}, \"kept_kb\": ${kept / 1024}, \"sentence_us\": $one, " +
                "\"texts_ms\": $all, \"texts\": ${texts.size}, \"grown_kb\": ${(used() - before) / 1024}}",
        )
    }

    private fun open(file: File) = if (file.extension == "json") Tokenizer.read(file.readText()) else Tokenizer.read(file.readBytes())

    private fun millis(act: () -> Unit): Double {
        val began = System.nanoTime()
        act()
        return (System.nanoTime() - began) / 1e6
    }

    private fun used(): Long {
        repeat(3) { System.gc() }
        return Runtime.getRuntime().run { totalMemory() - freeMemory() }
    }

    private companion object {
        const val OPENED = 8
    }
}
