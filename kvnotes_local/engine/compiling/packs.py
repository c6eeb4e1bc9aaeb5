"""Which jobs of a batch are decoded together, and how large a context that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvnotes_local.contract.compile_job import CompileJob

MAX_RUNS = 12
"""Runs that are decoded together at most: each is a sequence of the context, beside the leads and a spare one."""


@dataclass(frozen=True)
class NumberedJob:
    """A job with its place in the batch, which its events carry."""

    number: int
    job: CompileJob

    @property
    def n_runs(self) -> int:
        return len(self.job.leads)

    @property
    def n_decoded(self) -> int:
        """Tokens to compute, once behind each lead, without the leads' own."""
        return len(self.job.tokens) * len(self.job.leads)


Pack = tuple[NumberedJob, ...]


def pack_jobs(jobs: Sequence[NumberedJob], n_batch: int) -> list[Pack]:
    """Neighbouring jobs that fill one batch of ``n_batch`` tokens together go together; a longer one stands alone.

    A batch that is not full wastes time, since reading the weights costs as much for ten tokens as for a hundred. Longer
    jobs gain nothing from company: each of their tokens would only have more cells to look over.
    """
    packs: list[Pack] = []
    pack: list[NumberedJob] = []
    for job in jobs:
        together = [*pack, job]
        if pack and (
            sum(one.n_decoded for one in together) > n_batch or sum(one.n_runs for one in together) > MAX_RUNS
        ):
            packs.append(tuple(pack))
            together = [job]
        pack = together
    return [*packs, tuple(pack)] if pack else packs


def cells_needed(packs: Sequence[Pack]) -> int:
    """Cells for all leads of a batch beside the largest pack: all its runs at once, or one run of a job that stands alone."""
    leads = {lead for pack in packs for one in pack for lead in one.job.leads}
    runs = max(len(pack[0].job.tokens) if len(pack) == 1 else sum(one.n_decoded for one in pack) for pack in packs)
    return sum(map(len, leads)) + runs
