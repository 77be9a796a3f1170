"""The table of search: what an index of a file's vectors finds, in each form of storage and at each width."""

from pipeline.report import wording
from pipeline.report.record import Report
from pipeline.report.table import Cell, Column, Part, Row, Table, name, number, words
from pipeline.report.tables_files import label
from pipeline.verify.record import Ranked, Retrieval

NOTE = (
    "An index of the file's vectors, asked by the file with float queries, against PyTorch with vectors in single "
    "precision. Below each number the 95 % interval of its difference, in points; it holds 0 where nothing is lost for "
    "certain."
)
_METRICS = {"recall_at_1": "Recall@1", "recall_at_10": "Recall@10", "ndcg_at_10": "NDCG@10", "mrr_at_10": "MRR@10"}


def search(report: Report) -> Table:
    """Return a row for each file, form of storage, width and collection."""
    parts = [
        Part([_row(found) for found in target.parity.retrieval], label(student, target))
        for student, target in report.files
    ]
    columns = [
        *(Column("Collection", "queries, documents", number=False), Column("Stored as", number=False)),
        *(Column("Numbers"), Column("Bytes", "a vector")),
        *(Column(title, "PyTorch → index") for title in _METRICS.values()),
    ]
    return Table(columns, [part for part in parts if part.rows])


def _row(found: Retrieval) -> Row:
    return Row(
        [
            name(found.collection, f"{found.queries}, {found.documents}"),
            words(found.storage),
            number(found.width, f"{found.width}"),
            number(found.bytes_per_vector, f"{found.bytes_per_vector}"),
            *(_ranked(found.metrics[metric]) for metric in _METRICS),
        ]
    )


def _ranked(one: Ranked) -> Cell:
    text = f"{wording.fixed(100 * one.reference, 2)} → {wording.fixed(100 * one.found, 2)}"
    return number(one.found, text, small=f"{100 * one.low:+.2f} to {100 * one.high:+.2f}")
