"""Folders in the hub's own layout for `make coverage`: random weights, and small tokenizers of the right kind."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.coverage_rows import Row, TokenizerKind
from pipeline.atomic import write_aside
from pipeline.text import bundled

LAYERS, HEAD_WIDTH, VOCABULARY = 2, 16, 2000
"""To which depth, width of an attention head, and vocabulary are cut; the number of heads stays."""
_STATIC = "static"
_SPECIALS: Mapping[TokenizerKind, tuple[str, ...]] = {
    "wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "cased": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "bpe": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "unigram": ("<s>", "<pad>", "</s>", "<unk>"),
}
_CLASSES: Mapping[TokenizerKind, str] = {
    "wordpiece": "BertTokenizer",
    "cased": "BertTokenizer",
    "bpe": "RobertaTokenizer",
    "unigram": "XLMRobertaTokenizer",
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
    options: dict[str, Any] = dict(row.config) | {"vocab_size": VOCABULARY, "pad_token_id": _padding(row.tokenizer)}
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
    if row.tokenizer in ("bpe", "unigram"):
        options |= {"bos_token_id": 0, "eos_token_id": 2}
    config = transformers.AutoConfig.for_model(row.model_type, **options)
    torch.manual_seed(row.number)
    getattr(transformers, _AUTO[row.head]).from_config(config).save_pretrained(folder)


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


def _padding(kind: TokenizerKind) -> int:
    return 0 if kind in ("wordpiece", "cased") else 1


def _write_tokenizer(row: Row, folder: Path) -> None:
    """Train a tokenizer of the row's kind on the package's own texts, and write it with its settings."""
    kind = row.tokenizer
    specials = _SPECIALS[kind]
    tokenizer, trainer = _blank(kind, specials)
    tokenizer.train_from_iterator([text.first for text in bundled.verification_texts()] * 4, trainer)
    cls, sep = ("[CLS]", "[SEP]") if kind in ("wordpiece", "cased") else ("<s>", "</s>")
    _finish(tokenizer, kind, cls, sep)
    if kind == "unigram":
        tokenizer.add_special_tokens(["<mask>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    padding, unknown, mask = (
        ("[PAD]", "[UNK]", "[MASK]") if kind in ("wordpiece", "cased") else ("<pad>", "<unk>", "<mask>")
    )
    settings: dict[str, Any] = {"tokenizer_class": _CLASSES[kind], "model_max_length": 128, "cls_token": cls}
    settings |= {"sep_token": sep, "pad_token": padding, "unk_token": unknown, "mask_token": mask}
    if kind in ("wordpiece", "cased"):
        settings["do_lower_case"] = kind == "wordpiece"
    else:
        settings |= {"bos_token": cls, "eos_token": sep}
    _dump(folder / "tokenizer_config.json", settings)


def _blank(kind: TokenizerKind, specials: tuple[str, ...]) -> tuple[Any, Any]:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    options: dict[str, Any] = {"vocab_size": VOCABULARY - 1, "special_tokens": list(specials), "show_progress": False}
    if kind in ("wordpiece", "cased"):
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=kind == "wordpiece")
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer, trainers.WordPieceTrainer(**options)
    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer, trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **options)
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer, trainers.UnigramTrainer(unk_token="<unk>", **options)


def _finish(tokenizer: Any, kind: TokenizerKind, cls: str, sep: str) -> None:
    from tokenizers import processors

    ids = [(token, tokenizer.token_to_id(token)) for token in (cls, sep)]
    if kind == "bpe":
        tokenizer.post_processor = processors.RobertaProcessing(
            ids[1], ids[0], trim_offsets=True, add_prefix_space=False
        )
        return
    second = "1" if kind in ("wordpiece", "cased") else "0"
    between = f"{sep}:0" if second == "1" else f"{sep}:0 {sep}:0"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0", pair=f"{cls}:0 $A:0 {between} $B:{second} {sep}:{second}", special_tokens=ids
    )
