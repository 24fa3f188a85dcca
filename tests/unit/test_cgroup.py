"""Limits, usage and quotas read from described cgroup trees, versions 1 and 2, and a real child cgroup."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from guanaco.hardware.cgroup import Cgroup, cpu_quota, effective_limit, own_cgroup
from guanaco.hardware.child_cgroup import create_child
from guanaco.hardware.detect import detect
from guanaco.hardware.drive import block_device, drive_facts, probe_direct_io
from guanaco.units import GIB, MIB

_V1_NO_LIMIT = 0x7FFFFFFFFFFFF000


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _v1(root: Path, name: str, *, mount_root: str = "/") -> None:
    _write(
        root,
        {
            "proc/self/cgroup": f"9:name=systemd:/\n4:memory:{name}\n1:cpu,cpuacct:{name}\n0::/\n",
            "proc/self/mountinfo": (
                f"35 31 0:32 {mount_root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                f"36 31 0:33 {mount_root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
                "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
            ),
            "sys/fs/cgroup/unified/cgroup.controllers": "\n",
        },
    )


def _v2(root: Path, name: str) -> None:
    _write(
        root,
        {
            "proc/self/cgroup": f"0::{name}\n",
            "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n",
        },
    )
    directory = root / "sys/fs/cgroup"
    for part in ["", *name.strip("/").split("/")]:
        directory = directory / part
        _write(directory, {"cgroup.controllers": "cpu io memory pids\n"})


def test_v1_takes_the_smallest_limit_on_the_way_to_the_root(tmp_path: Path) -> None:
    _v1(tmp_path, "/docker/box/inner")
    memory = "sys/fs/cgroup/memory"
    _write(
        tmp_path,
        {
            f"{memory}/memory.limit_in_bytes": str(_V1_NO_LIMIT),
            f"{memory}/docker/memory.limit_in_bytes": str(6 * GIB),
            f"{memory}/docker/box/memory.limit_in_bytes": str(3 * GIB),
            f"{memory}/docker/box/memory.usage_in_bytes": str(900 * MIB),
            f"{memory}/docker/box/memory.max_usage_in_bytes": str(2 * GIB),
            f"{memory}/docker/box/memory.stat": (
                f"cache 1\ntotal_active_file {100 * MIB}\ntotal_inactive_file {200 * MIB}\n"
            ),
            f"{memory}/docker/box/inner/memory.limit_in_bytes": str(5 * GIB),
        },
    )
    own = own_cgroup(tmp_path)
    assert own is not None
    assert own.version == 1
    assert own.limit_bytes == 5 * GIB
    limiting = effective_limit(own)
    assert limiting is not None
    assert limiting.limit_bytes == 3 * GIB
    assert limiting.used_bytes == 600 * MIB
    assert limiting.peak_bytes == 2 * GIB


def test_v1_without_any_limit_is_none(tmp_path: Path) -> None:
    _v1(tmp_path, "/a")
    _write(tmp_path, {"sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(_V1_NO_LIMIT)})
    own = own_cgroup(tmp_path)
    assert own is not None
    assert own.limit_bytes is None
    assert effective_limit(own) is None


def test_v1_in_a_container_that_shows_the_hosts_name(tmp_path: Path) -> None:
    _v1(tmp_path, "/docker/0123", mount_root="/docker/0123")
    _write(tmp_path, {"sys/fs/cgroup/memory/memory.limit_in_bytes": str(GIB)})
    own = own_cgroup(tmp_path)
    assert own is not None
    assert own.path == tmp_path / "sys/fs/cgroup/memory"
    assert own.limit_bytes == GIB


@pytest.mark.parametrize("name", ["/../../elsewhere", "/not/mounted/here"])
def test_a_name_outside_the_mount_falls_back_to_the_mount_point(tmp_path: Path, name: str) -> None:
    _v1(tmp_path, name)
    _write(tmp_path, {"sys/fs/cgroup/memory/memory.limit_in_bytes": str(2 * GIB)})
    own = own_cgroup(tmp_path)
    assert own is not None
    assert own.limit_bytes == 2 * GIB


def test_v2_takes_the_smallest_limit_and_reads_max_as_none(tmp_path: Path) -> None:
    _v2(tmp_path, "/user.slice/app.scope")
    top = "sys/fs/cgroup"
    _write(
        tmp_path,
        {
            f"{top}/user.slice/memory.max": f"{4 * GIB}\n",
            f"{top}/user.slice/memory.current": f"{GIB}\n",
            f"{top}/user.slice/memory.peak": f"{3 * GIB}\n",
            f"{top}/user.slice/memory.stat": f"active_file {MIB}\ninactive_file {3 * MIB}\n",
            f"{top}/user.slice/memory.events": "low 0\noom 2\noom_kill 1\n",
            f"{top}/user.slice/app.scope/memory.max": "max\n",
        },
    )
    own = own_cgroup(tmp_path)
    assert own is not None
    assert own.version == 2
    assert own.limit_bytes is None
    limiting = effective_limit(own)
    assert limiting is not None
    assert limiting.limit_bytes == 4 * GIB
    assert limiting.used_bytes == GIB - 4 * MIB
    assert limiting.peak_bytes == 3 * GIB
    assert limiting.oom_kills == 1


def test_v2_memory_high_is_a_limit(tmp_path: Path) -> None:
    _v2(tmp_path, "/user.slice/run.scope")
    scope = tmp_path / "sys/fs/cgroup/user.slice/run.scope"
    (scope / "memory.max").write_text("max\n")
    (scope / "memory.high").write_text(f"{2 * GIB}\n")
    own = own_cgroup(tmp_path)
    assert own is not None
    assert own.limit_bytes == 2 * GIB
    (scope / "memory.max").write_text(f"{GIB}\n")
    assert own.limit_bytes == GIB


def test_v2_the_nearest_parent_with_the_controller_governs(tmp_path: Path) -> None:
    _v2(tmp_path, "/batch.slice/job/step")
    slice_ = tmp_path / "sys/fs/cgroup/batch.slice"
    for part in ("job", "job/step"):
        (slice_ / part / "cgroup.controllers").write_text("pids\n")
    (slice_ / "memory.max").write_text(f"{3 * GIB}\n")
    (slice_ / "cpu.max").write_text("150000 100000\n")
    own = own_cgroup(tmp_path)
    assert own is not None
    assert (own.path, own.limit_bytes) == (slice_, 3 * GIB)
    assert cpu_quota(tmp_path) == 1.5


def test_v2_directory_without_the_memory_controller_is_no_memory_cgroup(tmp_path: Path) -> None:
    _v2(tmp_path, "/a")
    for part in ("", "a/"):
        _write(tmp_path, {f"sys/fs/cgroup/{part}cgroup.controllers": "cpu\n"})
    assert own_cgroup(tmp_path) is None


def test_no_cgroup_file_system_is_none(tmp_path: Path) -> None:
    assert own_cgroup(tmp_path) is None
    assert effective_limit(None) is None
    assert cpu_quota(tmp_path) is None


def test_quota_v1_and_v2(tmp_path: Path) -> None:
    _v1(tmp_path / "one", "/a")
    cpu = "one/sys/fs/cgroup/cpu,cpuacct/a"
    _write(tmp_path, {f"{cpu}/cpu.cfs_quota_us": "150000\n", f"{cpu}/cpu.cfs_period_us": "100000\n"})
    assert cpu_quota(tmp_path / "one") == 1.5
    _write(tmp_path, {f"{cpu}/cpu.cfs_quota_us": "-1\n"})
    assert cpu_quota(tmp_path / "one") is None

    _v2(tmp_path / "two", "/a/b")
    tree = "two/sys/fs/cgroup/a"
    _write(tmp_path, {f"{tree}/cpu.max": "400000 100000\n", f"{tree}/b/cpu.max": "max 100000\n"})
    assert cpu_quota(tmp_path / "two") == 4.0


def test_detect_reads_memory_limits_cores_and_swap(tmp_path: Path) -> None:
    _v1(tmp_path, "/a")
    memory, cpu = "sys/fs/cgroup/memory/a", "sys/fs/cgroup/cpu,cpuacct/a"
    _write(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nSwapTotal: 0 kB\nHugePages: 4",
            f"{memory}/memory.limit_in_bytes": str(5 * GIB),
            f"{memory}/memory.usage_in_bytes": str(GIB),
            f"{cpu}/cpu.cfs_quota_us": "550000",
            f"{cpu}/cpu.cfs_period_us": "100000",
        },
    )
    for processor in range(8):
        pair = f"{processor % 4},{processor % 4 + 4}"
        _write(
            tmp_path,
            {f"sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list": pair},
        )
    hardware = detect(root=tmp_path, affinity=range(8))
    assert hardware.ram_total_bytes == 16 * GIB
    assert hardware.ram_available_bytes == 8 * GIB
    assert hardware.cgroup_limit_bytes == 5 * GIB
    assert hardware.cgroup_used_bytes == GIB
    assert hardware.n_logical_cores == 6
    assert hardware.n_physical_cores == 4
    assert hardware.swap_total_bytes == 0
    assert hardware.drive is None
    assert detect(root=tmp_path, affinity=[0, 4]).n_physical_cores == 1


def test_detect_on_an_empty_machine_knows_nothing(tmp_path: Path) -> None:
    hardware = detect(root=tmp_path, affinity=[0, 1])
    assert hardware.ram_total_bytes is None
    assert hardware.ram_available_bytes is None
    assert hardware.cgroup_limit_bytes is None
    assert hardware.cgroup_used_bytes is None
    assert hardware.swap_total_bytes is None
    assert hardware.n_physical_cores == 2


def test_detect_on_this_machine() -> None:
    hardware = detect(Path(__file__))
    assert hardware.ram_total_bytes is not None
    assert hardware.ram_available_bytes is not None
    assert 0 < hardware.ram_available_bytes <= hardware.ram_total_bytes
    assert 1 <= hardware.n_physical_cores <= hardware.n_logical_cores


def test_drive_of_a_partition_is_its_disk(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    device_id = model.stat().st_dev
    disk = tmp_path / "sys/devices/pci/nvme0n1"
    _write(disk, {"queue/read_ahead_kb": "128\n", "queue/rotational": "0\n", "nvme0n1p2/partition": "2\n"})
    numbers = tmp_path / f"sys/dev/block/{os.major(device_id)}:{os.minor(device_id)}"
    numbers.parent.mkdir(parents=True)
    numbers.symlink_to(disk / "nvme0n1p2")
    (tmp_path / "sys/block").mkdir(parents=True)
    (tmp_path / "sys/block/nvme0n1").symlink_to(disk)
    facts = drive_facts(model, tmp_path)
    assert facts.device == "nvme0n1"
    assert facts.read_ahead_bytes == 128 * 1024
    assert facts.rotational is False


def test_unknown_drive_facts_are_none(tmp_path: Path) -> None:
    assert block_device(tmp_path / "absent") is None
    assert probe_direct_io(tmp_path / "absent") is None
    facts = drive_facts(tmp_path / "absent", tmp_path)
    assert (facts.device, facts.read_ahead_bytes, facts.rotational, facts.direct_io) == (None,) * 4


def test_child_cgroup_holds_its_limit_and_reports_the_peak() -> None:
    try:
        child = create_child("guanaco-test", 64 * MIB)
        with child as box:
            fits = [sys.executable, "-c", "block = bytearray(20 << 20)"]
            assert subprocess.run(box.wrap(fits), check=False).returncode == 0
            assert box.peak_bytes is not None
            assert 20 * MIB < box.peak_bytes <= 64 * MIB
            too_big = [sys.executable, "-c", "block = bytearray(200 << 20)"]
            assert subprocess.run(box.wrap(too_big), check=False).returncode == -9
            assert box.oom_kills == 1
            path = box.path
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    assert not path.exists()


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    above = tmp_path / "group"
    left, lived_in, alive, other = (
        above / name
        for name in (
            f"guanaco-bench-{ended.pid}-7",
            f"guanaco-test-{ended.pid}-8",
            f"guanaco-a-{os.getpid()}-9",
            "b",
        )
    )
    for folder in (left, lived_in / "child", alive, other):
        folder.mkdir(parents=True)
    (above / "memory.limit_in_bytes").write_text("0")
    with contextlib.suppress(OSError), create_child("guanaco-x", parent=Cgroup(1, above, above)):
        assert not left.exists()
        assert lived_in.exists()
        assert alive.exists()
        assert other.exists()
        left.mkdir()  # only now does what is asserted above count
    assert left.exists(), "the block ran"
