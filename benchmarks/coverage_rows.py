"""The fifty encoders of `make coverage`: what each publishes, as far as an exporter sees it.

Config keys, modules, prompts and labels are those of the hub's repositories, gathered in November 2026. Weights are
random, and width, depth and vocabulary are cut, so that a row takes a minute: what is shown is that the whole folder is
read and carried out, not how good the model is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

TokenizerKind = Literal["wordpiece", "cased", "mpnet", "bpe", "unigram"]
Modules = tuple[tuple[str, Mapping[str, Any]], ...]
SQUAD = "question_answering"


@dataclass(frozen=True)
class Row:
    """One encoder: its config before it is cut, and what lies beside it."""

    number: int
    hub: str
    model_type: str
    layers: int
    hidden: int
    heads: int
    head: str = "embedding"
    """`embedding`, `classification`, `token_classification` or `question_answering`."""
    tokenizer: TokenizerKind = "wordpiece"
    config: Mapping[str, Any] = field(default_factory=dict)
    modules: Modules = ()
    """Modules behind the Transformer; a width of 0 is that of the encoder."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()


def _pooled(*modes: str, normalised: bool = True) -> Modules:
    pooling = ("Pooling", {"modes": modes})
    return (pooling, ("Normalize", {})) if normalised else (pooling,)


def _dense(width: int, activation: str = "Identity", *, bias: bool = True) -> tuple[str, Mapping[str, Any]]:
    return "Dense", {"out_features": width, "activation": activation, "bias": bias}


