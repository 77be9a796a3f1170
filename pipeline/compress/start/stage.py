"""The stage: a student is made of a teacher, with fewer layers, less width, another architecture, or only its shape."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.checkpoint import layers, shapes
from pipeline.compress.start import reshaping
from pipeline.compress.start.checks import kept_layers
from pipeline.errors import StudentError
from pipeline.recipe.compression import StartSection
from pipeline.text import tokenizers


def make(source: Path, section: StartSection, out: Path) -> dict[str, Any]:
    """Write a student made of a teacher's checkpoint. Runs in a worker, since it imports torch.

    Returns:
        Layers, hidden size and parameters.
    """
    model = KINDS[section.kind](_load(source), section)
    if (
        any(one is not None for one in shapes.sharing(model)) and model.config.model_type != "albert"
    ) or shapes.compressed(source) is not None:
        shapes.save(model, out)
    else:
        model.save_pretrained(out, safe_serialization=True, max_shard_size="10GB")
    tokenizers.copy(source, out)
    return {
        "kind": section.kind,
        "layers": int(model.config.num_hidden_layers),
        "hidden_size": int(model.config.hidden_size),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def _load(source: Path) -> Any:
    """Load a checkpoint in the class that it was saved as."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
    name = str((config.architectures or ["?"])[0])
    saved_class = getattr(transformers, name, None)
    if saved_class is None or not hasattr(saved_class, "config_class"):
        raise StudentError(f"{source} was saved as {name}, which transformers does not have.")
    auto = next(
        getattr(transformers, auto)
        for suffix, auto in (
            ("ForMaskedLM", "AutoModelForMaskedLM"),
            ("ForSequenceClassification", "AutoModelForSequenceClassification"),
            ("ForTokenClassification", "AutoModelForTokenClassification"),
            ("ForQuestionAnswering", "AutoModelForQuestionAnswering"),
            ("", "AutoModel"),
        )
        if name.endswith(suffix)
    )
    model, _ = shapes.from_pretrained(auto, source, config, dtype=torch.float32)
    return model.eval()


def _layers(model: Any, section: StartSection) -> Any:
    """Keep some layers, with embeddings and head."""
    import torch

    count = int(model.config.num_hidden_layers)
    kept = kept_layers(section, count)
    path = layers.layout_of(model.config.model_type).stack
    if not layers.layout_of(model.config.model_type).inner:
        stack = model.base_model.get_submodule(path)
        layers.put(model.base_model, path, torch.nn.ModuleList([stack[number] for number in kept]))
    model.config.num_hidden_layers = len(kept)
    return model


def _width(model: Any, section: StartSection) -> Any:
    """Keep the first columns of everything of the hidden size, and the same fraction of the intermediate size."""
    config = type(model.config).from_dict(model.config.to_dict())
    old, new = int(config.hidden_size), int(section.hidden_size or config.hidden_size)
    size = old // int(config.num_attention_heads)
    key = {"distilbert": "hidden_dim"}.get(config.model_type, "intermediate_size")
    setattr(config, key, getattr(config, key) * new // old)
    config.num_attention_heads = new // size
    config.hidden_size = new
    if config.model_type == "electra" and config.embedding_size == old:
        # Its class has a projection between tables and layers wherever their widths differ, and the teacher has none.
        config.embedding_size = new
    small = type(model)(config)
    reshaping.copy_first(model, small)
    return small.eval()


def _random(model: Any, section: StartSection) -> Any:
    """Keep the shape alone, as transformers draws it."""
    import torch

    config = type(model.config).from_dict(model.config.to_dict())
    config.num_hidden_layers = len(kept_layers(section, int(config.num_hidden_layers)))
    torch.manual_seed(section.seed)
    return type(model)(config).eval()


def _distilbert(model: Any, section: StartSection) -> Any:
    return reshaping.distilbert(_layers(model, section))


def _albert(model: Any, section: StartSection) -> Any:
    first = kept_layers(section, int(model.config.num_hidden_layers))[0]
    return reshaping.albert(model, layer=first, embedding_size=section.embedding_size)


def _shared(model: Any, section: StartSection) -> Any:
    """Let all layers use one layer's attention and feed-forward."""
    every = layers.layers(model)
    owner = every[kept_layers(section, len(every))[0]]
    for layer in every:
        if layer is not owner:
            for kind in ("attention", "feed_forward"):
                shapes.use(layer, owner, kind)
    return model


KINDS: dict[str, Callable[[Any, StartSection], Any]] = {
    "layers": _layers,
    "width": _width,
    "random": _random,
    "distilbert": _distilbert,
    "albert": _albert,
    "shared": _shared,
}
"""A row for each kind of start."""
