"""A student that is distilled approaches its teacher, goes on after a stop, and is refused what cannot go well."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pieces
import pytest
import tomli_w
import torch
from conftest import environment
from faults import students
from faults.students import Student, few
from pydantic import ValidationError

from pipeline import tasks
from pipeline.architectures import HEADED, layers
from pipeline.checkpoint import loading as checkpoint
from pipeline.checkpoint import shapes
from pipeline.checkpoint import source as student
from pipeline.compress.distil import checks, dataset, masked_lm, models, stage
from pipeline.compress.distil.dataset import DistilData
from pipeline.compress.start import stage as starts
from pipeline.data import datasets as data
from pipeline.errors import InputError, PipelineError, RecipeError, StudentError
from pipeline.kinds import KINDS
from pipeline.recipe.compression import StartSection
from pipeline.recipe.distillation import DistilSection, HeadSection
from pipeline.text import tokenizers
from pipeline.text.bundled import verification_texts
from pipeline.text.encoding import Encoder
from pipeline.train import examples, loop, model
from pipeline.train.checks import has_masked_lm_head

pytestmark = pytest.mark.usefixtures("one_thread")

FAST = {"learning_rate": 2e-3, "batch_size": 16, "max_length": 24, "steps": 40, "weight_decay": 0.0}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Path]]:
    """A factory of a randomised teacher of two layers and the student that is its first."""
    root = tmp_path_factory.mktemp("pairs")

    def make(task: str = "embedding", architecture: str = "bert") -> tuple[Path, Path]:
        teacher, small = root / f"{architecture}-{task}", root / f"{architecture}-{task}-small"
        if not teacher.exists():
            teacher.mkdir()
            small.mkdir()
            students.source(few(architecture, task), teacher)
            quiet(teacher)
            starts.make(teacher, StartSection(), small)
        return small, teacher

    return make


def quiet(folder: Path) -> None:
    """Take dropout out of a checkpoint, so that processes and parts draw nothing."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"):
        if key in config:
            config[key] = 0.0
    path.write_text(json.dumps(config))


@pytest.fixture(scope="module")
def plain_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "plain.txt"
    path.write_text("\n".join(sorted({text.first.replace("\n", " ") for text in verification_texts()})))
    return path


@pytest.fixture
def lesson(tmp_path: Path, folders: Callable[..., Any], plain_text: Path) -> Callable[..., models.DistilJob]:
    """A factory of distillations on plain text."""

    def make(losses: dict[str, float], task: str = "embedding", **settings: Any) -> models.DistilJob:
        pair = folders(task, settings.pop("architecture", "bert"))
        values = FAST | {"losses": losses, "texts": (str(plain_text),)} | settings
        section = DistilSection.model_validate(values)
        found = dataset.find_data(section, tasks.get(task), None, tmp_path / "recipe.toml")
        return stage.job(pair[0], pair[1], task, section, found, tmp_path / "checkpoints")

    return make


# --- it learns ----------------------------------------------------------------------------------------------------

FALLS: dict[str, tuple[str, dict[str, float], float]] = {
    "sentence_mse": ("embedding", {"sentence_mse": 1.0}, 0.3),
    "sentence_cosine": ("embedding", {"sentence_cosine": 1.0}, 0.3),
    "similarity": ("embedding", {"similarity": 1.0}, 0.9),
    "cosine": ("embedding", {"cosine": 1.0}, 0.5),
    "tinybert": ("embedding", {"embeddings": 1.0, "hidden": 1.0, "attention": 1.0}, 0.7),
    "minilm": ("embedding", {"relations": 1.0}, 0.7),
    "classes": ("classification", {"soft_targets": 1.0}, 0.3),
    "prediction": ("classification", {"prediction": 1.0, "logits_mse": 1.0}, 0.3),
    "labels": ("multi_label_classification", {"soft_targets": 1.0, "logits_mse": 1.0}, 0.3),
    "number": ("regression", {"logits_mse": 1.0}, 0.3),
    "numbers": ("multi_regression", {"logits_mse": 1.0}, 0.3),
    "tags": ("token_classification", {"soft_targets": 1.0}, 0.3),
    "spans": ("question_answering", {"soft_targets": 1.0}, 0.4),
}
"""Task, losses, and to which part of itself the loss falls at least within 40 updates."""
QUICK = ("sentence_mse", "tinybert", "classes", "labels")


@pytest.mark.numeric
@pytest.mark.parametrize(
    "case", [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in FALLS]
)
def test_a_student_approaches_its_teacher(case, lesson, tmp_path):
    task, losses, factor = FALLS[case]
    expected = lesson(losses, task)
    model, record = stage.distil(expected)
    found = [point.loss for point in record.curve]
    assert np.mean(found[-5:]) < factor * np.mean(found[:2])
    assert set(record.curve[0].terms) == set(losses)
    kind = tasks.get(task).output_kind
    kept = {"sentence_mse", "sentence_cosine", "similarity"}
    assert record.cached == (set(losses) <= kept or (KINDS[kind].trained and not KINDS[kind].per_token))
    assert record.teacher_layers == ((1,) if case == "tinybert" else ())
    out = folder(tmp_path / "out")
    metrics = stage.write(model, record, expected.source, out)
    assert metrics["final_loss"] == found[-1]
    assert stage.read_record(out) == record
    checkpoint.load_checkpoint(out, tasks.get(task))


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def curve(expected: models.DistilJob) -> list[float]:
    return [point.loss for point in stage.distil(expected)[1].curve]


