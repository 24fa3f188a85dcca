"""A promise that cannot be checked is a skip at home and a failure in CI."""

from __future__ import annotations

import pytest

from tests.support.unchecked import unchecked


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        ("true", pytest.fail.Exception),
        ("1", pytest.fail.Exception),
        ("", pytest.skip.Exception),
        ("false", pytest.skip.Exception),
    ],
)
def test_it_depends_on_ci(monkeypatch: pytest.MonkeyPatch, value: str, outcome: type[BaseException]) -> None:
    monkeypatch.setenv("CI", value)
    with pytest.raises(outcome, match="no memory cgroup"):
        unchecked("no memory cgroup")
