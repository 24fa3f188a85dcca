"""Typed access to a model's metadata, with the architecture's prefix filled in.

Owns types and missing keys: a value of the wrong kind is one ModelError that names it. Knows no key's
meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from guanaco.errors import ModelError
from guanaco.gguf.problem import CONVERT_AGAIN, model_error, shown
from guanaco.gguf.types import ArrayInfo

_WITHOUT_PREFIX = ("general.", "tokenizer.", "split.", "adapter.", "quantize.")


@dataclass(frozen=True)
class Meta:
    """Keys are written without the architecture: ``block_count``, not ``llama.block_count``.

    Without a default a missing key is an error.
    """

    path: Path
    arch: str
    values: Mapping[str, object] = field(repr=False)

    def full_key(self, key: str) -> str:
        return key if key.startswith(_WITHOUT_PREFIX) else f"{self.arch}.{key}"

    def has(self, key: str) -> bool:
        return self.full_key(key) in self.values

    def get_int(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if not isinstance(value, int):
            raise self._wrong(key, value, "one whole number")
        return int(value)

    def get_float(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if not isinstance(value, (int, float)):
            raise self._wrong(key, value, "one number")
        return float(value)

    def get_bool(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def get_str(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a text")
        return value

    def get_ints(self, key: str, count: int, default: int | None = None) -> tuple[int, ...]:
        """One number per layer: a list of ``count``, or a single number that holds for all."""
        value = self._get(key, default)
        if isinstance(value, int):
            return (int(value),) * count
        numbers = self._numbers(key, value)
        if len(numbers) != count:
            raise self._wrong(key, value, f"one whole number or {count}, not {len(numbers)}")
        return numbers

    def get_list(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers of any length; empty when missing."""
        value = self.values.get(self.full_key(key), ())
        return self._numbers(key, value)

    def get_count(self, key: str) -> int:
        """How many elements a list has, kept or not; 0 when missing."""
        value = self._get(key, ())
        if isinstance(value, ArrayInfo):
            return value.count
        if not isinstance(value, tuple):
            raise self._wrong(key, value, "a list")
        return len(value)

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(self.full_key(key), default)
        if value is None:
            raise model_error(self.path, self.full_key(key), "is missing", CONVERT_AGAIN)
        return value

    def _numbers(self, key: str, value: object) -> tuple[int, ...]:
        if not isinstance(value, tuple) or not all(isinstance(item, int) for item in value):
            raise self._wrong(key, value, "a list of whole numbers")
        return tuple(int(item) for item in value)

    def _wrong(self, key: str, value: object, expected: str) -> ModelError:
        problem = f"is {shown(value)}, but should be {expected}"
        return model_error(self.path, self.full_key(key), problem, CONVERT_AGAIN, value)
