"""Whether a batch has a place for what it will make: asked before hours of work, not after."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from kvnotes_local.contract.store_type import StoreType
from kvnotes_local.errors import DiskFullError
from kvnotes_local.session.quantities import human_bytes
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.batch import PlannedSkill

_MARGIN = 16 << 20


def check_room(store: ArtifactStore, missing: Sequence[PlannedSkill]) -> None:
    """Compare what the plans will take with what is free. Raises DiskFullError.

    What is made anew replaces a file; only while it is written there are both.
    """
    if not missing:
        return
    replaced = [one.task.path.stat().st_size for one in missing if one.task is not None and one.task.path.is_file()]
    needed = sum(one.n_bytes for one in missing)
    needed -= max(0, min(needed, sum(replaced) - max(replaced, default=0)))
    folder = store.directory.parent
    free = shutil.disk_usage(folder).free
    if needed and needed + _MARGIN > free:
        halve = any(one.task is not None and one.task.store is not StoreType.Q8_0 for one in missing)
        raise DiskFullError(
            f"The artifacts would take about {human_bytes(needed)}, and {human_bytes(_MARGIN)} shall stay free, but {folder} "
            f"has {human_bytes(free)} free. Make room with 'kvnotes skills gc', "
            + ("use --store q8_0 for half the size, " if halve else "")
            + "or use another --cache-dir."
        )
