"""Cases of post-processing, with what the pipeline makes of them: the cores have to say the same."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.benchmark import record
from pipeline.convert import zero_shot
from pipeline.errors import InputError
from pipeline.formats.signature import Function, Signature, Tensor
from pipeline.metrics import measures, outputs
from pipeline.text.bundled import verification_texts

CASES = 400
_INFERENCE = (
    ("contradiction", "neutral", "entailment"),
    ("ENTAILMENT", "NEUTRAL", "CONTRADICTION"),
    ("neutral", "Entails", "Contradicts"),
    ("entailment", "not_entailment"),
    ("not_entailment", "entailed"),
    # The accent is a character of its own, and the dotted capital I becomes two.
    ("entail\u0301ment", "contradiction"),
    ("ENTA\u0130LMENT", "CONTRADICTION", "NEUTRAL"),
    ("no", "maybe", "entailment"),
    ("negative", "positive"),
)
_OWN = ("one", " one", "Zürich\u2003", "caf\u00e9", "cafe\u0301", "\x85two\x1f", "\u200btwo", "{}", "three", "", " \t")
_HYPOTHESES = (zero_shot.TEMPLATE, "{}", "{}\u0301 {", "{{}}", "none", "{} and {}", "{ }", "")
_REFUSED = (
    "need a model of natural language inference",
    "it has to have {} once, where a label is put",
    "that differ, none of them empty",
    "to decide each label by itself needs a label contradiction",
)
"""What an error of labels of one's own holds, in every language."""
_TAGS = ["O", "B-person", "I-person", "B-place", "I-place", "thing", ""]


def write(file: Path, *, seed: int = 0) -> int:
    """Write one case a line and return how many; positions are UTF-16 code units."""
    draw = random.Random(seed)
    numbers = np.random.default_rng(seed)
    texts = [text.first for text in verification_texts() if text.first.strip()]
    cases = [case for _ in range(CASES) for case in _cases(draw, numbers, draw.choice(texts))]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(case) + "\n" for case in cases), encoding="utf-8")
    return len(cases)


def _cases(draw: random.Random, numbers: np.random.Generator, text: str) -> Iterator[dict[str, Any]]:
    logits = _floats(numbers.normal(0, draw.choice((0.01, 1, 30)), draw.randint(1, 9)))
    yield {"kind": "softmax", "logits": logits.tolist(), "shares": measures.softmax(logits).tolist()}
    words = outputs.word_spans(text)
    places = [_utf16(text, word) for word in words]
    yield _each_label(draw, numbers)
    yield {"kind": "words", "text": text, "words": places}
    # Two tokens a word, the second one empty; words at the end are cut off.
    kept = words[: draw.randint(0, len(words))]
    spans = [(0, 0), *(span for word in kept for span in (word, (word[1], word[1]))), (0, 0)]
    tags = _floats(numbers.normal(0, 3, (len(spans), len(_TAGS))))
    yield {
        "kind": "entities",
        "text": text,
        "labels": _TAGS,
        "from": [_utf16(text, span)[0] for span in spans],
        "to": [_utf16(text, span)[1] for span in spans],
        "logits": tags.tolist(),
        "entities": [
            [*_utf16(text, (one.start, one.end)), one.score, one.kind] for one in _entities(text, tags, spans)
        ],
    }
    yield _answer(draw, numbers)
    yield _nearest(draw, numbers)
    yield _statistics(draw, numbers)
    yield _zero_shot(draw, numbers)


def _entities(text: str, logits: outputs.Floats, spans: list[tuple[int, int]]) -> list[outputs.Entity]:
    """Tag as `Model._entities` does."""
    shares = measures.softmax(logits)
    places = outputs.word_spans(text)
    known = [
        (token, place)
        for token, place in zip(outputs.first_tokens(places, spans), places, strict=True)
        if token is not None
    ]
    tags = [_TAGS[int(shares[token].argmax())] for token, _ in known]
    scores = [float(shares[token].max()) for token, _ in known]
    return outputs.entities(text, tags, scores, [place for _, place in known])


def _each_label(draw: random.Random, numbers: np.random.Generator) -> dict[str, Any]:
    """Decide each label by itself: the logistic function, and a threshold of its own."""
    logits = _floats(numbers.normal(0, draw.choice((0.01, 1, 30)), draw.randint(1, 9)))
    shares = 1 / (1 + np.exp(-logits.astype(np.float64)))
    thresholds = None if draw.random() < 0.5 else numbers.uniform(0, 1, len(logits)).tolist()
    order = np.argsort(-shares, kind="stable")
    given = shares >= (0.5 if thresholds is None else np.array(thresholds))
    return {
        "kind": "each_label",
        "logits": logits.tolist(),
        "thresholds": thresholds,
        "labels": [str(at) for at in order],
        "shares": shares[order].tolist(),
        "given": given[order].tolist(),
    }


