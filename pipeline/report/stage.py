"""Report stage: one page that a team can pass round, the same as typed JSON, and tables for a README.

`data.py` is what is written down, `collect.py` reads the records, `best.py` picks the headline's file, `busy.py` tells
whether times were disturbed, `page.py` fills the templates, `plots.py` and `quality_plots.py` draw in the colours of
`style.py`, `svg.py` puts a drawing into the page, `wording.py` says how values read.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.report.collect import Member, collect
from pipeline.report.data import Report

__all__ = ["VERSION", "Member", "Report", "make"]

VERSION = 3


def make(own: Member, others: Sequence[Member], timings: Path, out: Path) -> dict[str, Any]:
    """Write `index.html`, `report.json` and `RESULTS.md`; equal records give equal bytes.

    Args:
        own: the recipe that was asked for, its student and its finished targets.
        others: those beside it.
        timings: the benchmark artifact's directory.
        out: the artifact's directory.

    Returns:
        How many targets passed, failed and were not run, and the best int8 file.

    Raises:
        ArtifactError: a target is not finished, or a record cannot be read.
    """
    # Drawing and templates are imported by the one stage that needs them.
    from pipeline.report import page

    report = collect(own, others, timings)
    files = {
        "report.json": report.model_dump_json(indent=1) + "\n",
        "index.html": page.html(report),
        "RESULTS.md": page.markdown(report),
    }
    for name, text in files.items():
        (out / name).write_bytes(text.encode("utf-8"))
    best = report.best.target if report.best else None
    return {**{str(verdict): count for verdict, count in report.counts.items()}, "best": best}
