"""Static embeddings: a table with a row for each token, and no layers; a text's vector is the mean of its rows.

model2vec and StaticEmbedding of sentence-transformers publish them, see `pipeline.checkpoint.tables`. transformers has
no class for them, so `static_model` has one, which is imported where a model is made.

Source: Tulkens and van Dongen 2024 (model2vec); sentence-transformers 6.2, `StaticEmbedding`.
"""

from typing import Any

from pipeline.architectures.architecture import WITHOUT_TYPES, Architecture

TABLE = "embeddings.word_embeddings.weight"
"""The table's name in a checkpoint; it is where BERT's is, so that every room finds it."""
_LONGEST = 8192
"""No text is too long for a mean, and files of fixed lengths need a limit."""


def _register() -> None:
    from pipeline.architectures import static_model

    static_model.register()


def config_of(rows: int, width: int) -> dict[str, Any]:
    """Return the config.json of a table of `rows` tokens with `width` numbers each."""
    return {
        "architectures": ["StaticModel"],
        "model_type": STATIC.model_type,
        "vocab_size": rows,
        "hidden_size": width,
        "max_position_embeddings": _LONGEST,
        "pad_token_id": 0,
    }


STATIC = Architecture(
    "static",
    "static embeddings of model2vec and sentence-transformers: a look-up and a mean, for embeddings alone; without "
    "special tokens, so an empty text gives zeros; unknown tokens count, as in sentence-transformers",
    WITHOUT_TYPES,
    tiny_config={"vocab_size": 30522, "hidden_size": 64, "max_position_embeddings": 64},
    layout="it has no layers, only a table of tokens; [vocabulary] and student.width make that smaller",
    register=_register,
    headless="its vectors of tokens know nothing of each other, and no published head reads them",
    special_tokens=False,
    states_are_rows=True,
)
