"""Every engine and storage: what is found, what is refused, what a kill leaves."""

import json
import os
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes import ENGINES, HALF, ROWS, TEXTS, WIDTH, about, contract, embeddings, filled, no_file_beyond
from numpy.typing import NDArray

from pipeline.errors import ArtifactError, InputError, ToolchainError
from pipeline.search import about as abouts
from pipeline.search import codes, sqlite
from pipeline.search.about import About
from pipeline.search.flat import FlatIndex, Passage
from pipeline.search.hnsw import GRAPH, GraphIndex
from pipeline.search.indexing import open_index
from pipeline.search.sqlite import SqliteIndex
from pipeline.vectors.storage import STORAGES

needs_extensions = pytest.mark.skipif(not sqlite.can_load_extensions(), reason="this Python's sqlite3 loads none")


def as_stored(vectors: NDArray[np.float32], what: About) -> NDArray[np.float64]:
    """Return the numbers that an index keeps of embeddings, as floats: from the spec, not by the code under test."""
    kept = vectors[:, : what.width].astype(np.float64)
    if what.storage == "int8":
        scales = np.array(what.scales)
        return np.clip(np.round(kept / scales), -127, 127) * scales
    if what.storage == "bits":
        return np.where(kept > 0, 1.0, -1.0)
    return kept.astype(np.float16).astype(np.float64) if what.storage == "float16" else kept


def cosines(query: NDArray[np.float32], what: About, *, unit: bool = True) -> NDArray[np.float64]:
    """Return the cosine of a query with every stored row, by NumPy alone."""
    rows = as_stored(embeddings(2, unit=unit), what)
    kept = query[: what.width].astype(np.float64)
    whole = what.unit_length and what.width == WIDTH and what.storage == "int8"
    norms = np.ones(len(rows)) if whole else np.linalg.norm(rows, axis=1)
    result: NDArray[np.float64] = rows @ kept / (norms * np.linalg.norm(kept))
    return result


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("width", [WIDTH, HALF])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_are_those_of_brute_force(engine, storage, width, unit, tmp_path):
    what = about(storage, width, unit=unit)
    filled(ENGINES[engine], tmp_path / "index", what, unit=unit)
    with open_index(tmp_path / "index") as index:
        assert index.engine == engine
        assert len(index) == ROWS
        for query in embeddings(3, 8, unit=unit):
            expected = cosines(query, what, unit=unit)
            found = index.search(query, 10)
            places = [int(hit.id[1:]) for hit in found]
            # Rows whose cosines differ by less than the rounding of an int8 query may change places.
            best = sorted(expected)[:-11:-1]
            if storage == "bits" and engine in ("usearch", "sqlite-vec"):
                # Hamming distances of 16 bits leave out a passage now and then.
                assert len({*best} & {expected[place] for place in places}) >= 8
                assert places == sorted(places, key=lambda place: -expected[place])
            else:
                assert [expected[place] for place in places] == pytest.approx(best, abs=2e-4)
            assert [hit.cosine for hit in found] == pytest.approx([expected[place] for place in places], abs=2e-4)
            assert [hit.text for hit in found] == [TEXTS[place].text for place in places]


@pytest.mark.parametrize("width", [WIDTH, HALF])
@pytest.mark.parametrize("storage", ["float32", "float16", "int8"])
@pytest.mark.parametrize("engine", ["flat", "usearch", "sqlite"])
def test_a_model_of_the_dot_product_orders_by_it(engine, storage, width, tmp_path):
    by_dot = contract(unit=False, similarity="dot")
    what = abouts.of(by_dot, storage, width=width, prompts=(None, None), made_by="litert-fp32")
    assert what.similarity == "dot"
    filled(ENGINES[engine], tmp_path / "index", what, unit=False)
    rows = as_stored(embeddings(2, unit=False), what)
    with open_index(tmp_path / "index") as index:
        for query in embeddings(3, 8, unit=False):
            dots = rows @ query[:width].astype(np.float64)
            found = index.search(query, 10)
            places = [int(hit.id[1:]) for hit in found]
            assert list(dots[places]) == pytest.approx(sorted(dots)[:-11:-1], rel=1e-3)
            # What is said beside it is the cosine.
            expected = dots[places] / np.linalg.norm(rows[places], axis=1) / np.linalg.norm(query[:width])
            assert [hit.cosine for hit in found] == pytest.approx(list(expected), abs=2e-4)


