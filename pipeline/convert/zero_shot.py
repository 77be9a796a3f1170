"""Zero-shot classification by entailment: labels that a model never saw, as hypotheses about a text.

Source: Yin et al. 2019 (Benchmarking zero-shot text classification); transformers' pipeline `zero-shot-classification`.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.formats.signature import Signature
from pipeline.metrics import measures

TEMPLATE = "This example is {}."
_ENTAILMENT = "entail"
"""What the label of a model of natural language inference begins with, in whatever case."""


def scores(
    signature: Signature,
    logits_of: Callable[[str, str], NDArray[np.float32]],
    text: str,
    labels: Sequence[str],
    template: str,
) -> dict[str, float]:
    """Return the probability of each label of a text, the most probable first.

    Args:
        signature: of a classifier of natural language inference.
        logits_of: runs the classifier on a pair of premise and hypothesis.
        text: the premise.
        labels: two or more, each put into the template as a hypothesis.
        template: a sentence with one pair of braces.

    Raises:
        InputError: the model has no label of entailment, or labels or template are none.
    """
    names = [label.lower() for label in signature.labels or ()]
    at = next((number for number, name in enumerate(names) if name.startswith(_ENTAILMENT)), None)
    if signature.output_kind != "logits" or at is None:
        said = ", ".join(signature.labels or ()) or signature.output_kind
        raise InputError(
            f"{signature.file} gives {said}; labels of one's own need a model of natural language inference, which has "
            "a label entailment."
        )
    if template.count("{}") != 1:
        raise InputError(f"the template is {template!r}; it has to have {{}} once, where a label is put.")
    kept = list(dict.fromkeys(label.strip() for label in labels))
    if len(kept) < 2 or not all(kept):
        raise InputError(f"the labels are {list(labels)}; give two or more that differ, none of them empty.")
    entailed = np.array([logits_of(text, template.replace("{}", label))[at] for label in kept])
    shares = measures.softmax(entailed)
    return {kept[number]: float(shares[number]) for number in np.argsort(-shares, kind="stable")}