def points(expected: models.DistilJob) -> list[float]:
    """Losses, and the norms of gradients: AdamW does not see gradients that are all scaled alike."""
    curve = stage.distil(expected)[1].curve
    return [value for point in curve for value in (point.loss, point.gradient_norm) if value is not None]


@pytest.mark.full
@pytest.mark.parametrize("architecture", ["albert", "electra", "roberta", "xlm-roberta"])
def test_other_architectures_are_distilled_layer_by_layer(architecture, lesson):
    losses = {"embeddings": 1.0, "hidden": 1.0, "attention": 1.0, "relations": 1.0, "cosine": 1.0}
    found = curve(lesson(losses, architecture=architecture, steps=10))
    assert found[-1] < found[0]


@pytest.mark.numeric
def test_each_term_is_of_the_mapped_layer_and_counted_by_its_own_items(lesson):
    from accelerate import Accelerator

    from pipeline.compress.distil.objective import DistilObjective

    losses = dict.fromkeys(("embeddings", "hidden", "attention", "relations", "cosine"), 1.0)
    work = lesson(losses)
    work.checkpoints.mkdir()
    goal = DistilObjective(work, Accelerator(), told)
    rows = np.array([0, 3, 7, 20])
    pair = goal.batches.pair(rows, 1)
    lengths = [int(length) for length in pair.context.mask.sum(1)]
    assert len(set(lengths)) > 1, "some rows are padded"
    with torch.no_grad():
        found = goal.losses(goal.model, rows, 1, torch.device("cpu"))
        assert goal._teacher
        small, large = goal.model.student, goal._teacher.model
        mine = small(**pair.student.inputs, output_hidden_states=True).hidden_states
        theirs = large(**pair.teacher, output_hidden_states=True).hidden_states
        # The student is the teacher's first layer, and the uniform mapping compares it with the second.
        s = parts_of(layers.layers(small)[0], mine[0])
        t = parts_of(layers.layers(large)[1], theirs[1])
    expected = dict.fromkeys(losses, 0.0)
    for row, n in enumerate(lengths):
        for name, a, b in (("embeddings", mine[0], theirs[0]), ("hidden", mine[1], theirs[2])):
            expected[name] += float(((a - b)[row, :n] ** 2).mean(-1).sum())
        expected["cosine"] += float((1 - torch.cosine_similarity(mine[-1], theirs[-1], -1))[row, :n].sum())
        scores = [
            [a[row, :, :n] @ b[row, :, :n].transpose(-1, -2) / a.shape[-1] ** 0.5 for a, b in ((q, k), (v, v))]
            for q, k, v in (s, t)
        ]
        expected["attention"] += float(((scores[0][0] - scores[1][0]) ** 2).mean(0).sum())
        for mine_, theirs_ in zip(*scores, strict=True):
            divergence = torch.softmax(theirs_, -1) * (torch.log_softmax(theirs_, -1) - torch.log_softmax(mine_, -1))
            expected["relations"] += float(divergence.sum(-1).mean(0).sum())
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(value, rel=1e-3, abs=1e-4), name
    assert expected["hidden"] > 1
    pairs = sum(n * n for n in lengths)
    assert goal.count_items(rows, 1) == dict.fromkeys(losses, sum(lengths)) | {"attention": pairs}


def parts_of(layer: layers.Layer, states: torch.Tensor) -> list[torch.Tensor]:
    """Return queries, keys and values by head, `(batch, heads, seq_len, head size)`."""
    columns = [layer.get(name)(states) for name in ("query", "key", "value")]
    return [one.unflatten(-1, (layer.heads, -1)).transpose(1, 2) for one in columns]


def told(what: str, fraction: float) -> None:
    """Progress that nobody reads."""


def test_what_is_kept_of_the_teacher_is_what_it_shows(lesson, monkeypatch):
    from pipeline.compress.distil import outputs

    expected = lesson({"sentence_mse": 1.0}, steps=4)
    kept = curve(expected)
    (file,) = expected.cache.glob("teacher-*/*.arrow")
    made = file.stat().st_mtime_ns
    assert curve(expected) == kept
    assert file.stat().st_mtime_ns == made, "the teacher ran once"
    rows = examples.read(expected.checkpoints / "rows-0.arrow")
    names = ("sentence",)
    key = outputs.cache_key(expected.teacher_digest, rows, names)
    assert key in file.parent.name
    others = {
        outputs.cache_key("another", rows, names),
        outputs.cache_key(expected.teacher_digest, rows.select([1, 0]).flatten_indices(), names),
    }
    assert len({key, *others}) == 3, "another teacher, or other rows, is another file"
    monkeypatch.setattr(outputs, "_MOST_BYTES", 0)
    assert curve(expected) == pytest.approx(kept, rel=1e-4)


