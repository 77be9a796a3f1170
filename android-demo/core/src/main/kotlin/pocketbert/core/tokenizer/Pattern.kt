package pocketbert.core.tokenizer

import kotlinx.serialization.json.JsonObject
import pocketbert.core.child
import pocketbert.core.text
import pocketbert.core.textOrNull
import pocketbert.core.wrong

/** A `tokenizer.json` uses something that is not supported here. */
class UnsupportedTokenizer(message: String) : IllegalArgumentException(message)

/**
 * The regular expressions of `tokenizer.json`: the part of Oniguruma's syntax that tokenizers use.
 *
 * A platform's own engine knows other classes of characters (and Java's lacks `\p{Case_Ignorable}`), so the patterns are
 * read here and matched against the reference's tables. Backtracking; lookbehind of any bounded length.
 */
internal class Pattern private constructor(private val root: Node) {
    private val firsts = root.firsts()

    /** Calls [found] with begin and end of each match in [slice], from left to right. */
    inline fun each(slice: Slice, found: (Int, Int) -> Unit) {
        var at = possible(slice, slice.first)
        while (at <= slice.end) {
            val end = end(slice, at)
            if (end >= 0) found(at, end)
            // An empty match behind a match that ended here would be found for ever.
            at = possible(slice, if (end > at) end else at + 1)
        }
    }

    /** Where a match that begins at [at] ends, or -1. */
    fun end(slice: Slice, at: Int) = root.match(slice, at, Rest.NONE)

    /** The first place from [from] on where a match may begin, or one that is behind the slice's end. */
    fun possible(slice: Slice, from: Int): Int {
        if (firsts == null) return from
        for (at in from until slice.end) if (slice.codes[at] in firsts) return at
        return slice.end + 1
    }

    companion object {
        fun of(source: String) = Pattern(PatternReader(source).read())

        /** Returns a pattern that matches a text as it is. */
        fun literal(text: String): Pattern {
            val parts = text.codePoints().toArray().map { One(CharacterSet.of(it)) }
            return Pattern(parts.singleOrNull() ?: Sequence(parts))
        }
    }
}

/** Reads `{"Regex": …}` or `{"String": …}`. */
internal fun JsonObject.pattern(): Pattern {
    val pattern = child("pattern") ?: wrong("pattern", "an object")
    return pattern.textOrNull("Regex")?.let(Pattern::of) ?: Pattern.literal(pattern.text("String"))
}

/** What follows in a pattern: where the whole match ends if this part of it begins at [match]'s place, or -1. */
internal fun interface Rest {
    fun match(at: Int): Int

    companion object {
        val NONE = Rest { it }
    }
}

/** A part of a pattern; [match] returns where the whole match ends, or -1, by asking `rest` about what follows. */
internal sealed class Node {
    abstract fun match(slice: Slice, at: Int, rest: Rest): Int

    /** What the first character has to be, or null where that is not known or none is needed. */
    abstract fun firsts(): CharacterSet?

    /** How many characters it takes at most; a large number stands for no bound. */
    abstract val longest: Int

    /** Whether it may match without a character. */
    abstract val empty: Boolean

    companion object {
        const val UNBOUNDED = 1_000_000
    }
}

internal class One(private val set: CharacterSet) : Node() {
    override val longest = 1
    override val empty = false

    override fun match(slice: Slice, at: Int, rest: Rest) = if (fits(slice, at)) rest.match(at + 1) else -1

    fun fits(slice: Slice, at: Int) = at < slice.end && slice.codes[at] in set

    override fun firsts() = set
}

internal class Sequence(private val parts: List<Node>) : Node() {
    override val longest = minOf(UNBOUNDED, parts.sumOf { it.longest })
    override val empty = parts.all { it.empty }

    override fun match(slice: Slice, at: Int, rest: Rest) = from(0, slice, at, rest)

    private fun from(part: Int, slice: Slice, at: Int, rest: Rest): Int = when (part) {
        parts.size -> rest.match(at)
        parts.size - 1 -> parts[part].match(slice, at, rest)
        else -> parts[part].match(slice, at) { from(part + 1, slice, it, rest) }
    }

