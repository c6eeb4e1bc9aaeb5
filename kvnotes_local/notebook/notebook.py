"""One chat as a list of segments that can be changed in the middle, and the engine's cache kept in step with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.engine.protocol import Engine, Generation, ModelClass, Progress, Sampling, StopReason
from kvnotes_local.errors import EngineLost, SkillError, UsageError
from kvnotes_local.notebook.answering import Answering
from kvnotes_local.notebook.changes import EVERYTHING, Change, Draft, field_values, find_skill
from kvnotes_local.notebook.chat_cache import ChatCache
from kvnotes_local.notebook.chat_params import DEFAULT_MAX_TOKENS
from kvnotes_local.notebook.context_room import with_room
from kvnotes_local.notebook.edit import DEFAULT_WINDOW, EditLevel, EditResult
from kvnotes_local.notebook.field_edit import AutoEdit, edit_field
from kvnotes_local.notebook.history import History
from kvnotes_local.notebook.listening import OnText, listen
from kvnotes_local.notebook.on_full import OnFull
from kvnotes_local.notebook.proof import Proof
from kvnotes_local.notebook.reply import Reply
from kvnotes_local.notebook.segment import Kind, Segment, all_tokens, start_of
from kvnotes_local.notebook.segment_factory import SegmentFactory
from kvnotes_local.notebook.skill_splicer import SkillSplicer
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.library import SkillLibrary

OnChange = Callable[[tuple[Segment, ...], str], None]
"""Called after every change with the segments and the operation: the place to store them."""


class Notebook:
    """A chat. The segments are the truth; the engine's sequence holds a beginning of their tokens (``check`` verifies it).

    >>> notebook = Notebook(engine, library=library, compiler=compiler)
    >>> notebook.splice("refund-policy")
    >>> print(notebook.ask("How long is the refund window?").text)
    >>> notebook.set("refund window", "45 days")
    >>> print(notebook.ask("And now?").text)

    ``compiler`` and ``library`` are needed for skills only. ``on_notice`` is told in a sentence what users should know.
    ``on_change`` stores each change before the call that made it returns. ``on_full``: what happens when the context is full.
    ``values``: of fields in the system text. Every change succeeds as a whole or leaves the chat as it was.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        library: SkillLibrary | None = None,
        compiler: SkillCompiler | None = None,
        system: str | None = None,
        values: Mapping[str, str] | None = None,
        on_notice: OnText | None = None,
        on_full: OnFull = OnFull.DROP_OLDEST,
        on_change: OnChange | None = None,
    ) -> None:
        self.on_full = on_full
        self.on_change = on_change or (lambda segments, what: None)
        self.engine = engine
        self._library = library
        self._compiler = compiler
        self._notice = on_notice or (lambda text: None)
        self._factory = SegmentFactory(engine)
        self._cache = ChatCache(engine, self._notice)
        self._history = History(self._cache)
        self._unsettled: dict[str, str] = {}
        self.segments: tuple[Segment, ...] = self._factory.beginning(system, values or {})

    @classmethod
    def resume(
        cls, engine: Engine, segments: tuple[Segment, ...], key: str, *, parent: str | None = None, **how: object
    ) -> tuple[Notebook, bool]:
        """A chat as it was stored. True where its saved state (``park``) was restored; else it is made anew: what the saved
        state of ``parent`` (the chat that it was forked from) has in common with it stays, artifacts are spliced, the rest is
        read. Takes what the constructor takes."""
        notebook = cls(engine, **how)  # type: ignore[arg-type]
        try:
            seq = engine.unpark(key)
            if seq is None and parent is not None:
                seq = engine.unpark(parent)
        except EngineLost:
            seq = None
        if seq is not None:
            notebook._cache.replace_sequence(seq)
        held = notebook._cache.n_cached
        restored = seq is not None and list(engine.tokens(seq)) == all_tokens(segments)[:held]
        notebook.segments = segments if restored else notebook._cache.rebuild(segments)
        notebook._close_open_answer()
        return notebook, restored

    def park(self, key: str, *, on_disk: bool = False) -> bool:
        """Leave the context but keep the state under ``key`` for ``resume``; False where there is no room for it."""
        return self._cache.park(key, on_disk=on_disk)

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def tokens(self) -> list[int]:
        """All tokens of the chat; a token's position is its index."""
        return all_tokens(self.segments)

    @property
    def n_cached(self) -> int:
        """Tokens whose rows the engine holds; the rest is decoded with the next change."""
        return self._cache.n_cached

    @property
    def skills(self) -> tuple[str, ...]:
        """Names of the skills in the chat."""
        return tuple(segment.name for segment in self.segments if segment.kind is Kind.SKILL)

    @property
    def fields(self) -> dict[str, str]:
        """Current value of each field."""
        return field_values(self.segments)

    def check(self) -> None:
        """Verify that engine and chat agree. Raises EngineError."""
        self._cache.check(self.segments)

    def can_predict(self, index: int) -> bool:
        """Does the engine hold what stands before the content of segment ``index``?"""
        return 0 < start_of(self.segments, index) + self.segments[index].content_start <= self.n_cached

    def predictions(self, index: int) -> NDArray[np.float32]:
        """float32 (n, n_vocab): what the chat's rows, as they are now, predict for each token of segment ``index``'s content."""
        segment = self.segments[index]
        first = start_of(self.segments, index) + segment.content_start
        last = first + segment.content_stop - segment.content_start
        seq = self._cache.fork(first - 1)
        try:
            return self.engine.score(seq, self.tokens[first - 1 : last - 1])
        finally:
            self.engine.free_sequence(seq)

    # -- growing -------------------------------------------------------------------------------------------------------

    def say(self, user: str, assistant: str) -> None:
        """Append an exchange as it is, without asking the model."""
        self._history.did(self._cache.remember(self.segments))
        self.segments += (self._factory.user(user, self._last), self._factory.assistant(assistant))
        self.on_change(self.segments, "say")

    def read(self, *, progress: Progress | None = None) -> None:
        """Let the model read what it has not read yet (an exchange that was said, the end of the last answer)."""
        self._apply(Draft(self.segments, self.n_cached).keep().change(), progress=progress)

    def forget_cost(self) -> None:
        """Let the next proof begin here: what the chat cost so far is not counted in it."""
        self._cache.cost = Proof()

    def splice(
        self,
        name: str,
        *,
        at: int | None = None,
        repair: int | None = None,
        values: Mapping[str, str] | None = None,
        read: bool = False,
        heed_verdict: bool = True,
        progress: Progress | None = None,
    ) -> Segment:
        """Put a skill into the chat: its rows come from its artifact, which is compiled first if need be.

        ``at``: index of the segment before which it goes, None for the end. What follows is moved, not read again, and
        counts as stale. ``repair``: tokens at the seam to compute on the real prefix. ``read``: let the model read the skill
        instead; prefix-only models do so wherever they cannot restore a state, and ``on_notice`` is told. So is a skill read
        for which the gate did not hold, unless ``repair`` is given or ``heed_verdict`` is False. A skill that is in the chat
        already stays where it is. Raises SkillError, ArtifactError, EngineError.
        """
        present = find_skill(self.segments, name)
        if present is not None:
            return self.segments[present]
        if self._library is None or self._compiler is None:
            raise SkillError("This notebook was made without a skill library, so it cannot splice.")
        place = self._place(at)
        splicer = SkillSplicer(
            self.engine, self._library, self._compiler, self._factory, self._notice, self._cache.speed
        )
        change = splicer.change(
            self.segments,
            self.n_cached,
            name,
            place,
            repair=repair,
            values=values,
            read=read,
            heed_verdict=heed_verdict,
            progress=progress,
        )
        self._change(change, f"splice {name}", progress=progress)
        return self.segments[place]

    def ask(
        self,
        text: str,
        *,
        sampling: Sampling | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        on_text: OnText | None = None,
        keep_logits: bool = False,
        progress: Progress | None = None,
    ) -> Reply:
        """Ask, let the model answer, and keep both. ``on_text`` is called with each piece as it comes.

        ``cancel`` on the engine ends the answer early; what was said so far is kept and marked as stopped. So it is where the
        engine process dies twice, which raises EngineCrashed afterwards.
        """
        began = time.perf_counter()
        question, opening = self._factory.user(text, self._last), self._factory.opening()
        edits = self._settle_twice(question, opening) if self._unsettled else ()
        info = self.engine.info
        room = info.n_ctx - question.n_tokens - opening.n_tokens - min(max_tokens, info.n_ctx // 4)
        strip_reasoning = info.model_class is ModelClass.SPLICE
        draft = with_room(self.segments, self.n_cached, room, self.on_full, strip_reasoning, self._notice)
        draft.read(question).read(opening)
        self._change(draft.change(), "ask", logits=True, progress=progress)
        n_read = len(self.tokens)
        logits = self.engine.logits(self._cache.seq) if keep_logits else None
        answering = Answering(self._cache, self.segments, sampling or Sampling(), max_tokens)
        generation = answering.generation
        try:
            heard = listen(generation, self._factory.format.stop_texts, on_text)
        except BaseException:
            self._close_open_answer()
            raise
        segment = self._factory.answer(opening, generation, heard.text)
        proof = replace(
            self._cache.cost,
            generated=len(generation.tokens),
            reused=max(0, n_read - self._cache.cost.n_new),
            ttft_ms=(heard.first_token_at - began) * 1e3,
            recompute_ms=self._cache.speed.milliseconds(n_read),
            tokens_per_second=len(generation.tokens) / generation.seconds if generation.seconds else None,
        )
        self.forget_cost()
        segment = replace(segment, proof=proof)
        self.segments = (*self.segments[:-1], segment)
        self.on_change(self.segments, "answer")
        if answering.failed is not None:
            raise answering.failed
        return Reply(heard.text, proof, generation.stop_reason or StopReason.STOPPED, segment, logits, edits)

    def regenerate(self, **how: object) -> Reply:
        """Take the last question and its answer back and ask it again. Takes what ``ask`` takes."""
        if len(self.segments) < 2 or self.segments[-2].kind is not Kind.USER or self._last.kind is not Kind.ASSISTANT:  # type: ignore[union-attr]
            raise UsageError("The chat does not end with an answer that could be given again.")
        return self.edit_and_resend(len(self.segments) - 2, self.segments[-2].text, **how)

    def edit_and_resend(self, index: int, text: str, **how: object) -> Reply:
        """Replace the user turn ``index`` and everything behind it by a new question. Takes what ``ask`` takes."""
        self._user_turn(index)
        self._change(Draft(self.segments, self.n_cached).keep(0, index).change(), "take back")
        return self.ask(text, **how)  # type: ignore[arg-type]

    # -- editing -------------------------------------------------------------------------------------------------------

    def set(
        self,
        name: str,
        value: str,
        *,
        level: EditLevel = EditLevel.FIELD_ERRATUM,
        window: int = DEFAULT_WINDOW,
        progress: Progress | None = None,
    ) -> EditResult:
        """Give a field another value. With AUTO the level is settled at the next question. Raises UsageError."""
        if name not in self.fields:
            known = ", ".join(self.fields) or "it has none"
            raise UsageError(f"The chat has no field {name!r}. Its fields: {known}.")
        if level is EditLevel.AUTO:
            self._unsettled[name] = value
            return EditResult(name, value, level, 0, 0, "settled at the next question")
        change = edit_field(self.segments, self.n_cached, self._factory, name, value, level, window)
        cost = self._change(change, f"set {name}", progress=progress)
        return EditResult(name, value, level, cost.prefilled, cost.moved, "as asked")

    def drop(self, name: str, *, clean: bool = False, progress: Progress | None = None) -> Proof:
        """Take a skill out. Its rows go and the gap closes; since later turns took notes of it, a line says that it no
        longer applies. ``clean``: what follows is read again instead. Returns what it cost. Raises UsageError."""
        index = find_skill(self.segments, name)
        if index is None:
            raise UsageError(f"The chat has no skill {name!r}. Its skills: {', '.join(self.skills) or 'none'}.")
        draft = Draft(self.segments, self.n_cached).keep(0, index).changed(EVERYTHING if clean else 0).keep(index + 1)
        if not clean:
            draft.read(self._factory.dropped_skill_erratum(name))
        return self._change(draft.change(), f"drop {name}", progress=progress)

    def edit(self, index: int, text: str, *, recompute: bool = False, progress: Progress | None = None) -> Proof:
        """Change the text of the user turn ``index``; what follows is moved and stale, or read again.

        Returns what it cost. Raises UsageError.
        """
        self._user_turn(index)
        new = self._factory.user(text, self.segments[index - 1] if index else None)
        draft = Draft(self.segments, self.n_cached).keep(0, index).read(new).changed(EVERYTHING if recompute else 0)
        return self._change(draft.keep(index + 1).change(), "edit", progress=progress)

    def delete(self, index: int, *, recompute: bool = False, progress: Progress | None = None) -> Proof:
        """Take segment ``index`` out; what follows is moved and stale, or read again.

        Returns what it cost. Raises UsageError.
        """
        if not 0 <= index < len(self.segments) or self.segments[index].kind is Kind.SYSTEM:
            raise UsageError(f"Segment {index} cannot be deleted.")
        draft = Draft(self.segments, self.n_cached).keep(0, index).changed(EVERYTHING if recompute else 0)
        return self._change(draft.keep(index + 1).change(), "delete", progress=progress)

    # -- going back ----------------------------------------------------------------------------------------------------

    def undo(self) -> bool:
        """Take the last change back; False when there is none."""
        return self._step(self._history.undo(self.segments), "undo")

    def redo(self) -> bool:
        """Make the change that was taken back; False when there is none."""
        return self._step(self._history.redo(self.segments), "redo")

    def fork(self, at: int | None = None) -> Notebook:
        """A new chat that begins like this one, up to segment ``at`` (None: all of it); cells are shared, not copied."""
        place = len(self.segments) if at is None else at
        if not 0 <= place <= len(self.segments):
            raise UsageError(f"The chat has {len(self.segments)} segments; it cannot be forked at {place}.")
        twin = Notebook.__new__(Notebook)
        twin.__dict__.update(self.__dict__)
        twin.segments = self.segments[:place]
        length = min(self.n_cached, len(twin.tokens))
        try:
            twin._cache = ChatCache(self.engine, self._notice, self._cache.fork(length))
        except EngineLost:
            twin._cache = ChatCache(self.engine, self._notice)
        twin._cache.speed = self._cache.speed
        twin._history, twin._unsettled = History(twin._cache), {}
        twin.on_change = lambda segments, what: None
        return twin

    def close(self) -> None:
        """Give the engine's sequences back."""
        self._cache.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _last(self) -> Segment | None:
        return self.segments[-1] if self.segments else None

    def _change(self, change: Change, what: str, *, logits: bool = False, progress: Progress | None = None) -> Proof:
        """Apply a change that can be taken back; returns what it cost."""
        before = self._cache.cost
        state = self._cache.remember(self.segments)
        try:
            self._apply(change, logits=logits, progress=progress)
        except BaseException:
            self._cache.forget([state])
            raise
        self._history.did(state)
        self.on_change(self.segments, what)
        return self._cache.cost.since(before)

    def _apply(self, change: Change, *, logits: bool = False, progress: Progress | None = None) -> None:
        self.segments = self._cache.apply(change, is_question=logits, logits=logits, progress=progress)

    def _step(self, segments: tuple[Segment, ...] | None, what: str) -> bool:
        if segments is None:
            return False
        self.segments = segments
        self._unsettled.clear()
        self.on_change(self.segments, what)
        return True

    def _close_open_answer(self) -> None:
        """An answer that never began, because the program ended or the engine failed, becomes an empty one that was stopped."""
        opening = self._factory.opening()
        last = self._last
        if last is not None and last.kind is Kind.ASSISTANT and last.tokens == opening.tokens:
            empty = Generation(stop_reason=StopReason.STOPPED)
            self.segments = (*self.segments[:-1], self._factory.answer(opening, empty, ""))
            self.on_change(self.segments, "answer")

    def _settle_twice(self, question: Segment, opening: Segment) -> tuple[EditResult, ...]:
        """Trials in forks that die with the engine process are made once more."""
        try:
            return self._settle(question, opening)
        except EngineLost:
            self.segments = self._cache.rebuild(self.segments)
            return self._settle(question, opening)

    def _settle(self, question: Segment, opening: Segment) -> tuple[EditResult, ...]:
        """Settle the fields that were set with AUTO, now that there is a question to settle them for."""
        results = []
        for name, value in self._unsettled.items():
            chosen = AutoEdit(self._cache, self._factory, self.segments).choose(
                name, value, question.tokens + opening.tokens
            )
            trial = chosen.trial
            self._history.did(self._cache.remember(self.segments))
            self._cache.adopt(trial.seq, trial.applied)
            self.segments = trial.change.segments
            self.on_change(self.segments, f"set {name}")
            results.append(chosen.result(name, value))
        self._unsettled.clear()
        return tuple(results)

    def _place(self, at: int | None) -> int:
        place = len(self.segments) if at is None else at
        first = 1 if self.segments and self.segments[0].kind is Kind.SYSTEM else 0
        if not first <= place <= len(self.segments):
            raise UsageError(f"A skill can stand before segment {first} … {len(self.segments)}, not before {place}.")
        return place

    def _user_turn(self, index: int) -> Segment:
        if not 0 <= index < len(self.segments) or self.segments[index].kind is not Kind.USER:
            raise UsageError(f"Segment {index} is not something that the user said.")
        return self.segments[index]