@pytest.mark.numeric
def test_labels_are_mixed_in_and_the_dev_metric_is_recorded(tmp_path, folders, monkeypatch):
    for name in ("train", "dev"):
        path = tmp_path / "sst2" / f"{name}.tsv"
        path.parent.mkdir(exist_ok=True)
        rows = "".join(
            f"a {word} film number {n}\t{label}\n" for n in range(20) for label, word in enumerate(("bad", "good"))
        )
        path.write_text(f"sentence\tlabel\n{rows}")
    monkeypatch.setenv(data.DATA_VARIABLE, str(tmp_path))
    small, teacher = folders("classification")
    for name in ("small", "teacher"):
        two_labels({"small": small, "teacher": teacher}[name], tmp_path / name)
    values = FAST | {"losses": {"soft_targets": 1.0}, "alpha": 0.9, "dataset": "sst2", "steps": 20}
    section = DistilSection.model_validate(values)
    found = dataset.find_data(section, tasks.get("classification"), None, tmp_path / "recipe.toml")
    expected = stage.job(tmp_path / "small", tmp_path / "teacher", "classification", section, found, tmp_path / "c")
    _, record = stage.distil(expected)
    assert set(record.curve[0].terms) == {"soft_targets", "labels"}
    first = record.curve[0]
    assert first.loss == pytest.approx(0.1 * first.terms["soft_targets"] + 0.9 * first.terms["labels"], rel=1e-5)
    assert (record.metric, record.dev[-1].value) == ("accuracy", 1.0)
    assert record.before is not None
    assert record.before < 1.0


def two_labels(source: Path, place: Path) -> None:
    """Copy a classifier of three labels, with the first two of them."""
    place.mkdir()
    model = checkpoint.load_checkpoint(source, tasks.get("classification"))
    model.classifier.weight = torch.nn.Parameter(model.classifier.weight[:2].detach().clone())
    model.classifier.bias = torch.nn.Parameter(model.classifier.bias[:2].detach().clone())
    model.config.id2label = {0: "negative", 1: "positive"}
    model.config.label2id = {"negative": 0, "positive": 1}
    model.save_pretrained(place)
    (place / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())


# --- masked tokens ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def speakers(
    tiny_student: Callable[..., Path], plain_text: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """A teacher with a head that was trained on the text, its first layer with that head, and the figures."""
    root = tmp_path_factory.mktemp("speakers")
    encoder = root / "encoder"
    shutil.copytree(tiny_student("bert", "embedding"), encoder)
    quiet(encoder)
    values = FAST | {"texts": (str(plain_text),), "learning_rate": 0.3, "steps": 30}
    section = HeadSection.model_validate(values)
    torch.set_num_threads(1)
    teacher = folder(root / "teacher")
    figures = stage.make_head(encoder, section, (plain_text,), root / "checkpoints", teacher)
    starts.make(teacher, StartSection(), folder(root / "small"))
    return {"small": root / "small", "teacher": teacher, "encoder": encoder, "figures": figures}


@pytest.fixture
def masked_lesson(tmp_path: Path, speakers: dict[str, Any], plain_text: Path) -> Callable[..., models.DistilJob]:
    def make(**settings: Any) -> models.DistilJob:
        losses = {"soft_targets": 5.0, "masked_lm": 2.0, "cosine": 1.0, "sentence_order": 1.0}
        values = FAST | {"losses": losses, "head": "masked_lm", "texts": (str(plain_text),), "steps": 8} | settings
        section = DistilSection.model_validate(values)
        pair = speakers["small"], speakers["teacher"]
        return stage.job(*pair, "embedding", section, DistilData((plain_text,)), tmp_path / "checkpoints")

    return make


@pytest.mark.numeric
def test_a_head_is_trained_and_its_encoder_left_alone(speakers):
    figures = speakers["figures"]
    assert figures["metric"] == "perplexity"
    assert figures["before"] > pieces.SIZE / 2
    assert figures["dev"] < 0.2 * figures["before"]
    load = checkpoint.load_checkpoint
    before, after = (load(speakers[name], tasks.get("embedding")).state_dict() for name in ("encoder", "teacher"))
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())


@pytest.mark.full
def test_the_triple_loss_falls_in_each_term(masked_lesson, speakers, tmp_path):
    starts.make(speakers["teacher"], StartSection(kind="random"), folder(tmp_path / "small"))
    expected = replace(masked_lesson(steps=24, learning_rate=5e-3), source=tmp_path / "small")
    _, record = stage.distil(expected)
    first, last = record.curve[0].terms, record.curve[-1].terms
    for name in ("soft_targets", "masked_lm", "cosine"):
        assert last[name] < 0.95 * first[name]
    assert record.before is not None
    assert record.dev[-1].value < 0.5 * record.before
    assert record.metric == "perplexity"


@pytest.mark.parametrize("architecture", HEADED)
def test_a_new_masked_lm_head_leaves_the_encoder_alone(architecture, tiny_student):
    """XLM-R's class meets the table of words under its head's name first, to which it is tied."""
    source = tiny_student(architecture, "embedding")
    found, new = models.load_masked_lm(source, keeps_head=False, seed=3)
    mine = found.base_model.state_dict()
    theirs = checkpoint.load_checkpoint(source, tasks.get("embedding")).state_dict()
    assert all(torch.equal(mine[name], tensor) for name, tensor in theirs.items())
    assert new
    assert not any("word_embeddings" in name for name in new)


