package pocketbert.core.tokenizer

import kotlinx.serialization.json.JsonObject
import pocketbert.core.flag
import pocketbert.core.number
import pocketbert.core.text

/** A part of a text: either an added token (with its id) or text that is still to be cut. */
internal class Part(val text: AlignedText, val id: Int?)

/** Tokens that are found in a text before anything else, such as `[MASK]`. */
internal class AddedTokens(entries: List<JsonObject>, private val normalizer: Normalizer?) {
    private class Added(val id: Int, val codes: IntArray, val singleWord: Boolean, val left: Boolean, val right: Boolean)

    /** Tokens by what they begin with, the longest first. */
    private class Group(tokens: List<Added>) {
        private val all = tokens.filter { it.codes.isNotEmpty() }.sortedByDescending { it.codes.size }.groupBy { it.codes[0] }

        // Few characters of a text begin a token, and a set is asked faster than a map.
        private val firsts = CharacterSet.union(all.keys.map { CharacterSet.of(it) })

        val isEmpty get() = all.isEmpty()

        fun beginning(code: Int): List<Added>? = if (code in firsts) all[code] else null
    }

    private val asWritten: Group
    private val normalised: Group
    private val words = CharacterTables.set("regex_word")
    private val spaces = CharacterTables.set("space")

    init {
        val (later, first) = entries.partition { it.flag("normalized") }
        asWritten = group(first) { it }
        normalised = group(later) { normalizer?.apply(AlignedText.of(it))?.toString() ?: it }
    }

    private fun group(entries: List<JsonObject>, spell: (String) -> String) = Group(
        entries.map { entry ->
            val codes = spell(entry.text("content")).codePoints().toArray()
            Added(entry.number("id"), codes, entry.flag("single_word"), entry.flag("lstrip"), entry.flag("rstrip"))
        },
    )

    /** Finds the tokens, and normalises what lies between them. */
    fun split(text: AlignedText): List<Part> = find(text, asWritten).flatMap { part ->
        if (part.id != null) listOf(part) else find(normalizer?.apply(part.text) ?: part.text, normalised)
    }

    private fun find(text: AlignedText, tokens: Group): List<Part> {
        if (text.size == 0) return emptyList()
        if (tokens.isEmpty) return listOf(Part(text, null))
        val parts = ArrayList<Part>()
        var kept = 0
        var at = 0
        while (at < text.size) {
            val added = tokens.beginning(text.codes[at])?.firstOrNull { fits(it, text.codes, at) }
            if (added == null) {
                at++
                continue
            }
            val end = at + added.codes.size
            if (!added.singleWord || !(word(text.codes, at - 1) || word(text.codes, end))) {
                val first = if (added.left) spacesBefore(text.codes, at, kept) else at
                val last = if (added.right) spacesAfter(text.codes, end) else end
                if (kept < first) parts.add(Part(text.slice(kept, first), null))
                parts.add(Part(text.slice(first, last), added.id))
                kept = last
            }
            at = end
        }
        if (kept < text.size) parts.add(Part(text.slice(kept, text.size), null))
        return parts
    }

    private fun fits(added: Added, codes: IntArray, at: Int) =
        at + added.codes.size <= codes.size && added.codes.indices.all { codes[at + it] == added.codes[it] }

    private fun word(codes: IntArray, at: Int) = at in codes.indices && codes[at] in words

    private fun spacesBefore(codes: IntArray, at: Int, least: Int): Int {
        var first = at
        while (first > least && codes[first - 1] in spaces) first--
        return first
    }

    private fun spacesAfter(codes: IntArray, at: Int): Int {
        var end = at
        while (end < codes.size && codes[end] in spaces) end++
        return end
    }
}
