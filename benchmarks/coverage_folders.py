"""Folders in the hub's own layout for `make coverage`: random weights, and small tokenizers of the right kind."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.coverage_rows import Row, TokenizerKind
from pipeline.atomic import write_aside
from pipeline.text import bundled

LAYERS, HEAD_WIDTH, VOCABULARY = 2, 16, 2000
"""To which depth, width of an attention head, and vocabulary are cut; the number of heads stays."""
_STATIC = "static"
_WIDE = 0.12
"""Standard deviation of the weights below a head of one number, of which 0.02 makes nearly the same number for every
text: the shift of its mean by rounding, in standard deviations, would say nothing."""


@dataclass(frozen=True)
class _Tokenizer:
    """What a kind of tokenizer calls its special tokens, in the order of their ids, and how it treats text."""

    name: str
    """Class in transformers."""
    specials: tuple[str, ...]
    cls: str = "<s>"
    sep: str = "</s>"
    padding: str = "<pad>"
    unknown: str = "<unk>"
    mask: str = "<mask>"
    lowers: bool | None = None
    """Whether WordPiece lower-cases; None for the other models."""


_BERT = {"cls": "[CLS]", "sep": "[SEP]", "padding": "[PAD]", "unknown": "[UNK]", "mask": "[MASK]"}
_TOKENIZERS: Mapping[TokenizerKind, _Tokenizer] = {
    "wordpiece": _Tokenizer("BertTokenizer", ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), **_BERT, lowers=True),
    "cased": _Tokenizer("BertTokenizer", ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), **_BERT, lowers=False),
    "mpnet": _Tokenizer("MPNetTokenizer", ("<s>", "<pad>", "</s>", "[UNK]", "<mask>"), unknown="[UNK]", lowers=True),
    "bpe": _Tokenizer("RobertaTokenizer", ("<s>", "<pad>", "</s>", "<unk>", "<mask>")),
    "unigram": _Tokenizer("XLMRobertaTokenizer", ("<s>", "<pad>", "</s>", "<unk>")),
}
_AUTO = {
    "embedding": "AutoModel",
    "classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
}
_MODULE = "sentence_transformers.models."


def write(row: Row, place: Path) -> None:
    """Write the folder of a row. Runs in a worker, since it imports torch."""
    with write_aside(place) as aside:
        aside.mkdir()
        _write_tokenizer(row, aside)
        if row.model_type == _STATIC:
            _write_static(row, aside)
        else:
            _write_encoder(row, aside)
        if row.modules:
            _write_modules(row, aside)
        if row.prompts:
            document = {"prompts": dict(row.prompts), "default_prompt_name": None, "similarity_fn_name": "cosine"}
            _dump(aside / "config_sentence_transformers.json", document)


def width(row: Row) -> int:
    """Return the hidden size after the cut."""
    return row.hidden if row.model_type == _STATIC else row.heads * HEAD_WIDTH


def _dump(path: Path, document: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _write_encoder(row: Row, folder: Path) -> None:
    """Write config and weights by transformers' own class; a type that it does not have gets a config alone."""
    import torch
    import transformers

    hidden = width(row)
    kind = _TOKENIZERS[row.tokenizer]
    options: dict[str, Any] = dict(row.config) | {"vocab_size": VOCABULARY}
    options["pad_token_id"] = kind.specials.index(kind.padding)
    if row.model_type == "distilbert":
        options |= {"dim": hidden, "n_layers": LAYERS, "n_heads": row.heads, "hidden_dim": 2 * hidden}
    else:
        options |= {
            "hidden_size": hidden,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": row.heads,
            "intermediate_size": 2 * hidden,
        }
    if row.labels:
        options |= {"id2label": dict(enumerate(row.labels)), "label2id": {one: at for at, one in enumerate(row.labels)}}
    if row.model_type not in transformers.CONFIG_MAPPING:
        from safetensors.torch import save_file

        _dump(folder / "config.json", {"model_type": row.model_type} | options)
        save_file({"embeddings.word_embeddings.weight": torch.zeros(VOCABULARY, hidden)}, folder / "model.safetensors")
        return
    if kind.cls == "<s>":
        options |= {"bos_token_id": 0, "eos_token_id": 2}
    config = transformers.AutoConfig.for_model(row.model_type, **options)
    published = config.initializer_range
    if len(row.labels) == 1:
        config.initializer_range = _WIDE
    torch.manual_seed(row.number)
    model = getattr(transformers, _AUTO[row.head]).from_config(config)
    config.initializer_range = published
    model.save_pretrained(folder)