@pytest.mark.parametrize("architecture", ["bert", "xlm-roberta"])
def test_a_compressed_student_gets_a_masked_lm_head_and_loses_it_again(architecture, tmp_path):
    source, small = folder(tmp_path / "source"), folder(tmp_path / "small")
    students.source(few(architecture, "embedding"), source)
    starts.make(source, StartSection(kind="shared"), small)
    found, _ = models.load_masked_lm(small, keeps_head=False, seed=3)
    assert shapes.compressed(small) is not None
    spoken = folder(tmp_path / "spoken")
    model.save(found, small, spoken)
    again, _ = models.load_masked_lm(spoken, keeps_head=True, seed=4)
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in found.state_dict().items())
    theirs = checkpoint.load_checkpoint(small, tasks.get("embedding")).state_dict()
    mine = checkpoint.load_checkpoint(spoken, tasks.get("embedding")).state_dict()
    assert all(torch.equal(mine[name], tensor) for name, tensor in theirs.items())


def test_electra_s_discriminator_has_no_words_to_give(tiny_student, tmp_path):
    source = tmp_path / "electra"
    shutil.copytree(tiny_student("electra", "embedding"), source)
    for name, speaks in (("ElectraForPreTraining", False), ("ElectraForMaskedLM", True), ("BertForPreTraining", True)):
        path = source / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": [name]}))
        found = student.inspect_folder(source, origin=name, licence=None)
        assert has_masked_lm_head(found) == speaks


def test_a_mobilebert_that_learns_hears_no_padding(tiny_student, tmp_path):
    source = tmp_path / "mobilebert"
    shutil.copytree(tiny_student("mobilebert", "embedding"), source)
    from safetensors.torch import load_file, save_file

    tensors = load_file(source / "model.safetensors")
    next(one for name, one in tensors.items() if name.endswith("word_embeddings.weight"))[0] = 3.0
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    found, _ = model.load_model(model.LoadSpec(source, "AutoModel", True, 0))
    ids, mask = torch.arange(5, 11)[None], torch.ones(1, 6, dtype=torch.long)
    padded = torch.nn.functional.pad(ids, (0, 4)), torch.nn.functional.pad(mask, (0, 4))
    with torch.no_grad():
        alone = found.eval()(input_ids=ids, attention_mask=mask).last_hidden_state
        beside = found(input_ids=padded[0], attention_mask=padded[1]).last_hidden_state[:, :6]
    torch.testing.assert_close(beside, alone, rtol=1e-4, atol=1e-4)


def test_random_tokens_are_pieces_of_the_tokenizer(masked_lesson, speakers, tmp_path):
    """A table may have rows beyond them, and the teacher's table fewer of those."""
    from accelerate import Accelerator

    from pipeline.compress.distil.batches import DistilBatches

    expected = masked_lesson()
    expected.checkpoints.mkdir()
    pupil, _, labels = models.load_student(expected)
    pupil.config.vocab_size += 5000
    batcher = DistilBatches(expected, labels, (pupil.config, pupil.config, None), Accelerator(), told)
    assert batcher.block_format
    assert batcher.block_format.vocab_size == 1000


def test_equal_pieces_behind_another_normaliser_are_another_reading(tiny_student, tmp_path):
    from pipeline.compress.distil.batches import same_encoding

    cased = tmp_path / "cased"
    shutil.copytree(tiny_student("bert", "embedding"), cased)
    document = json.loads((cased / "tokenizer.json").read_text())
    document["normalizer"]["lowercase"] = False
    (cased / "tokenizer.json").write_text(json.dumps(document))
    plain, other, same = (
        Encoder(tokenizers.load_tokenizer(place), 16)
        for place in (tiny_student("bert", "embedding"), cased, tiny_student("bert", "embedding"))
    )
    assert same_encoding(plain, same)
    assert not same_encoding(plain, other)


@pytest.mark.numeric
def test_the_terms_of_the_triple_loss_are_counted_and_weighed_as_published(masked_lesson):
    from accelerate import Accelerator

    from pipeline.compress.distil.objective import DistilObjective

    work = masked_lesson(temperature=4.0, steps=2)
    work.checkpoints.mkdir()
    goal = DistilObjective(work, Accelerator(), told)
    assert goal.weights == {"soft_targets": 5.0, "masked_lm": 2.0, "cosine": 1.0, "sentence_order": 1.0}
    rows = np.arange(4)
    pair = goal.batches.pair(rows, 1)
    with torch.no_grad():
        for parameter in goal.model.student.parameters():
            # Far from the teacher, for a divergence beyond rounding.
            parameter.mul_(3.0)
        found = goal.losses(goal.model, rows, 1, torch.device("cpu"))
        assert goal._teacher
        mine, theirs = goal.model.outputs(pair.student.inputs).logits, goal._teacher.run(pair.teacher).logits
    assert mine is not None
    assert theirs is not None
    assert pair.context.masked_tokens is not None
    teacher, small = (torch.log_softmax(one.double() / 4, -1) for one in (theirs, mine))
    divergence = float((teacher.exp() * (teacher - small)).sum())
    assert float(found["soft_targets"]) == pytest.approx(16 * divergence, rel=1e-3)
    tokens, hidden = pair.context.mask.numel(), pair.context.masked_tokens != examples.IGNORED
    asked = {"soft_targets": tokens, "cosine": tokens, "masked_lm": int(hidden.sum()), "sentence_order": 4}
    assert goal.count_items(rows, 1) == asked
    expected = (
        -torch.log_softmax(mine.double(), -1)[hidden].gather(1, pair.context.masked_tokens[hidden][:, None]).sum()
    )
    assert float(found["masked_lm"]) == pytest.approx(float(expected), rel=1e-3)
    for point in stage.distil(work)[1].curve:
        weighed = sum(goal.weights[name] * value for name, value in point.terms.items())
        assert point.loss == pytest.approx(weighed, rel=1e-5)


