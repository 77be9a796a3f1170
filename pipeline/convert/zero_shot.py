"""Zero-shot classification by entailment: labels that a model never saw, as hypotheses about a text.

Both apps follow the same rules: `ZeroShot` in their cores.

Source: Yin et al. 2019 (Benchmarking zero-shot text classification); transformers' pipeline `zero-shot-classification`.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.formats.signature import Signature
from pipeline.metrics import measures

TEMPLATE = "This example is {}."
_ENTAILMENT, _CONTRADICTION = "entail", "contradict"
"""What labels of a model of natural language inference begin with, in whatever case."""


def scores(
    signature: Signature,
    logits_of: Callable[[str, str], NDArray[np.float32]],
    text: str,
    labels: Sequence[str],
    template: str,
    *,
    multi_label: bool = False,
) -> dict[str, float]:
    """Return the probability of each label of a text, the most probable first.

    Args:
        signature: of a classifier of natural language inference.
        logits_of: runs the classifier on a pair of premise and hypothesis.
        text: the premise.
        labels: two or more, each put into the template as a hypothesis; one is enough where each is decided by itself.
        template: a sentence with one pair of braces.
        multi_label: decide each label by itself: its probability is that of entailment beside contradiction alone, and
            any number of labels may be probable.

    Raises:
        InputError: the model has no label of entailment, or labels or template are none.
    """
    at = _entailment(signature)
    against = _contradiction(signature, at) if multi_label else at
    if template.count("{}") != 1:
        raise InputError(f"the template is {template!r}; it has to have {{}} once, where a label is put.")
    kept = list(dict.fromkeys(label.strip() for label in labels))
    least, said = (1, "one or more") if multi_label else (2, "two or more")
    if len(kept) < least or not all(kept):
        raise InputError(f"the labels are {list(labels)}; give {said} that differ, none of them empty.")
    logits = np.array([logits_of(text, template.replace("{}", label)) for label in kept])
    shares = measures.softmax(logits[:, [against, at]])[:, 1] if multi_label else measures.softmax(logits[:, at])
    return {kept[number]: float(shares[number]) for number in np.argsort(-shares, kind="stable")}


def _entailment(signature: Signature) -> int:
    """Return the place of the logit of entailment."""
    at = _place(signature, _ENTAILMENT)
    if signature.output_kind != "logits" or at is None:
        raise InputError(
            f"{signature.file} gives {_given(signature)}; labels of one's own need a model of natural language "
            "inference, which has a label entailment."
        )
    return at


def _contradiction(signature: Signature, entailment: int) -> int:
    """Return the place of the logit of contradiction; of two labels it is the other one, whatever its name."""
    at = 1 - entailment if len(signature.labels or ()) == 2 else _place(signature, _CONTRADICTION)
    if at is None:
        raise InputError(
            f"{signature.file} gives {_given(signature)}; to decide each label by itself needs a label contradiction."
        )
    return at


def _place(signature: Signature, beginning: str) -> int | None:
    names = [label.lower() for label in signature.labels or ()]
    return next((number for number, name in enumerate(names) if name.startswith(beginning)), None)


def _given(signature: Signature) -> str:
    return ", ".join(signature.labels or ()) or signature.output_kind
