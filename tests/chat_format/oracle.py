"""What a chat template renders, by plain jinja2 set up as Hugging Face transformers does it (``utils/chat_template_utils.py``).

Nothing of the product's own renderer is used here: it is what the product is compared with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Where templates look for what the model thought before an answer."""


@dataclass(frozen=True)
class Message:
    """One message as templates see it. ``reasoning``: thoughts given apart from the content."""

    role: str
    content: str
    reasoning: str | None = None

    def as_dict(self, *, parts: bool = False) -> dict[str, Any]:
        content = [{"type": "text", "text": self.content}] if parts else self.content
        return {
            "role": self.role,
            "content": content,
            **(dict.fromkeys(REASONING_FIELDS, self.reasoning) if self.reasoning is not None else {}),
        }


class Refused(Exception):
    """The template raised an exception for these messages."""


class Call(Enum):
    """How a template is called, in the order in which it is tried.

    Hugging Face passes ``tools`` and ``documents`` as None. Templates that ask ``tools is defined`` and then loop over them fail
    so; llama.cpp leaves the two undefined, which is what those templates were written for. Templates that read a message's
    content as a list of parts only get such a list from either.
    """

    HUGGING_FACE = "tools is None"
    UNDEFINED = "tools is undefined"
    PARTS = "content is a list of parts"


class Oracle:
    """One template with its BOS and EOS texts. ``now``: what templates that print the date show (default: the current time)."""

    def __init__(self, template: str, bos: str, eos: str, now: datetime | None = None) -> None:
        self.template, self.bos, self.eos, self.now = template, bos, eos, now or datetime.now()
        self._compiled = _compiled(template)

    @cached_property
    def call(self) -> Call | None:
        """The first way to call the template that shows the text of a single user message; None if there is none."""
        for call in Call:
            try:
                if _PROBE in self._render((Message("user", _PROBE),), True, call):
                    return call
            except Refused:
                continue
        return None

    def render(self, *messages: Message, generate: bool = False) -> str:
        """The whole text of a chat. Raises Refused."""
        return self._render(messages, generate, self.call or Call.HUGGING_FACE)

    def _render(self, messages: tuple[Message, ...], generate: bool, call: Call) -> str:
        variables: Mapping[str, Any] = {
            "messages": [message.as_dict(parts=call is Call.PARTS) for message in messages],
            "add_generation_prompt": generate,
            "bos_token": self.bos,
            "eos_token": self.eos,
            "raise_exception": _raise,
            "strftime_now": self.now.strftime,
            **({"tools": None, "documents": None} if call is Call.HUGGING_FACE else {}),
        }
        try:
            return self._compiled.render(variables)
        except Exception as error:  # a template may do anything with messages that it does not expect
            raise Refused(f"{type(error).__name__}: {error}") from error


_PROBE = "Which bird is gray?"


class _Generation(Extension):
    """``{% generation %}``: marks for training what the model wrote; here it does nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 wants a plain set

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


@lru_cache(maxsize=256)
def _compiled(template: str) -> jinja2.Template:
    return _environment().from_string(template)


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> str:
    raise jinja2.TemplateError(message)
