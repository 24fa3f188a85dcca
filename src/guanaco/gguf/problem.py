"""The one sentence every complaint about a model file takes: file, field, value, way out."""

from __future__ import annotations

from pathlib import Path

from guanaco.errors import ModelError

FETCH_AGAIN = "the file is damaged or incomplete: download it again"
CONVERT_AGAIN = "llama.cpp would refuse it too: convert the model again with a current converter"
TOO_LARGE = "no known model needs that: download the file again, and report it if it persists"

_SHOWN_CHARS = 80


def shown(value: object) -> str:
    """A value from a file, safe to print: quoted, escaped, at most a line long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def model_error(path: Path, field: str, problem: str, way_out: str, value: object = None) -> ModelError:
    """A ModelError that reads ``FILE: FIELD PROBLEM; WAY OUT``; the parts are in its details too."""
    # undecodable bytes of a file name would break printing
    file = str(path).encode("utf-8", "replace").decode("utf-8")
    details = {"file": file, "field": field}
    if value is not None:
        details["value"] = shown(value)
    return ModelError(f"{file}: {field} {problem}; {way_out}", **details)
