"""Progress while a model loads: one changing line on a terminal, an occasional line elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import TextIO

from guanaco.engine.engine import LoadProgress

_QUIET_S = 10.0  # between lines where they cannot be overwritten


class ProgressLine:
    """Call it with each ``LoadProgress``; leaving the context clears the line."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self._name = name
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._next_s = 0.0 if self._is_terminal else _QUIET_S
        self._width = 0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Clear the line."""
        if self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width = 0

    def __call__(self, progress: LoadProgress) -> None:
        if progress.elapsed_s < self._next_s:
            return
        share = "" if progress.fraction is None else f" {progress.fraction:.0%}"
        line = f"[guanaco] loading {self._name}{share} ({progress.elapsed_s:.0f} s)"
        if self._is_terminal:
            self._write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._next_s += _QUIET_S
            self._write(line + "\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._next_s = float("inf")  # nobody reads it any more
