"""Reading SKILL.md files."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from skill_samples import simple_skill, write_skill

from kvnotes_local.contract.store_type import StoreType
from kvnotes_local.errors import SkillError
from kvnotes_local.skills.frontmatter import read_frontmatter
from kvnotes_local.skills.frontmatter_yaml import FrontmatterError, clean
from kvnotes_local.skills.settings import SkillSettings
from kvnotes_local.skills.skill import Skill
from kvnotes_local.skills.skill_file import load_reference, load_skill, load_summary


def load(tmp_path: Path, text: str | bytes, folder: str = "my-skill") -> Skill:
    return load_skill(write_skill(tmp_path / folder, text))


def test_reads_every_field_of_the_format(tmp_path: Path) -> None:
    skill = load(
        tmp_path,
        """---
name: my-skill
description: >
  Does things.
  Use when asked.
license: MIT
compatibility: Needs nothing
allowed-tools: Read Bash(git:*) Write
metadata:
  author: me
  version: 1.10
  kvnotes.pin: true
  kvnotes.repair: "32"
  kvnotes.store: q8_0
  kvnotes.fields-in-code: "true"
model: some-model
hooks: {before: [a, b]}
---

# Title

Window: {{window|30 days}} `{{code|x}}`
""",
    )

    assert (skill.name, skill.description) == ("my-skill", "Does things. Use when asked.")
    assert (skill.license, skill.compatibility) == ("MIT", "Needs nothing")
    assert skill.allowed_tools == ("Read", "Bash(git:*)", "Write")
    assert skill.metadata["version"] == "1.10"
    assert skill.settings == SkillSettings(pin=True, repair=32, store=StoreType.Q8_0, fields_in_code=True)
    assert skill.extra == {"model": "some-model", "hooks": {"before": ["a", "b"]}}
    assert skill.warnings == ()
    assert skill.body == "# Title\n\nWindow: {{window|30 days}} `{{code|x}}`"
    assert (skill.folder / "SKILL.md").read_text().split("\n")[skill.body_line - 1] == "# Title"
    assert skill.text() == "# Title\n\nWindow: 30 days `x`"
    assert skill.text({"window": "9"}) == "# Title\n\nWindow: 9 `x`"
    assert skill.fields == {"window": "30 days", "code": "x"}


@pytest.mark.parametrize(
    "name", ["Upper", "with_underscore", "-lead", "trail-", "two--hyphens", "a" * 65, "with space", "é"]
)
def test_a_bad_name_warns_and_loads(tmp_path: Path, name: str) -> None:
    skill = load(tmp_path, f"---\nname: {name}\ndescription: x\n---\nbody", folder=name)

    assert skill.name == name
    assert any("breaks the rules" in warning for warning in skill.warnings)


def test_a_name_that_differs_from_the_folder_warns_and_a_missing_one_is_the_folders(tmp_path: Path) -> None:
    assert any("folder" in one for one in load(tmp_path, "---\nname: other\ndescription: x\n---\nb").warnings)
    nameless = load(tmp_path, "---\ndescription: x\n---\nb")
    assert nameless.name == "my-skill"
    assert any("name is missing" in one for one in nameless.warnings)


@pytest.mark.parametrize(
    "line", ["", "description:", "description: ''", "description: ~", "description: null", "description: [a]"]
)
def test_a_skill_without_description_is_refused_with_advice(tmp_path: Path, line: str) -> None:
    with pytest.raises(SkillError, match=r"SKILL\.md has no description; add 'description"):
        load(tmp_path, f"---\nname: my-skill\n{line}\n---\nbody")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("Use when: asked", "Use when: asked"),
        ("Use when: it's asked\n  and: also then", "Use when: it's asked and: also then"),
        ("*Important* things", "*Important* things"),
        ("@team & co", "@team & co"),
        ("`code` first", "`code` first"),
        ("%d of them", "%d of them"),
    ],
)
def test_a_description_that_is_no_yaml_is_read_as_meant(tmp_path: Path, written: str, read: str) -> None:
    skill = load(tmp_path, f"---\nname: my-skill\ndescription: {written}\nmetadata:\n  a: b\n---\nbody")

    assert skill.description == read
    assert skill.metadata == {"a": "b"}
    assert len(skill.warnings) == 1
    assert skill.warnings[0].startswith("description is not valid YAML")


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("argument-hint: [file] [--flag]", "[file] [--flag]"),
        ("dependencies: [ray[data], pyarrow]", "[ray[data], pyarrow]"),
        ("dependencies: [react, @types/react]", "[react, @types/react]"),
        ("globs: *.ts", "*.ts"),
        ("version: %1", "%1"),
        ("owner: @team", "@team"),
        ("level: !important do", "!important do"),
        ("alias: &x y", "&x y"),
        ('open: "never closed', '"never closed'),
        ("open: 'never closed", "'never closed"),
        ("open: {a: [b", "{a: [b"),
        ('said: "he said "yes" twice"', 'he said "yes" twice'),
        ("said: 'it''s' his", "'it''s' his"),
        ('triggers:\n  - "a": b\n  - @mention', None),
        ("hooks:\n\t- a\n\t- b", None),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_line_that_is_not_yaml_costs_its_own_key_only(
    tmp_path: Path, line: str, kept: str | None, place: int
) -> None:
    lines = ["name: my-skill", "description: Do: it.", "license: MIT"]
    lines.insert(place, line)
    skill = load(tmp_path, "---\n" + "\n".join(lines) + "\n---\nBody.")

    assert (skill.name, skill.description, skill.license, skill.body) == ("my-skill", "Do: it.", "MIT", "Body.")
    assert list(skill.extra.values()) == ([] if kept is None else [kept])
    assert any(f"line {place + 2}" in warning for warning in skill.warnings), skill.warnings


@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_line_that_is_no_key_is_ignored_unless_a_description_goes_on_with_it(tmp_path: Path, place: int) -> None:
    lines = ["name: my-skill", "description: Do: it.", "license: MIT"]
    lines.insert(place, "no key at all")
    skill = load(tmp_path, "---\n" + "\n".join(lines) + "\n---\nBody.")

    assert (skill.name, skill.description, skill.license, skill.body) == ("my-skill", "Do: it.", "MIT", "Body.")
    assert f"line {place + 2} is no 'key: value'; it is ignored" in skill.warnings


@pytest.mark.parametrize(
    ("metadata", "read"),
    [
        ("metadata:\n\tauthor: me\n\tkvnotes.pin: true", {"author": "me", "kvnotes.pin": "true"}),
        ("metadata:\n  a: [b] c\n  kvnotes.pin: true", {"a": "[b] c", "kvnotes.pin": "true"}),
        ("metadata:\n  a: [b, @c]\n  kvnotes.pin: true", {"a": "[b, @c]", "kvnotes.pin": "true"}),
        ('metadata: {"icon": "\\ud83d\\udc8a", "kvnotes.pin": "true"}', {"icon": "\U0001f48a", "kvnotes.pin": "true"}),
        ('metadata:\n  icon: "\\uD83D\\uDC8A"\n  kvnotes.pin: true', {"icon": "\U0001f48a", "kvnotes.pin": "true"}),
    ],
)
def test_metadata_are_read_key_by_key_too(tmp_path: Path, metadata: str, read: dict[str, str]) -> None:
    skill = load(tmp_path, f"---\nname: my-skill\ndescription: x\n{metadata}\n---\nBody.")

    assert skill.metadata == read
    assert skill.settings.pin
    assert any(f"line {number}" in skill.warnings[0] for number in (4, 5))


@pytest.mark.parametrize(
    ("opened", "closed"), [("a: 'x", "b: y'"), ('a: "', 'b: "'), ("a: {c: d,", "x: y, e: f}"), ("a: [", "b: ]")]
)
def test_a_quote_that_swallows_other_keys_is_not_believed(tmp_path: Path, opened: str, closed: str) -> None:
    skill = load(tmp_path, f"---\n{opened}\nname: my-skill\ndescription: Do it\n{closed}\n---\nBody.")

    assert (skill.name, skill.description, skill.body) == ("my-skill", "Do it", "Body.")


WORDS = st.sampled_from(
    [*"\"'[]{}|>%@`&*!:#,-? \tab", ": ", " #", "- ", "''", '\\"', "\\ud83d", "...", "name: ", "é", "："]
)
ODD_VALUE = st.lists(WORDS, max_size=10).map("".join)
ODD_KEY = st.tuples(
    st.sampled_from(["argument-hint", "globs", "hooks", "x y", '"quoted"', "版本"]),
    ODD_VALUE,
    st.lists(st.tuples(st.sampled_from(["  ", "\t", " "]), ODD_VALUE).map("".join), max_size=2),
).map(lambda parts: "\n".join([f"{parts[0]}: {parts[1]}", *parts[2]]))
DESCRIPTIONS = {
    "Do things.": "Do things.",
    "Use when: asked [or not]": "Use when: asked [or not]",
    '"Say "yes" and "no""': 'Say "yes" and "no"',
    "[BETA] Do things": "[BETA] Do things",
    "First line.\n\n  Keywords: one, two": "First line. Keywords: one, two",
    ">\n  Folded: here\n  and there": "Folded: here and there",
    "**Lists**\n- one\n- two\n\nwithout blanks before": "**Lists** - one - two without blanks before",
}


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(ODD_KEY, min_size=1, max_size=4), st.sampled_from(list(DESCRIPTIONS)), st.randoms(use_true_random=False)
)
def test_keys_that_do_not_matter_never_cost_those_that_do(
    tmp_path: Path, odd: list[str], description: str, pick: random.Random
) -> None:
    lines = [*odd, "name: my-skill", f"description: {description}"]
    pick.shuffle(lines)
    skill = load(tmp_path, "---\n" + "\n".join(lines) + "\n---\nBody.")

    assert (skill.name, skill.description, skill.body) == ("my-skill", DESCRIPTIONS[description], "Body.")


def test_long_texts_warn(tmp_path: Path) -> None:
    skill = load(tmp_path, f"---\nname: my-skill\ndescription: {'x' * 1025}\ncompatibility: {'y' * 501}\n---\nb")

    assert [one.split()[0] for one in skill.warnings] == ["description", "compatibility"]
    assert len(skill.description) == 1025


def test_line_ends_and_byte_order_mark_do_not_matter(tmp_path: Path) -> None:
    text = "---\nname: my-skill\ndescription: x\n---\n\none\ntwo\n"
    plain = load(tmp_path, text)

    for other in (text.replace("\n", "\r\n"), text.replace("\n", "\r"), "\ufeff" + text, "\n\n" + text):
        skill = load(tmp_path, other)
        assert (skill.name, skill.description, skill.body) == (plain.name, plain.description, "one\ntwo")
    assert skill.body_line == plain.body_line + 2


@pytest.mark.parametrize("data", [b"caf\xe9", b"\xff\xfeh\x00i\x00", b"zero \x00 byte"])
def test_bytes_that_are_not_utf8_are_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(SkillError, match="save it as UTF-8"):
        load(tmp_path, b"---\nname: my-skill\ndescription: x\n---\n" + data)


def test_sizes_are_limited(tmp_path: Path) -> None:
    head = "---\nname: my-skill\ndescription: x\n---\n"
    assert len(load(tmp_path, head + "a" * (1024 * 1024 - len(head))).body) > 1_000_000
    with pytest.raises(SkillError, match="larger than 1024 KiB"):
        load(tmp_path, head + "a" * (1024 * 1024 - len(head) + 1))
    with pytest.raises(SkillError, match="64 KiB"):
        load(tmp_path, "---\nname: my-skill\ndescription: x\nextra: " + "a" * 65536 + "\n---\nb")
    with pytest.raises(SkillError, match="64 KiB"):
        load_summary(write_skill(tmp_path / "s", "---\ndescription: x\nextra: " + "a" * 200_000) / "SKILL.md")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no frontmatter", "does not start with a '---' line"),
        ("", "does not start with a '---' line"),
        ("---\nname: x\ndescription: y\n", "no second '---' line"),
        ("---\n- a\n- b\n---\nbody", "no 'key: value' lines"),
        ("---\nname: [x\n---\nbody", "no description.*name is not valid YAML as written in line 2"),
        ("---\nname: x\ndescription：y\n---\nbody", "no description.*line 3 is no 'key: value'"),
        ("name: x\ndescription: y\n---\nbody", "does not start with a '---' line, but line 1 is 'name: x'"),
        ("---\n\tname\n---\nbody", "no 'key: value' lines from line 2 on"),
    ],
)
def test_broken_frontmatter_is_refused_with_the_reason(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SkillError, match=message):
        load(tmp_path, text)


def test_yaml_cannot_grow_or_nest(tmp_path: Path) -> None:
    """What could is read as the text that it is, or not at all."""
    bomb = "a: &a [x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 8)}]\n" for i in range(12)
    )
    for odd in (bomb, *(f"extra: {deep}\n" for deep in ("[" * 20_000, "{a: " * 10_000, "- " * 20_000, "? " * 20_000))):
        skill = load(tmp_path, f"---\nname: my-skill\ndescription: x\n{odd}---\nb")
        assert (skill.name, skill.description, skill.body) == ("my-skill", "x", "b")
        assert all(isinstance(value, (str, list)) for value in skill.extra.values())
        assert len(str(skill.extra)) < 3 * len(odd)
        if odd is not bomb:
            assert "line 4" in skill.warnings[0]


def test_control_and_direction_characters_do_not_reach_the_screen(tmp_path: Path) -> None:
    skill = load(tmp_path, '---\nname: "my\\e[31m\\u202eskill"\ndescription: "a\\x07\\nb\\u200f c"\n---\nb')

    assert skill.name == "my[31mskill"
    assert skill.description == "a b c"
    assert all(clean(warning) == warning for warning in skill.warnings)
    assert clean("a\ud800\x9b\u2028b\t c") == "a bc".replace("bc", "b c")


def test_settings_that_make_no_sense_warn(tmp_path: Path) -> None:
    skill = load(
        tmp_path,
        "---\nname: my-skill\ndescription: x\nmetadata:\n  kvnotes.pin: maybe\n  kvnotes.repair: -3\n"
        "  kvnotes.store: q3\n  kvnotes.other: 1\n  kvnotes.fields-in-code: ja\n---\nb",
    )

    assert skill.settings == SkillSettings()
    assert len(skill.warnings) == 5


def test_an_empty_body_warns(tmp_path: Path) -> None:
    skill = load(tmp_path, "---\nname: my-skill\ndescription: x\n---\n\n \n")

    assert skill.body == ""
    assert any("nothing to compile" in one for one in skill.warnings)


def test_a_summary_says_the_same_as_the_whole_file(tmp_path: Path) -> None:
    for folder in (
        simple_skill(tmp_path / "short"),
        simple_skill(tmp_path / "long-body", body="é" * 5000),
        simple_skill(tmp_path / "long-head", description="é" * 5000),
    ):
        skill, summary = load_skill(folder), load_summary(folder / "SKILL.md")
        for key, value in vars(summary).items():
            assert getattr(skill, key) == value


def test_references_are_read_from_inside_the_folder_only(tmp_path: Path) -> None:
    folder = simple_skill(tmp_path / "my-skill")
    (folder / "references").mkdir()
    (folder / "references" / "x.md").write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    (tmp_path / "secret.md").write_text("secret")
    (tmp_path / "my-skill-2").mkdir()
    (tmp_path / "my-skill-2" / "x.md").write_text("secret")
    skill = load_skill(folder)

    assert load_reference(skill, "references/x.md") == "one\ntwo"
    assert load_reference(skill, "./references/x.md") == "one\ntwo"
    for path in (
        "../secret.md", "references/../../secret.md", "/etc/passwd", str(tmp_path / "secret.md"), "..\\secret.md",
        "C:\\x",
        "", ".", "references", "references/../SKILL.md",
        "references/none.md", "../my-skill-2/x.md", "references/x.md\0", "a" * 5000,
    ):  # fmt: skip
        with pytest.raises(SkillError):
            load_reference(skill, path)


@pytest.mark.skipif(not hasattr(os, "symlink") or os.name == "nt", reason="needs symbolic links")
def test_links_out_of_the_folder_are_refused_and_links_inside_are_not(tmp_path: Path) -> None:
    folder = simple_skill(tmp_path / "my-skill")
    (tmp_path / "secret.md").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.md").write_text("secret")
    (folder / "x.md").write_text("fine")
    (folder / "inside.md").symlink_to(folder / "x.md")
    (folder / "link.md").symlink_to(tmp_path / "secret.md")
    (folder / "refs").symlink_to(tmp_path / "outside")
    (folder / "loop").symlink_to(folder / "loop")
    skill = load_skill(folder)

    assert load_reference(skill, "inside.md") == "fine"
    for path in ("link.md", "refs/x.md"):
        with pytest.raises(SkillError, match="link out of the skill's folder"):
            load_reference(skill, path)
    with pytest.raises(SkillError):
        load_reference(skill, "loop")


YAMLISH_WORDS = [
    *"ax:'\"[]{}|>%@`\t\r\n\x00\x1b\ufeff\ud800é\u2028",
    *(
        "---",
        "\n---\n",
        "...",
        "  ",
        ": ",
        " #",
        "- ",
        "? ",
        "<<: ",
        "&a ",
        "*a",
        "!!int ",
        "!!python/object:os.system ",
    ),
    *("name: ", "description: ", "metadata:", "  kvnotes.repair: ", "1e999", "0x" + "f" * 5000, "2026-01-01"),
]
YAMLISH = st.lists(st.sampled_from(YAMLISH_WORDS), max_size=40)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(YAMLISH, st.binary(max_size=20), st.booleans())
@example(["---\ndescription: x\nname: ", "!!timestamp x", "\n---\n"], b"", True)
def test_whatever_the_file_holds_the_only_error_is_a_skill_error(
    tmp_path: Path, parts: list[str], tail: bytes, prefixed: bool
) -> None:
    text = ("---\nname: my-skill\n" if prefixed else "") + "".join(parts)
    folder = write_skill(tmp_path / "my-skill", text.encode("utf-8", "surrogatepass") + tail)

    try:
        skill = load_skill(folder)
    except SkillError as error:
        message = str(error)
    else:
        message = str(folder)
        assert clean(skill.name) == skill.name
        assert skill.description
        assert load_summary(folder / "SKILL.md").name == skill.name
        skill.text({"a": "b"})
    assert message.startswith(str(folder))


def test_the_fast_reader_agrees_with_yaml() -> None:
    """Blocks that the fast path accepts must read as they do with YAML, which an anchor-free comment line forces."""
    tokens = [
        *"[]{&*!|>%@`?,=-~:# '\"\\",
        "a",
        "b1",
        "name",
        "metadata",
        "null",
        "1.0",
        "  ",
        ": ",
        " #",
        "- ",
        "\n",
        "\n  ",
    ]
    tokens += ["...", "key: v", "\nkey:", "\n  sub: x"]
    pick = random.Random(7)
    compared = 0
    for _ in range(4_000):
        block = "k: " + "".join(pick.choice(tokens) for _ in range(pick.randrange(1, 12)))
        try:
            slow, warnings = read_frontmatter("# the fast path reads no comments\n" + block)
        except FrontmatterError:
            with pytest.raises(FrontmatterError):
                read_frontmatter(block)
            continue
        if not warnings:
            assert read_frontmatter(block)[0] == slow, block
            compared += 1
    assert compared > 600
