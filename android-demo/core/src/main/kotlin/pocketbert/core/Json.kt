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
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.longOrNull
import java.nio.ByteBuffer

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

/** Reads a whole file as [readJson] does, and refuses what the library lets pass: bare words, and a key twice. */
internal fun readStrictJson(bytes: ByteArray): JsonObject {
    val json = try {
        Charsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString()
    } catch (_: CharacterCodingException) {
        throw WrongJson("it cannot be read: it is not UTF-8")
    }
    val read = readJson(json)
    Strict(json).check()
    return read
}

/** Walks through a text that the library has read, and looks at the literals and the keys of each object. */
private class Strict(private val json: String) {
    private val keys = ArrayDeque<MutableSet<String>?>()

    fun check() {
        var at = 0
        while (at < json.length) {
            when (json[at]) {
                '{' -> keys.addLast(HashSet())
                '[' -> keys.addLast(null)
                '}', ']' -> keys.removeLast()
                '"' -> {
                    at = text(at)
                    continue
                }
                in SEPARATORS -> Unit
                else -> {
                    val end = json.indexOfAny(ENDS, at).let { if (it < 0) json.length else it }
                    val literal = json.substring(at, end)
                    if (!LITERAL.matches(literal)) throw WrongJson("it cannot be read: $literal is no value")
                    at = end
                    continue
                }
            }
            at++
        }
    }

    /** Returns where a text ends; one with a colon behind it is a key. */
    private fun text(first: Int): Int {
        var end = first + 1
        while (json[end] != '"') end += if (json[end] == '\\') 2 else 1
        end++
        var next = end
        while (next < json.length && json[next] in SPACES) next++
        if (next < json.length && json[next] == ':') {
            val key = Json.parseToJsonElement(json.substring(first, end)).jsonPrimitive.content
            if (keys.last()?.add(key) == false) throw WrongJson("$key: the key is there more than once")
        }
        return end
    }

    private companion object {
        const val SPACES = " \t\r\n"
        const val SEPARATORS = "$SPACES,:"
        val ENDS = "$SEPARATORS]}\"".toCharArray()
        val LITERAL = Regex("null|true|false|-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?")
    }
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

internal fun JsonObject.doubles(name: String): List<Double> =
    array(name).map { (it as? JsonPrimitive)?.takeUnless(JsonPrimitive::isString)?.doubleOrNull ?: wrong(name, "a list of numbers") }

internal fun JsonObject.texts(name: String): List<String> =
    array(name).map { (it as? JsonPrimitive)?.takeIf(JsonPrimitive::isString)?.content ?: wrong(name, "a list of texts") }

private const val SHOWN = 60
