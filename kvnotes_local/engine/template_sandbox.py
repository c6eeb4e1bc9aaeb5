"""Rendering chat templates that came with downloaded models: jinja2's sandbox, with limits on time and output."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from types import FrameType
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_TEMPLATE_CHARS = 256 * 1024
MAX_OUTPUT_CHARS = 4 * 1024 * 1024
MAX_SECONDS = 2.0


class TemplateError(ValueError):
    """The template refused these messages or broke a limit; the message says which."""


@dataclass(frozen=True)
class Message:
    """One message of a chat as templates see it."""

    role: str
    content: str


class _Deadline(Exception):
    pass


def render_template(
    template: str,
    messages: Sequence[Message],
    *,
    bos: str,
    eos: str,
    add_generation_prompt: bool,
    now: datetime | None = None,
) -> str:
    """Render messages with a model's template. ``now`` is what ``strftime_now`` shows (default: the current time).

    Raises TemplateError.
    """
    if len(template) > MAX_TEMPLATE_CHARS:
        raise TemplateError(
            f"the chat template is {len(template):,} characters long; at most {MAX_TEMPLATE_CHARS:,} are read"
        )

    def refuse(message: str) -> str:
        raise TemplateError(str(message))

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=refuse, strftime_now=lambda pattern: (now or datetime.now()).strftime(pattern)
    )
    variables: dict[str, Any] = {
        "messages": [{"role": message.role, "content": message.content} for message in messages],
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos,
        "eos_token": eos,
        "tools": None,
        "documents": None,
    }
    try:
        compiled = environment.from_string(template)
        with _TimeLimit(MAX_SECONDS):
            pieces: list[str] = []
            size = 0
            for piece in compiled.generate(**variables):
                size += len(piece)
                if size > MAX_OUTPUT_CHARS:
                    raise TemplateError(f"the chat template wrote more than {MAX_OUTPUT_CHARS:,} characters")
                pieces.append(piece)
        return "".join(pieces)
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
    ) as error:
        raise TemplateError(f"the chat template failed: {error}") from error


def _to_json(value: object, indent: int | None = None, ensure_ascii: bool = False, **_: object) -> str:
    # jinja2's own tojson escapes HTML, which models were not trained on.
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


class _TimeLimit:
    """Raises inside the current thread once the time is over, also in a loop that never yields output."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._thread = threading.get_ident()
        self._before: Any = None

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if time.monotonic() > self._deadline:
            raise _Deadline
        return self._trace