def test_an_int8_score_is_the_integer_of_the_specification(tmp_path):
    what = about()
    filled(FlatIndex.create, tmp_path / "index", what)
    query = embeddings(3, 1)[0]
    scaled = [float(number) * scale for number, scale in zip(query, what.scales or (), strict=True)]
    most = min(32767, (2**31 - 1) // (127 * WIDTH))
    largest = max(map(abs, scaled))
    coded = [round(number / largest * most) for number in scaled]
    rows = np.clip(np.round(embeddings(2).astype(np.float64) / np.array(what.scales)), -127, 127).astype(int)
    scores = [sum(int(a) * b for a, b in zip(row, coded, strict=True)) for row in rows]
    best = sorted(range(ROWS), key=lambda row: (-scores[row], row))[:20]
    with open_index(tmp_path / "index") as index:
        found = index.search(query, 20)
    assert [(hit.row, hit.score) for hit in found] == [(row, scores[row]) for row in best]


def test_the_largest_query_does_not_overflow():
    what = About(
        space="0", width=4096, storage="int8", scales=(0.01,) * 4096, unit_length=False, document_prompt=None,
        query_prompt=None, made_by="x",
    )  # fmt: skip
    row = np.full((1, 4096), 127, np.int8)
    [found] = codes.Scan(row, what).top(np.full(4096, -1.0, np.float32), 1)
    assert -(2**31) <= found.score < -(2**31) * 0.99
    assert found.cosine == pytest.approx(-1.0, abs=1e-3)


@pytest.mark.parametrize("storage", STORAGES)
def test_equal_rows_stand_in_the_order_of_their_numbers(storage, tmp_path):
    what = about(storage)
    one = embeddings(4, 1)
    with FlatIndex.create(tmp_path / "index", what) as index:
        index.add(TEXTS[:9], np.repeat(one, 9, axis=0))
        assert [hit.row for hit in index.search(one[0], 4)] == [0, 1, 2, 3]
        assert index.remove(["n1", "n0", "absent"]) == 2
        assert [hit.row for hit in index.search(one[0], 99)] == [2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_query_without_direction_finds_rows_of_cosine_zero(engine, tmp_path):
    filled(ENGINES[engine], tmp_path / "index", about())
    with open_index(tmp_path / "index") as index:
        assert [hit.cosine for hit in index.search(np.zeros(WIDTH, np.float32), 3)] == [0, 0, 0]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_id_that_is_there_is_replaced(engine, tmp_path):
    folder = tmp_path / "index"
    filled(ENGINES[engine], folder, about())
    other = embeddings(5, 2)
    with open_index(folder, writing=True) as index:
        assert index.has(TEXTS[7])
        assert not index.has(Passage("n7", "new"))
        assert index.add([Passage("n7", "new"), Passage("m", "more")], other) == 1
        index.finish()
        assert len(index) == ROWS + 1
        assert index.ids()[-2:] == ["n7", "m"]
    with open_index(folder, writing=True) as index:
        assert index.has(Passage("n7", "new"))
        assert not index.has(TEXTS[7])
        assert index.search(other[0], 1)[0].text == "new"
        assert [hit.text for hit in index.search(embeddings(2)[7], ROWS) if hit.id == "n7"] in ([], ["new"])
        assert index.remove(["n7"]) == 1
        index.finish()
        assert len(index) == ROWS
        assert index.search(other[0], 1)[0].id != "n7"


@pytest.mark.parametrize("engine", ["flat", "usearch"])
def test_an_index_that_is_mostly_removed_is_written_anew(engine, tmp_path):
    folder = tmp_path / "index"
    filled(ENGINES[engine], folder, about())
    before = (folder / "vectors.bin").stat().st_size
    kept = [one.id for one in TEXTS[::3]]
    with open_index(folder, writing=True) as index:
        index.remove([one.id for one in TEXTS if one.id not in kept])
        index.finish()
        assert (folder / "vectors.bin").stat().st_size == before / 3
        assert index.ids() == kept
        assert index.search(embeddings(2)[99], 1)[0].text == TEXTS[99].text
        index.add([Passage("later", "later")], embeddings(5, 1))
        with pytest.raises(InputError, match="another process is writing"):
            open_index(folder, writing=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index"]
    with open_index(folder) as index:
        assert len(index) == len(kept) + 1
        assert index.search(embeddings(5, 1)[0], 1)[0].id == "later"


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_removed_is_gone_from_the_files(engine, tmp_path):
    folder = tmp_path / "index"
    filled(ENGINES[engine], folder, about())
    with open_index(folder, writing=True) as index:
        assert any(b"note 17:" in path.read_bytes() for path in folder.iterdir())
        assert index.remove([one.id for one in TEXTS]) == ROWS
        index.finish()
        assert len(index) == 0
        assert index.search(embeddings(3, 1)[0], 5) == []
        assert not any(b"note 17:" in path.read_bytes() for path in folder.iterdir())
        index.add(TEXTS[:3], embeddings(2)[:3])
        index.finish()
    with open_index(folder) as index:
        assert [hit.id for hit in index.search(embeddings(2)[1], 1)] == ["n1"]


def test_a_compaction_that_was_killed_between_its_renames_is_taken_back(tmp_path):
    folder = tmp_path / "index"
    filled(FlatIndex.create, folder, about())
    folder.rename(tmp_path / ".index.before")
    (tmp_path / ".index.new").mkdir()
    with open_index(folder) as index:
        assert len(index) == ROWS


def test_what_a_killed_writer_left_behind_does_not_count(tmp_path):
    folder = tmp_path / "index"
    filled(FlatIndex.create, folder, about())
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in ("vectors.bin", "passages.jsonl", "offsets.bin", "removed.bin"):
        with (folder / name).open("ab") as file:
            file.write(b"\x07" * 41)
    with open_index(folder) as index:
        assert len(index) == ROWS
        assert index.search(embeddings(2)[5], 1)[0].id == "n5"
    with open_index(folder, writing=True):
        pass
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert after.pop("removed.bin") == b""
    assert after == before


@pytest.mark.parametrize("name", ["vectors.bin", "passages.jsonl", "offsets.bin", "state.json", "index.json"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_folder_is_refused(name, damage, tmp_path):
    folder = tmp_path / "index"
    filled(FlatIndex.create, folder, about())
    if damage == "gone":
        (folder / name).unlink()
    else:
        os.truncate(folder / name, (folder / name).stat().st_size - 3)
    with pytest.raises((ArtifactError, InputError)) as told:
        open_index(folder)
    assert name in str(told.value)


SPOILS: dict[str, Callable[[Path, Path], None]] = {
    "a link to a file": lambda path, outside: path.symlink_to(outside),
    "a link to nothing": lambda path, outside: path.symlink_to(outside / "nothing"),
    "a link to an endless device": lambda path, outside: path.symlink_to("/dev/zero"),
    "a pipe": lambda path, outside: os.mkfifo(path),
    "a folder": lambda path, outside: path.mkdir(),
}


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize(
    "name", ["vectors.bin", "passages.jsonl", "removed.bin", "state.json", "index.json", "lock", "graph.usearch"]
)
def test_nothing_is_read_or_written_through_what_is_no_plain_file(name, spoil, tmp_path):
    folder, outside = tmp_path / "index", tmp_path / "thesis.tex"
    filled(GraphIndex.create, folder, about())
    outside.write_bytes(b"mine" * 100_000)
    (folder / name).unlink(missing_ok=True)
    SPOILS[spoil](folder / name, outside)
    for writing in (False, True):
        with pytest.raises((ArtifactError, InputError)):
            open_index(folder, writing=writing)
    assert outside.read_bytes() == b"mine" * 100_000


def test_a_state_that_fills_memory_is_refused(tmp_path):
    folder = tmp_path / "index"
    filled(FlatIndex.create, folder, about())
    os.truncate(folder / "state.json", 1 << 40)
    with pytest.raises(ArtifactError, match="too large"):
        open_index(folder)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("state.json", b'{"rows": 300, "text_bytes": 3, "removed": 0}', "counts what cannot be"),
        ("state.json", b'{"rows": -1, "text_bytes": 3, "removed": -2}', "counts what cannot be"),
        ("offsets.bin", bytes(8 * ROWS), "does not rise"),
        ("passages.jsonl", b"x" * 20_000, "is no passage"),
    ],
)
def test_files_that_contradict_each_other_are_refused(name, content, told, tmp_path):
    folder = tmp_path / "index"
    filled(FlatIndex.create, folder, about())
    (folder / name).write_bytes(content)
    with pytest.raises(ArtifactError, match=told):
        open_index(folder).search(embeddings(3, 1)[0], 1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"width": 0}, "width"),
        ({"scales": None}, "scales"),
        ({"scales": [1.0] * 5}, "scales"),
        ({"scales": [0.0] * WIDTH}, "scales"),
        ({"storage": "int4"}, "storage"),
        ({"storage": "float32"}, "scales"),
        ({"schema_version": 2}, "schema_version"),
        ({"more": 1}, "more"),
    ],
)
def test_an_impossible_index_json_is_refused(change: dict[str, Any], told, tmp_path):
    filled(FlatIndex.create, tmp_path / "index", about())
    file = tmp_path / "index" / "index.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ArtifactError, match=told):
        open_index(tmp_path / "index")


