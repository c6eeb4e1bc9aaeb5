"""The context of a compile batch: leads are read once and forked, jobs are read behind them, rows are taken out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from kvnotes_local.contract.compile_job import BatchCost
from kvnotes_local.engine.compiling.packs import NumberedJob, Pack
from kvnotes_local.engine.llama.context import LlamaContext, Run
from kvnotes_local.engine.llama.model import LlamaModel
from kvnotes_local.engine.rotation.live_layout import read_live_layout
from kvnotes_local.engine.rotation.model_class import Classified, probe_token
from kvnotes_local.engine.sequences.rows_transfer import RowsTransfer
from kvnotes_local.errors import EngineError
from kvnotes_local.kv.converter import RowConverter
from kvnotes_local.kv.layout import StateLayout, StateRows

Lead = tuple[int, ...]
Advance = Callable[[int, int], None]
"""Called with a job's number and how many of its tokens are done, counted in equal parts for each lead."""

_SPARE = 0


class LeadPrefill:
    """Reads jobs in one context. ``whole``: keep whole states (prefix-only models) instead of rows.

    Not thread-safe. Sequence 0 is the spare one of the transfers; the others hold leads and runs.
    """

    def __init__(
        self, context: LlamaContext, model: LlamaModel, classified: Classified, converter: RowConverter, *, whole: bool
    ) -> None:
        self.whole = whole
        self.cost = BatchCost()
        self.lead_seconds = 0.0  # spent on reading leads, which the sample of a pack does not read again
        self._context = context
        self._leads: dict[Lead, int] = {}
        self._runs: dict[tuple[int, int], int] = {}
        self._read: dict[int, list[StateRows]] = {}
        self._free = list(range(context.n_seq - 1, 0, -1))
        if not whole:
            layout = read_live_layout(model, context, _SPARE, probe_token(model))
            self._plain = layout.plain()
            self._transfer = RowsTransfer(context, layout, classified.rotation, _SPARE, model.n_swa, converter)

    def read(self, pack: Pack, advance: Advance) -> None:
        """Compute the tokens of the jobs; their rows are kept until ``drop``. Raises EngineError, Cancelled."""
        try:
            if self.whole:
                self._read_whole(pack[0], advance)
            elif len(pack) == 1:
                self._read_alone(pack[0], advance)
            else:
                self._read_together(pack, advance)
        except BaseException:
            for one in pack:
                self.drop(one)
            raise

    def rows(self, one: NumberedJob) -> list[StateRows]:
        """The rows of a job behind each lead, all at the positions that they have behind the last one."""
        return self._read[one.number]

    def state(self, one: NumberedJob) -> memoryview:
        """The whole state after a job."""
        return self._context.get_state(self._runs[one.number, 0])

    def stored(self, rows: StateRows, layout: StateLayout) -> StateRows:
        """Rows in the layout of a file, where they are."""
        return rows if rows.layout == layout else self._transfer.moved(rows, 0, layout)

    def drop(self, one: NumberedJob) -> None:
        """Forget a job's rows and sequences."""
        self._read.pop(one.number, None)
        for key in [key for key in self._runs if key[0] == one.number]:
            self._release(self._runs.pop(key))

    def sample(self, pack: Pack, seconds: float) -> None:
        """Decode the pack again and note how long llama.cpp takes alone; ``seconds``: what it took before, with all else.

        Of a job that was decoded run by run one run is enough.
        """
        alone = len(pack) == 1
        jobs = [(pack[0], 0)] if alone else [(one, at) for one in pack for at in range(one.n_runs)]
        runs = [self._run(one, at) for one, at in jobs]
        began = time.perf_counter()
        self._context.decode_runs(runs)
        self._context.synchronize()
        plain = time.perf_counter() - began
        for one, _ in jobs:
            self.drop(one)
        n_tokens = sum(len(run.tokens) for run in runs)
        self.cost = replace(
            self.cost,
            sample_tokens=self.cost.sample_tokens + n_tokens,
            sample_seconds=self.cost.sample_seconds + (seconds / pack[0].n_runs if alone else seconds),
            sample_plain_seconds=self.cost.sample_plain_seconds + plain,
        )

    def _read_whole(self, one: NumberedJob, advance: Advance) -> None:
        lead = one.job.leads[0]
        seq = self._runs[one.number, 0] = self._take()
        run = Run(seq, lead + one.job.tokens, 0)
        self._decode([run], lambda done: advance(one.number, max(0, done - len(lead))))

    def _read_alone(self, one: NumberedJob, advance: Advance) -> None:
        for at in range(one.n_runs):
            run = self._run(one, at)
            before = at * len(run.tokens)

            def tell(done: int, before: int = before) -> None:
                advance(one.number, (before + done) // one.n_runs)

            self._decode([run], tell)
            self._keep(one, at, run)

    def _read_together(self, pack: Pack, advance: Advance) -> None:
        runs = {(one.number, at): self._run(one, at) for one in pack for at in range(one.n_runs)}
        self._decode(list(runs.values()))
        for one in pack:
            for at in range(one.n_runs):
                self._keep(one, at, runs[one.number, at])
            advance(one.number, len(one.job.tokens))

    def _run(self, one: NumberedJob, at: int) -> Run:
        """A sequence that holds lead number ``at`` of the job, and what is to be computed behind it."""
        lead = one.job.leads[at]
        source = self._lead(lead, len(one.job.tokens))
        seq = self._runs[one.number, at] = self._take()
        self._context.copy(source, seq, 0, len(lead))
        return Run(seq, one.job.tokens, len(lead))

    def _keep(self, one: NumberedJob, at: int, run: Run) -> None:
        rows = self._transfer.read(run.seq, run.start, run.start + len(run.tokens))
        distance = len(one.job.leads[-1]) - run.start
        if distance or rows.layout != self._plain:
            rows = self._transfer.moved(rows, distance, self._plain)
        self._read.setdefault(one.number, []).append(rows)
        self._release(self._runs.pop((one.number, at)))

    def _lead(self, lead: Lead, n_tokens: int) -> int:
        """The sequence that holds a lead, read now if it is not there; others go where ``n_tokens`` behind it need room."""
        for other in list(self._leads):
            if (
                other != lead
                and self._n_cells + n_tokens + (0 if lead in self._leads else len(lead)) > self._context.n_ctx
            ):
                self._release(self._leads.pop(other))
        if lead not in self._leads:
            seq = self._take()
            before = self.cost.decode_seconds
            try:
                self._decode([Run(seq, lead, 0)])
            except BaseException:
                self._release(seq)
                raise
            self.lead_seconds += self.cost.decode_seconds - before
            self._leads[lead] = seq
        return self._leads[lead]

    @property
    def _n_cells(self) -> int:
        """Cells in use, as far as leads go; runs share theirs. Runs that stand beside each other are counted when packed."""
        return sum(map(len, self._leads))

    def _decode(self, runs: list[Run], progress: Callable[[int], None] | None = None) -> None:
        began = time.perf_counter()
        self._context.decode_runs(runs, progress=progress)
        self._context.synchronize()
        seconds = time.perf_counter() - began
        self.cost = replace(
            self.cost,
            decoded=self.cost.decoded + sum(len(run.tokens) for run in runs),
            decode_seconds=self.cost.decode_seconds + seconds,
        )

    def _take(self) -> int:
        if not self._free and self._leads:
            self._release(self._leads.pop(next(iter(self._leads))))  # a run that was forked from it keeps its cells
        if not self._free:
            raise EngineError("All sequences of the compile context are in use.")
        return self._free.pop()

    def _release(self, seq: int) -> None:
        self._context.remove(seq, 0)
        self._free.append(seq)