def _write_static(row: Row, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(row.number)
    table = torch.randn(VOCABULARY, row.hidden)
    if row.config.get("layout") == "model2vec":
        save_file({"embeddings": table}, folder / "model.safetensors")
        config = {
            "model_type": "model2vec",
            "architectures": ["StaticModel"],
            "normalize": True,
            "hidden_dim": row.hidden,
        }
        _dump(folder / "config.json", config | {"seq_length": 1000000, "apply_pca": row.hidden, "apply_zipf": True})
        rows = [("Transformer", "", "StaticEmbedding"), ("Normalize", "1_Normalize", "Normalize")]
        listed = [
            {"idx": at, "name": str(at), "path": path, "type": _MODULE + kind}
            for at, (_, path, kind) in enumerate(rows)
        ]
        _dump(folder / "modules.json", listed)
        return
    inner = folder / "0_StaticEmbedding"
    inner.mkdir()
    save_file({"embedding.weight": table}, inner / "model.safetensors")
    (folder / "tokenizer.json").rename(inner / "tokenizer.json")
    (folder / "tokenizer_config.json").unlink()
    _dump(folder / "modules.json", [{"idx": 0, "name": "0", "path": inner.name, "type": f"{_MODULE}StaticEmbedding"}])
    _dump(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine", "prompts": {}})


def _write_modules(row: Row, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    listed = [{"idx": 0, "name": "0", "path": "", "type": f"{_MODULE}Transformer"}]
    wide = width(row)
    for number, (kind, options) in enumerate(row.modules, 1):
        place = folder / f"{number}_{kind}"
        listed.append({"idx": number, "name": str(number), "path": place.name, "type": _MODULE + kind})
        place.mkdir()
        if kind == "Pooling":
            modes = options["modes"]
            flags = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
            switched = {f"pooling_mode_{flag}": flag.split("_")[0] in modes and "sqrt" not in flag for flag in flags}
            _dump(place / "config.json", {"word_embedding_dimension": wide} | switched)
            wide *= len(modes)
        elif kind == "Dense":
            narrow = options["out_features"]
            torch.manual_seed(row.number)
            linear = torch.nn.Linear(wide, narrow, bias=options["bias"])
            module = "linear.Identity" if options["activation"] == "Identity" else f"activation.{options['activation']}"
            config = {"in_features": wide, "out_features": narrow, "bias": options["bias"]}
            _dump(place / "config.json", config | {"activation_function": f"torch.nn.modules.{module}"})
            tensors = {f"linear.{name}": tensor.detach() for name, tensor in linear.named_parameters()}
            save_file(tensors, place / "model.safetensors")
            wide = narrow
    _dump(folder / "modules.json", listed)
    _dump(folder / "sentence_bert_config.json", {"max_seq_length": 128, "do_lower_case": False})


def _write_tokenizer(row: Row, folder: Path) -> None:
    """Train a tokenizer of the row's kind on the package's own texts, and write it with its settings."""
    kind = _TOKENIZERS[row.tokenizer]
    tokenizer, trainer = _blank(row.tokenizer, kind)
    tokenizer.train_from_iterator([text.first for text in bundled.verification_texts()] * 4, trainer)
    _finish(tokenizer, row.tokenizer, kind)
    if kind.mask not in kind.specials:
        tokenizer.add_special_tokens([kind.mask])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {"tokenizer_class": kind.name, "model_max_length": 128, "cls_token": kind.cls}
    settings |= {"sep_token": kind.sep, "pad_token": kind.padding, "unk_token": kind.unknown, "mask_token": kind.mask}
    if kind.lowers is not None:
        settings["do_lower_case"] = kind.lowers
    if kind.cls == "<s>":
        settings |= {"bos_token": kind.cls, "eos_token": kind.sep}
    _dump(folder / "tokenizer_config.json", settings)


def _blank(name: TokenizerKind, kind: _Tokenizer) -> tuple[Any, Any]:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    options: dict[str, Any] = {
        "vocab_size": VOCABULARY - 1,
        "special_tokens": list(kind.specials),
        "show_progress": False,
    }
    if kind.lowers is not None:
        tokenizer = Tokenizer(models.WordPiece(unk_token=kind.unknown))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=kind.lowers)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer, trainers.WordPieceTrainer(**options)
    if name == "bpe":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer, trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **options)
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer, trainers.UnigramTrainer(unk_token=kind.unknown, **options)


def _finish(tokenizer: Any, name: TokenizerKind, kind: _Tokenizer) -> None:
    from tokenizers import processors

    ids = [(token, tokenizer.token_to_id(token)) for token in (kind.cls, kind.sep)]
    if name == "bpe":
        tokenizer.post_processor = processors.RobertaProcessing(
            ids[1], ids[0], trim_offsets=True, add_prefix_space=False
        )
        return
    cls, sep = kind.cls, kind.sep
    pair = f"{cls}:0 $A:0 {sep}:0 {sep}:0 $B:0 {sep}:0" if cls == "<s>" else f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0", pair=pair, special_tokens=ids
    )