@pytest.mark.parametrize("engine", ["flat", "usearch"])
@pytest.mark.parametrize("top", [1, 3, ROWS])
def test_a_stored_number_that_is_none_hides_no_other_passage(engine, top, tmp_path):
    folder = tmp_path / "index"
    filled(ENGINES[engine], folder, about("float32"))
    stored = np.fromfile(folder / "vectors.bin", "<f4")
    stored[6 * WIDTH] = np.nan
    stored.tofile(folder / "vectors.bin")
    with open_index(folder) as index, pytest.raises(ArtifactError, match="row 6 is not finite"):
        index.search(embeddings(2)[6], top)


def test_scales_beyond_all_numbers_are_refused(tmp_path):
    folder = tmp_path / "index"
    filled(FlatIndex.create, folder, about())
    file = folder / "index.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"scales": [1e308] * WIDTH}))
    with open_index(folder) as index, pytest.raises(ArtifactError, match="is not finite"):
        index.search(embeddings(2)[6], 1)


def test_an_index_of_another_space_is_refused(tmp_path):
    other = contract().model_copy(update={"space": "f" * 16})
    with pytest.raises(InputError, match=r"space 0123456789abcdef, made by litert-fp32.*space ffffffffffffffff"):
        abouts.check_space(tmp_path, about(), other, "a model")
    abouts.check_space(tmp_path, about(), contract(), "a model")


