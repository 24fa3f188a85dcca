"""What is known of a model's experts before it is asked anything, and what is remembered of them afterwards.

Owns the order: the imatrix beside the model, then earlier use. Leaves reading to ``model.imatrix`` and
``engine.profile``, arithmetic to ``cache.prior``. A source that cannot be read is a warning, never an error.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from guanaco.cache.prior import expected_use
from guanaco.cli import log
from guanaco.cli.loading import Loadable, cache_directory
from guanaco.engine.engine import Engine
from guanaco.engine.profile import load_profile, save_profile, updated
from guanaco.errors import ModelError
from guanaco.model.imatrix import find_imatrix, read_expert_counts


@dataclass(frozen=True)
class Prior:
    """``use[group][expert]``: uses a token to expect; ``()`` where nothing is known."""

    use: tuple[tuple[float, ...], ...] = ()
    sources: tuple[str, ...] = ()  # "imatrix", "profile"


def prior_of(loadable: Loadable) -> Prior:
    """Nothing for a model that is not streamed, or with GUANACO_IMATRIX=0."""
    if not _is_wanted(loadable):
        return Prior()
    model = loadable.model
    counts: tuple[tuple[float, ...], ...] = ()
    path = find_imatrix(model.files[0].path)
    if path is not None:
        try:
            counts = read_expert_counts(path, model.groups)
        except ModelError as problem:
            log.logger.warning("[guanaco] warning: the imatrix is not used: %s", problem.message)
    profile = load_profile(cache_directory(os.environ), model)
    earlier = () if profile is None else profile.uses
    use = tuple(
        expected_use(
            group.n_expert,
            group.top_k,
            counts[index] if counts else (),
            earlier[index] if earlier else (),
        )
        for index, group in enumerate(model.groups)
    )
    found = (("imatrix", counts), ("profile", earlier))
    sources = tuple(name for name, layers in found if any(sum(layer) > 0 for layer in layers))
    return Prior(use, sources) if sources else Prior()


def remember_use(loadable: Loadable, engine: Engine) -> None:
    """At the end of a run that ended well."""
    heat = engine.heat()
    if not _is_wanted(loadable) or heat is None or engine.died is not None:
        return
    folder = cache_directory(os.environ)
    # Read anew: another process of the same model may have ended meanwhile.
    earlier = load_profile(folder, loadable.model)
    profile = updated(loadable.model, loadable.plan.group_class, earlier, heat)
    if profile is not None:
        save_profile(folder, loadable.model, profile)


def _is_wanted(loadable: Loadable) -> bool:
    return loadable.config.imatrix and loadable.plan.mode == "streaming"
