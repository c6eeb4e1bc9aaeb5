"""What makes a skill read worse once it is compiled and spliced, and what only other clients do with it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from kvnotes_local.errors import SkillError
from kvnotes_local.skills.evals import load_questions
from kvnotes_local.skills.lint_fields import lint_fields
from kvnotes_local.skills.lint_finding import Code, Finding, read_lines
from kvnotes_local.skills.skill import Skill
from kvnotes_local.terminal_text import REORDERING, TAGS
from kvnotes_local.wording import counted

MIN_TOKENS = 64
_CHARS_PER_TOKEN = 4


@dataclass(frozen=True)
class _Rule:
    code: Code
    pattern: re.Pattern[str]
    message: str
    in_code: bool = False


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


# ``{}`` in a message is what was found.
_RULES = (
    _Rule(
        Code.ELSEWHERE,
        _words(
            r"\b(?:other|another|previous|following) skills?\b"
            r"|\b(?:see|use|load|read|invoke|call|consult) the (?!skill\b|same skill\b)[\w/-]+ skill\b"
        ),
        "{!r} refers to another skill, which may not be in the chat; say here what is needed from it",
    ),
    _Rule(
        Code.ELSEWHERE,
        _words(
            r"\b(?:conversation|chat|dialogue|messages?|history|context|prompt) (?:above|below)\b"
            r"|\b(?:above|preceding|following) (?:conversation|chat|dialogue|messages?|history|context|prompt)\b"
            r"|\b(?:see|as|mentioned|said|described|listed|shown|discussed|stated|given|text|instructions?)"
            r" (?:above|below)\b"
        ),
        "{!r} may mean something outside the skill, which is not known here; name the section",
    ),
    _Rule(
        Code.CHAT,
        _words(
            r"\b(?:earlier|previously|so far|before) in (?:this|the|our) (?:conversation|chat|session|discussion)\b"
            r"|\b(?:this|the|our) (?:conversation|chat|session) so far\b"
            r"|\b(?:user|customer|person)(?:'s|’s|s')? (?:last|latest|previous|first|most recent)"
            r" (?:message|question|request)\b"
            r"|\b(?:last|latest|previous|most recent) (?:user )?message\b"
            r"|\bwhat the user (?:just )?(?:said|asked|wrote)\b"
        ),
        "{!r} depends on the chat, which a compiled skill was read without; say it in the system text",
    ),
    _Rule(
        Code.DATE,
        _words(
            r"\b(?:today|tomorrow|yesterday)(?:'s|’s)?\b"
            r"|\b(?:current|today's|present) (?:date|day|time|year|month)\b"
            r"|\bas of (?:now|writing)\b"
        ),
        "{!r} depends on the date, which a compiled skill never learns; make it a field: {{{{date|2026-01-31}}}}",
    ),
    _Rule(
        Code.SUBSTITUTION,
        re.compile(r"\$ARGUMENTS(?:\[\d+\])?|\$\{(?:ARGUMENTS|[A-Z]+_SKILL_DIR)\}"),
        "{} is filled in by other clients, not here; make it a field: {{{{arguments|...}}}}",
        in_code=True,
    ),
    _Rule(
        Code.COMMAND,
        re.compile(r"(?:^|(?<=\s))!`[^`\n]+`"),
        "{} is run by other clients when they load the skill, but not here; write its result as a field",
        in_code=True,
    ),
    _Rule(
        Code.MARKUP,
        re.compile(r"<\|[A-Za-z0-9_]{2,30}\|>|<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>"),
        "{} is chat markup of some model; it is read as plain text, never as the start of a turn",
        in_code=True,
    ),
    _Rule(
        Code.INVISIBLE,
        re.compile(f"[\u200b\u2060\ufeff{REORDERING}{TAGS}]"),
        "the invisible character {!a} is part of what the model reads; remove it unless it is meant",
        in_code=True,
    ),
)
_POSITIONAL = re.compile(r"(?<![\w$\\])\$([1-9])(?![\w.,]*\d)\b")


@dataclass(frozen=True)
class ModelLimits:
    """Of the model in use, in tokens; 0 or None: none, or not known.

    ``n_ctx``: of the context. ``n_swa``: of the sliding window. ``pays_off_from``: length from which splicing was measured to
    be faster than reading.
    """

    n_ctx: int = 0
    n_swa: int = 0
    pays_off_from: int | None = None


NO_LIMITS = ModelLimits()


def lint(skill: Skill, *, n_tokens: int | None = None, limits: ModelLimits = NO_LIMITS) -> list[Finding]:
    """Remarks on one skill, by line. ``n_tokens``: for the model in use, estimated from the text if not given."""
    findings = [Finding(1, Code.FORMAT, warning, skill.name) for warning in skill.warnings]
    findings.extend(_size(skill, n_tokens, limits))
    lines = list(read_lines(skill))
    positional = any(match[1] == "1" for line in lines for match in _POSITIONAL.finditer(line.prose))
    for line in lines:
        for rule in _RULES:
            for match in rule.pattern.finditer(line.raw if rule.in_code else line.prose):
                findings.append(Finding(line.number, rule.code, rule.message.format(match[0]), skill.name))
        if positional:
            # Without a $1, a $5 is money.
            for match in _POSITIONAL.finditer(line.prose):
                field = f"{{{{argument {match[1]}|...}}}}"
                text = f"{match[0]} is filled in by other clients, not here; make it a field: {field}"
                findings.append(Finding(line.number, Code.SUBSTITUTION, text, skill.name))
    findings.extend(lint_fields(skill, lines))
    try:
        load_questions(skill)
    except SkillError as error:  # its place is a line of another file, which the message names
        findings.append(Finding(0, Code.QUESTIONS, str(error), skill.name))
    return sorted(findings, key=lambda finding: finding.line)


def lint_library(skills: Collection[Skill], names: Iterable[str] = ()) -> list[Finding]:
    """Remarks on skills that do not go together: one names another (of ``names``: all that there are), or fields of one name
    have different defaults."""
    return [*_names_of_others(skills, {*names, *(skill.name for skill in skills)}), *_conflicts_between(skills)]


def _names_of_others(skills: Iterable[Skill], names: Collection[str]) -> Iterator[Finding]:
    """Names of two words or more are hardly there by chance; one word counts as ``/word`` or ``word skill``."""
    several = [re.escape(name) for name in sorted(names, key=len, reverse=True)]
    pattern = _words(
        rf"(?<![\w/.-])(?:(?P<long>{'|'.join(one for one in several if '-' in one) or '(?!)'})(?![\w-]|\.\w)"
        rf"|/(?P<command>{'|'.join(several) or '(?!)'})(?![\w/.-])"
        rf"|`?(?P<word>{'|'.join(several) or '(?!)'})`? skill\b)"
    )
    for skill in skills:
        for line in read_lines(skill):
            if any(rule.code is Code.ELSEWHERE and rule.pattern.search(line.prose) for rule in _RULES):
                continue  # is said already
            for match in pattern.finditer("" if line.is_fenced else line.raw):
                name = match[match.lastgroup or 0]
                if name.casefold() != skill.name.partition("/")[0].casefold():
                    text = f"{name!r} is another skill, which may not be in the chat; say here what is needed from it"
                    yield Finding(line.number, Code.ELSEWHERE, text, skill.name)


def _conflicts_between(skills: Iterable[Skill]) -> list[Finding]:
    uses: dict[str, dict[str, str]] = defaultdict(dict)
    for skill in skills:
        for name, default in skill.fields.items():
            if default is not None:
                uses[name][skill.name] = default
    findings = []
    for name, defaults in sorted(uses.items()):
        if len(set(defaults.values())) > 1:
            listed = ", ".join(f"{default!r} in {skill}" for skill, default in sorted(defaults.items()))
            text = f"field {name!r} has different defaults: {listed}; rename it in one, since they are set together"
            findings.append(Finding(0, Code.FIELD_CONFLICT, text))
    return findings


def _size(skill: Skill, n_tokens: int | None, limits: ModelLimits) -> Iterator[Finding]:
    line = skill.body_line
    if not skill.body.strip():
        return  # a warning of the format says so already
    about = "" if n_tokens is not None else "about "
    n = n_tokens if n_tokens is not None else max(1, len(skill.text()) // _CHARS_PER_TOKEN)
    least = MIN_TOKENS if limits.pays_off_from is None else limits.pays_off_from
    measured = "" if limits.pays_off_from is None else f" (measured on this model: below {least})"
    n_ctx, n_swa = limits.n_ctx, limits.n_swa
    length = f"{about}{counted(n, 'token')}"
    if n < least:
        text = f"{length}: read as fast as spliced{measured}; paste so short a text into the chat"
        yield Finding(line, Code.TOO_SHORT, text, skill.name)
    if n_ctx and n > n_ctx:
        text = f"{length} do not fit into a context of {n_ctx:,}; shorten it, split it, or use a larger --n-ctx"
        yield Finding(line, Code.TOO_LONG, text, skill.name)
    elif n_ctx and n * 2 > n_ctx:
        text = f"{length} take more than half of a context of {n_ctx:,}; shorten it, or use a larger --n-ctx"
        yield Finding(line, Code.CROWDED, text, skill.name)
    if n_swa and n > n_swa:
        text = (
            f"{length} are more than the sliding window of {n_swa:,}: many layers see only its end; "
            "put what matters most last, and check with 'kvnotes verify'"
        )
        yield Finding(line, Code.WINDOW, text, skill.name)
