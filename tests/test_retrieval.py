"""Search as a metric: collections, ranks, forms of storage, and what verification says of them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from conftest import TinyLine, recipe_file
from numpy.typing import NDArray

from pipeline import tasks
from pipeline.data import calibration, retrieval
from pipeline.errors import InputError, RecipeError
from pipeline.heads.sentence import SentenceHead
from pipeline.metrics import ranking
from pipeline.metrics.outputs import RowOutputs
from pipeline.metrics.ranking import Judgements
from pipeline.planning.branches import Branch
from pipeline.recipe import loading
from pipeline.schemes import SCHEMES
from pipeline.student import reference
from pipeline.student.reference import Reference
from pipeline.vectors.contract import Similarity, Vectors
from pipeline.vectors.storage import STORAGES, query_codes, similarities
from pipeline.verify import retrieval as judging


def contract(scales: NDArray[np.float64], *, similarity: Similarity = "cosine", unit_length: bool = True) -> Vectors:
    width = len(scales)
    return Vectors(
        space="0123456789abcdef",
        width=width,
        unit_length=unit_length,
        similarity=similarity,
        widths=(width,),
        scales=tuple(scales),
    )


# --- ranks ----------------------------------------------------------------------------------------------------------


def judgements(*relevant: dict[int, int], documents: int, itself: dict[int, int] | None = None) -> Judgements:
    own = [(itself or {}).get(query) for query in range(len(relevant))]
    queries = list(range(len(relevant)))
    places = [len(relevant) + place for place in range(documents)]
    return Judgements("some", queries, places, [list(one.items()) for one in relevant], own)


def test_metrics_are_those_of_their_definitions() -> None:
    near = np.array([[9.0, 8.0, 7.0, *[0.0] * 12], [0.0] * 15])
    near[1, 11] = 1.0
    found = ranking.by_query(judgements({1: 1, 2: 2}, {11: 1, 14: 1}, documents=15), near)
    assert found["recall_at_1"].tolist() == [0.0, 0.5]
    assert found["recall_at_10"].tolist() == [1.0, 0.5]
    assert found["mrr_at_10"].tolist() == [0.5, 1.0]
    ideal = 2 / np.log2(2) + 1 / np.log2(3)
    assert found["ndcg_at_10"][0] == pytest.approx((1 / np.log2(3) + 2 / np.log2(4)) / ideal)


def test_of_equal_documents_the_first_comes_first_and_a_query_does_not_find_itself() -> None:
    near = np.array([[5.0, 5.0, 5.0]])
    assert ranking.by_query(judgements({0: 1}, documents=3), near)["recall_at_1"] == [1.0]
    assert ranking.by_query(judgements({2: 1}, documents=3), near)["recall_at_1"] == [0.0]
    own = judgements({1: 1}, documents=3, itself={0: 0})
    assert ranking.by_query(own, np.array([[9.0, 5.0, 1.0]]))["recall_at_1"] == [1.0]


def test_an_interval_holds_the_difference_and_is_narrow_where_nothing_changes() -> None:
    before = np.array([1.0, 0.0] * 50)
    assert ranking.interval(before, before) == (0.0, 0.0)
    low, high = ranking.interval(before, np.ones(100))
    assert low < 0.5 < high
    assert high - low < 0.25


# --- storage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [3, 384, 1024, 4096])
def test_int8_scores_are_whole_numbers_that_32_bits_hold(width: int) -> None:
    rng = np.random.default_rng(width)
    scales = rng.uniform(1e-4, 1e-2, width)
    vectors = np.clip(rng.normal(size=(20, width)) * 60, -127, 127) * scales
    vectors[0] = 127 * scales * np.sign(vectors[1])
    queries = np.concatenate([np.sign(vectors[1:2]) / scales, rng.normal(size=(4, width)), np.zeros((1, width))])
    codes = STORAGES["int8"].encode(vectors, scales)
    exact = query_codes(queries, scales).astype(np.int64) @ codes.astype(np.int64).T
    assert np.abs(exact).max() < 2**31
    if width > 1000:
        assert np.abs(exact).max() > 2**30, "wide vectors use all of the sum"
    assert (STORAGES["int8"].scores(queries, codes, scales) == exact).all()


def test_codes_are_rounded_to_even_and_stay_within_seven_bits() -> None:
    codes = STORAGES["int8"].encode(np.array([[0.5, 1.5, -2.5, 1e9, -1e9]]), np.ones(5))
    assert codes.tolist() == [[0, 2, -2, 127, -127]]


def test_every_storage_finds_what_single_precision_finds() -> None:
    rng = np.random.default_rng(1)
    documents = rng.normal(size=(200, 256)) * np.geomspace(0.2, 5, 256)
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    queries = documents[:50] + rng.normal(size=(50, 256)) * 0.02
    unit = contract(np.abs(documents).max(0) / 127)
    for storage in STORAGES.values():
        for width in (256, 128):
            near = similarities(queries, documents, storage, unit, width=width)
            assert (near.argmax(1) == np.arange(50)).all(), (storage.name, width)
    sizes = {name: storage.bytes_per_vector(384) for name, storage in STORAGES.items()}
    assert sizes == {"float32": 1536, "float16": 768, "int8": 384, "bits": 48}


def test_a_document_of_zeros_is_never_the_nearest_to_a_cut_query() -> None:
    documents = np.array([[0.0, 0.0, 0.0], [0.3, 0.1, 0.9]])
    near = similarities(np.ones((1, 3)), documents, STORAGES["int8"], contract(np.ones(3) / 127), width=2)
    assert near[0, 0] == 0.0
    assert near[0, 1] > 0


def test_a_model_of_the_dot_product_prefers_the_longer_vector() -> None:
    documents = np.array([[1.0, 0.2], [3.0, 1.5]])
    query = np.array([[1.0, 0.0]])
    scales = np.full(2, 3 / 127)
    by_cosine, by_dot = (contract(scales, similarity=one, unit_length=False) for one in get_args(Similarity))
    for storage in (STORAGES["float32"], STORAGES["float16"], STORAGES["int8"]):
        assert similarities(query, documents, storage, by_cosine, width=2).argmax() == 0
        assert similarities(query, documents, storage, by_dot, width=2).argmax() == 1
    assert ranking.near(query, documents, "dot").tolist() == [[1.0, 3.0]]
    assert ranking.near(query, documents, "cosine").argmax() == 0
    assert contract(scales, similarity="dot").compared_by == "cosine"


# --- collections ----------------------------------------------------------------------------------------------------


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """A folder in BEIR's layout."""
    folder = tmp_path / "notes"
    (folder / "qrels").mkdir(parents=True)
    lines(folder / "corpus.jsonl", {"_id": "d1", "title": "Tea", "text": "Hot."}, {"_id": "d2", "text": "Cold."})
    lines(folder / "queries.jsonl", {"_id": "q1", "text": "warm?"}, {"_id": "q2", "text": "never judged"})
    judged(folder, "q1\td1\t2", "q1\td2\t0")
    return folder


