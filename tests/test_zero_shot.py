"""Labels of one's own by entailment: what transformers' pipeline gives for the same checkpoint."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import LABELS

from pipeline import architectures, tasks
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.cli import documents, tables
from pipeline.convert import zero_shot
from pipeline.convert.model import Model
from pipeline.convert.predicting import Answer
from pipeline.errors import InputError
from pipeline.formats import Evaluator
from pipeline.formats.signature import SIGNATURE, Function, Signature, Tensor
from pipeline.student.outputs import reference_outputs
from pipeline.text.encoding import Encoder

NAMES = ("CONTRADICTION", "neutral", "ENTAILMENT")
TEXT, TOPICS = "The river runs slowly under the old house.", ("nature", "a very old house", "blue paper")


@pytest.fixture
def inference(
    randomised: Callable[[str, str], Path], tmp_path: Path
) -> tuple[Path, Signature, Callable[[str, str], Any]]:
    """A classifier with the labels of inference, its signature, and its logits of a pair in PyTorch."""
    folder = Path(shutil.copytree(randomised("bert", "classification"), tmp_path / "nli"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert len(LABELS) == len(NAMES)
    named = {"id2label": dict(enumerate(NAMES)), "label2id": {name: at for at, name in enumerate(NAMES)}}
    (folder / "config.json").write_text(json.dumps(config | named), encoding="utf-8")
    task = tasks.get("classification")
    model, encoder = load_checkpoint(folder, task), Encoder.from_folder(folder, 64)
    signature = Signature(
        backend="litert",
        scheme="fp32",
        task=task.name,
        output_kind=task.output_kind,
        file="model.tflite",
        minimum_runtime="1.2.0",
        pad_token_id=0,
        labels=NAMES,
        functions=(Function(name="at_64", min_length=64, max_length=64, inputs=(), outputs=()),),
        parameters=1,
    )
    return folder, signature, lambda *pair: reference_outputs(model, task, [encoder.encode(*pair)])[0][0]


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("template", [zero_shot.TEMPLATE, "In this text, {} is the topic."])
def test_it_is_transformers_pipeline(template: str, multi_label: bool, inference: Any) -> None:
    import transformers

    folder, signature, logits_of = inference
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        pad_token="[PAD]",
        sep_token="[SEP]",
        model_max_length=64,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    pipeline = transformers.pipeline("zero-shot-classification", model=model, tokenizer=tokenizer)
    theirs = pipeline(TEXT, list(TOPICS), hypothesis_template=template, multi_label=multi_label)
    mine = zero_shot.scores(signature, logits_of, TEXT, TOPICS, template, multi_label=multi_label)
    assert list(mine) == theirs["labels"]
    assert np.allclose(list(mine.values()), theirs["scores"], atol=1e-5)
    assert (abs(sum(mine.values()) - 1) < 1e-6) is not multi_label


@pytest.mark.parametrize(
    ("names", "probable"),
    [
        # By their names, wherever they stand; of two labels the other one contradicts.
        (("neutral", "Entailment", "contradiction"), 1 / (1 + np.exp(3 - 1))),
        (("contradiction", "neutral", "entailment"), 1 / (1 + np.exp(0 - 3))),
        (("entailment", "not_entailment"), 1 / (1 + np.exp(1 - 0))),
    ],
)
def test_each_label_by_itself_is_entailment_beside_contradiction(
    names: tuple[str, ...], probable: float, inference: Any
) -> None:
    signature = inference[1].model_copy(update={"labels": names})
    logits = np.array([0.0, 1.0, 3.0][: len(names)], np.float32)
    found = zero_shot.scores(signature, lambda *_: logits, TEXT, ["one"], zero_shot.TEMPLATE, multi_label=True)
    assert found == pytest.approx({"one": probable})


def test_each_label_by_itself_needs_a_contradiction(inference: Any) -> None:
    signature = inference[1].model_copy(update={"labels": ("no", "maybe", "entailment")})
    assert len(zero_shot.scores(signature, inference[2], TEXT, TOPICS, zero_shot.TEMPLATE)) == len(TOPICS)
    with pytest.raises(
        InputError, match="gives no, maybe, entailment; to decide each label by itself needs a label co"
    ):
        zero_shot.scores(signature, inference[2], TEXT, TOPICS, zero_shot.TEMPLATE, multi_label=True)
    with pytest.raises(InputError, match="give one or more that differ"):
        zero_shot.scores(inference[1], inference[2], TEXT, [], zero_shot.TEMPLATE, multi_label=True)


@pytest.mark.parametrize(
    ("labels", "template", "words"),
    [
        (("one",), zero_shot.TEMPLATE, "give two or more that differ"),
        (("one", " "), zero_shot.TEMPLATE, "none of them empty"),
        (("one", "one"), zero_shot.TEMPLATE, "give two or more that differ"),
        (TOPICS, "no place", "it has to have {} once"),
        (TOPICS, "{} and {}", "it has to have {} once"),
    ],
)
def test_labels_and_templates_that_are_none(labels: Any, template: str, words: str, inference: Any) -> None:
    _, signature, logits_of = inference
    with pytest.raises(InputError, match=words):
        zero_shot.scores(signature, logits_of, TEXT, labels, template)


def test_a_model_without_entailment_is_refused(inference: Any) -> None:
    _, signature, logits_of = inference
    other = signature.model_copy(update={"labels": LABELS})
    with pytest.raises(InputError, match="gives negative, neutral, positive; labels of one's own need a model"):
        zero_shot.scores(other, logits_of, TEXT, TOPICS, zero_shot.TEMPLATE)


class _InTorch:
    """A session that runs the checkpoint itself."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def run(self, function: Function, inputs: Any) -> Any:
        import torch

        with torch.no_grad():
            found = self._model(**{name: torch.tensor(value) for name, value in inputs.items()})
        return {"logits": found.logits.numpy()}

    def close(self) -> None:
        """Nothing to free."""


