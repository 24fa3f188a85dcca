"""Numbers in schemas that the engine's parsers count wrong with: found wherever they are, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from guanaco.server import numbers
from guanaco.server.schemas import ChatRequest, CompletionRequest

LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": LARGEST - 1},
        {"minimum": LARGEST, "maximum": LARGEST},
        {"exclusiveMinimum": 1e300},
        {"maximum": -LARGEST},
        {"minimum": -LARGEST, "maximum": -LARGEST},
        {"minimum": -1e301, "exclusiveMaximum": -1e300},
        {"maximum": -1_000_000_000_000_000},
        {"minimum": 2**53 - 1},
        {"minimum": 10**400},
        {"maximum": -(10**5000)},
        {"const": -LARGEST - 1},
        {"enum": [1, -1e19]},
        {"const": {"minimum": [-1e19]}},
        {"properties": {"minimum": {"const": -1e19}}},
        {"anyOf": [{}, {"items": {"maximum": -1e19}}]},
        {"prefixItems": [{"$ref": "#"}, {"default": -1e19}]},
    ],
)
def test_what_the_engine_would_overflow_at_is_found(schema: dict[str, Any]) -> None:
    assert numbers.too_large(schema) is not None
    with pytest.raises(ValidationError, match="a schema may hold"):
        CompletionRequest.model_validate({"prompt": "a", "json_schema": schema})
    for fields in (
        {"response_format": {"schema": schema}},
        {"tools": [{"function": {"parameters": schema}}]},
    ):
        with pytest.raises(ValidationError, match="a schema may hold"):
            ChatRequest.model_validate({"messages": [{"role": "user", "content": "a"}], **fields})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": -LARGEST - 1, "maximum": LARGEST},  # how int64 is written
        {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
        {"type": "number", "minimum": -1e308, "maximum": 1e308},
        {"const": LARGEST, "enum": [LARGEST]},
        {"minimum": 999_999_999_999_999},
        {"maximum": -999_999_999_999_999},
        {"multipleOf": 0.01},
        {"minimum": True, "const": None, "enum": ["-99999999999999999999"]},
        {},
    ],
)
def test_what_it_counts_well_is_left_to_it(schema: dict[str, Any]) -> None:
    assert numbers.too_large(schema) is None
    assert numbers.backward(schema) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"minLength": 5, "maxLength": 2},
        {"items": {"minItems": 3, "maxItems": 1}},
        {"anyOf": [{}, {"minProperties": 1, "maxProperties": 0}]},
        {"minimum": 1.5, "maximum": 0.5},
        {"minLength": 10**5000, "maxLength": 2},
    ],
)
def test_a_range_that_ends_before_it_begins_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="allows nothing"):
        CompletionRequest.model_validate({"prompt": "a", "json_schema": schema})


@pytest.mark.parametrize(
    ("multiples", "common"),
    [
        ((), 1),
        ((0.01,), 1),
        ((1000,), 1),
        ((2.5,), 25),
        ((5, 15, 60, 7), 210),
        ((1e300,), 1),
        ((2**31,), 2**31),
    ],
)
def test_multiples_have_a_common_one(multiples: tuple[float, ...], common: int) -> None:
    assert numbers.common_multiple({"allOf": [{"multipleOf": value} for value in multiples]}) == common


@pytest.mark.parametrize("multiples", [(997, 991), (2**31,), (10_001,), (10**5000,)])
def test_machines_of_many_states_are_refused(multiples: tuple[int, ...]) -> None:
    schema = {"allOf": [{"multipleOf": value} for value in multiples]}
    with pytest.raises(ValidationError, match="least common multiple"):
        CompletionRequest.model_validate({"prompt": "a", "json_schema": schema})


def test_what_is_no_schema_is_left_to_it() -> None:
    assert numbers.too_large(None) is None
    assert numbers.too_large("text") is None
    assert numbers.too_large(5) is None
