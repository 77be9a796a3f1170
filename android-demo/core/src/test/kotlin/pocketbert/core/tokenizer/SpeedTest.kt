package pocketbert.core.tokenizer

import kotlinx.serialization.json.Json
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonPrimitive
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.condition.EnabledIfSystemProperty
import pocketbert.core.VECTORS
import java.io.File

/** Times, for `make core-speed`; nothing is asserted. */
@EnabledIfSystemProperty(named = "pocketbert.speed", matches = ".+")
class SpeedTest {
    @Test
    fun `times of each tokenizer`() {
        val texts = Json.parseToJsonElement(File(System.getProperty("pocketbert.speed")).readText()).jsonArray.map {
            it.jsonPrimitive.content
        }
        for (folder in checkNotNull(VECTORS.listFiles { file -> File(file, "rows.jsonl").isFile }).sorted()) {
            val json = File(folder, "tokenizer.json").readText()
            // The first is of a cold JVM, as an app's first one is.
            val loads = List(5) { millis { Tokenizer.read(json) } }
            val tokenizer = Tokenizer.read(json)
            val sentence = texts[0]
            repeat(3_000) { tokenizer.encode(sentence) }
            val one = List(7) { millis { repeat(1_000) { tokenizer.encode(sentence) } } }.sorted()[3]
            val before = used()
            val all = millis { for (text in texts) tokenizer.encode(text) }
            println(
                "speed: {\"tokenizer\": \"${folder.name}\", \"cold_load_ms\": ${loads[0]}, \"load_ms\": ${loads.drop(1).min()}, " +
                    "\"sentence_us\": $one, \"texts_ms\": $all, \"texts\": ${texts.size}, \"grown_kb\": ${(used() - before) / 1024}}",
            )
        }
    }

    private fun millis(act: () -> Unit): Double {
        val began = System.nanoTime()
        act()
        return (System.nanoTime() - began) / 1e6
    }

    private fun used(): Long {
        repeat(3) { System.gc() }
        return Runtime.getRuntime().run { totalMemory() - freeMemory() }
    }
}
