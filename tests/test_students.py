"""What each new student and task needs of an export, and what a user gets from their files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import PAIRS, Outcome, recipe_file
from faults import students
from faults.students import few

from pipeline import architectures, tasks
from pipeline.architectures import ARCHITECTURES
from pipeline.checkpoint.loading import export_graph, load_checkpoint
from pipeline.checkpoint.source import inspect_folder
from pipeline.convert import stage as convert
from pipeline.errors import StudentError, ToolchainError
from pipeline.formats import signature
from pipeline.formats.signature import Signature
from pipeline.formats.structure import Constant, Structure
from pipeline.student import reference
from pipeline.student.outputs import reference_outputs
from pipeline.text.bundled import Text
from pipeline.text.encoding import Encoder, Row
from pipeline.text.tokenizers import load_tokenizer

PADDED_TO = 24


@pytest.fixture(scope="module")
def randomised(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """A factory of students in which nothing is zero, the padding's embedding included."""

    def make(architecture: str, task: str) -> Path:
        folder = tmp_path_factory.mktemp(f"{architecture}-{task}")
        return students.source(few(architecture, task), folder)

    return make


def row_of(length: int) -> Row:
    ids = tuple(int(one) for one in np.random.default_rng(length).integers(104, 1000, length))
    return Row(ids, (0,) * length)


@pytest.mark.numeric
@pytest.mark.parametrize(("architecture", "task"), PAIRS)
def test_a_padded_graph_gives_what_the_checkpoint_gives_unpadded(
    architecture: str, task: str, randomised: Callable[[str, str], Path]
) -> None:
    folder = randomised(architecture, task)
    row, due = row_of(11), tasks.get(task)
    graph = export_graph(folder, due)
    padding = int(graph.model.config.pad_token_id)
    padded = row.padded(ARCHITECTURES[architecture].inputs, PADDED_TO, pad_token_id=padding)
    with torch.no_grad():
        found = graph(*(torch.from_numpy(array) for array in padded.values()))
    parts = [part[0].numpy() for part in (found if isinstance(found, tuple) else (found,))]
    values = np.atleast_2d(parts[0] if len(parts) == 1 else np.stack(parts, axis=-1))
    expected = reference_outputs(load_checkpoint(folder, due), due, [row])[0]
    np.testing.assert_allclose(values[: len(expected)], expected, atol=2e-5 * max(1.0, float(np.abs(expected).max())))


def test_relative_positions_are_where_hugging_face_s_code_takes_them_from(
    randomised: Callable[[str, str], Path],
) -> None:
    """A file's constant is compared with the table by these places, at every distance up to 512 tokens."""
    model = load_checkpoint(randomised("mpnet", "embedding"), tasks.get("embedding"))
    table = model.encoder.relative_attention_bias.weight.detach()
    shapes = {"encoder.relative_attention_bias.weight": tuple(table.shape), "position_embeddings.weight": (514, 64)}
    row = architectures.get("mpnet")
    assert row.gathered is not None
    assert row.score_bias is not None
    (places,) = row.gathered(shapes).values()
    due = row.score_bias(model, 514)[0].numpy()
    # The row of tokens behind at no distance is that of none.
    assert len(np.unique(places)) == table.numel() - table.shape[1]
    np.testing.assert_array_equal(table.numpy().ravel()[places], due)


def test_hugging_faces_own_mobilebert_is_changed_by_padding(randomised: Callable[[str, str], Path]) -> None:
    """The reason for the patch: if this ever fails, the patch can go."""
    model = load_checkpoint(randomised("mobilebert", "token_classification"), tasks.get("token_classification"))
    ids = torch.tensor([row_of(11).ids])
    padded = torch.nn.functional.pad(ids, (0, 5), value=model.config.pad_token_id)
    with torch.no_grad():
        alone = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        beside = model(input_ids=padded, attention_mask=(torch.arange(16) < 11).long()[None]).logits[:, :11]
    assert (alone - beside).abs().max() > 1e-2


@pytest.mark.parametrize(("architecture", "rows", "tokens"), [("roberta", 514, 512), ("xlm-roberta", 514, 512)])
def test_positions_behind_the_padding_id_shorten_the_longest_row(architecture: str, rows: int, tokens: int) -> None:
    row = architectures.get(architecture)
    assert row.max_length({"max_position_embeddings": rows, "pad_token_id": 1}) == tokens
    assert row.max_length({"max_position_embeddings": rows}) == tokens
    assert architectures.get("bert").max_length({"max_position_embeddings": 512, "pad_token_id": 0}) == 512


