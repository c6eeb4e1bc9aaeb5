"""Rendering chat templates that came with downloaded models: jinja2's sandbox, with limits on time, output and memory.

The time limit works between two lines of Python. What one line can do in C, such as multiplying a text by 10**10, is refused
by looking at what goes in.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from types import FrameType
from typing import Any

import jinja2
import psutil
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvnotes_local.chat_format.format import COMPILE_DATE

MAX_TEMPLATE_CHARS = 256 * 1024
MAX_OUTPUT_CHARS = 4 * 1024 * 1024
MAX_SECONDS = 5.0
"""Processor time for all renderings of one template together."""
MAX_GROWTH_BYTES = 96 << 20


class TemplateError(ValueError):
    """The template refused these messages or broke a limit; the message says which."""


@dataclass(frozen=True)
class Message:
    """One message of a chat as templates see it. ``reasoning``: what the model thought before an answer."""

    role: str
    content: str
    reasoning: str | None = None

    def as_variables(self) -> dict[str, str]:
        seen = {"role": self.role, "content": self.content}
        if self.reasoning is not None:
            seen |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), self.reasoning)
        return seen


class TemplateRenderer:
    """Renders messages with a model's template, as Hugging Face's transformers do.

    ``bos``, ``eos``: what the template may print for them. ``n_renderings`` counts. ``date_patterns``: formats in which the
    template has asked for the date (``strftime_now``). Raises TemplateError, also for all calls once the time is used up.
    """

    def __init__(self, template: str, *, bos: str, eos: str) -> None:
        if len(template) > MAX_TEMPLATE_CHARS:
            raise TemplateError(
                f"the chat template is {len(template):,} characters long; at most {MAX_TEMPLATE_CHARS:,} are read"
            )
        self.n_renderings = 0
        self.date_patterns: set[str] = set()
        self._seconds = MAX_SECONDS
        self._now = COMPILE_DATE
        self._constants: dict[str, Any] = {"bos_token": bos, "eos_token": eos}
        # transformers pass these as None; some templates take what is defined for a list, and work without them only.
        self._unused: dict[str, Any] = {"tools": None, "documents": None}
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_refuse, strftime_now=self._strftime_now)
        with _errors_of_templates():
            self._template = environment.from_string(template)

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = False, now: datetime = COMPILE_DATE
    ) -> str:
        """The whole chat as text. ``now``: the date that the template prints."""
        self._now = now
        variables = {
            "messages": [message.as_variables() for message in messages],
            "add_generation_prompt": add_generation_prompt,
            **self._constants,
        }
        try:
            return self._rendered(variables | self._unused)
        except TemplateError:
            if self.n_renderings > 1 or self._seconds <= 0:
                raise
        text = self._rendered(variables)
        self._unused = {}
        return text

    def _rendered(self, variables: dict[str, Any]) -> str:
        self.n_renderings += 1
        pieces: list[str] = []
        size = 0
        limit = _TimeLimit(self._seconds)
        try:
            with _errors_of_templates(), limit:
                for piece in self._template.generate(**variables):
                    size += len(piece)
                    if size > MAX_OUTPUT_CHARS:
                        raise TemplateError(f"the chat template wrote more than {MAX_OUTPUT_CHARS:,} characters")
                    pieces.append(piece)
        finally:
            self._seconds -= limit.used()
        return "".join(pieces)

    def _strftime_now(self, pattern: object) -> str:
        asked = str(pattern)[:200]
        self.date_patterns.add(asked)
        return self._now.strftime(asked)


@contextmanager
def _errors_of_templates() -> Iterator[None]:
    """Whatever goes wrong in a template is a TemplateError."""
    try:
        yield
    except _Deadline:
        raise TemplateError(f"the chat template did not finish within {MAX_SECONDS:g} s") from None
    except TemplateError:
        raise
    except (
        jinja2.TemplateError,
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        MemoryError,
    ) as error:
        raise TemplateError(f"the chat template failed: {error}") from error


def _refuse(message: object) -> str:
    raise TemplateError(str(message))


class _Deadline(Exception):
    pass


class _GenerationTag(Extension):
    """``{% generation %}`` marks what the model wrote, for training; its content is shown as it is."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 wants a plain set)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, in which no single operation makes something huge."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters = {name: self._bounded(name, function) for name, function in self.filters.items()}

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _check_size(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        method = getattr(obj, "__wrapped__", obj)  # jinja2 wraps str.format
        text = getattr(method, "__self__", None)
        if isinstance(text, str):
            _check_text_method(getattr(method, "__name__", ""), text, args)
        return super().call(context, obj, *args, **kwargs)

    @staticmethod
    def _bounded(name: str, function: Any) -> Any:
        """A filter whose numbers and texts are looked at first."""

        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            values = [*args, *kwargs.values()]
            if name in {"replace", "wordwrap", "indent", "center", "format", "join"}:
                text = next((str(value) for value in values if isinstance(value, str)), "")
                _check_text_method(name, text, [value for value in values if value is not text])
            return function(*args, **kwargs)

        return bounded


def _check_size(operator: str, left: Any, right: Any) -> None:
    """Raise TemplateError where an operation would make something larger than any template needs."""
    if operator == "%" and isinstance(left, str):
        _check_widths(left)
    elif operator == "**" and (not _is_small(left, 1 << 32) or not _is_small(right, 64)):
        raise TemplateError("the chat template computes a power that is too large")
    elif operator in {"*", "+"}:
        sizes = [_size(value) for value in (left, right)]
        total = sum(sizes) if operator == "+" else max(sizes) * max(0, *(v for v in (left, right) if type(v) is int), 0)
        if max(sizes) and total > MAX_OUTPUT_CHARS:
            raise TemplateError(f"the chat template makes a text of more than {MAX_OUTPUT_CHARS:,} characters")
        if not all(_is_small(value, 1 << 4096) for value in (left, right)):
            raise TemplateError("the chat template computes a number that is too large")


def _check_text_method(name: str, text: str, values: Sequence[Any]) -> None:
    """The same for methods of texts and for filters."""
    if any(not _is_small(value, MAX_OUTPUT_CHARS) for value in values):
        raise TemplateError(f"the chat template asks {name} for too much")
    if name in {"format", "format_map"}:
        _check_widths(text)
    texts = [value for value in values if isinstance(value, str)]
    if name in {"replace", "translate", "wordwrap", "indent"} and len(text) * max(map(len, texts), default=0) > (
        MAX_OUTPUT_CHARS
    ):
        raise TemplateError(f"the chat template asks {name} for too much")
    if name == "join":
        items = next((value for value in values if isinstance(value, (list, tuple))), ())
        if len(items) * len(text) > MAX_OUTPUT_CHARS:
            raise TemplateError("the chat template joins too much")


def _check_widths(pattern: str) -> None:
    if _WIDE.search(pattern):
        raise TemplateError("the chat template formats something too wide")


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def _is_small(value: Any, limit: int) -> bool:
    return not isinstance(value, (int, float)) or abs(value) <= limit


_WIDE = re.compile(r"%(\(\w*\))?[-+ #0]*(\*|\d{5,}|\d*\.(\*|\d{5,}))|\{[^{}]*:[^{}]*(\d{5,}|\{)")
"""A width or precision of five digits, or one that comes from an argument; of both kinds of format."""


def _to_json(value: object, indent: int | None = None, ensure_ascii: bool = False, **_: object) -> str:
    # jinja2's own tojson escapes HTML, which models were not trained on.
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


_TEMPLATE_FILE = "<template>"
"""What jinja2 calls the code that it makes of a template."""


class _TimeLimit:
    """Raises inside the current thread once its processor time is used up, also in a loop that never yields output, or once the
    process has grown too much. Processor time, so that a busy machine refuses no template."""

    def __init__(self, seconds: float) -> None:
        self._process = psutil.Process()
        self._most_bytes = self._process.memory_info().rss + MAX_GROWTH_BYTES
        self._look_again = 0.0
        self._began = time.thread_time()
        self._deadline = self._began + seconds
        self._before: Any = None

    def used(self) -> float:
        """Seconds since the limit was made."""
        return time.thread_time() - self._began

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        now = time.thread_time()
        if now > self._deadline:
            raise _Deadline
        if frame.f_code.co_filename != _TEMPLATE_FILE:
            return None  # loops of a template run in its own code; what that calls is short
        if now > self._look_again:  # whatever takes much memory takes longer than this
            if self._process.memory_info().rss > self._most_bytes:
                raise TemplateError("the chat template takes too much memory")
            self._look_again = time.thread_time() + 0.0005
        return self._trace
