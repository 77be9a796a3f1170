package pocketbert.core.tokenizer

import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.int
import pocketbert.core.array
import pocketbert.core.child
import pocketbert.core.number
import pocketbert.core.objects
import pocketbert.core.text

/** How special tokens are put around one text or two: the `post_processor` of `tokenizer.json`. */
internal class Template private constructor(private val single: List<Slot>, private val pair: List<Slot>) {
    /** A special token, or the place of a text (0 or 1). */
    class Slot(val id: Int?, val text: Int, val type: Int)

    fun slots(isPair: Boolean) = if (isPair) pair else single

    /** How many special tokens come with one text or two. */
    fun added(isPair: Boolean) = slots(isPair).count { it.id != null }

    companion object {
        private val BARE = Template(listOf(Slot(null, 0, 0)), listOf(Slot(null, 0, 0), Slot(null, 1, 1)))

        fun read(step: JsonObject?): Template = if (step == null) BARE else find(step) ?: BARE

        private fun find(step: JsonObject): Template? = when (val kind = step.text("type")) {
            "Sequence" -> step.objects("processors").mapNotNull(::find).also {
                if (it.size >
                    1
                ) {
                    unsupported("several templates")
                }
            }.firstOrNull()
            "ByteLevel" -> null
            "TemplateProcessing" -> template(step)
            "BertProcessing" -> around(step, middle = 1, second = 1)
            "RobertaProcessing" -> around(step, middle = 2, second = 0)
            else -> unsupported("the post_processor $kind")
        }

        private fun unsupported(what: String): Nothing = throw UnsupportedTokenizer("tokenizer.json has $what, which is not supported")

        private fun around(step: JsonObject, middle: Int, second: Int): Template {
            val (cls, sep) = listOf("cls", "sep").map { (step.array(it)[1] as JsonPrimitive).int }
            val first = listOf(Slot(cls, 0, 0), Slot(null, 0, 0), Slot(sep, 0, 0))
            val more = List(middle - 1) { Slot(sep, 0, 0) } + listOf(Slot(null, 1, second), Slot(sep, 0, second))
            return Template(first, first + more)
        }

        private fun template(step: JsonObject): Template {
            val specials = step.child("special_tokens") ?: JsonObject(emptyMap())
            return Template(slots(step.objects("single"), specials), slots(step.objects("pair"), specials))
        }

        private fun slots(entries: List<JsonObject>, specials: JsonObject): List<Slot> = entries.flatMap { entry ->
            val text = entry.child("Sequence")
            if (text != null) return@flatMap listOf(Slot(null, if (text.text("id") == "A") 0 else 1, text.number("type_id")))
            val special = entry.child("SpecialToken") ?: unsupported("a template with ${entry.keys}")
            val token = specials.child(special.text("id")) ?: unsupported("a template with ${special.text("id")}, which it does not define")
            (token.array("ids") as JsonArray).map { Slot((it as JsonPrimitive).int, 0, special.number("type_id")) }
        }
    }
}
