"""The policies that can run, by name, in the order they are shown."""

from __future__ import annotations

from collections.abc import Callable

from guanaco.cache.policies.cycle import Cycle
from guanaco.cache.policies.herd import Herd
from guanaco.cache.policies.lfu import Lfu
from guanaco.cache.policies.lru import Lru
from guanaco.cache.policies.recall import Recall
from guanaco.cache.policy import Policy, PolicyShape
from guanaco.errors import UsageError

POLICIES: dict[str, Callable[[PolicyShape], Policy]] = {
    "lru": Lru,
    "lfu": Lfu,
    "cycle": Cycle,
    "recall": Recall,
    "herd": Herd,
}


def make_policy(name: str, shape: PolicyShape) -> Policy:
    """A fresh policy; raises UsageError for a name that is not in the list."""
    try:
        return POLICIES[name](shape)
    except KeyError:
        raise UsageError(f"{name!r} is not a policy; one of {', '.join(POLICIES)}") from None