def _zero_shot(draw: random.Random, numbers: np.random.Generator) -> dict[str, Any]:
    """Classify by labels of one's own: which hypotheses are run, and what their logits say; or why nothing is."""
    names = draw.choice(_INFERENCE)
    signature = _inference(draw.choice(("logits", "logits", "logits", "multi_label")), names)
    labels = draw.choices(_OWN[: draw.choice((5, 9, 9, 11))], k=draw.randint(0, 5))
    template = draw.choice(_HYPOTHESES[: draw.choice((2, 4, 8))])
    multi_label = draw.random() < 0.5
    hypotheses, logits = [], []

    def logits_of(_: str, hypothesis: str) -> outputs.Floats:
        hypotheses.append(hypothesis)
        # Few values, so that several labels are as probable and the first has to stand first.
        logits.append(
            _floats(numbers.integers(-2, 3, len(names)) if draw.random() < 0.5 else numbers.normal(0, 3, len(names)))
        )
        return logits[-1]

    case = {
        "kind": "zero_shot",
        "signature": signature.model_dump(mode="json"),
        "labels": labels,
        "template": template,
        "multi_label": multi_label,
    }
    try:
        found = zero_shot.scores(signature, logits_of, "", labels, template, multi_label=multi_label)
    except InputError as error:
        (why,) = (part for part in _REFUSED if part in str(error))
        return case | {"error": why}
    return case | {
        "error": None,
        "hypotheses": hypotheses,
        "logits": [row.tolist() for row in logits],
        "answer": list(found.items()),
    }


def _inference(kind: Any, names: tuple[str, ...]) -> Signature:
    """Return the signature of a classifier with these labels."""
    inputs = tuple(Tensor(name=name, dtype="int32", shape=(1, 64)) for name in ("attention_mask", "input_ids"))
    output = Tensor(name="logits", dtype="float32", shape=(1, len(names)))
    return Signature(
        backend="litert", scheme="fp32", task="classification", output_kind=kind, file="model.tflite",
        minimum_runtime="1.2.0", pad_token_id=0, labels=names, parameters=1,
        functions=(Function(name="at_64", min_length=64, max_length=64, inputs=inputs, outputs=(output,)),),
    )  # fmt: skip


def _answer(draw: random.Random, numbers: np.random.Generator) -> dict[str, Any]:
    windows = []
    for _ in range(draw.randint(1, 3)):
        asked, tokens = draw.randint(0, 5), draw.choice((0, 1, 5, 80))
        spans = [None] * asked + [(3 * at, 3 * at + 2) for at in range(tokens)] + [None]
        # Few values, so that several answers are equally good and the first has to win.
        logits = _floats(
            numbers.integers(-3, 4, (len(spans), 2)) if draw.random() < 0.5 else numbers.normal(0, 2, (len(spans), 2))
        )
        windows.append((logits, spans))
    best = outputs.best_span(windows)
    # Source: run_squad.py, which takes the least of the windows' scores of [CLS], and a margin.
    none = min(float(logits[0].astype(np.float64).sum()) for logits, _ in windows)
    margin = draw.choice((-2.0, 0.0, 1.5))
    return {
        "kind": "answer",
        "windows": [
            {
                "from": [span[0] if span else -1 for span in spans],
                "to": [span[1] if span else -1 for span in spans],
                "starts": logits[:, 0].tolist(),
                "ends": logits[:, 1].tolist(),
            }
            for logits, spans in windows
        ],
        "answer": [best.start, best.end, best.score] if np.isfinite(best.score) else None,
        "margin": margin,
        "answered": bool(np.isfinite(best.score)) and not none - best.score > margin,
    }


def _nearest(draw: random.Random, numbers: np.random.Generator) -> dict[str, Any]:
    width, count, top = draw.choice((3, 384)), draw.randint(0, 20), draw.randint(1, 25)
    rows = numbers.normal(0, 1, (count + 1, width))
    unit = _floats(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    cosines = unit[1:].astype(np.float64) @ unit[0].astype(np.float64)
    order = np.argsort(-cosines, kind="stable")[:top]
    return {
        "kind": "nearest",
        "one": unit[0].tolist(),
        "among": unit[1:].tolist(),
        "top": top,
        "places": order.tolist(),
        "cosines": cosines[order].tolist(),
    }


def _statistics(draw: random.Random, numbers: np.random.Generator) -> dict[str, Any]:
    passes, texts = draw.randint(1, 5), draw.choice((1, 2, 7, 60))
    samples = numbers.lognormal(0, 1, passes * texts).round(4).tolist()
    found = record.percentiles(samples)
    return {
        "kind": "statistics",
        "samples": samples,
        "passes": passes,
        "percentiles": [found.p50, found.p90, found.p99, found.mean],
        "mean_of_medians": record.mean_of_medians(samples, passes),
    }


def _floats(values: Any) -> outputs.Floats:
    return np.asarray(values, np.float32)


def _utf16(text: str, span: tuple[int, int]) -> tuple[int, int]:
    first, end = (len(text[:at].encode("utf-16-le")) // 2 for at in span)
    return first, end
