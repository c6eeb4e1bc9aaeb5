"""A question: room is made, waiting fields are settled, the model reads it and answers, and both are kept."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TypedDict

from kvnotes_local.contract.generation import Sampling, StopReason
from kvnotes_local.contract.model_info import ModelClass
from kvnotes_local.contract.protocol import Progress
from kvnotes_local.errors import UsageError
from kvnotes_local.notebook.answering import Answering
from kvnotes_local.notebook.auto_edit import settle
from kvnotes_local.notebook.changes import Draft, field_values
from kvnotes_local.notebook.context_room import with_room
from kvnotes_local.notebook.edit import EditResult
from kvnotes_local.notebook.listening import OnText, listen
from kvnotes_local.notebook.proof import Proof
from kvnotes_local.notebook.reply import Reply
from kvnotes_local.notebook.segment_factory import SegmentFactory
from kvnotes_local.notebook.working_chat import WorkingChat
from kvnotes_local.wording import counted

_EDIT_ROOM = 48
"""Tokens that an edit may need beside the value: the words of an erratum and its turn."""


class AskOptions(TypedDict, total=False):
    """What ``Notebook.ask`` may be told beside the text, for what asks in another way."""

    sampling: Sampling | None
    max_tokens: int
    on_text: OnText | None
    keep_logits: bool
    progress: Progress | None


def ask(
    chat: WorkingChat,
    factory: SegmentFactory,
    text: str,
    *,
    sampling: Sampling,
    max_tokens: int,
    on_text: OnText | None,
    keep_logits: bool,
    behind: int | None,
    notice: OnText,
    progress: Progress | None,
) -> Reply:
    """What ``Notebook.ask`` promises."""
    if max_tokens < 1:
        raise UsageError(f"An answer of {counted(max_tokens, 'token')} cannot be given; allow 1 or more.")
    began = time.perf_counter()
    base = chat.segments[:behind]
    question, opening = factory.user(text, base[-1] if base else None), factory.opening()
    info = chat.cache.engine.info
    room = info.n_ctx - question.n_tokens - opening.n_tokens - min(max_tokens, info.n_ctx // 4)
    edits: tuple[EditResult, ...] = ()
    with chat.as_a_whole():
        present = field_values(base)
        chat.unsettled = {name: value for name, value in chat.unsettled.items() if name in present}
        room -= sum(_EDIT_ROOM + 2 * len(factory.tokens_of(value)) for value in chat.unsettled.values())
        strip_reasoning = info.model_class is ModelClass.SPLICE
        draft = with_room(base, chat.cache.n_cached, room, chat.on_full, strip_reasoning, notice, joint=factory.joint)
        if chat.unsettled:
            chat.apply(draft.change(), progress=progress)
            asked = question.tokens + opening.tokens
            chat.segments, edits = settle(chat.cache, factory, chat.segments, chat.unsettled, asked)
            chat.unsettled = {}
            draft = Draft(chat.segments, chat.cache.n_cached, factory.joint).keep()
        draft.read(question).read(opening)
        chat.apply(draft.change(), logits=True, progress=progress)
    chat.keeper.store(chat.segments, "ask")
    n_read = len(chat.tokens)
    logits = chat.cache.engine.logits(chat.cache.seq) if keep_logits else None
    answering = Answering(chat.cache, chat.segments, sampling, max_tokens)
    generation = answering.generation
    heard = listen(generation, factory.format.stop_texts, on_text)
    segment = factory.answer(opening, generation, heard.text)
    proof = replace(
        chat.cache.cost,
        generated=len(generation.tokens),
        reused=max(0, n_read - chat.cache.cost.n_new),
        ttft_ms=(heard.first_token_at - began) * 1e3,
        recompute_ms=chat.cache.speed.milliseconds(n_read),
        tokens_per_second=len(generation.tokens) / generation.seconds if generation.seconds else None,
    )
    chat.cache.cost = Proof()
    segment = replace(segment, proof=proof)
    chat.replace((*chat.segments[:-1], segment), "answer")
    failed = answering.failed or heard.failed
    if failed is not None:
        raise failed
    return Reply(segment.text, proof, generation.stop_reason or StopReason.STOPPED, segment, logits, edits)
