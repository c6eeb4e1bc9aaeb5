"""The pieces of a model's chat format, taken from its own chat template.

The template (jinja2, ``tokenizer.chat_template`` in the GGUF) is rendered with sentinel messages and cut at the sentinels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from kvnotes_local.chat_format.format import PLAIN_FORMAT, REASONING_CLOSE, REASONING_OPEN, ChatFormat, Wrapper
from kvnotes_local.chat_format.sandbox import Message, TemplateError, render_template

_S, _U, _A, _U2 = (f"@@{name}@@" for name in ("SYSTEM", "USERONE", "ASSISTANT", "USERTWO"))


def find_chat_format(template: str | None, bos: str, eos: str) -> ChatFormat:
    """Pieces of a chat template; PLAIN_FORMAT, with the reason in ``problem``, where it has none or it cannot be cut."""
    if not template:
        return PLAIN_FORMAT

    def render(*messages: Message, generate: bool = False) -> str:
        return render_template(template, messages, bos=bos, eos=eos, add_generation_prompt=generate)

    try:
        return _cut(render)
    except (TemplateError, _CutError) as error:
        return replace(PLAIN_FORMAT, problem=str(error))


class _CutError(ValueError):
    """The template does not put turns one after the other."""


def _between(text: str, before: str | None, after: str | None) -> str:
    start = 0
    if before is not None:
        at = text.find(before)
        if at < 0:
            raise _CutError(f"the chat template does not show a message's content ({before!r} is missing)")
        start = at + len(before)
    stop = len(text)
    if after is not None:
        stop = text.find(after, start)
        if stop < 0:
            raise _CutError(f"the chat template does not show a message's content ({after!r} is missing)")
    return text[start:stop]


class _Render(Protocol):
    def __call__(self, *messages: Message, generate: bool = False) -> str: ...


def _cut(render: _Render) -> ChatFormat:
    user, assistant, user2 = Message("user", _U), Message("assistant", _A), Message("user", _U2)

    alone = render(user)
    user_close = _between(alone, _U, None)
    prompt_tail = _between(render(user, generate=True), _U, None)
    if not prompt_tail.startswith(user_close):
        user_close = ""  # some templates close the user turn only when an answer is asked for
    generation_open = prompt_tail[len(user_close) :]

    turns = render(user, assistant, user2)
    assistant_open = _between(turns, _U, _A).removeprefix(user_close)
    middle = _between(turns, _A, _U2)
    assistant_close = _common_prefix(middle, _between(render(user, assistant), _A, None))
    user_open = middle[len(assistant_close) :]

    first = _between(alone, None, _U)
    system = _cut_system(render, first, user_open)
    return ChatFormat(
        begin=system.begin,
        system=system.wrapper,
        system_mid_chat=_cut_mid_chat(render, system, user_open, assistant_close),
        user=Wrapper(user_open, user_close),
        user_open_after_system=system.user_open,
        assistant=Wrapper(assistant_open, assistant_close),
        # Templates that know no generation prompt: an opening that is mere white space is the model's own to write.
        generation_open=generation_open or (assistant_open if assistant_open.strip() else ""),
        default_system=system.default,
        from_template=True,
        strips_reasoning=_strips_reasoning(render),
    )


def _strips_reasoning(render: _Render) -> bool:
    thought = Message("assistant", f"{REASONING_OPEN}\n{_S}\n{REASONING_CLOSE}\n\n{_A}")
    try:
        text = render(Message("user", _U), thought, Message("user", _U2))
    except TemplateError:
        return False
    return _A in text and _S not in text


@dataclass(frozen=True)
class _System:
    begin: str
    wrapper: Wrapper | None
    user_open: str
    default: str | None


def _cut_system(render: _Render, first: str, user_open: str) -> _System:
    """``first``: what the template writes before the first user text when no system text is given."""
    begin = first.removesuffix(user_open)
    without = _System(begin, None, user_open, None)
    try:
        text = render(Message("system", _S), Message("user", _U))
        head, gap = _between(text, None, _S), _between(text, _S, _U)
    except (TemplateError, _CutError):
        return without
    if not gap.endswith(user_open):
        # The system text lives inside the first user turn (Llama 2, Gemma).
        return _System(begin, Wrapper(head.removeprefix(begin), gap), "", None)
    close = gap.removesuffix(user_open)
    if first.startswith(head) and first.endswith(close + user_open):
        # The template adds a system turn by itself: what precedes it cannot be told from its opening, except for BOS.
        default = first[len(head) : len(first) - len(close + user_open)]
        return _System("", Wrapper(head, close), user_open, default)
    if not head.startswith(begin):
        return without
    return _System(begin, Wrapper(head.removeprefix(begin), close), user_open, None)


def _cut_mid_chat(render: _Render, system: _System, user_open: str, assistant_close: str) -> Wrapper | None:
    """The wrapper of a system turn between two others; None where the template refuses, drops or moves it."""
    if system.wrapper is None or not system.user_open:
        return None
    try:
        text = render(Message("user", _U), Message("assistant", _A), Message("system", _S), Message("user", _U2))
        opening = _between(text, _A, _S).removeprefix(assistant_close)
        closing = _between(text, _S, _U2)
    except (TemplateError, _CutError):
        return None
    if not opening or not closing.endswith(user_open) or not system.wrapper.open.endswith(opening):
        return None
    return Wrapper(opening, closing.removesuffix(user_open))


def _common_prefix(left: str, right: str) -> str:
    size = 0
    while size < min(len(left), len(right)) and left[size] == right[size]:
        size += 1
    return left[:size]
