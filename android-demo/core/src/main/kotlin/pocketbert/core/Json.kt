package pocketbert.core

import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.booleanOrNull
import kotlinx.serialization.json.contentOrNull
import kotlinx.serialization.json.doubleOrNull
import kotlinx.serialization.json.intOrNull
import kotlinx.serialization.json.longOrNull

private const val DEEPEST = 200

/** A JSON file is broken, or a field of it is not what it has to be. */
internal class WrongJson(message: String) : Exception(message)

/** Reads a whole file. Throws [WrongJson] where it holds no object. */
internal fun readJson(json: String): JsonObject {
    // The library reads what is nested by calling itself, and a stack that overflows is no exception to catch.
    if (depth(json) > DEEPEST) throw WrongJson("it cannot be read: it has more than $DEEPEST levels")
    val element = try {
        Json.parseToJsonElement(json)
    } catch (error: SerializationException) {
        throw WrongJson("it cannot be read: ${error.message?.lineSequence()?.first()}")
    }
    return element as? JsonObject ?: throw WrongJson("it holds no object")
}

private fun depth(json: String): Int {
    var deepest = 0
    var depth = 0
    var inText = false
    var at = 0
    while (at < json.length) {
        when (json[at]) {
            '"' -> inText = !inText
            '\\' -> if (inText) at++
            '{', '[' -> if (!inText) deepest = maxOf(deepest, ++depth)
            '}', ']' -> if (!inText) depth--
        }
        at++
    }
    return deepest
}

// Fields, each read as what it has to be.

internal fun JsonObject.present(name: String): JsonElement? = this[name]?.takeUnless { it is JsonNull }

internal fun JsonObject.text(name: String): String = textOrNull(name) ?: wrong(name, "a text")

internal fun JsonObject.textOrNull(name: String): String? =
    present(name)?.let { (it as? JsonPrimitive)?.takeIf(JsonPrimitive::isString)?.contentOrNull ?: wrong(name, "a text") }

internal fun JsonObject.flag(name: String, default: Boolean = false): Boolean = flagOrNull(name) ?: default

internal fun JsonObject.flagOrNull(name: String): Boolean? =
    present(name)?.let { (it as? JsonPrimitive)?.takeUnless(JsonPrimitive::isString)?.booleanOrNull ?: wrong(name, "true or false") }

internal fun JsonObject.number(name: String, default: Int? = null): Int =
    present(name)?.let { (it as? JsonPrimitive)?.takeUnless(JsonPrimitive::isString)?.intOrNull ?: wrong(name, "a whole number") }
        ?: default
        ?: wrong(name, "a whole number")

internal fun JsonObject.long(name: String): Long =
    (present(name) as? JsonPrimitive)?.takeUnless(JsonPrimitive::isString)?.longOrNull ?: wrong(name, "a whole number")

internal fun JsonObject.doubleOrNull(name: String): Double? =
    present(name)?.let { (it as? JsonPrimitive)?.takeUnless(JsonPrimitive::isString)?.doubleOrNull ?: wrong(name, "a number") }

internal fun JsonObject.child(name: String): JsonObject? = present(name)?.let { it as? JsonObject ?: wrong(name, "an object") }

internal fun JsonObject.array(name: String): JsonArray = present(name) as? JsonArray ?: wrong(name, "a list")

internal fun JsonObject.objects(name: String): List<JsonObject> = array(name).map { it as? JsonObject ?: wrong(name, "a list of objects") }

internal fun JsonObject.wrong(name: String, wanted: String): Nothing {
    val found = this[name]?.toString()?.take(SHOWN) ?: "absent"
    throw WrongJson("$name is $found; it has to be $wanted")
}

internal fun JsonObject.numbers(name: String): List<Int> =
    array(name).map { (it as? JsonPrimitive)?.takeUnless(JsonPrimitive::isString)?.intOrNull ?: wrong(name, "a list of whole numbers") }

internal fun JsonObject.texts(name: String): List<String> =
    array(name).map { (it as? JsonPrimitive)?.takeIf(JsonPrimitive::isString)?.content ?: wrong(name, "a list of texts") }

private const val SHOWN = 60