def test_a_length_beyond_the_students_limit_is_a_recipe_error(
    randomised: Callable[[str, str], Path], command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    source = randomised("roberta", "embedding")
    assert inspect_folder(source, origin="x", licence=None).max_length == 64
    recipe = recipe_file(tmp_path, student={"source": str(source)}, convert={"sequence_lengths": [16, 65]})
    outcome = command_here("student", recipe)
    assert outcome.rc == 2
    assert "sequence length 65" in outcome.stderr
    assert "64 positions" in " ".join(outcome.stderr.split())


ALBERT_SIZES = {
    "base": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 12},
    "large": {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "num_hidden_layers": 24},
    "xlarge": {"hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 8192, "num_hidden_layers": 24},
    "xxlarge": {"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384, "num_hidden_layers": 12},
}
"""Lan et al. 2020, table 1."""


@pytest.mark.parametrize("size", ALBERT_SIZES)
def test_albert_of_every_published_size_shares_its_layer_and_has_one_gelu(size: str) -> None:
    row = architectures.get("albert")
    common = {"embedding_size": 128, "hidden_act": "gelu_new", "vocab_size": 30000}
    counts = []
    for layers in (ALBERT_SIZES[size]["num_hidden_layers"], 1):
        config = transformers.AutoConfig.for_model(
            "albert", **ALBERT_SIZES[size] | common | {"num_hidden_layers": layers}
        )
        with torch.device("meta"):
            model = transformers.AutoModel.from_config(config, **row.backbone_options)
        for patch in row.patches:
            patch(model)
        assert "NewGELUActivation" not in {type(module).__name__ for module in model.modules()}
        assert row.max_length(config.to_dict()) == 512
        counts.append(sum(parameter.numel() for parameter in model.parameters()))
    assert counts[0] == counts[1] > 11e6


# --- heads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "saved_as", "says"),
    [
        ("classification", "regression", "Did you mean task 'regression'?"),
        ("regression", "classification", "Did you mean task 'classification' or 'multi_regression'?"),
        ("question_answering", "classification", "lacks"),
        ("token_classification", "embedding", "lacks"),
    ],
)
def test_a_head_of_another_task_is_refused(
    task: str,
    saved_as: str,
    says: str,
    randomised: Callable[[str, str], Path],
    command_here: Callable[..., Outcome],
    tmp_path: Path,
) -> None:
    recipe = recipe_file(tmp_path, task=task, student={"source": str(randomised("bert", saved_as))})
    outcome = command_here("student", recipe)
    assert outcome.rc == 2
    assert says in " ".join(outcome.stderr.split())
    assert "Traceback" not in outcome.stderr


def test_an_unknown_architecture_names_those_that_exist() -> None:
    with pytest.raises(StudentError, match=r"'gpt2'; supported: albert, bert, distilbert"):
        architectures.get("gpt2")


# --- stored once -------------------------------------------------------------------------------------------------


def signature_of(parameters: int) -> Signature:
    return Signature(
        backend="litert",
        scheme="fp32",
        task="embedding",
        output_kind="embedding",
        file="model.tflite",
        minimum_runtime="1.0",
        pad_token_id=0,
        labels=None,
        functions=(),
        parameters=parameters,
    )


def constants(*arrays: np.ndarray) -> Structure:
    return Structure(tuple(Constant(f"c{n}", array, "float32") for n, array in enumerate(arrays)), *((),) * 7)


def test_a_tensor_that_is_stored_twice_stops_the_conversion_and_is_named(seed: int) -> None:
    shared = np.random.default_rng(seed).normal(size=(64, 64)).astype(np.float32)
    with pytest.raises(ToolchainError, match=r"c0 3 times.*shared layer has come apart"):
        convert._check_stored_once(constants(shared, shared.copy(), shared.copy()), signature_of(4096))
    convert._check_stored_once(constants(shared, shared.T), signature_of(4096))


def test_small_tensors_and_tables_of_one_number_may_be_equal() -> None:
    bias, zeros = np.arange(64, dtype=np.float32), np.zeros((64, 64), np.float32)
    convert._check_stored_once(constants(bias, bias, zeros, zeros), signature_of(4096))


# --- from a file to an answer ------------------------------------------------------------------------------------


def predicted(
    task: str,
    backend: str,
    randomised: Callable[[str, str], Path],
    command_here: Callable[..., Outcome],
    place: Path,
    *texts: str,
) -> Any:
    recipe = recipe_file(
        place,
        task=task,
        student={"source": str(randomised("electra", task)), "random_weights": True},
        convert={"sequence_lengths": [32]},
        targets={backend: {"schemes": ["fp32"]}},
    )
    made = command_here("convert", recipe)
    assert made.rc == 0, made.stderr
    outcome = command_here("predict", place / "build" / "tiny" / f"{backend}-fp32" / "model", *texts, "--json")
    assert outcome.rc == 0, outcome.stdout
    return json.loads(outcome.stdout)["predictions"]


def test_a_question_is_answered_from_a_passage_longer_than_the_file_takes(
    randomised: Callable[[str, str], Path], command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    passage = "The lake is deep. " * 20 + "It froze in 1963."
    texts = ("When did it freeze?", "--pair", passage)
    (found,) = predicted("question_answering", "litert", randomised, command_here, tmp_path, *texts)
    assert found["windows"] > 3
    answer = passage[found["answer"]["start"] : found["answer"]["end"]]
    assert answer
    assert answer == answer.strip()
    refused = command_here("predict", tmp_path / "build/tiny/litert-fp32/model", "When did it freeze?")
    assert refused.rc == 2
    assert "--pair" in refused.stderr


def test_words_are_tagged_where_they_stand(
    randomised: Callable[[str, str], Path], command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    text = "Ana Sørensen   unbelievably met Bo"
    (found,) = predicted("token_classification", "executorch", randomised, command_here, tmp_path, text)
    words = text.split()
    tagged = [text[entity["start"] : entity["end"]] for entity in found["entities"]]
    assert " ".join(" ".join(tagged).split()) == " ".join(words), "every label of this student is a kind of its own"
    assert {entity["kind"] for entity in found["entities"]} <= set(students.LABELS)
    assert all(0.3 < entity["score"] <= 1 for entity in found["entities"])
    described = signature.read(tmp_path / "build" / "tiny" / "executorch-fp32" / "model").functions[0]
    assert described.outputs[0].shape == (1, None, 3)


def test_a_labelled_text_is_not_mistaken_for_the_one_token_row_of_the_same_word(
    randomised: Callable[[str, str], Path],
) -> None:
    folder = randomised("bert", "classification")
    book = reference.EncodedTexts(Encoder(load_tokenizer(folder), 16), tasks.get("classification"), students.LABELS)
    book.add_single_tokens()
    number = book.add(Text("labelled", "labelled", "The"))
    assert len(book.rows[number]) == 3
    assert book.add(Text("again", "labelled", "The")) == number