def test_a_width_that_is_not_worth_keeping_is_refused():
    with pytest.raises(InputError, match="can be cut to 32, 16"):
        about("int8", 17)


@pytest.mark.parametrize("engine", ["flat", "sqlite"])
def test_a_disk_that_takes_no_more_leaves_the_index_as_it_was(engine, tmp_path):
    folder = tmp_path / "index"
    filled(ENGINES[engine], folder, about())
    largest = max(path.stat().st_size for path in folder.iterdir())
    with open_index(folder, writing=True) as index:
        with no_file_beyond(largest + 100), pytest.raises(ArtifactError, match=r"cannot be (written|used)"):
            index.add([Passage("later", "later " * 10_000)], embeddings(5, 1))
        assert len(index) == ROWS
        # What was written of it is overwritten.
        index.add([Passage("another", "another")], embeddings(6, 1))
        assert index.search(embeddings(6, 1)[0], 1)[0].id == "another"
    with open_index(folder) as index:
        assert len(index) == ROWS + 1
        assert index.search(embeddings(6, 1)[0], 1)[0].text == "another"


# --- usearch -----------------------------------------------------------------------------------------------------


def test_a_graph_is_brought_up_to_what_the_files_have(tmp_path):
    folder = tmp_path / "index"
    filled(FlatIndex.create, folder, about())
    with GraphIndex.open(folder, writing=True) as index:
        index.finish()
        graph = (folder / GRAPH).read_bytes()
        index.finish()
        assert (folder / GRAPH).read_bytes() == graph
    # As a kill leaves it that comes after a batch and before the graph.
    with FlatIndex.open(folder, writing=True) as flat:
        flat.add([Passage("later", "later")], embeddings(5, 1))
        flat.remove(["n0"])
    with open_index(folder) as index:
        assert index.search(embeddings(5, 1)[0], 1)[0].id == "later"
        assert index.search(embeddings(2)[0], 1)[0].id != "n0"


