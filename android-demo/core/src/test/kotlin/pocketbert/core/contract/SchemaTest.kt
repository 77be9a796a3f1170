package pocketbert.core.contract

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pocketbert.core.VECTORS
import pocketbert.core.WrongJson
import pocketbert.core.flag
import pocketbert.core.readJson
import pocketbert.core.text
import java.io.File

/** Documents of every schema are taken and refused as pydantic takes and refuses them (`tests/apps/schemas.py`). */
class SchemaTest {
    @Test
    fun `every document is judged as in Python`() {
        val schemas = HashMap<String, Schema>()
        val counts = intArrayOf(0, 0)
        File(VECTORS, "schemas.jsonl").forEachLine { line ->
            val case = readJson(line)
            val schema = schemas.getOrPut(case.text("schema")) { Schema.of(case.text("schema")) }
            val error = try {
                schema.read(case.text("document").toByteArray())
                null
            } catch (error: WrongJson) {
                error.message
            }
            assertEquals(case.flag("valid"), error == null, "${case.text("document")}: $error")
            counts[if (error == null) 0 else 1]++
        }
        assertTrue(schemas.size == 7 && counts.all { it > 100 }, "${schemas.keys}, ${counts.toList()}")
        println("schemas: ${counts.sum()} cases, ${counts[1]} of them refused, none differs")
    }
}