def test_masking_is_as_published(seed):
    draw = np.random.default_rng(seed)
    shape = masked_lm.BlockFormat((101,), (102,), (102,), 103, 30_000, frozenset({101, 102, 103}))
    ids = np.concatenate([[101], draw.integers(1000, 30_000, 20_000), [102]])
    found, target = masked_lm.mask_tokens(ids, shape, draw)
    chosen = target != -100
    assert chosen.sum() == 3000
    assert not chosen[[0, -1]].any()
    assert (target[chosen] == ids[chosen]).all()
    assert (found[~chosen] == ids[~chosen]).all()
    kept = (found == ids)[chosen].mean()
    assert (found[chosen] == 103).mean() == pytest.approx(0.8, abs=0.03)
    assert kept == pytest.approx(0.1, abs=0.03)


def test_segments_are_swapped_in_half_of_the_rows(seed):
    draw = np.random.default_rng(seed)
    shape = masked_lm.BlockFormat((1,), (2,), (2,), 3, 100, frozenset({1, 2, 3}))
    block = np.arange(10, 20)
    rows = [masked_lm.masked_block(block, shape, draw, segments=True) for _ in range(400)]
    assert np.mean([row.swapped for row in rows]) == pytest.approx(0.5, abs=0.1)
    for row in rows:
        ids = np.where(row.target == -100, row.ids, row.target)
        half = [*range(10, 15)], [*range(15, 20)]
        first, second = reversed(half) if row.swapped else half
        assert ids.tolist() == [1, *first, 2, *second, 2]
        assert row.types.tolist() == [0] * 7 + [1] * 6


def test_masks_hang_on_seed_update_and_row_alone(masked_lesson):
    from accelerate import Accelerator

    from pipeline.compress.distil.batches import DistilBatches

    expected = masked_lesson()
    expected.checkpoints.mkdir()
    model, _, labels = models.load_student(expected)
    batcher = DistilBatches(expected, labels, (model.config, model.config, None), Accelerator(), told)
    whole = batcher.pair(np.arange(6), 3).student.inputs["input_ids"]
    part = batcher.pair(np.array([4, 2]), 3).student.inputs["input_ids"]
    assert torch.equal(whole[[4, 2]], part)
    assert not torch.equal(whole, batcher.pair(np.arange(6), 4).student.inputs["input_ids"])
    reseeded = replace(expected, section=expected.section.model_copy(update={"seed": 1}))
    other = DistilBatches(reseeded, labels, (model.config, model.config, None), Accelerator(), told)
    assert not torch.equal(whole, other.pair(np.arange(6), 3).student.inputs["input_ids"])
    assert set(batcher.training_rows) & set(batcher.held_out) == set()


# --- going on, and in parts ---------------------------------------------------------------------------------------


class Stop(Exception):
    """Something that ends a run in its middle."""


