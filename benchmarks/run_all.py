"""Every published figure in one go: ``python -m benchmarks.run_all`` (``make bench``), about six hours.

Makes the standard model in a scratch folder, runs each comparison and the memory ladder, prints every command
before it runs, keeps the rows in ``benchmarks/results`` and deletes the model. Refuses to start without room
for it. Quiet the machine first: the engine's threads spin.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from guanaco.units import GIB, format_bytes

MODEL_BYTES = 9 * GIB
RESULTS = Path(__file__).parent / "results"
ROUTING = "qwen3-30b-like"


def commands(model: Path, results: Path, day: str, runs: int) -> list[list[str]]:
    """What is run, in order."""
    bench = [sys.executable, "-m", "guanaco.cli.main", "bench", str(model), "--runs", str(runs)]

    def csv(name: str) -> list[str]:
        return ["--csv", str(results / f"{day}-qwen-{name}.csv")]

    streamed = [*bench, "--replay", ROUTING, "--prompt", "256", "--decode", "32"]
    parts = "slots,no-pilot,policy,overlap,pilot,lru"
    return [
        [sys.executable, "-m", "benchmarks.make_model", "--standard", "qwen", "--out", str(model)],
        *([*streamed, "--experts", f"{share}%", "--ways", "slots,mmap,pagecache", *csv(share)]
          for share in ("25", "12.5", "6.25")),
        [*streamed, "--ways", "mmap,mmap-ra32,mmap-ra512,mmap-own,mmap-spin", *csv("mmap")],
        [*streamed, "--ways", parts, "--bound", *csv("parts")],
        [*bench, "--resident", "--prompt", "32", "--decode", "48", *csv("resident")],
        [*bench, "--resident", "--busy", "2", "--prompt", "32", "--decode", "16", *csv("busy")],
        # --pilot auto (slots) against always and never, on the drive as it is and on a slow one.
        *([*bench[:-1], str(max(10, runs)), "--replay", ROUTING, "--prompt", "64", "--decode", "32",
           "--experts", "12.5%", "--ways", "slots,gate,no-pilot", *limit, *csv(name)]
          for name, limit in (("auto", []), ("auto-150MB", ["--drive-limit", "150MB"]))),
        # Several clients: one run each, they are long.
        *([*bench[:-1], "1", "--replay", ROUTING, "--experts", "12.5%", "--ways", "slots,mmap",
           "--workload", load, *size, *csv(load)]
          for load, size in (("chat", []), ("agent", []), ("batch", ["--requests", "4"]))),
        [sys.executable, "-m", "benchmarks.memory_contract", str(model), *csv("memory")],
        # In the same place: ten budgets of the whole are more than a machine has.
        [sys.executable, "-m", "benchmarks.make_model", "--standard", "qwen", "--layers", "12",
         "--out", str(model)],
        [sys.executable, "-m", "benchmarks.more_memory", str(model), *csv("more-memory")],
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="for the model")
    parser.add_argument("--runs", type=int, default=7, help="interleaved rounds of each comparison")
    parser.add_argument("--dry-run", action="store_true", help="print the commands only")
    options = parser.parse_args(arguments)
    if not options.dry_run and shutil.disk_usage(options.folder).free < MODEL_BYTES:
        print(
            f"{options.folder} has less than {format_bytes(MODEL_BYTES)} free; use --folder", file=sys.stderr
        )
        return 2
    day = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    failed = 0
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="guanaco-bench-") as scratch:
        for command in commands(Path(scratch) / "qwen.gguf", RESULTS, day, options.runs):
            print(shlex.join(command), flush=True)
            if not options.dry_run:
                failed += subprocess.run(command, check=False).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
