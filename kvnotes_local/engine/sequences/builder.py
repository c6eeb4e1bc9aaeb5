"""Makes a sequence what a plan says: keeps, moves, decodes and splices rows from left to right."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvnotes_local.artifacts.artifact import Artifact
from kvnotes_local.contract.model_info import ModelClass
from kvnotes_local.contract.plan import Applied, Decode, Graft, Keep, Part, Splice
from kvnotes_local.contract.protocol import Progress
from kvnotes_local.engine.llama.checkpoints import Checkpoints, end_where_known, go_back
from kvnotes_local.engine.llama.context import LlamaContext
from kvnotes_local.engine.sequences.rows_transfer import RowsTransfer, TransferStats
from kvnotes_local.errors import ContextFullError, EngineError
from kvnotes_local.kv.layout import StateRows
from kvnotes_local.kv.rows import mix_layers, slice_rows
from kvnotes_local.wording import counted

OpenArtifact = Callable[[Path], Artifact]
Sources = Mapping[int, "SequenceState"]
"""Sequences that rows are taken from, by the numbers that grafts name them with."""


@dataclass
class SequenceState:
    """A sequence of the context and the tokens that it holds, in order of position. ``checkpoints``: of prefix-only models."""

    id: int
    tokens: list[int] = field(default_factory=list)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)


@dataclass
class _Run:
    """One plan being carried out."""

    logits: bool
    progress: Progress | None
    sources: Sources
    total: int
    done: int = 0
    reused: int = 0
    moved: int = 0
    decoded: int = 0
    spliced: int = 0
    decode_seconds: float = 0.0
    transfer: TransferStats = field(default_factory=TransferStats)

    def advance(self, n_tokens: int) -> None:
        self.done += n_tokens
        if self.progress is not None:
            self.progress(self.done, self.total)


class SequenceBuilder:
    """Carries out plans. A new state grows in the sequence ``stage`` before it replaces the old one."""

    def __init__(
        self,
        context: LlamaContext,
        transfer: RowsTransfer,
        model_class: ModelClass,
        stage: int,
        open_artifact: OpenArtifact,
    ) -> None:
        self._context = context
        self._transfer = transfer
        self._class = model_class
        self._stage = stage
        self._open = open_artifact

    def apply(
        self,
        state: SequenceState,
        parts: Sequence[Part],
        sources: Sources,
        *,
        logits: bool,
        progress: Progress | None,
    ) -> Applied:
        """Carry out a plan; ``state.tokens`` always says what the sequence holds, also after an error.

        An error leaves the sequence as it was, unless its old and new rows did not fit into the context side by side and the
        old ones were taken out first: then it may hold the beginning of the new state.
        """
        began = time.perf_counter()
        parts = [part for part in parts if part.n_tokens]
        _check(parts, len(state.tokens))
        self._check_grafts(parts, len(state.tokens), sources)
        run = _Run(logits, progress, sources, sum(part.n_tokens for part in parts))
        if run.total > self._context.n_ctx:
            raise ContextFullError(
                f"{counted(run.total, 'token')} cannot fit into the context of {self._context.n_ctx:,}. "
                "Use a larger --n-ctx; in a chat, drop a skill or start a new one."
            )
        if self._class is not ModelClass.SPLICE:
            parts = self._decode_what_cannot_move(state, parts)
        if self._class is ModelClass.PREFIX_ONLY:
            state.checkpoints.take(self._context, state.id, len(state.tokens))
        prefix = 0
        if parts and isinstance(parts[0], Keep) and parts[0].start == 0:
            prefix = parts.pop(0).n_tokens
        run.reused = prefix
        run.advance(prefix)
        if prefix == len(state.tokens) and not any(isinstance(part, (Keep, Graft)) for part in parts):
            self._append(state, parts, run)
        else:
            self._rebuild(state, prefix, parts, run)
        return Applied(
            reused=run.reused,
            moved=run.moved,
            decoded=run.decoded,
            spliced=run.spliced,
            decode_seconds=run.decode_seconds,
            reposition_seconds=run.transfer.reposition_seconds,
            restore_seconds=run.transfer.restore_seconds,
            seconds=time.perf_counter() - began,
            bytes_restored=run.transfer.bytes_restored,
        )

    def _append(self, state: SequenceState, parts: Sequence[Part], run: _Run) -> None:
        length = len(state.tokens)
        try:
            self._build(state, parts, run, {}, None, ())
        except BaseException:
            del state.tokens[length:]
            end_where_known(self._context, state.id, state.tokens, state.checkpoints)
            raise

    def _rebuild(self, state: SequenceState, prefix: int, parts: Sequence[Part], run: _Run) -> None:
        old = tuple(state.tokens)
        staged = SequenceState(self._stage, list(old[:prefix]))
        checkpoint = state.checkpoints.nearest(prefix) if self._class is ModelClass.PREFIX_ONLY else None
        try:
            if prefix and checkpoint is not None and prefix < len(old):
                self._context.copy(state.id, staged.id)
                go_back(self._context, staged.id, checkpoint)
            elif prefix:
                self._context.copy(state.id, staged.id, 0, prefix)
            self._build(staged, parts, run, {}, state.id, old)
        except ContextFullError:
            self._context.remove(staged.id, -1)
            if any(isinstance(part, Graft) for part in parts):
                raise
            self._rebuild_in_place(state, prefix, parts, run)
            return
        except BaseException:
            self._context.remove(staged.id, -1)
            raise
        self._context.remove(state.id, -1)
        self._context.copy(staged.id, state.id)
        self._context.remove(staged.id, -1)
        state.tokens = staged.tokens
        state.checkpoints.cut(prefix)

    def _rebuild_in_place(self, state: SequenceState, prefix: int, parts: Sequence[Part], run: _Run) -> None:
        """Old and new rows do not fit side by side: take the rows to be kept into memory, cut, and put them back."""
        old = tuple(state.tokens)
        saved = {part: self._transfer.read(state.id, part.start, part.stop) for part in parts if isinstance(part, Keep)}
        checkpoint = state.checkpoints.nearest(prefix) if self._class is ModelClass.PREFIX_ONLY else None
        if prefix and checkpoint is not None and prefix < len(old):
            go_back(self._context, state.id, checkpoint)
        else:
            self._context.remove(state.id, prefix)
        del state.tokens[prefix:]
        state.checkpoints.cut(prefix)
        again = _Run(run.logits, run.progress, run.sources, run.total, done=prefix, reused=prefix, decoded=run.decoded)
        try:
            self._build(state, parts, again, saved, None, old)
        except BaseException:
            end_where_known(self._context, state.id, state.tokens, state.checkpoints)
            raise
        run.__dict__.update(again.__dict__)

    def _build(
        self,
        state: SequenceState,
        parts: Sequence[Part],
        run: _Run,
        saved: dict[Keep, StateRows],
        source: int | None,
        old: Sequence[int],
    ) -> None:
        """Append parts to ``state``; kept rows come from ``saved`` or from sequence ``source``, whose tokens are ``old``."""
        for number, part in enumerate(parts):
            at = len(state.tokens)
            if isinstance(part, Decode):
                began = time.perf_counter()
                self._context.decode(
                    state.id,
                    part.tokens,
                    at,
                    logits=run.logits and number == len(parts) - 1,
                    progress=None if run.progress is None else _Offset(run),
                )
                run.decode_seconds += time.perf_counter() - began
                run.decoded += part.n_tokens
                tokens: Sequence[int] = part.tokens
            elif isinstance(part, Keep):
                if part in saved:
                    self._transfer.write(saved[part], state.id, at, run.transfer)
                elif source is not None and part.start == at:
                    self._context.copy(source, state.id, part.start, part.stop)
                elif source is not None:
                    rows = self._transfer.read(source, part.start, part.stop)
                    self._transfer.write(rows, state.id, at, run.transfer)
                else:
                    raise EngineError("Rows to be kept are gone.")
                if part.start == at:
                    run.reused += part.n_tokens
                else:
                    run.moved += part.n_tokens
                tokens = old[part.start : part.stop]
            elif isinstance(part, Graft):
                tokens = self._graft(part, state, source, old, run)
            else:
                artifact = self._open(part.artifact)
                if artifact.is_state:
                    self._transfer.restore_whole(artifact.state(), state.id)
                else:
                    rows = slice_rows(artifact.rows(), part.start, part.stop)
                    self._transfer.write(rows, state.id, at, run.transfer)
                run.spliced += part.n_tokens
                tokens = artifact.meta.tokens[part.start : part.stop]
            state.tokens.extend(tokens)
            run.advance(part.n_tokens)

    def _graft(
        self, part: Graft, state: SequenceState, own: int | None, old: Sequence[int], run: _Run
    ) -> Sequence[int]:
        """Append rows of another sequence, or a mixture with rows of sequence ``own``; returns their tokens."""
        at, source = len(state.tokens), run.sources[part.source]
        if part.whole and part.start == at:
            self._context.copy(source.id, state.id, part.start, part.stop)
            run.reused += part.n_tokens
        else:
            rows = self._transfer.read(source.id, part.start, part.stop)
            if not part.whole:
                if own is None:
                    raise EngineError("Rows to be mixed are gone.")
                mine = self._transfer.read(own, part.own, part.own + part.n_tokens)
                if part.own != part.start:
                    mine = self._transfer.moved(mine, part.start - part.own, mine.layout)
                rows = mix_layers(mine, rows, part.depth)
            self._transfer.write(rows, state.id, at, run.transfer)
            run.moved += part.n_tokens
        if part.whole:
            return source.tokens[part.start : part.stop]
        return old[part.own : part.own + part.n_tokens]

    def _check_grafts(self, parts: Sequence[Part], length: int, sources: Sources) -> None:
        for part in parts:
            if not isinstance(part, Graft):
                continue
            if self._class is not ModelClass.SPLICE:
                raise EngineError("Rows of this model cannot be taken from one sequence into another.")
            there = len(sources[part.source].tokens)
            if not 0 <= part.start <= part.stop <= there:
                raise EngineError(f"A plan takes rows {part.start:,}–{part.stop:,} of a sequence of {there:,} tokens.")
            if not part.whole and not 0 <= part.own <= part.own + part.n_tokens <= length:
                raise EngineError(f"A plan mixes with rows from {part.own:,} on of a sequence of {length:,} tokens.")

    def _decode_what_cannot_move(self, state: SequenceState, parts: Sequence[Part]) -> list[Part]:
        """For memories that cannot be cut or moved: everything but a beginning is computed again, from the last checkpoint
        that the plan still agrees with."""
        result: list[Part] = []
        at = 0
        for part in parts:
            if isinstance(part, Keep):
                kept = 0
                if part.start == at == 0:
                    kept = part.stop if part.stop == len(state.tokens) else 0
                    checkpoint = state.checkpoints.nearest(part.stop)
                    if not kept and checkpoint is not None:
                        kept = checkpoint.n_tokens
                if kept:
                    result.append(Keep(0, kept))
                if part.start + kept < part.stop:
                    result.append(Decode(tuple(state.tokens[part.start + kept : part.stop])))
            elif isinstance(part, Splice):
                artifact = self._open(part.artifact)
                if artifact.is_state and at == 0 and part.start == 0 and part.stop == len(artifact.meta.tokens):
                    result.append(part)
                else:
                    result.append(Decode(tuple(artifact.meta.tokens[part.start : part.stop])))
            else:
                result.append(part)
            at += part.n_tokens
        return result


class _Offset:
    """Progress of one decode as progress of the whole plan."""

    def __init__(self, run: _Run) -> None:
        self._run = run

    def __call__(self, n_tokens: int) -> None:
        if self._run.progress is not None:
            self._run.progress(self._run.done + n_tokens, self._run.total)


def _check(parts: Sequence[Part], length: int) -> None:
    for part in parts:
        if isinstance(part, Keep) and not 0 <= part.start <= part.stop <= length:
            raise EngineError(f"A plan keeps rows {part.start:,}–{part.stop:,} of a sequence of {length:,} tokens.")