MEAN, CLS = _pooled("mean"), _pooled("cls")
_XS, _S, _M, _L = (6, 384, 12), (12, 384, 12), (12, 768, 12), (24, 1024, 16)
_ROBERTA = {"type_vocab_size": 1, "max_position_embeddings": 514}
_QUERY = {"query": "Represent this sentence for searching relevant passages: "}
_TOXIC = ("toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate")
_EMOTIONS = tuple(f"emotion_{number}" for number in range(28))
_NER = ("O", "B-MISC", "I-MISC", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC")
_MULTI_LABEL = {"problem_type": "multi_label_classification"}
_MODERN = {"vocab_size": 50368, "max_position_embeddings": 8192}
_CROSS = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.0.1"}}

ROWS = (
    Row(1, "sentence-transformers/all-MiniLM-L6-v2", "bert", *_XS, modules=MEAN),
    Row(2, "sentence-transformers/all-MiniLM-L12-v2", "bert", *_S, modules=MEAN),
    Row(
        3,
        "sentence-transformers/all-mpnet-base-v2",
        "mpnet",
        *_M,
        tokenizer="mpnet",
        config={"max_position_embeddings": 514},
        modules=MEAN,
    ),
    Row(4, "sentence-transformers/multi-qa-MiniLM-L6-cos-v1", "bert", *_XS, modules=MEAN),
    Row(
        5,
        "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2",
        "bert",
        *_S,
        tokenizer="unigram",
        modules=_pooled("mean", normalised=False),
    ),
    Row(
        6,
        "sentence-transformers/paraphrase-multilingual-mpnet-base-v2",
        "xlm-roberta",
        *_M,
        tokenizer="unigram",
        config=_ROBERTA,
        modules=_pooled("mean", normalised=False),
    ),
    Row(
        7,
        "sentence-transformers/distiluse-base-multilingual-cased-v2",
        "distilbert",
        6,
        768,
        12,
        tokenizer="cased",
        modules=(*_pooled("mean", normalised=False), _dense(512, "Tanh")),
    ),
    Row(8, "BAAI/bge-small-en-v1.5", "bert", *_S, modules=CLS),
    Row(9, "BAAI/bge-base-en-v1.5", "bert", *_M, modules=CLS),
    Row(
        10,
        "BAAI/bge-m3",
        "xlm-roberta",
        *_L,
        tokenizer="unigram",
        config={"type_vocab_size": 1, "max_position_embeddings": 8194},
        modules=CLS,
    ),
    Row(11, "intfloat/e5-small-v2", "bert", *_S, modules=MEAN),
    Row(12, "intfloat/multilingual-e5-small", "bert", *_S, tokenizer="unigram", modules=MEAN),
    Row(13, "thenlper/gte-small", "bert", *_S, modules=MEAN),
    Row(
        14,
        "Alibaba-NLP/gte-modernbert-base",
        "modernbert",
        22,
        768,
        12,
        tokenizer="bpe",
        config=_MODERN,
        modules=_pooled("cls", normalised=False),
    ),
    Row(15, "Alibaba-NLP/gte-multilingual-base", "new", *_M, tokenizer="unigram", modules=CLS),
    Row(16, "Snowflake/snowflake-arctic-embed-xs", "bert", *_XS, modules=CLS, prompts=_QUERY),
    Row(17, "Snowflake/snowflake-arctic-embed-s", "bert", *_S, modules=CLS, prompts=_QUERY),
    Row(18, "Snowflake/snowflake-arctic-embed-m", "bert", *_M, modules=CLS, prompts=_QUERY),
    Row(19, "nomic-ai/nomic-embed-text-v1.5", "nomic_bert", *_M, modules=_pooled("mean", normalised=False)),
    Row(
        20,
        "MongoDB/mdbr-leaf-mt",
        "bert",
        *_XS,
        modules=(*_pooled("mean", normalised=False), _dense(1024)),
        prompts=_QUERY,
    ),
    Row(
        21,
        "MongoDB/mdbr-leaf-ir",
        "bert",
        *_XS,
        modules=(*_pooled("mean", normalised=False), _dense(768)),
        prompts=_QUERY,
    ),
    Row(
        22,
        "mixedbread-ai/mxbai-embed-xsmall-v1",
        "bert",
        *_XS,
        config={"max_position_embeddings": 4096},
        modules=_pooled("mean", normalised=False),
    ),
    Row(
        23,
        "mixedbread-ai/mxbai-embed-large-v1",
        "bert",
        *_L,
        modules=_pooled("cls", normalised=False),
        prompts={"query": "Represent this sentence for searching relevant passages: ", "passage": ""},
    ),
    Row(24, "jinaai/jina-embeddings-v2-small-en", "jina_bert", 4, 512, 8, modules=_pooled("mean", normalised=False)),
    Row(
        25,
        "ibm-granite/granite-embedding-30m-english",
        "roberta",
        *_XS,
        tokenizer="bpe",
        config=_ROBERTA,
        modules=CLS,
    ),
    Row(
        26,
        "ibm-granite/granite-embedding-small-english-r2",
        "modernbert",
        *_S,
        tokenizer="bpe",
        config=_MODERN,
        modules=CLS,
    ),
    Row(
        27,
        "google/embeddinggemma-300m",
        "gemma3_text",
        24,
        768,
        3,
        tokenizer="unigram",
        modules=(
            *_pooled("mean", normalised=False),
            _dense(3072, bias=False),
            _dense(768, bias=False),
            ("Normalize", {}),
        ),
        prompts={"query": "task: search result | query: ", "document": "title: none | text: "},
    ),
    Row(28, "minishlab/potion-base-8M", "static", 0, 256, 0, config={"layout": "model2vec"}),
    Row(29, "minishlab/potion-base-32M", "static", 0, 512, 0, config={"layout": "model2vec"}),
    Row(30, "sentence-transformers/static-retrieval-mrl-en-v1", "static", 0, 1024, 0),
    Row(
        31,
        "cross-encoder/ms-marco-MiniLM-L6-v2",
        "bert",
        *_XS,
        head="classification",
        config=_CROSS,
        labels=("LABEL_0",),
    ),
    Row(
        32,
        "BAAI/bge-reranker-base",
        "xlm-roberta",
        *_M,
        head="classification",
        tokenizer="unigram",
        config=_ROBERTA,
        labels=("LABEL_0",),
    ),
    Row(33, "cross-encoder/ettin-reranker-17m-v1", "modernbert", 7, 256, 4, tokenizer="bpe", config=_MODERN),
    Row(
        34,
        "mixedbread-ai/mxbai-rerank-xsmall-v1",
        "deberta-v2",
        12,
        384,
        6,
        head="classification",
        tokenizer="unigram",
        labels=("LABEL_0",),
    ),
    Row(
        35,
        "distilbert/distilbert-base-uncased-finetuned-sst-2-english",
        "distilbert",
        6,
        768,
        12,
        head="classification",
        labels=("NEGATIVE", "POSITIVE"),
    ),
    Row(
        36,
        "cardiffnlp/twitter-roberta-base-sentiment-latest",
        "roberta",
        *_M,
        head="classification",
        tokenizer="bpe",
        config=_ROBERTA,
        labels=("negative", "neutral", "positive"),
    ),
    Row(37, "unitary/toxic-bert", "bert", *_M, head="classification", config=_MULTI_LABEL, labels=_TOXIC),
    Row(
        38,
        "SamLowe/roberta-base-go_emotions",
        "roberta",
        *_M,
        head="classification",
        tokenizer="bpe",
        config=_ROBERTA | _MULTI_LABEL,
        labels=_EMOTIONS,
    ),
    Row(
        39,
        "j-hartmann/emotion-english-distilroberta-base",
        "roberta",
        6,
        768,
        12,
        head="classification",
        tokenizer="bpe",
        config=_ROBERTA,
        labels=("anger", "disgust", "fear", "joy", "neutral", "sadness", "surprise"),
    ),
    Row(
        40,
        "papluca/xlm-roberta-base-language-detection",
        "xlm-roberta",
        *_M,
        head="classification",
        tokenizer="unigram",
        config=_ROBERTA,
        labels=tuple(
            [
                "ja",
                "nl",
                "ar",
                "pl",
                "de",
                "it",
                "pt",
                "tr",
                "es",
                "hi",
                "el",
                "ur",
                "bg",
                "en",
                "fr",
                "zh",
                "ru",
                "th",
                "sw",
                "vi",
            ]
        ),
    ),
    Row(41, "ProsusAI/finbert", "bert", *_M, head="classification", labels=("positive", "negative", "neutral")),
    Row(
        42,
        "MoritzLaurer/DeBERTa-v3-base-mnli-fever-anli",
        "deberta-v2",
        *_M,
        head="classification",
        tokenizer="unigram",
        labels=("entailment", "neutral", "contradiction"),
    ),
    Row(
        43,
        "protectai/deberta-v3-base-prompt-injection-v2",
        "deberta-v2",
        *_M,
        head="classification",
        tokenizer="unigram",
        labels=("SAFE", "INJECTION"),
    ),
    Row(44, "dslim/bert-base-NER", "bert", *_M, head="token_classification", tokenizer="cased", labels=_NER),
    Row(
        45,
        "Davlan/bert-base-multilingual-cased-ner-hrl",
        "bert",
        *_M,
        head="token_classification",
        tokenizer="cased",
        labels=("O", "B-DATE", "I-DATE", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC"),
    ),
    Row(46, "urchade/gliner_small-v2.1", "gliner", 6, 768, 12, tokenizer="unigram"),
    Row(47, "urchade/gliner_multi_pii-v1", "gliner", 12, 768, 12, tokenizer="unigram"),
    Row(48, "deepset/roberta-base-squad2", "roberta", *_M, head=SQUAD, tokenizer="bpe", config=_ROBERTA),
    Row(49, "deepset/tinyroberta-squad2", "roberta", 6, 768, 12, head=SQUAD, tokenizer="bpe", config=_ROBERTA),
    Row(50, "deepset/minilm-uncased-squad2", "bert", *_S, head=SQUAD),
)
