package pocketbert.core.tokenizer

/** Words by their beginnings: which of them a text has at some place. */
internal interface Trie {
    /** Returns the node that a code point leads to from a node, or -1. */
    fun child(node: Int, code: Int): Int

    /** Returns the id of the word that ends at a node, or -1. */
    fun word(node: Int): Int

    companion object {
        /** The node at which every word begins. */
        const val ROOT = 0
    }
}

/**
 * Calls [found] with the end and id of each word that [text] has at [first], the shortest first.
 *
 * @param start what the words begin with, as [node] returns it.
 */
internal inline fun Trie.each(text: Slice, first: Int, start: Int, found: (Int, Int) -> Unit) {
    var node = start
    var at = first
    while (node >= 0 && at < text.end) {
        node = child(node, text.codes[at++])
        if (node < 0) return
        val id = word(node)
        if (id >= 0) found(at, id)
    }
}

/** Returns where words go on that begin so, or -1. */
internal fun Trie.node(beginning: String): Int {
    var node = Trie.ROOT
    var at = 0
    while (node >= 0 && at < beginning.length) {
        val code = beginning.codePointAt(at)
        node = child(node, code)
        at += Character.charCount(code)
    }
    return node
}

/** Returns the id of a word, or null. */
internal fun Trie.id(word: String): Int? {
    val node = node(word)
    return if (node < 0) null else word(node).takeIf { it >= 0 }
}

/** A trie that about [words] words are added to. */
internal class GrowingTrie(words: Int) : Trie {
    // One table of (node, code point) → node; a node's word stands beside it. A word has about two nodes of its own.
    private var keys = LongArray(maxOf(LEAST, Integer.highestOneBit(maxOf(1, 4 * words)))) { -1 }
    private var children = IntArray(keys.size)
    private var ids = IntArray(keys.size / 2) { -1 }
    private var nodes = 1

    fun add(word: String, id: Int) {
        var node = Trie.ROOT
        var at = 0
        while (at < word.length) {
            val code = word.codePointAt(at)
            node = childOrNew(node, code)
            at += Character.charCount(code)
        }
        ids[node] = id
    }

    override fun word(node: Int) = ids[node]

    override fun child(node: Int, code: Int): Int {
        val key = key(node, code)
        var slot = slot(key, keys.size)
        while (keys[slot] >= 0) {
            if (keys[slot] == key) return children[slot]
            slot = (slot + 1) and (keys.size - 1)
        }
        return -1
    }

    private fun childOrNew(node: Int, code: Int): Int {
        val known = child(node, code)
        if (known >= 0) return known
        if (2 * nodes >= keys.size) grow()
        val new = nodes++
        if (new == ids.size) ids = ids.copyOf(2 * new).also { it.fill(-1, new) }
        put(key(node, code), new)
        return new
    }

    private fun put(key: Long, child: Int) {
        var slot = slot(key, keys.size)
        while (keys[slot] >= 0) slot = (slot + 1) and (keys.size - 1)
        keys[slot] = key
        children[slot] = child
    }

    private fun grow() {
        val before = keys
        val kept = children
        keys = LongArray(2 * before.size) { -1 }
        children = IntArray(2 * before.size)
        for (slot in before.indices) if (before[slot] >= 0) put(before[slot], kept[slot])
    }

    private fun key(node: Int, code: Int) = (node.toLong() shl CODE_BITS) or code.toLong()

    private fun slot(key: Long, size: Int) = ((key * SPREAD) ushr 32).toInt() and (size - 1)

    private companion object {
        const val LEAST = 1 shl 8
        const val CODE_BITS = 21
        const val SPREAD = -0x61c8864680b583ebL
    }
}
