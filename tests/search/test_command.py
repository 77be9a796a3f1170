"""`pocketbert index` and `pocketbert search` on a tiny student: what is made, continued, found and refused."""

import contextlib
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import Outcome, TinyLine, environment
from indexes import contract, embeddings
from numpy.typing import NDArray

import pipeline
from pipeline import artifact
from pipeline.errors import InputError
from pipeline.formats import signature
from pipeline.search import indexing
from pipeline.search.embedding import Embedder
from pipeline.search.flat import Passage
from pipeline.search.texts import Source
from pipeline.text.bundled import calibration_texts
from pipeline.text.prompts import NO_PROMPTS

TEXTS = [text for text in dict.fromkeys(calibration_texts()) if text.strip()][:40]
Command = Callable[..., Outcome]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    file = tmp_path / "notes.jsonl"
    rows = [{"id": f"n{number}", "text": text, "year": 1869} for number, text in enumerate(TEXTS)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.fixture
def model(tiny_line: TinyLine) -> Path:
    return tiny_line.folder / "litert-fp32"


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


def ids_of(outcome: Outcome) -> list[str]:
    return [hit["id"] for hit in outcome.document["hits"]]


def test_what_is_found_is_what_brute_force_finds(notes, model, command_here):
    made = command_here("index", notes, "--model", model, "--storage", "float32", "--out", "index", "--json")
    assert made.rc == 0, made.stdout + made.stderr
    document = made.document
    counts = ("passages", "added", "replaced", "kept", "removed", "truncated")
    assert [document[name] for name in counts] == [len(TEXTS), len(TEXTS), 0, 0, 0, document["truncated"]]
    assert document["about"]["made_by"] == "litert-fp32"
    with pipeline.load(model) as opened:
        vectors = np.stack([one.vector for one in opened.predict(TEXTS, prompt="")])
        query = opened.predict("a red house", prompt="")[0].vector
    cosines = vectors.astype(np.float64) @ query
    best = [f"n{number}" for number in np.argsort(-cosines, kind="stable")[:5]]
    found = command_here("search", "index", "a red house", "--model", model, "--top", "5", "--json")
    assert ids_of(found) == best
    assert [hit["cosine"] for hit in found.document["hits"]] == pytest.approx(sorted(cosines)[:-6:-1], abs=1e-6)
    assert [hit["rank"] for hit in found.document["hits"]] == [1, 2, 3, 4, 5]
    told = command_here("search", "index", "a red house", "--model", model, "--top", "2")
    assert [line.split()[1] for line in told.stdout.splitlines()] == best[:2]
    assert told.stderr == ""


def test_what_is_there_is_kept_and_what_is_new_or_other_is_added(notes, model, command_here):
    first = command_here("index", notes, "--model", model, "--out", "index")
    assert "40 added" in first.stdout
    assert "flat, int8" in first.stdout
    whole = files_of(Path(notes.parent, "index"))
    again = command_here("index", notes, "--model", model, "--out", "index", "--json").document
    assert (again["added"], again["kept"]) == (0, 40)
    assert files_of(Path(notes.parent, "index")) == whole
    rows = notes.read_text(encoding="utf-8").splitlines()
    other = [json.dumps({"id": "n1", "text": "another text"}), *rows[2:], json.dumps({"id": "m", "text": "one more"})]
    notes.write_text("\n".join(other), encoding="utf-8")
    third = command_here("index", notes, "--model", model, "--out", "index", "--json").document
    assert {name: third[name] for name in ("added", "replaced", "kept", "removed", "passages")} == {
        "added": 2,
        "replaced": 1,
        "kept": 38,
        "removed": 0,
        "passages": 41,
    }
    fourth = command_here("index", notes, "--model", model, "--out", "index", "--sync", "--json").document
    assert (fourth["removed"], fourth["passages"]) == (1, 40)


@pytest.mark.parametrize("engine", ["flat", "usearch", "sqlite"])
def test_engines_find_the_same(engine, notes, model, command_here):
    for name in ("flat", engine):
        out = ("--out", name, "--engine", name, "--json")
        assert command_here("index", notes, "--model", model, *out).document["engine"] == name
    expected, found = (
        command_here("search", name, "a red house", "--model", model, "--json").document for name in ("flat", engine)
    )
    hits = [[(hit["id"], hit["score"], hit["cosine"]) for hit in one["hits"]] for one in (expected, found)]
    assert hits[0] == hits[1]
    assert found["engine"] == engine


def rows_of(folder: Path) -> int:
    """Return how many passages an index has; 0 before there is one."""
    try:
        with indexing.open_index(folder) as index:
            return len(index)
    except InputError:
        return 0


@contextlib.contextmanager
def begun(notes: Path, model: Path, engine: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start an indexing as a process of its own whose batches are of four passages; yield it in the middle."""
    code = "from pipeline.search import indexing; indexing._BATCH = 4; from pipeline.cli import app; app.main()"
    options = ("--model", str(model), "--out", "index", "--engine", engine)
    command = [sys.executable, "-c", code, "index", str(notes), *options]
    process = subprocess.Popen(command, cwd=notes.parent, env=environment(), stdin=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while rows_of(notes.parent / "index") < 4:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.002)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("engine", "signal_", "code"),
    [("flat", signal.SIGKILL, -9), ("flat", signal.SIGINT, 130), ("sqlite", signal.SIGKILL, -9)],
)
def test_a_run_that_ends_in_the_middle_is_continued(engine, signal_, code, notes, model, command_here):
    # Enough of them that the signal comes before the end.
    rows = [{"id": f"{turn}-{at}", "text": f"{turn} {text}"} for turn in range(20) for at, text in enumerate(TEXTS)]
    notes.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with begun(notes, model, engine) as process:
        os.kill(process.pid, signal_)
        assert process.wait(30) == code
    there = rows_of(notes.parent / "index")
    assert 4 <= there < len(rows)
    options = ("--model", model, "--engine", engine, "--json")
    continued = command_here("index", notes, *options, "--out", "index").document
    assert (continued["kept"], continued["added"]) == (there, len(rows) - there)
    assert command_here("index", notes, *options, "--out", "whole").rc == 0
    index, whole = notes.parent / "index", notes.parent / "whole"
    if engine == "flat":
        assert files_of(index) == files_of(whole)
    else:
        with indexing.open_index(index) as one, indexing.open_index(whole) as other:
            query = np.ones(64, np.float32)
            assert one.search(query, len(rows)) == other.search(query, len(rows))


def test_without_a_terminal_progress_is_a_line_now_and_then(notes, model, command_here):
    outcome = command_here("index", notes, "--model", model, "--out", "index")
    assert "index: 40 of 40 passages" in outcome.stderr


def with_prompts(model: Path, place: Path) -> Path:
    """Copy a model folder, as one whose checkpoint has prompts: they stand in the signature, not in the file."""
    shutil.copytree(model / "model", place)
    place.chmod(0o755)
    for name in (signature.SIGNATURE, artifact.MANIFEST):
        (place / name).chmod(0o644)
    said = signature.read(place).model_copy(update={"prompts": {"query": "question", "passage": "answer"}})
    (place / signature.SIGNATURE).write_text(said.model_dump_json(), encoding="utf-8")
    manifest = artifact.read_manifest(place).model_copy(update={"files": artifact.list_files(place)})
    (place / artifact.MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")
    return place


def test_passages_and_questions_get_their_own_prompts(notes, model, command_here):
    prompted = with_prompts(model, notes.parent / "prompted")
    options = ("--model", prompted, "--storage", "float32", "--json")
    made = {
        name: command_here("index", notes, *options, "--out", name, *given).document["about"]
        for name, given in {"own": (), "none": ("--prompt", ""), "query": ("--prompt", "query")}.items()
    }
    assert [(one["document_prompt"], one["query_prompt"]) for one in made.values()] == [
        ("passage", "query"),
        ("", "query"),
        ("query", "query"),
    ]
    prompts = {"own": "passage", "none": "", "query": "query"}
    with pipeline.load(prompted, isolated=False) as opened:
        for name, of_passages in prompts.items():
            stored = np.fromfile(notes.parent / name / "vectors.bin", "<f4").reshape(len(TEXTS), -1)
            expected = np.stack([one.vector for one in opened.predict(TEXTS, prompt=of_passages)])
            np.testing.assert_array_equal(stored, expected)
        for given, of_question in (((), "query"), (("--prompt", ""), ""), (("--prompt", "passage"), "passage")):
            found = command_here("search", "own", "a red house", "--model", prompted, "--json", *given).document
            query = opened.predict("a red house", prompt=of_question)[0].vector
            stored = np.fromfile(notes.parent / "own" / "vectors.bin", "<f4").reshape(len(TEXTS), -1)
            cosines = stored[[hit["row"] for hit in found["hits"]]].astype(np.float64) @ query
            assert [hit["cosine"] for hit in found["hits"]] == pytest.approx(cosines, abs=1e-6)
    other = command_here("index", notes, *options, "--out", "own", "--prompt", "query")
    assert "--prompt query: own has passage" in other.document["error"]["message"]


def test_long_texts_are_cut_into_windows_of_words(tmp_path, model, command_here):
    words = [f"word{number}" for number in range(25)]
    (tmp_path / "book.txt").write_text("\n\n".join(words), encoding="utf-8")
    made = command_here("index", "book.txt", "--model", model, "--window", "10", "--json").document
    assert made["index"] == "build/index/book.txt"
    found = command_here("search", "index/book.txt", "word3", "--model", model, "--json").document["hits"]
    texts = {hit["id"]: hit["text"] for hit in found}
    assert texts == {
        "book.txt#0": " ".join(words[:10]),
        "book.txt#1": " ".join(words[10:20]),
        "book.txt#2": " ".join(words[20:]),
    }


def test_tables_folders_and_plain_texts_are_read(tmp_path):
    def read(*paths: Path, **how: str) -> dict[str, str]:
        return {one.id: one.text for one in Source(paths, **how)}  # type: ignore[arg-type]

    table = tmp_path / "t.csv"
    with table.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows([["_id", "body"], ["7", 'two\nlines, "quoted"'], ["8", " "]])
    assert read(table, text="body") == {"7": 'two\nlines, "quoted"'}
    tabs = tmp_path / "t.tsv"
    tabs.write_text("text\tmore\na\tb\n", encoding="utf-8")
    assert read(tabs) == {"t.tsv:1": "a"}
    lines = tmp_path / "t.jsonl"
    lines.write_text('\ufeff{"id": 3, "text": "c"}\n\n"plain"\n{"text": "\\ud83d\\ude00 \\ud800"}\n', encoding="utf-8")
    assert read(lines) == {"3": "c", "t.jsonl:3": "plain", "t.jsonl:4": "😀 \ufffd"}
    plain = tmp_path / "t.txt"
    plain.write_text("one\n\n two \n", encoding="utf-8")
    assert read(plain) == {"t.txt:1": "one", "t.txt:3": "two"}
    folder = tmp_path / "folder"
    for name in ("b.md", "a/c.txt", ".hidden/d.md", "e.pdf", "empty.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("" if name == "empty.md" else f"# {name}\n\nmore", encoding="utf-8")
    assert read(folder) == {"a/c.txt": "# a/c.txt\n\nmore", "b.md": "# b.md\n\nmore"}
    # A name that is no UTF-8, as old disks have some.
    (folder / "b.md").rename(os.fsdecode(os.fsencode(folder / "caf") + b"\xe9.md"))
    assert list(read(folder)) == ["a/c.txt", "caf\ufffd.md"]


def test_a_folder_that_cannot_be_listed_is_refused_and_not_taken_for_empty(tmp_path, monkeypatch):
    closed = tmp_path / "notes" / "closed"
    closed.mkdir(parents=True)
    (tmp_path / "notes" / "a.md").write_text("a")
    (closed / "b.md").write_text("b")
    tmp_path.chmod(0o755)
    closed.chmod(0)
    monkeypatch.chdir(tmp_path)
    before = os.geteuid()
    try:
        if before == 0:
            # Nothing is closed to root.
            os.seteuid(65534)
        with pytest.raises(InputError, match="closed cannot be read: Permission denied"):
            print(Source([Path("notes")]).total)
    finally:
        os.seteuid(before)
        closed.chmod(0o755)


class Changing:
    """A source of which an id came twice after its passages were counted."""

    total = 3

    def __iter__(self) -> Iterator[Passage]:
        return iter([Passage("a", "one"), Passage("b", "two"), Passage("a", "three")])


@pytest.mark.parametrize("engine", ["flat", "sqlite"])
def test_a_file_that_changes_while_it_is_read_damages_no_index(engine, tmp_path):
    def embed(texts: Sequence[str], prompt: str | None, told: object = None, /) -> tuple[NDArray[np.float32], int]:
        return embeddings(1, len(texts)), 0

    model = Embedder("model", "litert-fp32", contract(), NO_PROMPTS, embed)
    request = indexing.Request(Changing(), tmp_path / "index", engine)  # type: ignore[arg-type]
    assert indexing.run(request, model, lambda *_: None).passages == 2
    with indexing.open_index(tmp_path / "index", writing=True) as index:
        assert index.has(Passage("a", "three"))


@pytest.mark.parametrize(
    ("name", "content", "options", "told"),
    [
        (
            "a.jsonl",
            b'{"title": "x", "body": "y"}\n',
            (),
            "line 1: there is no column 'text'; there are: 'title', 'body'",
        ),
        ("a.csv", b"title,body\nx,y\n", ("--text", "no"), "row 1: there is no column 'no'; there are: 'title', 'body'"),
        ("a.jsonl", b'{"id": "x"}\n', (), "line 1: there is no column 'text'; there are: 'id'"),
        ("a.csv", b"id,text,text\nx,y,z\n", (), "its header names column 'text' twice"),
        ("a.csv", b"id,text\nx,y,z\n", (), "row 1: it has more fields than the header has columns"),
        ("a.csv", b'id,text\nx,"y\n', (), "a.csv, line 1: unexpected end of data"),
        ("a.csv", b"id,text\nx,y\nx,z\n", (), "the id 'x' is there twice"),
        ("a.csv", b"id,text\n,y\n", (), "row 1: the id in column 'id' is empty"),
        ("a.jsonl", b'{"text": "x"\n', (), "line 1: it is no JSON"),
        ("a.jsonl", b"[1]\n", (), "line 1: it is no JSON object"),
        ("a.jsonl", b'{"text": {"x": 1}}\n', (), "line 1: column 'text' holds"),
        ("a.jsonl", b'{"text": "\xff"}\n', (), "is not UTF-8 text"),
        ("a.txt", b"\xff\xfe\n", (), "is not UTF-8 text"),
        ("a.txt", b"x\n", ("--text", "body"), "is plain text and has no columns"),
        ("a.txt", b" \n\n", (), "there is no text"),
        ("a.jsonl", b"", (), "there is no text"),
        ("a.pdf", b"%PDF", (), "is of no known kind; there are: .jsonl, .csv"),
        ("folder", None, (), "has no file that ends with .txt or .md"),
        ("nowhere", None, (), "does not exist"),
        ("a.txt", b"x\n", ("--storage", "int4"), "--storage"),
        ("a.txt", b"x\n", ("--engine", "faiss"), "'flat', 'usearch', 'sqlite', 'sqlite-vec'"),
        ("a.txt", b"x\n", ("--width", "3"), "can be cut to 64"),
        ("a.txt", b"x\n", ("--prompt", "query"), "does not exist; there are: none"),
        ("a.txt", b"x\n", ("--out", "taken"), "is there, and is no index"),
    ],
)
def test_what_cannot_be_indexed_is_refused(name, content, options, told, tmp_path, model, command_here):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    elif name == "folder":
        (tmp_path / name).mkdir()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("mine")
    outcome = command_here("index", name, "--model", model, *options, "--json")
    assert outcome.rc == 2, outcome.stdout
    assert told in outcome.document["error"]["message"]
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["thesis.tex"]
    assert not (tmp_path / "build").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--storage", "bits"), "--storage bits: index has int8"),
        (("--engine", "sqlite"), "--engine sqlite: index has flat"),
        (("--prompt", ""), None),
    ],
)
def test_an_index_is_not_continued_as_another(options, told, notes, model, command_here):
    assert command_here("index", notes, "--model", model, "--out", "index").rc == 0
    outcome = command_here("index", notes, "--model", model, "--out", "index", *options, "--json")
    assert outcome.rc == (2 if told else 0), outcome.stdout
    if told:
        assert told in outcome.document["error"]["message"]


def test_an_index_of_another_space_is_not_asked(notes, model, command_here):
    assert command_here("index", notes, "--model", model, "--out", "index").rc == 0
    file = notes.parent / "index" / "index.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"space": "f" * 16}))
    for arguments in (("search", "index", "a house"), ("index", notes, "--out", "index")):
        outcome = command_here(*arguments, "--model", model, "--json")
        assert outcome.rc == 2
        assert "space ffffffffffffffff" in outcome.document["error"]["message"]
        assert "--out" in outcome.document["error"]["message"]


def test_there_is_an_index_to_ask(tmp_path, model, command_here):
    for place, told in (("nowhere", "does not exist"), (".", "has no index.json")):
        outcome = command_here("search", place, "a house", "--model", model, "--json")
        assert outcome.rc == 2
        assert told in outcome.document["error"]["message"]


def test_no_index_is_made_in_another(notes, model, command_here):
    assert command_here("index", notes, "--model", model, "--out", "index").rc == 0
    outcome = command_here("index", notes, "--model", model, "--out", "index/more", "--json")
    assert outcome.rc == 2
    assert "in the folder of an index" in outcome.document["error"]["message"]
    assert command_here("search", "index", "a house", "--model", model).rc == 0


@pytest.mark.parametrize("command", ["search", "compatible"])
def test_whoever_asks_takes_a_killed_compaction_back(command, notes, model, command_here):
    assert command_here("index", notes, "--model", model, "--out", "index").rc == 0
    (notes.parent / "index").rename(notes.parent / ".index.before")
    asked = ("index", model) if command == "compatible" else ("index", "a house", "--model", model)
    outcome = command_here(command, *asked)
    assert outcome.rc == 0, outcome.stderr
    assert (notes.parent / "index").is_dir()


def test_a_model_of_labels_makes_no_index(notes, converted, command_here):
    from faults.students import few

    outcome = command_here("index", notes, "--model", converted("litert-fp32", few("bert", "classification")), "--json")
    assert outcome.rc == 2
    assert "an index is made of embeddings" in outcome.document["error"]["message"]


def test_an_engine_that_is_not_installed_is_named(notes, model, command_here, monkeypatch):
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    outcome = command_here("index", notes, "--model", model, "--engine", "usearch", "--out", "index", "--json")
    assert outcome.rc == 3
    assert "pip install -e '.[search]'" in outcome.document["error"]["message"]
    assert not (notes.parent / "index").exists()


def test_two_files_of_one_name_need_ids(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_text("text")
    with pytest.raises(InputError, match="files of different names"):
        print(Source([tmp_path / "a" / "x.txt", tmp_path / "b" / "x.txt"]).total)