def test_equal_rows_give_equal_graphs(tmp_path):
    for name in ("a", "b"):
        filled(GraphIndex.create, tmp_path / name, about())
    assert (tmp_path / "a" / GRAPH).read_bytes() == (tmp_path / "b" / GRAPH).read_bytes()


@pytest.mark.parametrize("content", [b"", b"no graph at all" * 100, None])
def test_a_damaged_graph_is_refused(content, tmp_path):
    folder = tmp_path / "index"
    filled(GraphIndex.create, folder, about())
    whole = (folder / GRAPH).read_bytes()
    (folder / GRAPH).write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(ArtifactError, match="Delete it and index again"):
        open_index(folder).search(embeddings(3, 1)[0], 1)


# --- SQLite ------------------------------------------------------------------------------------------------------


def test_an_index_in_sqlite_can_be_read_with_sql(tmp_path):
    filled(ENGINES["sqlite"], tmp_path / "index", about())
    connection = sqlite3.connect(tmp_path / "index" / "index.sqlite")
    query = "select id, vector from passages join vectors using (row) order by row"
    rows = connection.execute(query).fetchall()
    connection.close()
    assert [id_ for id_, _ in rows] == [one.id for one in TEXTS]
    expected = codes.encode(embeddings(2), about())
    assert b"".join(vector for _, vector in rows) == expected.tobytes()


def test_a_damaged_sqlite_file_is_refused(tmp_path):
    folder = tmp_path / "index"
    filled(ENGINES["sqlite"], folder, about())
    content = bytearray((folder / "index.sqlite").read_bytes())
    content[:200] = bytes(200)
    (folder / "index.sqlite").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"index\.sqlite"):
        open_index(folder)


@needs_extensions
def test_sqlite_vec_is_asked_in_sql_as_the_page_says(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "search.md").read_text(encoding="utf-8")
    [query] = re.findall(r"```sql\n(.*?);\n```", page, re.DOTALL)
    filled(ENGINES["sqlite-vec"], tmp_path / "index", about())
    vector = embeddings(2)[5]
    coded = np.rint(vector / max(about().scales or ())).astype(np.int8)
    with SqliteIndex.open(tmp_path / "index") as index:
        rows = index._connection.execute(query, {"query": coded.tobytes()}).fetchall()
        assert rows[0][:2] == (TEXTS[5].id, TEXTS[5].text)
        assert {id_ for id_, *_ in rows} == {hit.id for hit in index.search(vector, 10)}


@pytest.mark.skipif(sqlite.can_load_extensions(), reason="this Python's sqlite3 loads extensions")
def test_without_extensions_sqlite_vec_says_what_to_use(tmp_path):
    with pytest.raises(ToolchainError, match="Use --engine sqlite"):
        SqliteIndex.create(tmp_path / "index", about(), "sqlite-vec")
    assert not (tmp_path / "index").exists()
