"""One chat as a list of segments that can be changed in the middle, and the engine's cache kept in step with it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.chat_format.format import SystemPlace
from kvnotes_local.contract.generation import Generation, Sampling, StopReason
from kvnotes_local.contract.model_info import ModelClass
from kvnotes_local.contract.protocol import Engine, Progress
from kvnotes_local.errors import EngineLost, SkillError, UsageError
from kvnotes_local.notebook.asking import AskOptions, ask
from kvnotes_local.notebook.changes import Change, Draft, field_values, find_skill
from kvnotes_local.notebook.chat_cache import ChatCache
from kvnotes_local.notebook.edit import DEFAULT_WINDOW, EditLevel, EditResult
from kvnotes_local.notebook.field_edit import edit_field
from kvnotes_local.notebook.listening import OnText
from kvnotes_local.notebook.on_full import OnFull
from kvnotes_local.notebook.proof import PrefillSpeed, Proof
from kvnotes_local.notebook.reply import Reply
from kvnotes_local.notebook.segment import Kind, Segment, all_tokens, start_of
from kvnotes_local.notebook.segment_changes import drop_skill, replace_beginning, replace_segment
from kvnotes_local.notebook.segment_factory import SegmentFactory
from kvnotes_local.notebook.skill_splicer import SkillSplicer
from kvnotes_local.notebook.store.params import DEFAULT_MAX_TOKENS
from kvnotes_local.notebook.working_chat import Keeper, WorkingChat
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.library import SkillLibrary
from kvnotes_local.skills.template import given_values
from kvnotes_local.spelling import composed
from kvnotes_local.wording import counted


class Notebook:
    """A chat. The segments are the truth; the engine's sequence holds a beginning of their tokens (``check`` verifies it).

    >>> notebook = Notebook(engine, library=library, compiler=compiler)
    >>> notebook.splice("refund-policy")
    >>> print(notebook.ask("How long is the refund window?").text)
    >>> notebook.set("refund window", "45 days")
    >>> print(notebook.ask("And now?").text)

    ``compiler`` and ``library`` are needed for skills only. ``on_notice`` is told in a sentence what users should know.
    ``keeper`` stores each change before the call that made it returns. ``on_full``: what happens when the context is full.
    ``values``: of fields in the system text. ``speed``: what is known of how fast this engine reads; it learns. Every change
    succeeds as a whole or leaves the chat as it was.
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
        keeper: Keeper | None = None,
        speed: PrefillSpeed | None = None,
    ) -> None:
        self.engine = engine
        self._library = library
        self._compiler = compiler
        self._notice = on_notice or (lambda text: None)
        self._factory = SegmentFactory(engine)
        self._chat = WorkingChat(
            ChatCache(engine, self._notice, speed=speed),
            self._factory.beginning(system, values or {}),
            on_full,
            keeper or Keeper(),
            self._notice,
            self._factory.joint,
        )
        if system and self._factory.format.system_is_placed:
            self._notice(self._placed_system())

    @classmethod
    def resume(
        cls,
        engine: Engine,
        segments: tuple[Segment, ...],
        key: str,
        *,
        parent: str | None = None,
        library: SkillLibrary | None = None,
        compiler: SkillCompiler | None = None,
        on_notice: OnText | None = None,
        on_full: OnFull = OnFull.DROP_OLDEST,
        keeper: Keeper | None = None,
        speed: PrefillSpeed | None = None,
    ) -> tuple[Notebook, bool]:
        """A chat as it was stored. True where its saved state (``park``) was restored; else it is made anew: what the saved
        state of ``parent`` (the chat that it was forked from) has in common with it stays, artifacts are spliced, the rest is
        read. The rest is as the constructor takes it."""
        notebook = cls(
            engine,
            library=library,
            compiler=compiler,
            on_notice=on_notice,
            on_full=on_full,
            keeper=keeper,
            speed=speed,
        )
        try:
            seq = engine.unpark(key)
            if seq is None and parent is not None:
                seq = engine.unpark(parent)
        except EngineLost:
            seq = None
        if seq is not None:
            notebook._cache.replace_sequence(seq)
        held = notebook.n_cached
        restored = seq is not None and list(engine.tokens(seq)) == all_tokens(segments)[:held]
        notebook._chat.segments = segments if restored else notebook._cache.rebuild(segments)
        notebook._close_open_answer()
        return notebook, restored

    def park(self, key: str, *, on_disk: bool = False) -> bool:
        """Leave the context but keep the state under ``key`` for ``resume``; False where there is no room for it. Fields that
        wait for a question to be settled for get the default level now."""
        for name, value in list(self._chat.unsettled.items()):
            self.set(name, value)
        return self._cache.park(key, on_disk=on_disk)

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._chat.segments

    @property
    def on_full(self) -> OnFull:
        return self._chat.on_full

    @on_full.setter
    def on_full(self, on_full: OnFull) -> None:
        self._chat.on_full = on_full

    @property
    def keeper(self) -> Keeper:
        return self._chat.keeper

    @keeper.setter
    def keeper(self, keeper: Keeper) -> None:
        self._chat.keeper = keeper

    @property
    def tokens(self) -> list[int]:
        """All tokens of the chat; a token's position is its index."""
        return self._chat.tokens

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
        """Value of each field, also of those that are settled at the next question."""
        return self._chat.fields

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
        self._chat.append((self._factory.user(user, self._last), self._factory.assistant(assistant)), "say")

    def read(self, *, progress: Progress | None = None) -> None:
        """Let the model read what it has not read yet (an exchange that was said, the end of the last answer)."""
        self._chat.apply(Draft(self.segments, self.n_cached, self._factory.joint).keep().change(), progress=progress)

    @property
    def cost(self) -> Proof:
        """What the chat cost since the last answer; counted in the next proof."""
        return self._cache.cost

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
        already stays where it is; ``values`` are then set. Raises SkillError, ArtifactError, EngineError.
        """
        if repair is not None and repair < 0:
            raise UsageError(f"A seam of {counted(repair, 'token')} cannot be computed; give 0 or more.")
        name = composed(name)
        present = find_skill(self.segments, name)
        if present is not None:
            for field, value in given_values(values).items():
                if self.fields.get(field, value) != value:
                    self.set(field, value)
            return self.segments[find_skill(self.segments, name) or present]
        if self._library is None or self._compiler is None:
            raise SkillError("This notebook was made without a skill library, so it cannot splice.")
        splicer = SkillSplicer(
            self.engine, self._library, self._compiler, self._factory, self._notice, self._cache.speed
        )
        first = 1 if self.segments and self.segments[0].kind is Kind.SYSTEM else 0
        if at is not None and not first <= at <= len(self.segments):
            raise UsageError(f"A skill can stand before segment {first} … {len(self.segments)}, not before {at}.")

        def make(segments: tuple[Segment, ...], n_cached: int) -> Change:
            return splicer.change(
                segments,
                n_cached,
                name,
                len(segments) if at is None else at,
                repair=repair,
                values=values,
                read=read,
                heed_verdict=heed_verdict,
                progress=progress,
            )

        self._chat.change(make, f"splice {name}", room=at is None, progress=progress)
        return self.segments[-1 if at is None else at]

    def ask(
        self,
        text: str,
        *,
        sampling: Sampling | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        on_text: OnText | None = None,
        keep_logits: bool = False,
        behind: int | None = None,
        progress: Progress | None = None,
    ) -> Reply:
        """Ask, let the model answer, and keep both. ``on_text`` is called with each piece as it comes. ``behind``: only the first
        so many segments stay, the question takes the place of the others; None for all.

        ``cancel`` on the engine ends the answer early; what was said so far is kept and marked as stopped. So it is where the
        engine process dies twice, which raises EngineCrashed afterwards.
        """
        return ask(
            self._chat,
            self._factory,
            text,
            sampling=sampling or Sampling(),
            max_tokens=max_tokens,
            on_text=on_text,
            keep_logits=keep_logits,
            behind=behind,
            notice=self._notice,
            progress=progress,
        )

    def regenerate(self, **how: Unpack[AskOptions]) -> Reply:
        """Take the last question and its answer back and ask it again. Takes what ``ask`` takes but the text."""
        if len(self.segments) < 2 or self.segments[-2].kind is not Kind.USER or self._last.kind is not Kind.ASSISTANT:  # type: ignore[union-attr]
            raise UsageError("The chat does not end with an answer that could be given again.")
        return self.edit_and_resend(len(self.segments) - 2, self.segments[-2].text, **how)

    def edit_and_resend(self, index: int, text: str, **how: Unpack[AskOptions]) -> Reply:
        """Replace the user turn ``index`` and everything behind it by a new question. Takes what ``ask`` takes."""
        self._user_turn(index)
        return self.ask(text, behind=index, **how)

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
        name = composed(name)
        if name not in self.fields:
            known = ", ".join(self.fields) or "it has none"
            raise UsageError(f"The chat has no field {name!r}. Its fields: {known}.")
        if level is EditLevel.AUTO:
            self._chat.unsettled.pop(name, None)
            self._chat.unsettled[name] = value
            return EditResult(name, value, level, 0, 0, "settled at the next question")

        def make(segments: tuple[Segment, ...], n_cached: int) -> Change:
            return edit_field(segments, n_cached, self._factory, name, value, level, window)

        cost = self._chat.change(make, f"set {name}", progress=progress)
        self._chat.unsettled.pop(name, None)
        return EditResult(name, value, level, cost.prefilled, cost.moved, "as asked")

    def drop(self, name: str, *, clean: bool = False, progress: Progress | None = None) -> Proof:
        """Take a skill out. Its rows go and the gap closes; since later turns took notes of it, a line says that it no
        longer applies. ``clean``: what follows is read again instead. Returns what it cost. Raises UsageError."""
        name = composed(name)
        if find_skill(self.segments, name) is None:
            raise UsageError(f"The chat has no skill {name!r}. Its skills: {', '.join(self.skills) or 'none'}.")

        make = drop_skill(name, None if clean else self._factory.dropped_skill_erratum(name), self._factory.joint)
        cost = self._chat.change(make, f"drop {name}", progress=progress)
        left = field_values(self.segments)
        self._chat.unsettled = {field: value for field, value in self._chat.unsettled.items() if field in left}
        return cost

    def set_system(self, text: str, *, progress: Progress | None = None) -> Proof:
        """Give the chat another system text, as if it had begun with it: skills are spliced again, the rest is read again,
        nothing is stale. Returns what it cost."""
        if text and self._factory.format.system_is_placed:
            self._notice(self._placed_system())
        make = replace_beginning(
            lambda closed: self._factory.beginning(text, {}, closed=closed),
            lambda: self._cache.held,
            self._factory.user,
            whole_states=self.engine.info.model_class is ModelClass.PREFIX_ONLY,
        )
        return self._chat.change(make, "system", progress=progress)

    def edit(self, index: int, text: str, *, recompute: bool = False, progress: Progress | None = None) -> Proof:
        """Change the text of the user turn ``index``; what follows is moved and stale, or read again.

        Returns what it cost. Raises UsageError.
        """
        self._user_turn(index)
        new = self._factory.user(text, self.segments[index - 1] if index else None)
        make = replace_segment(index, new, self._factory.joint, recompute=recompute)
        return self._chat.change(make, "edit", room=False, progress=progress)

    def delete(self, index: int, *, recompute: bool = False, progress: Progress | None = None) -> Proof:
        """Take segment ``index`` out; what follows is moved and stale, or read again.

        Returns what it cost. Raises UsageError.
        """
        if not 0 <= index < len(self.segments) or self.segments[index].kind is Kind.SYSTEM:
            raise UsageError(f"Segment {index} cannot be deleted.")
        make = replace_segment(index, None, self._factory.joint, recompute=recompute)
        return self._chat.change(make, "delete", room=False, progress=progress)

    # -- going back ----------------------------------------------------------------------------------------------------

    def undo(self) -> bool:
        """Take the last change back; False when there is none. A field that waits for the next question counts as one."""
        return self._chat.undo()

    def redo(self) -> bool:
        """Make the change that was taken back; False when there is none."""
        return self._chat.redo()

    def fork(self, at: int | None = None) -> Notebook:
        """A new chat that begins like this one, up to segment ``at`` (None: all of it); cells are shared, not copied.

        Prefix-only models go back to the nearest checkpoint and read the rest with the next change.
        """
        place = len(self.segments) if at is None else at
        if not 0 <= place <= len(self.segments):
            raise UsageError(f"The chat has {counted(len(self.segments), 'segment')}; it cannot be forked at {place}.")
        twin = copy(self)
        twin._chat = self._chat.fork(place)
        return twin

    def close(self) -> None:
        """Give the engine's sequences back."""
        self._cache.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _cache(self) -> ChatCache:
        return self._chat.cache

    @property
    def _last(self) -> Segment | None:
        return self.segments[-1] if self.segments else None

    def _placed_system(self) -> str:
        """Says where the system text stands, for models whose template has no place for one."""
        why = (
            "moves a system text to the last question, where it would be read again each time"
            if self._factory.format.system_place is SystemPlace.LAST_QUESTION
            else "has no place for a system text"
        )
        return f"The chat template of {self.engine.info.name} {why}, so it is put in front of the first question."

    def _close_open_answer(self) -> None:
        """An answer that never began, because the program ended, becomes an empty one that was stopped. Stored with the next
        change only: another program may be giving that answer at this moment."""
        opening = self._factory.opening()
        last = self._last
        if last is not None and last.kind is Kind.ASSISTANT and last.tokens == opening.tokens:
            empty = Generation(stop_reason=StopReason.STOPPED)
            self._chat.segments = (*self.segments[:-1], self._factory.answer(opening, empty, ""))

    def _user_turn(self, index: int) -> Segment:
        if not 0 <= index < len(self.segments) or self.segments[index].kind is not Kind.USER:
            raise UsageError(f"Segment {index} is not something that the user said.")
        return self.segments[index]
