package pocketbert.core.contract

import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import pocketbert.core.WrongJson
import pocketbert.core.number
import pocketbert.core.readJson
import pocketbert.core.readStrictJson

/**
 * A JSON Schema that the pipeline generated from its own models (draft 2020-12, as far as those need it).
 *
 * The same files lie beside the pipeline's documents: what it writes is what is read here, field by field.
 */
internal class Schema private constructor(private val root: JsonObject) {
    /** Reads a document and checks it. @throws WrongJson it is none that the schema allows; the message names the field. */
    fun read(bytes: ByteArray): JsonObject {
        val document = readStrictJson(bytes)
        // First of all: of another version everything else may be different too.
        val known = (properties(root)["schema_version"] as JsonObject).number("const")
        val version = document.number("schema_version")
        if (version !=
            known
        ) {
            throw WrongJson("its schema_version is $version, and this version reads $known; update the app, or ship again")
        }
        check(document)
        return document
    }

    /** Checks a document. @throws WrongJson as [read]. */
    fun check(document: JsonElement) = check(root, document, "")

    private fun check(given: JsonObject, value: JsonElement, place: String) {
        val schema = resolved(given)
        for (keyword in schema.keys) require(keyword in KNOWN) { "the schema has $keyword, which is not known here" }
        (schema["anyOf"] as? JsonArray)?.let { options -> return checkAny(options.map { resolved(it as JsonObject) }, value, place) }
        if (!hasType(schema, value)) wrong(value, place, wanted(schema))
        schema["const"]?.let { if (value != it) wrong(value, place, "$it") }
        (schema["enum"] as? JsonArray)?.let { if (value !in it) wrong(value, place, it.joinToString(" or ")) }
        if (value is JsonPrimitive && !value.isString) checkBounds(schema, value, place)
        (schema["pattern"] as? JsonPrimitive)?.content?.let { pattern ->
            if (value is JsonPrimitive && value.isString && !Regex(pattern).matches(value.content)) {
                wrong(value, place, "a text like $pattern")
            }
        }
        if (value is JsonObject) checkObject(schema, value, place)
        if (value is JsonArray) {
            val items = schema["items"] as? JsonObject ?: return
            value.forEachIndexed { number, one -> check(items, one, "$place${if (place.isEmpty()) "" else "."}$number") }
        }
    }

    /** A value of the type of one option is judged by that option, so that the message names the field inside. */
    private fun checkAny(options: List<JsonObject>, value: JsonElement, place: String) {
        val option = options.firstOrNull { hasType(it, value) } ?: wrong(value, place, options.joinToString(" or ", transform = ::wanted))
        check(option, value, place)
    }

    private fun checkObject(schema: JsonObject, value: JsonObject, place: String) {
        val properties = properties(schema)
        val before = if (place.isEmpty()) "" else "$place."
        for (name in (schema["required"] as? JsonArray).orEmpty()) {
            val field = (name as JsonPrimitive).content
            if (field !in
                value
            ) {
                throw WrongJson("$before$field is absent; it has to be ${wanted(resolved(properties[field] as JsonObject))}")
            }
        }
        val others = schema["additionalProperties"]
        for ((name, field) in value) {
            val own = properties[name] as? JsonObject ?: others as? JsonObject
            if (own == null && others != null) throw WrongJson("$before${name.take(SHOWN)} is a field that this version does not know")
            own?.let { check(it, field, before + name) }
        }
    }

    private fun checkBounds(schema: JsonObject, value: JsonPrimitive, place: String) {
        val number = value.content.toDoubleOrNull() ?: return
        bound(schema, "minimum")?.let { if (number < it.toDouble()) wrong(value, place, "$it or more") }
        bound(schema, "maximum")?.let { if (number > it.toDouble()) wrong(value, place, "$it or less") }
        bound(schema, "exclusiveMinimum")?.let { if (number <= it.toDouble()) wrong(value, place, "more than $it") }
    }

    private fun bound(schema: JsonObject, name: String) = (schema[name] as? JsonPrimitive)?.content

    private fun properties(schema: JsonObject) = schema["properties"] as? JsonObject ?: JsonObject(emptyMap())

    private fun resolved(schema: JsonObject): JsonObject {
        val name = (schema["\$ref"] as? JsonPrimitive)?.content ?: return schema
        return (root["\$defs"] as JsonObject)[name.removePrefix("#/\$defs/")] as JsonObject
    }

    private fun hasType(schema: JsonObject, value: JsonElement): Boolean = when (type(schema)) {
        "object" -> value is JsonObject
        "array" -> value is JsonArray
        "null" -> value is JsonNull
        "string" -> value is JsonPrimitive && value.isString
        "boolean" -> value is JsonPrimitive && !value.isString && value.content in FLAGS
        "integer" -> value.isNumber && WHOLE.matches((value as JsonPrimitive).content)
        "number" -> value.isNumber && (value as JsonPrimitive).content.toDouble().isFinite()
        else -> false
    }

    private val JsonElement.isNumber get() = this is JsonPrimitive && this !is JsonNull && !isString && content !in FLAGS

    private fun type(schema: JsonObject) = (schema["type"] as? JsonPrimitive)?.content

    private fun wanted(schema: JsonObject): String {
        (schema["anyOf"] as? JsonArray)?.let { options -> return options.joinToString(" or ") { wanted(resolved(it as JsonObject)) } }
        return when (type(schema)) {
            "object" -> "an object"
            "array" -> "a list"
            "null" -> "null"
            "string" -> "a text"
            "boolean" -> "true or false"
            "integer" -> "a whole number"
            else -> "a number"
        }
    }

    private fun wrong(value: JsonElement, place: String, wanted: String): Nothing =
        throw WrongJson("${place.ifEmpty { "the file" }} is ${value.toString().take(SHOWN)}; it has to be $wanted")

    companion object {
        private const val SHOWN = 60
        private val FLAGS = setOf("true", "false")
        private val WHOLE = Regex("-?[0-9]+")
        private val KNOWN = setOf(
            "\$schema", "\$defs", "description", "type", "properties", "required", "additionalProperties", "items", "anyOf", "const",
            "enum", "minimum", "maximum", "exclusiveMinimum", "pattern",
        )

        /** Reads the schema of a file, such as `models` for `models.json`. */
        fun of(name: String): Schema {
            val path = "/pocketbert/schemas/$name.schema.json"
            val stream = checkNotNull(Schema::class.java.getResourceAsStream(path)) { "$path is not in this build" }
            return Schema(readJson(stream.use { String(it.readBytes(), Charsets.UTF_8) }))
        }
    }
}
