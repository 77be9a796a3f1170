package pocketbert.core.tokenizer

import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pocketbert.core.Background
import pocketbert.core.Cancelled
import pocketbert.core.VECTORS
import java.io.File
import java.util.concurrent.Callable
import java.util.concurrent.CompletableFuture
import java.util.concurrent.CountDownLatch
import java.util.concurrent.Executors

class TokenizerTest {
    private val tokenizer by lazy {
        Tokenizer.read(File(VECTORS, "wordpiece/tokenizer.json").readText())
    }

    @Test
    fun `windows share tokens and cover the passage`() {
        val passage = (1..100).joinToString(" ") { "word" }
        val windows = tokenizer.windows("what is it", passage, maxLength = 32, stride = 8)
        val room = 32 - 3 - 3
        assertTrue(windows.dropLast(1).all { it.size == 32 })
        assertEquals(1 + (100 - room + (room - 8) - 1) / (room - 8), windows.size)
        assertEquals(passage.length, windows.last().to.max())
        for ((one, next) in windows.zipWithNext()) {
            val last = one.from.indices.filter { one.texts[it] == 1 }.takeLast(8).map { one.from[it] }
            assertEquals(last, next.from.indices.filter { next.texts[it] == 1 }.take(8).map { next.from[it] })
        }
        assertEquals(1, tokenizer.windows("what is it", "", maxLength = 32, stride = 8).size)
    }

    @Test
    fun `a question that leaves no room is refused`() {
        val question = "why ".repeat(40)
        val error = assertThrows(IllegalArgumentException::class.java) { tokenizer.windows(question, "because", 32, 8) }
        assertTrue(error.message!!.contains("the question has 40 tokens; a row of 32 has no room"), error.message)
        assertThrows(IllegalArgumentException::class.java) { tokenizer.windows("why", "because", 32, 28) }
    }

    @Test
    fun `strange texts are encoded`() {
        assertArrayEquals(intArrayOf(101, 102), tokenizer.encode("").ids)
        assertArrayEquals(intArrayOf(101, 102), tokenizer.encode(" \t\n").ids)
        // Half a surrogate pair is a question mark.
        assertArrayEquals(tokenizer.encode("a ? b").ids, tokenizer.encode("a \uD800 b").ids)
        assertEquals(2, tokenizer.encode("many words", maxLength = 2).size)
        assertEquals(2, tokenizer.encode("many words", maxLength = 0).size)
        assertEquals(100_002, tokenizer.encode("word ".repeat(100_000)).size)
        assertEquals(101, tokenizer.id("[CLS]"))
        assertNull(tokenizer.id("no such token"))
    }

    @Test
    fun `several threads may encode at once`() {
        val texts = List(200) { "text number $it with an accent: é à ü 東京" }
        val wanted = texts.map { tokenizer.encode(it).ids.toList() }
        val pool = Executors.newFixedThreadPool(8)
        try {
            val found = pool.invokeAll(List(8) { Callable { texts.map { tokenizer.encode(it).ids.toList() } } })
            assertTrue(found.all { it.get() == wanted })
        } finally {
            pool.shutdownNow()
        }
    }

    @Test
    fun `what is not supported is named`() {
        fun refused(json: String) = assertThrows(UnsupportedTokenizer::class.java) { Tokenizer.read(json) }.message!!
        val model = """"model": {"type": "WordPiece", "unk_token": "u", "vocab": {"u": 0}}"""
        assertTrue(refused("{").contains("cannot be read"))
        assertTrue(refused("[]").contains("holds no object"))
        assertTrue(refused("{}").contains("no model"))
        assertTrue(refused("[".repeat(100_000)).contains("cannot be read"))
        assertTrue(refused("""{"model": {"type": "WordLevel"}}""").contains("WordLevel"))
        assertTrue(refused("""{$model, "normalizer": {"type": "Nmt"}}""").contains("the normalizer Nmt"))
        assertTrue(refused("""{$model, "normalizer": {"type": "Replace", "pattern": {"Regex": "(?i)a"}, "content": ""}}""").contains("(?"))
        assertTrue(refused("""{$model, "pre_tokenizer": {"type": "UnicodeScripts"}}""").contains("UnicodeScripts"))
        assertTrue(refused("""{"model": {"type": "WordPiece", "unk_token": "x", "vocab": {"u": 0}}}""").contains("unk_token x"))
        assertTrue(refused("""{"model": {"type": "WordPiece", "unk_token": 7, "vocab": {"u": 0}}}""").contains("unk_token is 7"))
    }

    @Test
    fun `a long text is given up when asked`() {
        val long = "a long passage about nothing, ".repeat(100_000)
        val begun = CountDownLatch(1)
        val ended = CompletableFuture<Result<Encoding>>()
        Background().use { background ->
            val asked = background.start({ cancellation ->
                begun.countDown()
                tokenizer.encode(long, cancellation = cancellation)
            }) { ended.complete(it) }
            begun.await()
            Thread.sleep(20)
            asked.cancel()
            assertTrue(ended.get().exceptionOrNull() is Cancelled)
            assertThrows(Cancelled::class.java) { tokenizer.windows("Who?", long, 64, 8, asked) }
        }
        // The next text is encoded as if nothing had been.
        assertEquals(5, tokenizer.encode("A text.").size)
    }

    @Test
    fun `patterns are read as Oniguruma reads them`() {
        fun matches(pattern: String, text: String) = buildList {
            Pattern.of(pattern).each(Slice(text.codePoints().toArray())) { first, end -> add(first until end) }
        }
        assertEquals(listOf(0 until 2, 3 until 5), matches("""a+""", "aa aa"))
        assertEquals(listOf(0 until 1, 1 until 2), matches("""a+?""", "aa"))
        assertEquals(listOf(1 until 2), matches("""(?<=a)b(?!c)""", "abbcab".substring(0, 3)))
        assertEquals(listOf(0 until 3), matches("""(?:ab|abc)(?=d|\z)""", "abcd"))
        assertEquals(listOf(1 until 2), matches("""[a-z&&[^aeiou]]""", "abe"))
        assertEquals(listOf(0 until 1), matches("""[\x{1F600}]""", "\uD83D\uDE00"))
        assertEquals(listOf(0 until 4), matches("""(ab){2}""", "ababab").take(1))
        assertEquals(emptyList<IntRange>(), matches("""\Ab""", "ab"))
        for (broken in listOf("(", "[a", "a)", "*", "\\", "[b-a]", "\\p{Nowhere}", "\\x{zz}", "(?<name>a)", "(ab)++", "(?<=a*)b")) {
            assertThrows(UnsupportedTokenizer::class.java, { Pattern.of(broken) }, broken)
        }
    }
}