    override fun firsts(): CharacterSet? {
        val sets = ArrayList<CharacterSet>()
        for (part in parts) {
            if (part is Look || part is Anchor) continue
            sets.add(part.firsts() ?: return null)
            if (!part.empty) return CharacterSet.union(sets)
        }
        return null
    }
}

internal class Either(private val options: List<Node>) : Node() {
    override val longest = options.maxOf { it.longest }
    override val empty = options.any { it.empty }
    private val starts = options.map { if (it.empty) null else it.firsts() }

    override fun match(slice: Slice, at: Int, rest: Rest): Int {
        for (option in options.indices) {
            val start = starts[option]
            if (start != null && (at >= slice.end || slice.codes[at] !in start)) continue
            val end = options[option].match(slice, at, rest)
            if (end >= 0) return end
        }
        return -1
    }

    override fun firsts() = starts.filterNotNull().takeIf { it.size == options.size }?.let(CharacterSet::union)
}

internal class Repeat(private val of: Node, private val least: Int, private val most: Int, private val kind: Kind) : Node() {
    enum class Kind { GREEDY, LAZY, POSSESSIVE }

    override val longest =
        if (most == Int.MAX_VALUE) UNBOUNDED else minOf(UNBOUNDED.toLong(), most.toLong() * of.longest).toInt()
    override val empty = least == 0 || of.empty

    override fun match(slice: Slice, at: Int, rest: Rest): Int = if (of is One) simple(of, slice, at, rest) else more(0, slice, at, rest)

    /** Repeats one character without a call for each. */
    private fun simple(one: One, slice: Slice, at: Int, rest: Rest): Int {
        var count = 0
        if (kind == Kind.LAZY) {
            while (true) {
                if (count >= least) rest.match(at + count).let { if (it >= 0) return it }
                if (count == most || !one.fits(slice, at + count)) return -1
                count++
            }
        }
        while (count < most && one.fits(slice, at + count)) count++
        if (kind == Kind.POSSESSIVE) return if (count >= least) rest.match(at + count) else -1
        while (count >= least) {
            val end = rest.match(at + count)
            if (end >= 0) return end
            count--
        }
        return -1
    }

    private fun more(count: Int, slice: Slice, at: Int, rest: Rest): Int {
        if (count >= least && kind == Kind.LAZY) {
            val end = rest.match(at)
            return if (end >= 0) end else again(count, slice, at, rest)
        }
        val end = again(count, slice, at, rest)
        return if (end >= 0 || count < least) end else rest.match(at)
    }

    private fun again(count: Int, slice: Slice, at: Int, rest: Rest): Int =
        if (count >= most) -1 else of.match(slice, at) { if (it == at && count >= least) -1 else more(count + 1, slice, it, rest) }

    override fun firsts() = of.firsts()
}

/** Looks ahead or behind without taking characters. */
internal class Look(private val of: Node, private val ahead: Boolean, private val wanted: Boolean) : Node() {
    override val longest = 0
    override val empty = true

    init {
        if (!ahead && of.longest >= UNBOUNDED) throw UnsupportedTokenizer("a lookbehind without bounds is not supported")
    }

    override fun match(slice: Slice, at: Int, rest: Rest): Int {
        val there = if (ahead) of.match(slice, at, Rest.NONE) >= 0 else behind(slice, at)
        return if (there == wanted) rest.match(at) else -1
    }

    private fun behind(slice: Slice, at: Int): Boolean {
        for (first in at downTo maxOf(slice.first, at - of.longest)) {
            if (of.match(slice, first) { if (it == at) it else -1 } >= 0) return true
        }
        return false
    }

    override fun firsts(): CharacterSet? = null
}

/** A place in the text. */
internal class Anchor(private val holds: (Slice, Int) -> Boolean) : Node() {
    override val longest = 0
    override val empty = true

    override fun match(slice: Slice, at: Int, rest: Rest) = if (holds(slice, at)) rest.match(at) else -1

    override fun firsts(): CharacterSet? = null
}
