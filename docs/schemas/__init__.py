"""JSON Schemas of what `ship` writes and apps read or write, generated from the pipeline's models.

`python -m docs.schemas` writes them here and into both apps' cores, which check what they read against them;
`python -m docs.schemas --check` fails if one is older than its model.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pipeline.benchmark.record import BenchmarkRecord
from pipeline.devices.headless import BenchmarkRequest, BenchmarkStatus
from pipeline.formats.signature import Signature
from pipeline.search.about import About
from pipeline.search.files import State
from pipeline.ship.placing import Index, ShippedModel
from pipeline.student.golden import Golden

HERE = Path(__file__).parent
_PROJECT = HERE.parents[1]
PLACES = (
    HERE,
    _PROJECT / "android-demo/core/src/main/resources/pocketbert/schemas",
    _PROJECT / "ios-demo/Core/Sources/Core/Resources/schemas",
)
MODELS: dict[str, type[BaseModel]] = {
    "models": Index,
    "shipped": ShippedModel,
    "signature": Signature,
    "golden": Golden,
    "benchmark-request": BenchmarkRequest,
    "benchmark-status": BenchmarkStatus,
    "benchmark-record": BenchmarkRecord,
}
"""By the name of the file: `models.schema.json` describes `models.json`."""
OF_INDEX: dict[str, type[BaseModel]] = {"index": About, "index-state": State}
"""For whoever reads or writes a flat index without PocketBERT; the cores have readers of their own, and take none."""


LATER = {
    "About": ("similarity",),
    "Signature": ("prompts", "default_prompt", "include_prompt", "activation", "thresholds", "vectors"),
    "GoldenRow": ("prompt",),
}
"""By class: fields that older files of the same schema version lack; who reads one takes the model's default."""


def schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return a model's schema as apps need it: titles left out, and all but `LATER` fields stated by who writes."""
    made = model.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_plain(made)}


def _plain(node: Any) -> Any:
    """Leave out what pydantic adds for forms, and make properties required: defaults are for old Python records."""
    if isinstance(node, list):
        return [_plain(one) for one in node]
    if not isinstance(node, dict):
        return node
    plain = {key: _plain(value) for key, value in node.items() if key not in ("default", "title")}
    # Names of properties are not keywords: a field may be called `title`.
    if isinstance(properties := node.get("properties"), dict):
        plain["properties"] = {name: _plain(value) for name, value in properties.items()}
        plain["required"] = [name for name in properties if name not in LATER.get(node.get("title", ""), ())]
    return plain


def files() -> Iterator[tuple[Path, str]]:
    """Yield each place of a schema with its name."""
    for place in PLACES:
        yield from ((place, name) for name in MODELS)
    yield from ((HERE, name) for name in OF_INDEX)


def text(name: str) -> str:
    """Return the content of a schema's file."""
    return json.dumps(schema((MODELS | OF_INDEX)[name]), indent=1, ensure_ascii=True) + "\n"
