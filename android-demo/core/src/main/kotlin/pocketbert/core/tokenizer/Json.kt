package pocketbert.core.tokenizer

import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.booleanOrNull
import kotlinx.serialization.json.contentOrNull
import kotlinx.serialization.json.intOrNull

/** Fields of `tokenizer.json`, each read as what it has to be. */

internal fun JsonObject.present(name: String): JsonElement? = this[name]?.takeUnless { it is JsonNull }

internal fun JsonObject.text(name: String): String = textOrNull(name) ?: wrong(name, "a text")

internal fun JsonObject.textOrNull(name: String): String? =
    present(name)?.let { (it as? JsonPrimitive)?.takeIf(JsonPrimitive::isString)?.contentOrNull ?: wrong(name, "a text") }

internal fun JsonObject.flag(name: String, default: Boolean = false): Boolean = flagOrNull(name) ?: default

internal fun JsonObject.flagOrNull(name: String): Boolean? =
    present(name)?.let { (it as? JsonPrimitive)?.booleanOrNull ?: wrong(name, "true or false") }

internal fun JsonObject.number(name: String, default: Int? = null): Int =
    present(name)?.let { (it as? JsonPrimitive)?.intOrNull ?: wrong(name, "a whole number") } ?: default ?: wrong(name, "a whole number")

internal fun JsonObject.child(name: String): JsonObject? = present(name)?.let { it as? JsonObject ?: wrong(name, "an object") }

internal fun JsonObject.array(name: String): JsonArray = present(name) as? JsonArray ?: wrong(name, "a list")

internal fun JsonObject.objects(name: String): List<JsonObject> = array(name).map { it as? JsonObject ?: wrong(name, "a list of objects") }

/** Reads `{"Regex": …}` or `{"String": …}`. */
internal fun JsonObject.pattern(): Pattern {
    val pattern = child("pattern") ?: wrong("pattern", "an object")
    return pattern.textOrNull("Regex")?.let(Pattern::of) ?: Pattern.literal(pattern.text("String"))
}

private fun JsonObject.wrong(name: String, wanted: String): Nothing {
    val found = this[name]?.toString()?.take(SHOWN) ?: "absent"
    throw UnsupportedTokenizer("tokenizer.json: $name is $found; it has to be $wanted")
}

private const val SHOWN = 60