def stop_in_the_middle(expected: models.DistilJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin a distillation and end it behind a checkpoint."""

    def stop(what: str, fraction: float) -> None:
        if fraction >= 0.6:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_TELL_EVERY_S", 0.0)
        patch.setattr(stage, "tell", stop)
        with pytest.raises(Stop):
            stage.distil(expected)


def test_a_run_that_was_stopped_ends_with_the_same_weights(masked_lesson, tmp_path, monkeypatch):
    expected = masked_lesson(checkpoint_minutes=1e-9)
    whole, uncut = stage.distil(replace(expected, checkpoints=tmp_path / "others"))
    stop_in_the_middle(expected, monkeypatch)
    resumed, cut = stage.distil(expected)
    assert cut.resumed_at == [4]
    assert [(one.loss, one.terms) for one in cut.curve] == [(one.loss, one.terms) for one in uncut.curve]
    assert all(torch.equal(resumed.state_dict()[name], tensor) for name, tensor in whole.state_dict().items())


def test_a_checkpoint_of_another_number_of_processes_is_not_gone_on_from(masked_lesson, monkeypatch):
    expected = masked_lesson(checkpoint_minutes=1e-9)
    stop_in_the_middle(expected, monkeypatch)
    for path in expected.checkpoints.rglob("state.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"processes": 2}))
    assert stage.distil(expected)[1].resumed_at == []


def test_rows_that_are_compared_with_each_other_are_of_one_process(lesson):
    from pipeline.compress.distil.objective import DistilObjective

    with pytest.raises(RecipeError, match=r"losses\.similarity compares the rows of an update .* use 1 process"):
        DistilObjective(lesson({"similarity": 1.0}), SimpleNamespace(num_processes=2), told)


@pytest.mark.full
def test_parts_of_an_update_are_the_same_update(lesson, masked_lesson):
    losses = {"hidden": 1.0, "attention": 1.0, "relations": 1.0, "sentence_mse": 1.0}
    assert points(lesson(losses, steps=3)) == pytest.approx(
        points(lesson(losses, steps=3, gradient_accumulation=3)), rel=1e-4
    )
    assert points(masked_lesson(steps=3)) == pytest.approx(
        points(masked_lesson(steps=3, gradient_accumulation=3)), 1e-4
    )


def command(expected: models.DistilJob, place: Path, out: Path) -> list[str]:
    """Return the module and arguments that carry a distillation out."""
    settings = expected.section.model_dump(mode="json", exclude_none=True)
    place.write_text(tomli_w.dumps(settings))
    return [
        *(
            "pipeline.compress.distil",
            str(place),
            "--student",
            str(expected.source),
            "--teacher",
            str(expected.teacher),
        ),
        *("--task", "embedding", "--out", str(out)),
    ]


@pytest.mark.full
def test_a_run_that_was_killed_goes_on_to_the_same_weights(lesson, tmp_path):
    losses = {"sentence_mse": 1.0, "hidden": 1.0}
    expected = lesson(losses, steps=150, checkpoint_minutes=0.003)
    arguments = {name: command(expected, tmp_path / f"{name}.toml", tmp_path / name) for name in ("whole", "cut")}
    run = [sys.executable, "-m"]
    quiet = {"cwd": tmp_path, "env": environment(OMP_NUM_THREADS="1"), "stderr": subprocess.DEVNULL}
    subprocess.run([*run, *arguments["whole"]], check=True, timeout=300, **quiet)
    for _ in range(2):
        process = subprocess.Popen([*run, *arguments["cut"]], **quiet)
        before = set(tmp_path.glob("cut.checkpoints/*/step-*"))
        while not set(tmp_path.glob("cut.checkpoints/*/step-*")) - before:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run([*run, *arguments["cut"]], check=True, timeout=300, **quiet)
    whole, cut = (stage.read_record(tmp_path / name) for name in ("whole", "cut"))
    assert len(cut.resumed_at) == 2
    assert cut.curve == whole.curve
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["layers", "masked"])
def test_two_processes_learn_what_one_does(kind, lesson, masked_lesson, tmp_path):
    losses = {"sentence_mse": 1.0, "hidden": 1.0, "attention": 1.0}
    # An odd number of rows in an update: it cannot be shared evenly.
    expected = lesson(losses, steps=8, batch_size=15) if kind == "layers" else masked_lesson(batch_size=15)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
    curves = []
    for count in (1, 2):
        arguments = command(expected, tmp_path / "settings.toml", tmp_path / f"of-{count}")
        done = subprocess.run(
            [*launch, str(count), "-m", *arguments],
            cwd=tmp_path,
            env=environment(ACCELERATE_USE_CPU="true", OMP_NUM_THREADS="1"),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        record = stage.read_record(tmp_path / f"of-{count}")
        assert record.processes == count
        curves.append(
            [value for point in record.curve for value in (point.loss, point.gradient_norm, *point.terms.values())]
        )
    assert curves[0] == pytest.approx(curves[1], rel=1e-3)


# --- vocabularies, shared layers ----------------------------------------------------------------------------------


def trimmed(source: Path, texts: list[str], place: Path) -> Path:
    """Copy a student with the pieces that some texts need, in other places."""
    from tokenizers import Tokenizer

    place.mkdir()
    document = json.loads((source / "tokenizer.json").read_text())
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    used = {number for text in texts for number in tokenizer.encode(text).ids}
    used |= {token["id"] for token in document["added_tokens"]}
    old = sorted(used)
    by_id = {number: piece for piece, number in document["model"]["vocab"].items()}
    document["model"]["vocab"] = {by_id[number]: new for new, number in enumerate(old)}
    for token in document["added_tokens"]:
        token["id"] = old.index(token["id"])
    for token in document["post_processor"]["special_tokens"].values():
        token["ids"] = [old.index(number) for number in token["ids"]]
    (place / "tokenizer.json").write_text(json.dumps(document))
    model = checkpoint.load_checkpoint(source, tasks.get("embedding"))
    table = model.get_input_embeddings().weight[old].detach()
    model.resize_token_embeddings(len(old), mean_resizing=False)
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(table)
    model.config.pad_token_id = old.index(0)
    model.save_pretrained(place)
    return place


def test_a_trimmed_vocabulary_is_taught_token_by_token_on_its_own_texts(folders, plain_text, tmp_path):
    _, teacher = folders()
    texts = plain_text.read_text().splitlines()
    small = trimmed(teacher, texts, tmp_path / "small")
    losses = dict.fromkeys(("hidden", "embeddings", "attention", "relations", "cosine"), 1.0)
    values = FAST | {"losses": losses, "texts": (str(plain_text),), "steps": 2, "learning_rate": 1e-9}
    section = DistilSection.model_validate(values)
    expected = stage.job(small, teacher, "embedding", section, DistilData((plain_text,)), tmp_path / "checkpoints")
    for point in stage.distil(expected)[1].curve:
        # The same tokens, so the same states in each of both layers.
        assert point.terms == pytest.approx(dict.fromkeys(losses, 0.0), abs=2e-5)
    other = tmp_path / "other.txt"
    other.write_text("seven negative colours\n")
    expected = stage.job(small, teacher, "embedding", section, DistilData((other,)), tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"row 1: the student's vocabulary gives .* where the teacher's gives"):
        stage.distil(expected)


def test_shared_layers_stay_shared(folders, plain_text, tmp_path):
    _, teacher = folders()
    small = folder(tmp_path / "small")
    starts.make(teacher, StartSection(kind="shared"), small)
    values = FAST | {"losses": {"hidden": 1.0, "relations": 1.0}, "texts": (str(plain_text),), "steps": 3}
    section = DistilSection.model_validate(values)
    out = folder(tmp_path / "out")
    figures = stage.make(small, teacher, "embedding", section, DistilData((plain_text,)), tmp_path / "checkpoints", out)
    assert figures["final_loss"] > 0
    found = checkpoint.load_checkpoint(out, tasks.get("embedding"))
    assert shapes.sharing(found) == ((0, 0), (0, 0))
    assert not torch.equal(
        next(found.encoder.parameters()),
        next(checkpoint.load_checkpoint(small, tasks.get("embedding")).encoder.parameters()),
    )


# --- bad input ----------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "another task's loss": ("embedding", {"losses": {"soft_targets": 1.0}}, "does not fit task embedding; there are"),
    "no masked head": ("embedding", {"losses": {"masked_lm": 1.0}}, r"needs distil\.head = 'masked_lm'"),
    "untrained head": (
        "embedding",
        {"losses": {"soft_targets": 1.0}, "head": "masked_lm"},
        "no trained masked-LM head: it was saved as BertModel",
    ),
    "labels of an embedding": ("embedding", {"alpha": 0.5}, "task embedding cannot be trained on labels"),
    "no labels": (
        "classification",
        {"losses": {"soft_targets": 1.0}, "alpha": 0.5},
        r"asks for hard labels, and distil\.texts have no labels",
    ),
    "labels alone": ("embedding", {"alpha": 1.0}, "alpha = 1 leaves no weight for distil.losses"),
    "too many layers": (
        "embedding",
        {"losses": {"hidden": 1.0}, "teacher_layers": (0, 1)},
        "names 2 layers, and the student",
    ),
    "no such layer": (
        "embedding",
        {"losses": {"hidden": 1.0}, "teacher_layers": (2,)},
        "names layer 2; the teacher has 0 to 1",
    ),
    "too long": ("embedding", {"max_length": 65}, "max_length = 65 is beyond bert-embedding-small's limit of 64"),
    "both": ("embedding", {"epochs": 1.0, "steps": 2}, "distil has epochs and steps"),
    "parts": (
        "embedding",
        {"losses": {"similarity": 1.0}, "gradient_accumulation": 2},
        "compares the rows of an update with each other",
    ),
    "unknown data": ("embedding", {"dataset": "sst3"}, "'sst3' does not exist; there are: graded_pairs"),
    "no data": ("embedding", {"texts": None}, "distil has no data"),
    "rows of no dataset": (
        "embedding",
        {"held_out": 5},
        "distil.held_out counts training rows of a dataset, and none is named beside distil.texts",
    ),
}


def test_an_unknown_loss_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ValidationError, match=r"losses\n .*'kd' does not exist; there are: soft_targets"):
        DistilSection.model_validate({"losses": {"kd": 1.0}})


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_go_well_is_refused_in_one_line(case, lesson):
    task, settings, message = BAD[case]
    losses = settings.get("losses", {"sentence_mse": 1.0})
    others = {key: value for key, value in settings.items() if key != "losses"}
    with pytest.raises(PipelineError, match=message) as caught:
        stage.distil(lesson(losses, task, **others))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"), [(None, "does not exist"), ("\n \n", "holds no text"), ("\udcff", "not UTF-8")]
)
def test_bad_texts_are_named(text, message, tmp_path):
    path = tmp_path / "a.txt"
    if text is not None:
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=message):
        dataset.plain_lines([path])


def test_too_little_text_for_blocks_is_refused(masked_lesson, tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("the house river of\n")
    with pytest.raises(InputError, match="the texts have 4 tokens, and two blocks need"):
        stage.distil(replace(masked_lesson(), data=DistilData((path,))))


def test_layers_that_do_not_divide_are_refused():
    section = DistilSection(losses={"hidden": 1.0}, dataset="stsb")
    assert checks.map_layers(section, 3, 6) == (1, 3, 5)
    with pytest.raises(
        RecipeError, match=r"6 layers do not divide by the student's 4\. .* such as teacher_layers = \[1, 2, 3, 5\]"
    ):
        checks.map_layers(section, 4, 6)


def test_a_teacher_of_another_vocabulary_is_refused_for_tokens_and_taken_for_texts(folders, plain_text, tmp_path):
    small, _ = folders()
    teacher = tmp_path / "teacher"
    teacher.mkdir()
    students.source(Student("xlm-roberta", pieces="unigram"), teacher)
    values = FAST | {"texts": (str(plain_text),), "steps": 3}
    for losses in ({"hidden": 1.0}, {"sentence_mse": 1.0}):
        section = DistilSection.model_validate(values | {"losses": losses})
        arguments = small, teacher, "embedding", section, DistilData((plain_text,)), tmp_path / "checkpoints"
        if "hidden" in losses:
            with pytest.raises(StudentError, match="the teacher has another vocabulary"):
                stage.job(*arguments)
        else:
            assert np.isfinite(curve(stage.job(*arguments))).all()


def test_a_masked_lm_head_that_was_never_trained_is_refused(speakers, masked_lesson, tmp_path):
    import transformers

    place = folder(tmp_path / "teacher")
    config = transformers.AutoConfig.from_pretrained(speakers["teacher"])
    torch.manual_seed(0)
    transformers.AutoModelForMaskedLM.from_config(config).save_pretrained(place)
    (place / "tokenizer.json").write_bytes((speakers["teacher"] / "tokenizer.json").read_bytes())
    with pytest.raises(StudentError, match=r"head was never trained: its perplexity on the texts is \d+"):
        stage.distil(replace(masked_lesson(), teacher=place))


def test_unequal_heads_and_sizes_are_refused_before_the_first_update(folders, plain_text, tmp_path):
    _, teacher = folders()
    small = folder(tmp_path / "small")
    starts.make(teacher, StartSection(kind="width", hidden_size=32), small)
    values = FAST | {"texts": (str(plain_text),), "steps": 2}
    for losses, message in (
        ({"attention": 1.0}, "layer 0 of the student has 2 where the teacher's layer 0 has 4"),
        ({"sentence_mse": 1.0}, "needs embeddings of one width; the student's have 32 numbers and the teacher's 64"),
        ({"relations": 1.0}, "relation_heads = 7 does not divide the 32 features of the student"),
    ):
        heads = {"relation_heads": 7} if "relations" in losses else {}
        section = DistilSection.model_validate(values | {"losses": losses} | heads)
        with pytest.raises(RecipeError, match=message):
            stage.distil(
                stage.job(small, teacher, "embedding", section, DistilData((plain_text,)), tmp_path / "checkpoints")
            )
    fine = {"hidden": 1.0, "embeddings": 1.0, "relations": 1.0, "similarity": 1.0}
    section = DistilSection.model_validate(values | {"losses": fine, "relation_heads": 8})
    assert np.isfinite(
        curve(stage.job(small, teacher, "embedding", section, DistilData((plain_text,)), tmp_path / "more"))
    ).all()


def test_sources_are_found_as_students_are(folders, tmp_path):
    small, teacher = folders()
    section = DistilSection(losses={"sentence_mse": 1.0}, teacher=str(teacher), dataset="stsb")
    unpruned = student.inspect_folder(small, origin="small", licence=None)
    recipe_file = tmp_path / "recipe.toml"
    found = stage.teacher_of(section, unpruned, recipe_file)
    assert found
    assert found.folder == teacher
    assert stage.teacher_of(section.model_copy(update={"teacher": "unpruned"}), unpruned, recipe_file) is unpruned
    alone = DistilSection(losses={"masked_lm": 1.0}, head="masked_lm", texts=("a.txt",))
    assert stage.teacher_of(alone, unpruned, recipe_file) is None
    assert dataset.text_files(alone, recipe_file) == (tmp_path / "a.txt",)


def test_texts_may_be_a_datasets_and_are_each_read_once_without_labels(tmp_path):
    (tmp_path / "a.txt").write_text("The sea was calm.\nThe sea was calm.\n")
    section = DistilSection(losses={"sentence_mse": 1.0}, texts=("a.txt", "sentiment"))
    found = dataset.find_data(section, tasks.get("embedding"), None, tmp_path / "recipe.toml")
    assert found.text_files == (tmp_path / "a.txt",)
    assert found.text_datasets == ("sentiment",)
    texts = dataset.unlabelled_texts(found)
    rows = data.DATASETS["sentiment"].load("train")
    assert texts[:2] == ["The sea was calm."] * 2, "lines of a file are taken as they are"
    assert texts[2:] == list(dict.fromkeys(row.first for row in rows))
    assert found.params["text_datasets"] == {"sentiment": data.DATASETS["sentiment"].digest("train")}
    assert "text_datasets" not in DistilData((tmp_path / "a.txt",)).params, "keys of what is made stay"
    assert all(row.label == 0 for row in dataset.training_texts(section, tasks.get("embedding"), found))
    absent = dataset.find_data(
        section.model_copy(update={"texts": ("questions",)}), tasks.get("embedding"), None, tmp_path
    )
    with pytest.raises(InputError, match="questions has no training texts"):
        dataset.unlabelled_texts(absent)
