"""Chat formats of the kinds of templates that models come with: what is found, what is refused, and what it costs."""

from __future__ import annotations

import time

import pytest

from kvnotes_local.chat_format.finding import FoundIn, find_chat_format
from kvnotes_local.chat_format.format import ChatFormat, FormatSource
from kvnotes_local.chat_format.sandbox import Message, TemplateError, TemplateRenderer
from tests.chat_format.chat_templates import TEMPLATES
from tests.chat_format.checking import Outcome, Setting, check_template, vocabulary_of


def found(template: str, markers_of: str | None = None) -> ChatFormat:
    vocabulary = vocabulary_of(template if markers_of is None else markers_of, Setting(adds_bos=False, merging=True))
    return find_chat_format(FoundIn(template, vocabulary.tokenize, vocabulary.bos, vocabulary.eos, adds_bos=False))


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_chats_of_every_shape_have_the_tokens_of_the_templates_own_rendering(template: str) -> None:
    result = check_template(template)
    assert result.outcome in {Outcome.EXACT, Outcome.PLACED}, [str(one) for one in result.differences[:3]]


def test_system_turns_mid_chat_are_used_only_where_the_template_allows_them() -> None:
    mid_chat = {name for name, template in TEMPLATES.items() if found(template).system_mid_chat}
    assert mid_chat == {"chatml", "chatml with a default system turn", "llama 3", "phi 3", "thinking"}


def test_the_default_system_text_of_a_template_is_found() -> None:
    assert found(TEMPLATES["chatml with a default system turn"]).default_system == "You help."
    assert found(TEMPLATES["chatml"]).default_system is None


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for m in messages %}{{ m['content']", "failed"),
        ("{{ raise_exception('not for you') }}", "not for you"),
        ("nothing of the messages", "does not show"),
        ("{{ ''.__class__.__mro__ }}", "failed"),
        ("{% for m in messages %}{{ 'x' * 90000000 }}{% endfor %}", "characters"),
        ("{% for m in messages %}{{ m['content'] }}{% endfor %}", "first question in another way"),
    ],
)
def test_a_broken_template_gives_the_plain_format_and_the_reason(template: str, reason: str) -> None:
    pieces = found(template, markers_of="")
    assert pieces.source is FormatSource.PLAIN
    assert not pieces.proven
    assert reason in (pieces.problem or "")
    assert pieces.user.open == "User:\n"


def test_a_template_that_never_ends_is_stopped() -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}" + "{% endfor %}" * 3
    vocabulary = vocabulary_of("", Setting(adds_bos=False, merging=False))
    began = time.thread_time()
    pieces = find_chat_format(FoundIn(endless, vocabulary.tokenize, "<s>", "</s>", adds_bos=False))
    spent = time.thread_time() - began
    assert "did not finish" in (pieces.problem or "")
    assert spent < 60  # of processor time; without a limit it would be years


def test_a_template_cannot_reach_files_or_modules() -> None:
    for attack in (
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{% include '/etc/passwd' %}",
    ):
        with pytest.raises(TemplateError):
            TemplateRenderer(attack, bos="<s>", eos="</s>").render([Message("user", "x")])
