"""The published combinations of losses, as settings of `[distil]`."""

from collections.abc import Mapping
from typing import Any

PRESETS: dict[str, Mapping[str, Any]] = {
    # Sanh et al. 2019, huggingface/transformers distillation/README.md: alpha_ce 5, alpha_mlm 2, alpha_cos 1, T 2.
    "distilbert": {
        "head": "masked_lm",
        "losses": {"soft_targets": 5.0, "masked_lm": 2.0, "cosine": 1.0},
        "temperature": 2.0,
        "learning_rate": 5e-4,
    },
    # Sanh et al. 2019, section 3: a second distillation while fine-tuning.
    "distilbert-task": {"losses": {"soft_targets": 1.0}, "alpha": 0.5, "temperature": 2.0},
    # Jiao et al. 2020, section 3.2 and equation 11: general distillation on plain text, without prediction.
    "tinybert-general": {
        "head": "masked_lm",
        "losses": {"embeddings": 1.0, "hidden": 1.0, "attention": 1.0},
        "teacher_layers": "uniform",
    },
    # Section 4.2: the same losses on the task's texts, then the prediction.
    "tinybert-layers": {
        "losses": {"embeddings": 1.0, "hidden": 1.0, "attention": 1.0},
        "teacher_layers": "uniform",
        "epochs": 20.0,
    },
    "tinybert-prediction": {"losses": {"prediction": 1.0}, "temperature": 1.0, "epochs": 3.0, "learning_rate": 3e-5},
    # Wang et al. 2020, section 4.1, on plain text.
    "minilm": {"head": "masked_lm", "losses": {"relations": 1.0}, "learning_rate": 5e-4},
    # Reimers and Gurevych 2020: no labels needed.
    "sentence": {"losses": {"sentence_mse": 1.0}},
}
