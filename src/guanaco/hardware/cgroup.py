"""Memory cgroups, versions 1 and 2: where this process is, what it may use, what it has used.

Owns finding the cgroup directories through ``/proc`` and reading their files. Every path is taken below
``root``, so that tests describe a machine with a directory. Leaves making child cgroups to ``child_cgroup``
and decisions to the planner. A value that the kernel does not give is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Version 1 writes "no limit" as the largest page-aligned number; anything this large is no limit.
_NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True)
class Cgroup:
    """One directory of a cgroup tree. ``top`` is where the tree is mounted."""

    version: int
    path: Path
    top: Path

    @property
    def limit_bytes(self) -> int | None:
        """This directory's own limit; None when unlimited or unreadable.

        Above version 2's ``memory.high`` the kernel slows everybody down until nothing moves.
        """
        names = ("memory.max", "memory.high") if self.version == 2 else ("memory.limit_in_bytes",)
        limits = [_limit(self.path / name) for name in names]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def usage_bytes(self) -> int | None:
        return _number(self.path / ("memory.current" if self.version == 2 else "memory.usage_in_bytes"))

    @property
    def peak_bytes(self) -> int | None:
        """Highest usage since the cgroup was made; None on kernels that do not keep it."""
        return _number(self.path / ("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"))

    @property
    def reclaimable_bytes(self) -> int | None:
        """File cache that the kernel drops before anything is refused."""
        stat = read_flat(self.path / "memory.stat")
        prefix = "" if self.version == 2 else "total_"
        parts = [stat.get(f"{prefix}{name}") for name in ("active_file", "inactive_file")]
        return None if None in parts else sum(part for part in parts if part is not None)

    @property
    def used_bytes(self) -> int | None:
        """Usage without the reclaimable file cache."""
        usage_bytes, reclaimable_bytes = self.usage_bytes, self.reclaimable_bytes
        if usage_bytes is None:
            return None
        return max(0, usage_bytes - (reclaimable_bytes or 0))

    @property
    def oom_kills(self) -> int | None:
        """How many processes the kernel killed here for memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return read_flat(self.path / name).get("oom_kill")

    def ancestry(self) -> list[Cgroup]:
        """This cgroup and its parents up to the mount point, nearest first."""
        chain = [self.path]
        while chain[-1] != self.top and self.top in chain[-1].parents:
            chain.append(chain[-1].parent)
        return [Cgroup(self.version, path, self.top) for path in chain]


def own_cgroup(root: Path = Path("/"), controller: str = "memory") -> Cgroup | None:
    """The cgroup that governs ``controller`` for this process, or None where there is none.

    In version 2 that is the nearest parent that has the controller.
    """
    members = _memberships(root)
    for version, name in ((1, members.get(controller)), (2, members.get(""))):
        if name is None:
            continue
        for mount_root, top in _mounts(root, version, controller):
            path = _below(name, mount_root, top)
            if not path.is_dir():
                continue
            for cgroup in Cgroup(version, path, top).ancestry():
                if version == 1 or _governs(cgroup.path, controller):
                    return cgroup
    return None


def effective_limit(cgroup: Cgroup | None) -> Cgroup | None:
    """The cgroup with the smallest limit from this one up to the root, or None when none limits."""
    limited = [item for item in (cgroup.ancestry() if cgroup else []) if item.limit_bytes is not None]
    return min(limited, key=lambda item: item.limit_bytes or 0, default=None)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Processors' worth of time the cgroup tree grants, or None when unlimited."""
    cgroup = own_cgroup(root, "cpu")
    quotas = [_quota(item) for item in (cgroup.ancestry() if cgroup else [])]
    return min((quota for quota in quotas if quota is not None), default=None)


def read_flat(path: Path) -> dict[str, int]:
    """A file of ``name number`` lines; empty when unreadable."""
    pairs = (line.split() for line in _text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].lstrip("-").isdigit()}


def _memberships(root: Path) -> dict[str, str]:
    """Controller -> cgroup name from /proc/self/cgroup; version 2 has the empty controller."""
    members: dict[str, str] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            members.update(dict.fromkeys(fields[1].split(","), fields[2]))
    return members


def _mounts(root: Path, version: int, controller: str) -> list[tuple[str, Path]]:
    """(root of the mount inside the tree, mount point) of every cgroup file system that fits."""
    found = []
    for line in _text(root / "proc/self/mountinfo").splitlines():
        left, separator, right = line.partition(" - ")
        fields, source = left.split(), right.split()
        if not separator or len(fields) < 5 or len(source) < 3:
            continue
        if version == 2:
            fits = source[0] == "cgroup2"
        else:
            fits = source[0] == "cgroup" and controller in source[2].split(",")
        if fits:
            found.append((fields[3], root / _unescape(fields[4]).lstrip("/")))
    return found


def _below(name: str, mount_root: str, top: Path) -> Path:
    """Where cgroup ``name`` appears under a mount whose root is ``mount_root``."""
    if name == mount_root or name.startswith(mount_root.rstrip("/") + "/"):
        name = name[len(mount_root.rstrip("/")) :]
    path = top / name.strip("/")
    # In a container the name may be the host's; the mount point is then this process's own cgroup.
    return path if ".." not in name.split("/") and path.is_dir() else top


def _governs(path: Path, controller: str) -> bool:
    """Whether a version 2 directory has the controller."""
    return controller in _text(path / "cgroup.controllers").split()


def _quota(cgroup: Cgroup) -> float | None:
    if cgroup.version == 2:
        fields = _text(cgroup.path / "cpu.max").split()
        quota, period = (fields[0], fields[1]) if len(fields) == 2 else ("max", "0")
    else:
        quota = _text(cgroup.path / "cpu.cfs_quota_us").strip()
        period = _text(cgroup.path / "cpu.cfs_period_us").strip()
    if not (quota.isdigit() and period.isdigit()) or int(quota) == 0 or int(period) == 0:
        return None
    return int(quota) / int(period)


def _limit(path: Path) -> int | None:
    limit_bytes = _number(path)
    return None if limit_bytes is None or limit_bytes >= _NO_LIMIT_BYTES else limit_bytes


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _unescape(text: str) -> str:
    """Mount points write blanks and the like as octal escapes."""
    for code in ("040", "011", "012", "134"):
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text
