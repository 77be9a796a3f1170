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
internal class Pattern private constructor(private val root: Node, private val firsts: CharacterTest?) {
    /** Calls [found] with begin and end of each match in [codes], from left to right. */
    fun each(codes: IntArray, found: (Int, Int) -> Unit) {
        var at = 0
        val match = Match(codes)
        while (at <= codes.size) {
            val possible = firsts == null || (at < codes.size && firsts.test(codes[at]))
            val end = if (possible) match.end(root, at) else -1
            if (end < 0) {
                at++
            } else {
                found(at, end)
                // An empty match behind a match that ended here would be found for ever.
                at = if (end > at) end else at + 1
            }
        }
    }

    companion object {
        fun of(source: String): Pattern {
            val root = PatternReader(source).read()
            return Pattern(root, root.firsts())
        }

        /** Returns a pattern that matches a text as it is. */
        fun literal(text: String): Pattern {
            val codes = text.codePoints().toArray()
            val parts = codes.map { code -> One { it == code } }
            val root = if (parts.size == 1) parts[0] else Sequence(parts)
            return Pattern(root, root.firsts())
        }
    }
}

/** Reads `{"Regex": …}` or `{"String": …}`. */
internal fun JsonObject.pattern(): Pattern {
    val pattern = child("pattern") ?: wrong("pattern", "an object")
    return pattern.textOrNull("Regex")?.let(Pattern::of) ?: Pattern.literal(pattern.text("String"))
}

internal fun interface CharacterTest {
    fun test(code: Int): Boolean
}

/** One attempt in one text. */
internal class Match(val codes: IntArray) {
    fun end(node: Node, at: Int): Int = node.match(this, at) { it }
}

/** A part of a pattern; [match] returns where the whole match ends, or -1, by asking [next] about what follows. */
internal sealed class Node {
    abstract fun match(match: Match, at: Int, next: (Int) -> Int): Int

    /** What the first character has to be, or null where that is not known or none is needed. */
    abstract fun firsts(): CharacterTest?

    /** How many characters it takes at most; a large number stands for no bound. */
    abstract val longest: Int

    /** Whether it may match without a character. */
    abstract val empty: Boolean

    companion object {
        const val UNBOUNDED = 1_000_000
    }
}

internal class One(private val test: CharacterTest) : Node() {
    override val longest = 1
    override val empty = false

    override fun match(match: Match, at: Int, next: (Int) -> Int) =
        if (at < match.codes.size && test.test(match.codes[at])) next(at + 1) else -1

    override fun firsts() = test
}

internal class Sequence(private val parts: List<Node>) : Node() {
    override val longest = minOf(UNBOUNDED, parts.sumOf { it.longest })
    override val empty = parts.all { it.empty }

    override fun match(match: Match, at: Int, next: (Int) -> Int) = from(0, match, at, next)

    private fun from(part: Int, match: Match, at: Int, next: (Int) -> Int): Int =
        if (part == parts.size) next(at) else parts[part].match(match, at) { from(part + 1, match, it, next) }

    override fun firsts(): CharacterTest? {
        val tests = ArrayList<CharacterTest>()
        for (part in parts) {
            if (part is Look || part is Anchor) continue
            tests.add(part.firsts() ?: return null)
            if (!part.empty) return if (tests.size == 1) tests[0] else CharacterTest { code -> tests.any { it.test(code) } }
        }
        return null
    }
}

internal class Either(private val options: List<Node>) : Node() {
    override val longest = options.maxOf { it.longest }
    override val empty = options.any { it.empty }
    private val starts = options.map { if (it.empty) null else it.firsts() }

    override fun match(match: Match, at: Int, next: (Int) -> Int): Int {
        for ((option, start) in options.zip(starts)) {
            if (start != null && (at >= match.codes.size || !start.test(match.codes[at]))) continue
            val end = option.match(match, at, next)
            if (end >= 0) return end
        }
        return -1
    }

    override fun firsts(): CharacterTest? {
        if (empty || starts.any { it == null }) return null
        return CharacterTest { code -> starts.any { it!!.test(code) } }
    }
}

internal class Repeat(private val of: Node, private val least: Int, private val most: Int, private val kind: Kind) : Node() {
    enum class Kind { GREEDY, LAZY, POSSESSIVE }

    override val longest =
        if (most == Int.MAX_VALUE) UNBOUNDED else minOf(UNBOUNDED.toLong(), most.toLong() * of.longest).toInt()
    override val empty = least == 0 || of.empty

    override fun match(match: Match, at: Int, next: (Int) -> Int): Int =
        if (of is One) simple(match, at, next) else more(0, match, at, next)

    /** Repeats one character without a call for each. */
    private fun simple(match: Match, at: Int, next: (Int) -> Int): Int {
        var count = 0
        if (kind == Kind.LAZY) {
            while (true) {
                if (count >= least) next(at + count).let { if (it >= 0) return it }
                if (count == most || of.match(match, at + count) { it } < 0) return -1
                count++
            }
        }
        while (count < most && of.match(match, at + count) { it } >= 0) count++
        if (kind == Kind.POSSESSIVE) return if (count >= least) next(at + count) else -1
        while (count >= least) {
            val end = next(at + count)
            if (end >= 0) return end
            count--
        }
        return -1
    }

    private fun more(count: Int, match: Match, at: Int, next: (Int) -> Int): Int {
        val again = {
            if (count >= most) -1 else of.match(match, at) { if (it == at && count >= least) -1 else more(count + 1, match, it, next) }
        }
        if (count < least) return again()
        if (kind == Kind.LAZY) {
            val end = next(at)
            return if (end >= 0) end else again()
        }
        val end = again()
        return if (end >= 0) end else next(at)
    }

    override fun firsts() = of.firsts()
}

/** Looks ahead or behind without taking characters. */
internal class Look(private val of: Node, private val ahead: Boolean, private val wanted: Boolean) : Node() {
    override val longest = 0
    override val empty = true

    init {
        if (!ahead && of.longest >= UNBOUNDED) throw UnsupportedTokenizer("a lookbehind without bounds is not supported")
    }

    override fun match(match: Match, at: Int, next: (Int) -> Int): Int {
        val there = if (ahead) of.match(match, at) { it } >= 0 else behind(match, at)
        return if (there == wanted) next(at) else -1
    }

    private fun behind(match: Match, at: Int): Boolean {
        for (first in at downTo maxOf(0, at - of.longest)) {
            if (of.match(match, first) { if (it == at) it else -1 } >= 0) return true
        }
        return false
    }

    override fun firsts(): CharacterTest? = null
}

/** A place in the text. */
internal class Anchor(private val holds: (IntArray, Int) -> Boolean) : Node() {
    override val longest = 0
    override val empty = true

    override fun match(match: Match, at: Int, next: (Int) -> Int) = if (holds(match.codes, at)) next(at) else -1

    override fun firsts(): CharacterTest? = null
}
