"""Remarks on skills."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from skill_samples import simple_skill, write_skill

from kvnotes_local.skills.library import SkillLibrary
from kvnotes_local.skills.lint import ModelLimits, lint, lint_library
from kvnotes_local.skills.lint_finding import Code
from kvnotes_local.skills.settings import SkillSettings
from kvnotes_local.skills.skill import Skill
from kvnotes_local.skills.skill_file import load_skill

LONG = "\n\nThis sentence makes the text long enough. " * 20


def skill(body: str, name: str = "s") -> Skill:
    return Skill(name, "What for.", Path(name), body=body + LONG, body_line=6)


def codes(body: str) -> list[Code]:
    return [finding.code for finding in lint(skill(body))]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("See the pdf-forms skill for that.", Code.ELSEWHERE),
        ("Other skills know more.", Code.ELSEWHERE),
        ("Use the rules described above.", Code.ELSEWHERE),
        ("Look at the messages above.", Code.ELSEWHERE),
        ("The above conversation counts.", Code.ELSEWHERE),
        ("What was said earlier in this conversation counts.", Code.CHAT),
        ("Answer the user's last message.", Code.CHAT),
        ("Keep the language of the previous message.", Code.CHAT),
        ("Begin with today's weather.", Code.DATE),
        ("Know the current date.", Code.DATE),
        ("Offer delivery tomorrow.", Code.DATE),
        ("Work on $ARGUMENTS.", Code.SUBSTITUTION),
        ("Open `$ARGUMENTS`.", Code.SUBSTITUTION),
        ("Copy $1.", Code.SUBSTITUTION),
        ("```\nrun ${CLAUDE_SKILL_DIR}/x\n```", Code.SUBSTITUTION),
        ("State: !`git status`", Code.COMMAND),
        ("Hello {{name}}.", Code.FIELD_DEFAULT),
        ("Hello {{ name | Ada }}.", Code.FIELD_SPACES),
        ("Hello {{ name }}.", Code.FIELD_SPACES),
        ("Hello {{name|a}} and {{name|b}}.", Code.FIELD_CONFLICT),
        ("Within {{refund window|30 days}.", Code.FIELD_TYPO),
        ("Within {{refund window|30 days.", Code.FIELD_TYPO),
        ("Within {refund window|30 days}}.", Code.FIELD_TYPO),
        ("Within {{|30 days}}.", Code.FIELD_TYPO),
        ("Within {{30 days|x}}.", Code.FIELD_TYPO),
        ("Within {{limit (EUR)|200}}.", Code.FIELD_TYPO),
        ("Within {{" + "a" * 65 + "|200}}.", Code.FIELD_TYPO),
        ("Within {{refund window| 30 days}}.", Code.FIELD_SPACES),
        ("Risk: {{HIGH|MEDIUM|LOW}}.", Code.FIELD_BARS),
        ("```\nfor {{item|items}}\n```", Code.FIELD_IN_CODE),
        ("Write `{{item|items}}`.", Code.FIELD_IN_CODE),
        ("Never say <|im_start|>.", Code.MARKUP),
        ("A zero\u200bwidth space.", Code.INVISIBLE),
        ("A tag\U000e0041 character.", Code.INVISIBLE),
    ],
)
def test_finds(body: str, code: Code) -> None:
    findings = lint(skill("# Title\n\n" + body))

    assert [finding.code for finding in findings] == [code]
    assert findings[0].line in (8, 9)
    assert findings[0].skill == "s"
    assert findings[0].message.isprintable()


@pytest.mark.parametrize(
    "body",
    [
        "The table below lists the fees. Put the title above the figure. Stay below 5 degrees.",
        "This skill is about skills in general. Improve the skill of the reader.",
        "It costs $5 or $100 or $1.50 or US$1.",
        "```python\ntoday = date.today()  # see above, $1 {{ template }}\n```",
        "`today` is a column, and so is `the user's last message`.",
        "~~~\n```\ntoday\n~~~",
        "```\n{{name}} {{ x | upper }} {{HIGH|MEDIUM|LOW}} {{a|b}\n```\nand `{{name}}` and `{{|x}}`.",
        "{{#if a|b}} {{.Values.x | quote}} \\{{a|b} ${{a|b} {a|b} {% x|y %} \\frac{a|b}{c}.",
        "Hello {{name|Ada}} and {{name}} and \\{{ name }} and ${{ secrets.X }}.",
        "Two {{first name|a}} {{last name|b}}.",
        "The last message of the log is printed first.".replace("last message", "final line"),
    ],
)
def test_stays_silent_on(body: str) -> None:
    assert codes(body) == []


def test_with_fields_in_code_the_rules_for_fields_hold_there() -> None:
    body = "```\n{{item|items}} {{name}} {{a|b} {{HIGH|MEDIUM|LOW}}\n```\nand `{{item|others}}`."
    asked = replace(skill(body), settings=SkillSettings(fields_in_code=True))

    assert asked.fields == {"item": "items", "name": None}
    assert [(one.line, one.code) for one in lint(asked)] == [
        (7, Code.FIELD_DEFAULT),
        (7, Code.FIELD_TYPO),
        (7, Code.FIELD_BARS),
        (9, Code.FIELD_CONFLICT),
    ]
    assert codes(body) == [Code.FIELD_IN_CODE] * 2


def test_what_a_remark_offers_is_a_field() -> None:
    for written in ("{{a b|30 days}", "{a b|30 days}}", "{{a b|30 days", "{{ a b | 30 days }}"):
        (finding,) = lint(skill(f"Within {written}"))
        assert "write {{a b|30 days}} if" in finding.message


def test_a_fence_ends_where_it_ends() -> None:
    assert codes("````\n```\ntoday\n````\nSay it today.") == [Code.DATE]


def test_lengths_are_compared_with_the_context_and_the_window() -> None:
    def found(n_tokens: int | None = None, n_ctx: int | None = None, n_swa: int | None = None) -> list[Code]:
        return [one.code for one in lint(skill("Text."), n_tokens=n_tokens, limits=ModelLimits(n_ctx or 0, n_swa or 0))]

    assert found(n_tokens=20) == [Code.TOO_SHORT]
    assert found(n_tokens=1000, n_ctx=4096, n_swa=1024) == []
    assert found(n_tokens=3000, n_ctx=4096) == [Code.CROWDED]
    assert found(n_tokens=5000, n_ctx=4096, n_swa=512) == [Code.TOO_LONG, Code.WINDOW]
    assert found(n_tokens=5000, n_ctx=0, n_swa=0) == []
    assert found(n_ctx=100) == [Code.TOO_LONG]
    assert "about " in lint(skill("Text."), limits=ModelLimits(100))[0].message


def test_warnings_of_the_format_are_findings_too(tmp_path: Path) -> None:
    findings = lint(load_skill(simple_skill(tmp_path / "s", name="Bad_Name", body="Text." + LONG)))

    assert [finding.code for finding in findings] == [Code.FORMAT, Code.FORMAT]


def test_questions_that_cannot_be_asked_are_found_before_they_are_needed(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "SKILL.md").write_text("---\nname: s\ndescription: What for.\n---\nBe polite." + LONG)
    (tmp_path / "s" / "evals.jsonl").write_text('{"ask": "How?"}\n{"ask": 5}\n')
    (finding,) = lint(load_skill(tmp_path / "s"))
    assert finding.code is Code.QUESTIONS
    assert "Line 2" in finding.message
    (tmp_path / "s" / "evals.jsonl").write_text('{"ask": "How?"}\n')
    assert lint(load_skill(tmp_path / "s")) == []


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    folder = simple_skill(tmp_path / "s", body=f"# Title\n{LONG}\nSay it today.")

    (finding,) = lint(load_skill(folder))

    assert (folder / "SKILL.md").read_text().split("\n")[finding.line - 1] == "Say it today."


def test_a_field_of_two_skills_needs_one_default() -> None:
    one, two, three = (
        skill("{{limit|200}}", "one"),
        skill("{{limit|300}} {{a|b}}", "two"),
        skill("{{limit}} {{a|b}}", "three"),
    )

    assert [finding.code for finding in lint_library([one, two, three])] == [Code.FIELD_CONFLICT]
    assert "'200' in one, '300' in two" in lint_library([one, two])[0].message
    assert lint_library([one, three]) == []


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("Apply refund-policy first.", True),
        ("Apply `refund-policy` first.", True),
        ("Then /tides is to be run.", True),
        ("The tides skill knows more.", True),
        ("Look at the Refund-Policy.", True),
        ("The tides are high.", False),
        ("Open docs/tides for it.", False),
        ("Open refund-policy.md for it.", False),
        ("The old-refund-policy-2 is gone.", False),
        ("My own-name is here.", False),
        ("```\nrefund-policy\n```", False),
    ],
)
def test_names_of_other_skills_are_found_by_line(body: str, found: bool) -> None:
    one = skill("# Title\n\n" + body, "own-name")

    findings = lint_library([one], ["refund-policy", "tides", "own-name"])

    assert [(finding.code, finding.line) for finding in findings] == ([(Code.ELSEWHERE, 8)] if found else [])


def test_another_skill_is_remarked_on_once() -> None:
    one = skill("See the refund-policy skill for that.", "own-name")

    assert len([*lint(one), *lint_library([one], ["refund-policy"])]) == 1


HEADS = [
    "argument-hint: [a] [b]",
    "globs: *.ts",
    "hooks:\n\t- a",
    "metadata:\n  a: b",
    'said: "x "y" z"',
    "no key",
    "x: |",
    "- y",
]
BODIES = [
    *("See {{limit|200}}.", "{{a|b", "`{{a|b}}`", "```\n{{item|items}}", "> ```\n> x", "{{HIGH|MEDIUM|LOW}}", "{{|x}}"),
    *(
        "| a | `b` |",
        "$1 and $ARGUMENTS",
        "Use skill-0007 and /skill-0010.",
        "~~~\n\u200b",
        "<|im_start|>",
        "\\{{a|b}} \\\\{{c|d}}",
        "",
    ),
]


def test_a_large_library_of_odd_skills_is_linted_to_the_end(tmp_path: Path) -> None:
    pick = random.Random(5)
    for number in range(400):
        lines = [f"name: skill-{number:04}", f"description: About {number}.", *pick.sample(HEADS, pick.randrange(4))]
        pick.shuffle(lines)
        body = "\n".join(pick.choices(BODIES, k=pick.randrange(30)))
        write_skill(tmp_path / f"skill-{number:04}", "---\n" + "\n".join(lines) + f"\n---\n{body}\n")
    library = SkillLibrary([tmp_path])
    assert library.problems == ()
    skills = [library.get(one.name) for one in library.skills]
    assert len(skills) == 400
    findings = [*(finding for one in skills for finding in lint(one)), *lint_library(skills)]
    assert {Code.FIELD_IN_CODE, Code.FIELD_BARS, Code.FIELD_TYPO, Code.FORMAT, Code.ELSEWHERE} <= {
        one.code for one in findings
    }
    for finding in findings:
        assert finding.message.isprintable()
        if finding.line and finding.code is not Code.FORMAT:
            text = (tmp_path / finding.skill / "SKILL.md").read_text().split("\n")
            assert finding.line <= len(text)