def test_a_text_that_is_cut_is_said_to_be(inference: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder, signature, _ = inference
    inputs = [Tensor(name=name, dtype="int32", shape=(1, 64)) for name in architectures.get("bert").inputs]
    logits = Tensor(name="logits", dtype="float32", shape=(1, len(NAMES)))
    function = signature.functions[0].model_copy(update={"inputs": tuple(inputs), "outputs": (logits,)})
    signature = signature.model_copy(update={"functions": (function,), "parameters": 10_000})
    (folder / SIGNATURE).write_text(signature.model_dump_json(), encoding="utf-8")
    evaluator = Evaluator("torch", lambda *_: _InTorch(load_checkpoint(folder, tasks.get("classification"))), False)
    with Model(folder, evaluator=evaluator) as model:
        found = {text: model.zero_shot(text, TOPICS) for text in (TEXT, 20 * TEXT)}
    assert [(one.truncated, one.tokens) for one in found.values()] == [(False, found[TEXT].tokens), (True, 64)]
    assert pickle.loads(pickle.dumps(found[20 * TEXT])).truncated, "it comes from a worker"
    answers = [Answer(text, scores=scores) for text, scores in found.items()]
    tables.print_answers(answers)
    assert capsys.readouterr().out.count("truncated: only the first 64 tokens were read") == 1
    assert [row["truncated"] for row in map(documents.answer_row, answers)] == [False, True]


def test_the_command_says_what_it_needs(command_here: Any, converted: Callable[..., Path], tmp_path: Path) -> None:
    folder = converted("litert-fp32")
    outcome = command_here("predict", folder, TEXT, "--labels", "nature,paper", cwd=tmp_path)
    assert (outcome.rc, "labels of one's own need a model of natural language inference" in outcome.stderr) == (2, True)
    outcome = command_here("predict", folder, TEXT, "--labels", "nature,paper", "--pair", "x", cwd=tmp_path)
    assert (outcome.rc, "leave --pair and --among out" in outcome.stderr) == (2, True)
    outcome = command_here("predict", folder, TEXT, "--multi-label", cwd=tmp_path)
    assert (outcome.rc, "give those with --labels" in outcome.stderr) == (2, True)