def lines(file: Path, *rows: dict[str, str]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def judged(folder: Path, *rows: str) -> None:
    (folder / "qrels" / "test.tsv").write_text("\n".join(("query-id\tcorpus-id\tscore", *rows)) + "\n", "utf-8")


def load(folder: Path) -> retrieval.Judged:
    (source,), skipped = retrieval.chosen([folder.name], folder.parent / "recipe.toml", "verify.retrieval")
    assert not skipped
    return source.load()


def test_a_folder_of_beir_is_read(collection: Path) -> None:
    found = load(collection)
    assert found.queries == ("warm?",)
    assert found.documents == ("Tea Hot.", "Cold.")
    assert found.relevant == ({0: 2},)


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (
        lambda folder: folder.rename(folder.parent / "other"),
        r"neither a collection nor a folder.*stsb_",
    ),
    "no corpus": (lambda folder: (folder / "corpus.jsonl").unlink(), r"corpus\.jsonl does not exist"),
    "no judgements": (lambda folder: (folder / "qrels" / "test.tsv").unlink(), r"test\.tsv does not exist"),
    "unknown id": (lambda folder: judged(folder, "q1\td9\t1"), r"row 1: id 'd9' is not in corpus\.jsonl"),
    "no number": (lambda folder: judged(folder, "q1\td1\tyes"), "score 'yes' is no whole number"),
    "no answer": (lambda folder: judged(folder, "q1\td1\t0"), "no query has a document that answers it"),
    "no text": (lambda folder: lines(folder / "corpus.jsonl", {"_id": "d1"}), "it needs _id and text"),
    "twice": (
        lambda folder: lines(folder / "queries.jsonl", {"_id": "q1", "text": "a"}, {"_id": "q1", "text": "b"}),
        "stands there twice, with two texts",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_folder_that_is_none_is_refused(collection: Path, what: str) -> None:
    break_it, message = WRONG[what]
    break_it(collection)
    with pytest.raises(InputError, match=message):
        load(collection)


def test_public_collections_without_their_data_are_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("POCKETBERT_DATA", raising=False)
    found, skipped = retrieval.chosen(retrieval.NAMES, tmp_path / "recipe.toml", "verify.retrieval")
    assert not found
    assert set(skipped) == set(retrieval.NAMES)


def test_public_collections_are_made_of_their_datasets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POCKETBERT_DATA", str(tmp_path))
    for folder in ("stsb", "rte", "xquad"):
        (tmp_path / folder).mkdir()
    (tmp_path / "stsb" / "dev.csv").write_text("A cat.,One cat.,4.0\nA cat.,A dog.,1.0\nSame.,Same.,5\n", "utf-8")
    rows = "index\tsentence1\tsentence2\tlabel\n0\tIt rained.\tWet.\tentailment\n1\tSun.\tDark.\tnot_entailment\n"
    (tmp_path / "rte" / "dev.tsv").write_text(rows, "utf-8")
    question = {"question": "Who?", "id": "1", "answers": [{"text": "Ana", "answer_start": 0}]}
    article = {"title": "t", "paragraphs": [{"context": "Ana wrote.", "qas": [question]}]}
    (tmp_path / "xquad" / "dev.json").write_text(json.dumps({"version": "1", "data": [article]}), "utf-8")
    sources, _ = retrieval.chosen(retrieval.NAMES, tmp_path / "recipe.toml", "verify.retrieval")
    passages, premises, partners = (source.load() for source in sources)
    assert (passages.queries, passages.documents) == (("Who?",), ("Ana wrote.",))
    assert (premises.queries, premises.documents) == (("Wet.",), ("It rained.", "Sun."))
    assert (partners.queries, partners.itself, partners.relevant) == (("A cat.",), (0,), ({1: 1},))
    assert partners.documents == ("A cat.", "One cat.", "A dog.", "Same.")


def test_no_text_that_is_judged_is_learnt_from(collection: Path) -> None:
    texts = collection.parent / "texts.txt"
    texts.write_text("\n".join(["Cold.", "warm?", *(f"text {number}" for number in range(9))]), "utf-8")
    names, recipe = [str(texts)], collection.parent / "recipe.toml"
    found = calibration.texts(
        names, recipe, 100, seed=0, key="some", judged=retrieval.judged_texts([collection.name], recipe)
    )
    assert found == [f"text {number}" for number in range(9)]
    assert calibration.unseen([("warm?", "x"), ("y", "z")], {"warm?"}) == [("y", "z")]


def test_a_task_without_embeddings_is_told_so(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path, task="classification", verify={"retrieval": ["stsb_partners"]})
    with pytest.raises(RecipeError, match="classification gives no embeddings"):
        _ = Branch(*loading.read_recipe(str(recipe))).collections


# --- the verdict ----------------------------------------------------------------------------------------------------

WIDTH = 16
CONTRACT = Vectors(
    space="0" * 16, width=WIDTH, unit_length=True, similarity="cosine", widths=(16, 8), scales=(1 / 127,) * WIDTH
)


def searched(queries: int, spoilt: int) -> tuple[Reference, RowOutputs]:
    """A reference whose queries all find their document, and outputs by which some queries point away from it."""
    rng = np.random.default_rng(0)
    documents = rng.normal(size=(60, WIDTH)).astype(np.float32)
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    at = [number % 60 for number in range(queries)]
    vectors = np.concatenate([documents[at], documents])
    known = judgements(*({place: 1} for place in at), documents=60)
    reference = Reference("embedding", 16, 0, None, {}, [], [], RowOutputs.of(list(vectors)), 0, [], {}, [known])
    vectors = vectors.copy()
    vectors[:spoilt] *= -1
    return reference, RowOutputs.of(list(vectors))


def gates(queries: int, spoilt: int, **bounds: Any) -> dict[str, bool]:
    reference, outputs = searched(queries, spoilt)
    found = judging.measure(CONTRACT, reference, outputs)
    allowed = SCHEMES["fp32"].gates["embedding"].model_copy(update=bounds)
    results = list(judging.gates(allowed, CONTRACT, found))
    assert all(gate.passed or "of recall@10 over" in gate.detail for gate in results)
    return {gate.name: gate.passed for gate in results}


def test_search_that_loses_too_much_fails() -> None:
    assert all(gates(600, 0).values())
    small = ("min_recall_kept_small:bits", "min_recall_kept_small:int8 at 8")
    a_little = gates(600, 9)
    assert a_little["min_recall_kept:int8"] is False
    assert all(a_little[name] for name in small), "1.5 % is allowed there"
    assert not any(gates(600, 30)[name] for name in small)
    assert gates(600, 9, min_recall_kept=0.9)["min_recall_kept:int8"] is True


def test_few_queries_decide_nothing() -> None:
    assert gates(499, 100) == {}


def test_several_collections_are_judged_together() -> None:
    reference, outputs = searched(300, 0)
    reference.collections.append(reference.collections[0])
    found = judging.measure(CONTRACT, reference, outputs)
    assert {row.collection for row in found} == {"some", judging.ALL}
    assert {row.queries for row in found if row.collection == judging.ALL} == {600}
    results = list(judging.gates(SCHEMES["fp32"].gates["embedding"], CONTRACT, found))
    assert len(results) == 3


def test_without_a_contract_nothing_is_measured() -> None:
    reference, outputs = searched(10, 0)
    assert judging.measure(None, reference, outputs) == []


# --- the line -------------------------------------------------------------------------------------------------------


def test_a_reference_has_the_collections_behind_their_prompts(
    collection: Path, tiny_line: TinyLine, tmp_path: Path
) -> None:
    student = Path(shutil.copytree(tiny_line.folder / "student", tmp_path / "student"))
    config = json.loads((student / "config.json").read_text(encoding="utf-8"))
    head = SentenceHead(prompts={"query": "query: ", "passage": "passage: "}).model_dump(mode="json")
    (student / "config.json").write_text(json.dumps(config | {"sentence_head": head}), encoding="utf-8")
    sources, _ = retrieval.chosen([collection.name], collection.parent / "recipe.toml", "verify.retrieval")
    (tmp_path / "reference").mkdir()
    made = reference.make(student, "embedding", ["none"], 32, tmp_path / "reference", collections=sources)
    assert made["retrieval"]["notes"]["recall_at_10"] == 1.0
    found = reference.read(tmp_path / "reference")
    (judged,) = found.collections
    assert [found.texts[row].first for row in judged.queries] == ["query: warm?"]
    assert [found.texts[row].first for row in judged.documents] == ["passage: Tea Hot.", "passage: Cold."]
    assert [[list(one) for one in row] for row in judged.relevant] == [[[0, 2]]]
    assert min(judged.rows) >= found.checked, "they are no verification texts"


def test_collections_are_a_part_of_the_reference_s_key(collection: Path) -> None:
    task = tasks.get("embedding")
    sources, _ = retrieval.chosen([collection.name], collection.parent / "recipe.toml", "verify.retrieval")
    without, before = reference.order_params(task, ["none"], 32), reference.order_params(task, ["none"], 32, sources)
    assert "collections" not in without, "references of recipes without any stay what they are"
    judged(collection, "q1\td2\t1")
    assert reference.order_params(task, ["none"], 32, sources) != before


def test_distillation_sees_no_text_that_is_judged(collection: Path) -> None:
    from pipeline.compress.distil.dataset import DistilData, training_texts
    from pipeline.recipe.distillation import DistilSection

    texts = collection.parent / "texts.txt"
    texts.write_text("Cold.\nwarm?\nnobody judges this\n", "utf-8")
    section = DistilSection.model_validate({"losses": {"sentence_mse": 1.0}, "teacher": "x", "texts": [str(texts)]})
    names, recipe = [collection.name], collection.parent / "recipe.toml"
    data = DistilData((texts,), judged=retrieval.judged_texts(names, recipe))
    task = tasks.get("embedding")
    assert [row.first for row in training_texts(section, task, data)] == ["nobody judges this"]
    assert len(training_texts(section, task, DistilData((texts,)))) == 3
    assert data.params != DistilData((texts,)).params
    assert "judged" not in DistilData((texts,)).params
