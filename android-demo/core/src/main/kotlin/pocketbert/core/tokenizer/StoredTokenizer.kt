package pocketbert.core.tokenizer

import java.nio.ByteBuffer
import java.nio.ByteOrder

/**
 * What a `tokenizer.bin` holds: a large `tokenizer.json` that opens in milliseconds. `pipeline/text/binary.py` writes it.
 *
 * @property json `tokenizer.json` without its vocabulary.
 */
internal class StoredTokenizer private constructor(val json: String, val vocabulary: Vocabulary) {
    companion object {
        private const val MAGIC = "PBTOKENS"
        private const val VERSION = 1L
        private const val HEAD = 32

        /** Reads the file. Throws [UnsupportedTokenizer] where it is broken or of another version. */
        fun read(bytes: ByteArray): StoredTokenizer {
            if (bytes.size < HEAD || String(bytes, 0, MAGIC.length, Charsets.ISO_8859_1) != MAGIC) throw broken("it is no such file")
            val (version, text, nodes, scores) = bytes.part(MAGIC.length, HEAD).asIntBuffer().let { head ->
                List(4) { head.get().toLong() and 0xFFFFFFFFL }
            }
            if (version != VERSION) throw broken("it is of version $version, and this app reads version $VERSION; ship the model again")
            val size = HEAD + text + scores * Double.SIZE_BYTES + (3 * nodes + 1) * Int.SIZE_BYTES
            if (nodes < 1 || size != bytes.size.toLong()) throw broken("it has ${bytes.size} bytes, and its head says $size")
            var place = HEAD + text.toInt()
            val kept = DoubleArray(scores.toInt()).also { bytes.part(place, bytes.size).asDoubleBuffer().get(it) }
            place += kept.size * Double.SIZE_BYTES
            val numbers = bytes.part(place, bytes.size).asIntBuffer()
            val (codes, children, ids) = listOf(nodes, nodes + 1, nodes).map { count -> IntArray(count.toInt()).also(numbers::get) }
            if (!StoredTrie.holds(children, ids)) throw broken("its tokens are no tree")
            // A score is looked up by id, and BERT's WordPiece has none.
            if (kept.isNotEmpty() && ids.any { it >= kept.size }) throw broken("a token has no score")
            return StoredTokenizer(String(bytes, HEAD, text.toInt(), Charsets.UTF_8), Vocabulary(StoredTrie(codes, children, ids), kept))
        }

        private fun ByteArray.part(first: Int, end: Int) = ByteBuffer.wrap(this, first, end - first).order(ByteOrder.LITTLE_ENDIAN)

        private fun broken(why: String) = UnsupportedTokenizer("tokenizer.bin: $why")
    }
}

/**
 * A trie as it lies in a file.
 *
 * @property codes the code point that leads to each node; those of one parent stand together and go up.
 * @property children the number of each node's first child; they end where the next node's begin.
 * @property ids the id of the word that ends at each node, or -1.
 */
internal class StoredTrie(private val codes: IntArray, private val children: IntArray, private val ids: IntArray) : Trie {
    override fun word(node: Int) = ids[node]

    override fun child(node: Int, code: Int): Int {
        var first = children[node]
        var end = children[node + 1]
        while (first < end) {
            val middle = (first + end) ushr 1
            val found = codes[middle]
            if (found == code) return middle
            if (found < code) first = middle + 1 else end = middle
        }
        return -1
    }

    companion object {
        /** Returns whether every node but the root has one parent, which comes before it, and ids are none or from 0 on. */
        fun holds(children: IntArray, ids: IntArray): Boolean {
            if (children[0] != 1 || children[ids.size] != ids.size) return false
            for (node in ids.indices) {
                if (children[node] <= node || children[node + 1] < children[node] || ids[node] < -1) return false
            }
            return true
        }
    }
}
