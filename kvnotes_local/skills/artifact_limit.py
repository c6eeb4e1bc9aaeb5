"""A limit for what is compiled: where a new artifact goes over it, those go that were not used for longest."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.wording import counted

DEFAULT_MAX_BYTES = 64 << 30
"""256 skills of 2,000 tokens where a token takes 128 KiB, as it does with 32 layers of 1,024 elements in F16."""

VARIABLE = "KVNOTES_MAX_ARTIFACTS"
"""Environment variable with another limit, as in 20G."""


@dataclass(frozen=True)
class ArtifactLimit:
    """``max_bytes`` of artifacts in a store; ``tell`` is told in a sentence what went."""

    tell: Callable[[str], None]
    max_bytes: int = DEFAULT_MAX_BYTES

    def keep_within(self, store: ArtifactStore, keep: Collection[str]) -> None:
        """Delete the least recently used artifacts until the rest fits; those of skills named in ``keep`` stay.

        Raises ArtifactError for a file that cannot be deleted.
        """
        if store.total_bytes() <= self.max_bytes:
            return
        gone = store.gc(self.max_bytes, keep=keep)
        if gone:
            freed = sum(one.n_bytes for one in gone) / (1 << 20)
            self.tell(
                f"{counted(len(gone), 'file')} of compiled skills ({freed:,.0f} MiB), not used for longest, deleted to stay "
                f"within {self.max_bytes / (1 << 20):,.0f} MiB (${VARIABLE}); they are made again when they are needed. "
                "Pinned skills keep theirs."
            )
