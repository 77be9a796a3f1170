"""JSON read as apps read it: Kotlin's and Swift's parsers take no number for a text, and no key twice."""

import json
from collections import Counter
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

_Model = TypeVar("_Model", bound=BaseModel)
_SCHEMA = "schema_version"


def read(model: type[_Model], content: bytes) -> _Model:
    """Read a JSON document into a model without bending anything to fit.

    Whole numbers are neither texts, fractions nor true and false; a fraction may be written without its point. A
    `schema_version` has to be stated where the model has one, default or not: an app cannot guess it.

    Args:
        model: what the document has to be.
        content: the file's bytes.

    Raises:
        ValueError: it is something else; the message names the place and fits on one line.
    """
    document = parse(content)
    if _SCHEMA in model.model_fields and isinstance(document, dict):
        if _SCHEMA not in document:
            raise ValueError(f"{_SCHEMA}: it is missing")
        # pydantic takes true and 1.0 for a literal 1, in strict mode too.
        if type(document[_SCHEMA]) is not int:
            raise ValueError(f"{_SCHEMA}: {document[_SCHEMA]!r} is not a whole number")
    try:
        return model.model_validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}") from error


def parse(content: bytes) -> Any:
    """Parse JSON; the standard library's parser keeps the last of equal keys, and takes NaN, UTF-16 and UTF-32.

    Raises:
        ValueError: it is none, or has a key twice.
    """
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=_each_once, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"{twice[:40]}: the key is there more than once")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")
