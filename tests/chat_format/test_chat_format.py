"""Turns put together from the pieces of a template are what the template itself would have written."""

from __future__ import annotations

import time

import pytest

from kvnotes_local.chat_format.format import ChatFormat
from kvnotes_local.chat_format.sandbox import Message, TemplateError, render_template
from kvnotes_local.chat_format.template import find_chat_format
from tests.chat_format.chat_templates import TEMPLATES

BOS, EOS = "<s>", "</s>"
every_template = pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())


def rendered(template: str, *messages: Message, generate: bool = False) -> str:
    return render_template(template, messages, bos=BOS, eos=EOS, add_generation_prompt=generate)


def put_together(pieces: ChatFormat, *messages: Message, generate: bool = False) -> str:
    text = pieces.begin
    after_system = False
    if messages[0].role != "system" and pieces.default_system is not None and pieces.system is not None:
        text += pieces.system.open + pieces.default_system + pieces.system.close
    for message in messages:
        if message.role == "system":
            wrapper = pieces.system
            assert wrapper is not None
            opening = wrapper.open
        else:
            wrapper = pieces.user if message.role == "user" else pieces.assistant
            opening = pieces.user_open_after_system if after_system else wrapper.open
        after_system = message.role == "system"
        text += opening + message.content + wrapper.close
    return text + (pieces.generation_open if generate else "")


@every_template
def test_a_chat_put_together_is_the_chat_rendered(template: str) -> None:
    pieces = find_chat_format(template, BOS, EOS)
    assert pieces.from_template, pieces.problem
    chat = [Message("user", "Hello there"), Message("assistant", "Good day"), Message("user", "What now?")]
    assert put_together(pieces, *chat, generate=True) == rendered(template, *chat, generate=True)


@every_template
def test_a_chat_with_a_system_text_put_together_is_the_chat_rendered(template: str) -> None:
    pieces = find_chat_format(template, BOS, EOS)
    chat = [
        Message("system", "Be brief."),
        Message("user", "Hello"),
        Message("assistant", "Hi"),
        Message("user", "Go on"),
    ]
    if pieces.system is None:
        with pytest.raises(TemplateError):
            rendered(template, *chat)
    else:
        assert put_together(pieces, *chat, generate=True) == rendered(template, *chat, generate=True)


def test_system_turns_mid_chat_are_used_only_where_the_template_allows_them() -> None:
    found = {name: find_chat_format(template, BOS, EOS).system_mid_chat for name, template in TEMPLATES.items()}
    assert {name for name, wrapper in found.items() if wrapper is not None} == {
        "chatml", "chatml with a default system turn", "llama 3", "phi 3", "thinking",
    }  # fmt: skip


def test_the_default_system_text_of_a_template_is_found() -> None:
    assert find_chat_format(TEMPLATES["chatml with a default system turn"], BOS, EOS).default_system == "You help."
    assert find_chat_format(TEMPLATES["chatml"], BOS, EOS).default_system is None


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for m in messages %}{{ m['content']", "failed"),
        ("{{ raise_exception('not for you') }}", "not for you"),
        ("nothing of the messages", "does not show"),
        ("{{ ''.__class__.__mro__ }}", "failed"),
        ("{% for m in messages %}{{ 'x' * 90000000 }}{% endfor %}", "characters"),
    ],
)
def test_a_broken_template_gives_the_plain_format_and_the_reason(template: str, reason: str) -> None:
    pieces = find_chat_format(template, BOS, EOS)
    assert not pieces.from_template
    assert reason in (pieces.problem or "")
    assert pieces.user.open == "User:\n"


def test_a_template_that_never_ends_is_stopped() -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}" + "{% endfor %}" * 3
    began = time.monotonic()
    pieces = find_chat_format(endless, BOS, EOS)
    assert "did not finish" in (pieces.problem or "")
    assert time.monotonic() - began < 60


def test_a_template_cannot_reach_files_or_modules() -> None:
    for attack in (
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{% include '/etc/passwd' %}",
    ):
        with pytest.raises(TemplateError):
            rendered(attack, Message("user", "x"))
