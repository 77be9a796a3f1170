"""Static embeddings: the library's own vectors for every layout that is published, and files of all three formats."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pieces
import pytest
from conftest import Outcome, recipe_file
from test_sentences import find, put

from pipeline import formats, tasks
from pipeline.checkpoint import loading, sentences
from pipeline.checkpoint.files import read_json
from pipeline.errors import PipelineError, RecipeError, StudentError
from pipeline.recipe.schema import StudentSection
from pipeline.schemes import SCHEMES
from pipeline.student import assemble, golden, library, stage
from pipeline.text.encoding import Encoder

NORMALIZE = "sentence_transformers.models.Normalize"
TASK = tasks.get("embedding")
WIDTH, ROWS = 48, 400
"""Columns of the table, and rows where a mapping shares them among tokens."""
RANDOM = {"random_weights": True}


def table(seed: int, rows: int = pieces.SIZE) -> Any:
    import torch

    return torch.randn((rows, WIDTH), generator=torch.Generator().manual_seed(seed))


def saved_by_the_library(folder: Path, seed: int, *behind: str, **settings: Any) -> None:
    """Write a folder with sentence-transformers itself."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.base.modules.normalize import Normalize
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    torch.manual_seed(seed)
    made: Mapping[str, Callable[[], Any]] = {"Normalize": Normalize, "Dense": lambda: Dense(WIDTH, 24)}
    folder.mkdir()
    pieces.write(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    first = StaticEmbedding(tokenizer, embedding_weights=table(seed))
    SentenceTransformer(modules=[first, *(made[name]() for name in behind)], device="cpu", **settings).save(str(folder))


def in_a_folder_of_its_own(folder: Path, seed: int) -> None:
    """Write what sentence-transformers wrote before version 5: the table in 0_StaticEmbedding."""
    saved_by_the_library(folder, seed, "Normalize")
    inner = folder / "0_StaticEmbedding"
    inner.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        shutil.move(folder / name, inner / name)
    rows = json.loads((folder / "modules.json").read_text())
    rows[0]["path"] = inner.name
    put(folder, {"modules.json": rows})


def of_model2vec(
    folder: Path,
    seed: int,
    *,
    normalize: bool = True,
    modules: bool = True,
    mapped: bool = False,
    weighted: bool = False,
    dtype: str = "float32",
) -> None:
    """Write a folder as model2vec's `save_pretrained` does."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    pieces.write(folder)
    drawn = torch.Generator().manual_seed(seed)
    tensors = {"embeddings": table(seed, ROWS if mapped else pieces.SIZE).to(getattr(torch, dtype))}
    if mapped:
        tensors["mapping"] = torch.randint(0, ROWS, (pieces.SIZE,), generator=drawn)
    if weighted:
        tensors["weights"] = torch.rand(pieces.SIZE, generator=drawn, dtype=torch.float64) + 0.1
    save_file(tensors, folder / "model.safetensors")
    put(folder, {"config.json": {"model_type": "model2vec", "normalize": normalize, "apply_zipf": True}})
    if modules:
        of = "sentence_transformers.models"
        rows = [{"idx": 0, "name": "0", "path": ".", "type": f"{of}.StaticEmbedding"}]
        rows += [{"idx": 1, "name": "1", "path": "1_Normalize", "type": f"{of}.Normalize"}] if normalize else []
        put(folder, {"modules.json": rows})


LAYOUTS: Mapping[str, Callable[[Path, int], None]] = {
    "library": lambda folder, seed: saved_by_the_library(folder, seed, "Normalize"),
    "library_alone": saved_by_the_library,
    "library_prompts": lambda folder, seed: saved_by_the_library(
        folder, seed, "Normalize", prompts={"query": "query: "}, default_prompt_name="query"
    ),
    "library_dense": lambda folder, seed: saved_by_the_library(folder, seed, "Dense", "Normalize"),
    "own_folder": in_a_folder_of_its_own,
    "model2vec": of_model2vec,
    "model2vec_half": lambda folder, seed: of_model2vec(folder, seed, dtype="float16", weighted=True),
    "model2vec_weighted": lambda folder, seed: of_model2vec(folder, seed, weighted=True, normalize=False),
    "model2vec_mapped": lambda folder, seed: of_model2vec(folder, seed, weighted=True, mapped=True),
    "model2vec_bare": lambda folder, seed: of_model2vec(folder, seed, modules=False),
    "model2vec_bare_unscaled": lambda folder, seed: of_model2vec(folder, seed, modules=False, normalize=False),
}


@pytest.fixture
def written(tmp_path: Path, seed: int) -> Callable[[str], Path]:
    def write(layout: str) -> Path:
        LAYOUTS[layout](tmp_path / layout, seed)
        return tmp_path / layout

    return write


def made(folder: Path, out: Path, **section: Any) -> Path:
    """Return the student of a folder, by the stages that a recipe goes through."""
    student = StudentSection(source=str(folder), **section)
    source = find(folder, **section)
    assert assemble.is_needed(source, TASK, student)
    for part in (out / "assembled", out / "student"):
        part.mkdir(parents=True)
    assemble.make(folder, TASK.name, student, out / "assembled")
    stage.make(out / "assembled", TASK.name, False, out / "student")
    written = find(out / "student")
    tried = assemble.expected(source, TASK, student)
    unwritten = ("dtype", "transformers_version")
    assert {key: value for key, value in written.config.items() if key not in unwritten} == tried.config
    assert {name: shape for name, shape in written.tensor_shapes().items() if "sentence_head" not in name} == dict(
        tried.tensor_shapes()
    )
    return out / "student"


def vectors(student: Path, texts: list[str]) -> Any:
    """Return what the exported graph gives, padded to 64 tokens."""
    import torch

    graph, encoder = loading.export_graph(student, TASK), Encoder.from_folder(student, 64)
    names = ("input_ids", "attention_mask")
    with torch.no_grad():
        return np.concatenate(
            [
                graph(*map(torch.from_numpy, encoder.encode(text).padded(names, 64, pad_token_id=0).values())).numpy()
                for text in texts
            ]
        )


def by_the_library(folder: Path, texts: list[str], **options: Any) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu").encode(texts, **options)


TEXTS = ["A man is playing a guitar.", "", "\u4eca\u5929\u5929\u6c14", "Yes", "\u200b", "Crème brûlée, [SEP] naïve"]


# --- what the library computes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_the_library_s(layout: str, written: Callable[[str], Path], tmp_path: Path) -> None:
    """Both stages compare golden rows with the library; here the graph is, with an empty text among the others."""
    folder = written(layout)
    student = made(folder, tmp_path / "out")
    rows = golden.read(student).rows
    assert all(row.input_ids for row in rows), "a text without tokens is no golden row"
    assert len(rows) == len(golden.TEXTS) - 1 + 2 * len({row.prompt for row in rows} - {None})
    found = vectors(student, TEXTS)
    empty = [number for number, text in enumerate(TEXTS) if text in ("", "\u200b")]
    assert (found[empty] == 0).all()
    if "bare" not in layout:
        expected = by_the_library(folder, TEXTS, prompt="")
        if "dense" in layout:
            # The library gives a bias there; here a text without tokens is zero, as a row of padding.
            expected[empty] = 0
        np.testing.assert_allclose(found, expected, atol=1e-6 * float(np.abs(expected).max()) * 10)


def test_no_special_tokens_stand_around_a_text(written: Callable[[str], Path], tmp_path: Path) -> None:
    folder = written("own_folder")
    student = made(folder, tmp_path / "out")
    plain = Encoder.from_folder(folder / "0_StaticEmbedding", 64).encode("Yes, it is.").ids
    assert Encoder.from_folder(student, 64).encode("Yes, it is.").ids == plain[1:-1]
    assert Encoder.from_folder(student, 64).encode("").ids == ()


def test_weights_and_mapping_are_in_the_table(written: Callable[[str], Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    folder = written("model2vec_mapped")
    stored = load_file(folder / "model.safetensors")
    (found,) = load_file(made(folder, tmp_path / "out") / "model.safetensors").values()
    assert found.shape == (pieces.SIZE, WIDTH)
    for token in (0, 7, pieces.SIZE - 1):
        due = stored["embeddings"][stored["mapping"][token]] * stored["weights"][token].float()
        np.testing.assert_allclose(found[token], due, rtol=1e-6)


@pytest.mark.parametrize(
    ("layout", "change"),
    [
        ("library", lambda rows: rows[:1]),
        ("library_alone", lambda rows: [*rows, {"idx": 1, "name": "1", "path": "1_N", "type": NORMALIZE}]),
    ],
    ids=["without", "with"],
)
def test_the_gate_fires_where_other_modules_were_read(
    layout: str, change: Callable[[Any], Any], written: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = written(layout)
    head = sentences.read(folder)
    rows = golden.read(made(folder, tmp_path / "out"))
    library.check(folder, rows, TASK, head)
    (folder / "1_N").mkdir(exist_ok=True)
    put(folder, {"modules.json": change(json.loads((folder / "modules.json").read_text()))})
    with pytest.raises(StudentError, match="gives another embedding for 'Thanks!'"):
        library.check(folder, rows, TASK, head)


def test_the_gate_fires_where_a_weight_is_left_out(
    written: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.checkpoint import tables

    folder = written("model2vec_weighted")
    whole = tables.read
    monkeypatch.setattr(tables, "read", lambda *given: whole(*given)._replace(weighted=False))
    with pytest.raises(StudentError, match="gives another embedding for 'Thanks!'"):
        made(folder, tmp_path / "out")


def test_the_gate_fires_where_special_tokens_are_counted(
    written: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.text import tokenizers

    folder = written("library")
    monkeypatch.setattr(tokenizers, "without_special_tokens", lambda tokenizer: tokenizer)
    with pytest.raises(StudentError, match="gives another embedding for 'Thanks!'"):
        made(folder, tmp_path / "out")


# --- the width of an embedding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["library", "library_alone", "library_dense", "model2vec_mapped"])
def test_a_width_is_the_library_s_truncate_dim(layout: str, written: Callable[[str], Path], tmp_path: Path) -> None:
    folder = written(layout)
    student = made(folder, tmp_path / "out", width=16)
    scaled = "Normalize" in (folder / "modules.json").read_text()
    expected = by_the_library(folder, TEXTS[:1], prompt="", truncate_dim=16, normalize_embeddings=scaled)
    np.testing.assert_allclose(vectors(student, TEXTS[:1]), expected, atol=1e-5 * float(np.abs(expected).max()))
    # A step that reads the whole vector needs the whole table.
    assert read_json(student / "config.json")["hidden_size"] == (WIDTH if "dense" in layout else 16)


def test_a_width_makes_a_table_smaller(written: Callable[[str], Path], tmp_path: Path) -> None:
    folder = written("library")
    student = made(folder, tmp_path / "out", width=12)
    sizes = [(place / "model.safetensors").stat().st_size for place in (folder, student)]
    assert sizes[1] < 0.26 * sizes[0]


@pytest.mark.parametrize(("behind", "width"), [(("Normalize",), 16), ((), 16), (("Dense", "Normalize"), 16)])
def test_an_encoder_with_layers_is_cut_behind_them(
    behind: tuple[str, ...], width: int, tiny_student: Callable[[str, str], Path], tmp_path: Path
) -> None:
    from test_sentences import dense, pooling, stack

    modules = {"Normalize": ("Normalize", {}), "Dense": dense(64, 24)}
    folder = tmp_path / "stack"
    stack(pooling("mean", "max"), *([dense(128, 64)] if behind[:1] == ("Dense",) else []), *map(modules.get, behind))(
        tiny_student("bert", "embedding"), folder
    )
    section = StudentSection(source=str(folder), width=width)
    assert assemble.is_needed(find(folder, width=width), TASK, section)
    for part in ("assembled", "student"):
        (tmp_path / part).mkdir()
    assemble.make(folder, TASK.name, section, tmp_path / "assembled")
    stage.make(tmp_path / "assembled", TASK.name, False, tmp_path / "student")
    text = "A man is playing a guitar."
    (row,) = [row for row in golden.read(tmp_path / "student").rows if row.first == text]
    expected = by_the_library(folder, [text], truncate_dim=width, normalize_embeddings="Normalize" in behind)[0]
    np.testing.assert_allclose(row.output, expected, atol=1e-5 * float(np.abs(expected).max()))


def test_the_gate_fires_where_the_width_is_another(written: Callable[[str], Path], tmp_path: Path) -> None:
    folder = written("library")
    rows, head = golden.read(made(folder, tmp_path / "out", width=16)), sentences.read(folder)
    library.check(folder, rows, TASK, head, width=16)
    with pytest.raises(StudentError, match="gives 24 numbers"):
        library.check(folder, rows, TASK, head, width=24)


# --- what is refused ---------------------------------------------------------------------------------------------


def lose_mapping(tensors: dict[str, Any]) -> None:
    tensors["mapping"] = tensors["mapping"][:-1].clone()


def other_name(tensors: dict[str, Any]) -> None:
    tensors["embedding"] = tensors.pop("embeddings")


def one_more(tensors: dict[str, Any]) -> None:
    tensors["bias"] = tensors["weights"].clone()


def integers(tensors: dict[str, Any]) -> None:
    tensors["embeddings"] = tensors["embeddings"].mul(20).char()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lose_mapping, r"mapping \(999,\), weights \(1000,\)"),
        (other_name, "has the tensors embedding, mapping, weights; a table"),
        (one_more, "has the tensors bias, embeddings"),
        (integers, "embeddings is I8, whole numbers"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    change: Callable[[dict[str, Any]], None], words: str, written: Callable[[str], Path]
) -> None:
    from safetensors.torch import load_file, save_file

    folder = written("model2vec_mapped")
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(StudentError, match=words):
        find(folder)


def test_a_mapping_beyond_the_table_is_refused(written: Callable[[str], Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = written("model2vec_mapped")
    tensors = load_file(folder / "model.safetensors")
    tensors["mapping"][3] = ROWS
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(StudentError, match=r"mapping has numbers from \d+ to 400, and embeddings has 400 rows"):
        made(folder, tmp_path / "out")


def test_a_tokenizer_with_more_tokens_than_rows_is_refused(written: Callable[[str], Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = written("library_alone")
    tensors = {name: tensor[:-1].clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(StudentError, match="has no row"):
        made(folder, tmp_path / "out")


@pytest.mark.parametrize(
    ("values", "words", "kind"),
    [
        ({"task": "classification"}, "static is for task embedding, and the recipe's is classification", RecipeError),
        ({"student": {"width": WIDTH + 1}}, "student.width = 49, and the embedding has 48 numbers", RecipeError),
        ({"student": {"pooling": "cls"}}, "student.pooling is for an encoder without modules", RecipeError),
        (
            {"targets": {"litert": {"schemes": ["fp32", "int8_static"]}}},
            r"targets\.litert\.schemes: int8_static: it is for an encoder's linears",
            RecipeError,
        ),
        (
            {"targets": {"executorch": {"schemes": ["int4_dynamic"]}}},
            "int4_dynamic: it has 4 bits for an encoder's linears.*table_bits = 4",
            RecipeError,
        ),
    ],
)
def test_what_a_table_cannot_do_is_told(
    values: dict[str, Any], words: str, kind: type[PipelineError], written: Callable[[str], Path], tmp_path: Path
) -> None:
    from pipeline.checkpoint import source
    from pipeline.recipe import loading as recipes

    student = {"source": str(written("library")), **RANDOM, **values.pop("student", {})}
    with pytest.raises(kind, match=words):
        source.find(*recipes.read_recipe(str(recipe_file(tmp_path, student=student, **values))))


@pytest.mark.parametrize(
    "section",
    [
        {"prune": {"intermediate_size": 0.5}},
        {"prune": {"hidden_size": 16}},
        {"prune": {"layers": [0]}},
        {"factorise": {"embedding": 8}},
        {"share": {"groups": 1}},
        {"start": {"kind": "shared"}},
        {"start": {"kind": "distilbert"}},
        {"start": {"kind": "random"}},
        {"start": {"kind": "layers", "teacher_layers": [0]}},
    ],
    ids=lambda section: str(*section),
)
def test_layers_are_not_compressed_and_the_reason_is_told(
    section: dict[str, Any], written: Callable[[str], Path], command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    recipe = recipe_file(tmp_path, student={"source": str(written("library")), **RANDOM}, **section)
    outcome = command_here("compress", recipe)
    assert outcome.rc == 2
    assert "static cannot be compressed here: it has no layers, only a table of tokens" in " ".join(
        outcome.stderr.split()
    )


def test_a_draft_names_no_scheme_for_linears(written: Callable[[str], Path], tmp_path: Path) -> None:
    from pipeline.planning import draft
    from pipeline.recipe import loading as recipes

    made = draft.draft(
        str(written("own_folder")), tmp_path / "r.toml", name=None, task=None, force=False, tell=lambda said: None
    )
    assert (made.task, made.checkpoint.hidden_size, made.checkpoint.vocabulary) == ("embedding", WIDTH, pieces.SIZE)
    parsed, _ = recipes.read_recipe(str(tmp_path / "r.toml"))
    assert parsed.quantize is None
    text = (tmp_path / "r.toml").read_text(encoding="utf-8")
    assert text.count("# Not int8_static: it is for an encoder's linears") == len(formats.NAMES)
    assert not any("int8_static" in line for line in text.splitlines() if "There are" in line)


# --- files -------------------------------------------------------------------------------------------------------


def verdicts(outcome: Outcome, build: Path) -> dict[str, str]:
    """Return what is to be told of each file that did not pass."""
    from pipeline.verify import stage as verify

    assert "verdicts" in outcome.document, outcome.stdout
    missed = [target for target, verdict in outcome.document["verdicts"].items() if verdict != "passed"]
    return {target: str(verify.read_parity(build / "tiny" / target / "parity").reasons) for target in missed}


def schemes(name: str) -> list[str]:
    return [scheme for scheme, row in SCHEMES.items() if not row.refusal(name) and not row.refusal_of_table(4)]


@pytest.mark.numeric
@pytest.mark.parametrize(
    "targets",
    [
        pytest.param({name: ["fp32", "int8_weight_only"] for name in formats.NAMES}, id="some"),
        pytest.param({name: schemes(name) for name in formats.NAMES}, id="every", marks=pytest.mark.full),
    ],
)
def test_a_folder_of_model2vec_goes_through_the_command(
    targets: dict[str, list[str]],
    written: Callable[[str], Path],
    command_here: Callable[..., Outcome],
    tmp_path: Path,
) -> None:
    recipe = recipe_file(
        tmp_path,
        student={"source": str(written("model2vec_mapped")), "width": 32, **RANDOM},
        quantize={"table_bits": 4},
        targets={name: {"schemes": listed} for name, listed in targets.items()},
        verify={"datasets": ["none"]},
    )
    outcome = command_here("verify", recipe, "--json")
    assert verdicts(outcome, tmp_path / "build") == {}
    assert set(outcome.document["verdicts"]) == {
        f"{name}-{scheme}" for name, listed in targets.items() for scheme in listed
    }


@pytest.mark.numeric
def test_a_trimmed_vocabulary_is_a_smaller_table(
    written: Callable[[str], Path], command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    (tmp_path / "corpus.txt").write_text("\n".join(TEXTS[:1] * 20 + ["The river runs home."] * 9), encoding="utf-8")
    recipe = recipe_file(
        tmp_path,
        student={"source": str(written("own_folder")), **RANDOM},
        vocabulary={"corpus": ["corpus.txt"], "size": 600},
        targets={"litert": {"schemes": ["int8_weight_only"]}},
        verify={"datasets": ["none"]},
    )
    outcome = command_here("verify", recipe, "--json")
    assert verdicts(outcome, tmp_path / "build") == {}
    assert read_json(tmp_path / "build" / "tiny" / "student" / "config.json")["vocab_size"] == 600
