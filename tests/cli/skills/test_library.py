"""The commands around the library: list, show, new, lint, remove, gc, export, import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from kvnotes_local.artifacts.artifact import read_artifact_meta
from kvnotes_local.artifacts.tensor_file import TEMPORARY_PREFIX, TEMPORARY_SUFFIX
from kvnotes_local.contract.model_info import release
from kvnotes_local.models.fingerprint import model_fingerprint
from kvnotes_local.skills.speeds import ModelSpeed, SpeedMemory
from kvnotes_local.skills.verdicts import Conditions, Outcome, Verdict, VerdictStore
from tests.conftest import Run
from tests.zoo import zoo_model

Kvnotes = Callable[..., Run]
BODY = "The harbour opens at {{opening time|six}} in the morning. " * 12


def skill(folder: Path, name: str, body: str = BODY, metadata: str = "") -> Path:
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: About {name}.\n{metadata}---\n{body}\n")
    return folder


def document(run: Run) -> Any:
    assert run.code == 0, run.err
    return json.loads(run.out)


@pytest.fixture
def tiny(zoo_directory: Path) -> Path:
    return zoo_model("llama", zoo_directory)


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    return skill(skill(tmp_path / "skills", "harbour"), "pilot")


def entry(kvnotes_here: Kvnotes, skills: Path, name: str, *more: object) -> Any:
    listed = document(kvnotes_here("skills", "list", "--skills-dir", skills, "--json", *more))["skills"]
    return next(one for one in listed if one["name"] == name)


def test_list_tells_compiled_stale_and_not_compiled_apart(kvnotes_here: Kvnotes, skills: Path, tiny: Path) -> None:
    assert entry(kvnotes_here, skills, "harbour")["artifacts"] == []
    assert (
        kvnotes_here("skills", "compile", "harbour", "--skills-dir", skills, "--threads", 1, "--model", tiny).code == 0
    )
    (one,) = entry(kvnotes_here, skills, "harbour")["artifacts"]
    assert one["status"] == "compiled"
    assert one["bytes"] == Path(one["path"]).stat().st_size
    assert abs(one["last_used"] - time.time()) < 300
    skill(skills, "harbour", BODY + "And closes at eight.")
    (one,) = entry(kvnotes_here, skills, "harbour")["artifacts"]
    assert (one["status"], one["reason"]) == ("stale", "the text has changed")
    shown = kvnotes_here("skills", "list", "--skills-dir", skills).out
    assert "stale: the text has changed" in shown
    assert "not compiled" in shown


def test_list_names_artifacts_of_another_version_and_gc_deletes_them(
    kvnotes_here: Kvnotes, skills: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_it = ("skills", "compile", "harbour", "--skills-dir", skills, "--threads", 1, "--model", tiny)
    with monkeypatch.context() as patch:
        patch.setattr("kvnotes_local.artifacts.writer.FORMAT_VERSION", 0)
        kvnotes_here(*compile_it)
    (one,) = entry(kvnotes_here, skills, "harbour")["artifacts"]
    assert one["status"] == "made by another version of kvnotes"
    (line,) = (
        text
        for text in kvnotes_here("skills", "list", "--skills-dir", skills).out.splitlines()
        if text.startswith("harbour")
    )
    assert "made by another version of kvnotes: compile it again" in line
    assert "llama" in line
    assert "?" not in line
    assert document(kvnotes_here("skills", "gc", "--json"))["deleted"][0]["path"] == one["path"]
    assert kvnotes_here(*compile_it).code == 0
    assert entry(kvnotes_here, skills, "harbour")["artifacts"][0]["status"] == "compiled"


def test_list_tells_what_was_measured_with_each_kv_type(
    kvnotes_here: Kvnotes, skills: Path, tiny: Path, tmp_path: Path
) -> None:
    assert kvnotes_here("skills", "compile", "pilot", "--skills-dir", skills, "--threads", 1, "--model", tiny).code == 0
    (one,) = entry(kvnotes_here, skills, "pilot")["artifacts"]
    key = read_artifact_meta(Path(one["path"])).key
    verdicts = VerdictStore(tmp_path / "cache" / "verdicts")

    def keep(kv_type: str, outcome: Outcome, llama_cpp_version: str) -> None:
        conditions = Conditions(key, kv_type, f"{release(llama_cpp_version)}, CPU")
        verdicts.put(Verdict(conditions, outcome, "pilot", "llama", 8, 0.9, 1.0, 0.1, 0.5, 0.9, 64, "2026-01-31"))

    def listed() -> tuple[str, list[tuple[str, str]], str]:
        (one,) = entry(kvnotes_here, skills, "pilot")["artifacts"]
        (line,) = (
            text
            for text in kvnotes_here("skills", "list", "--skills-dir", skills).out.splitlines()
            if text.startswith("pilot")
        )
        return one["status"], [(told["kv_type"], told["verdict"]) for told in one["verdicts"]], line

    keep("F16/F16", Outcome.FAILED, "0.0.1")  # another llama.cpp: what it found does not hold any more
    assert listed()[:2] == ("compiled", [])
    installed = version("llama-cpp-python")
    keep("F16/F16", Outcome.PASSED, installed)
    status, told, line = listed()
    assert (status, told) == ("compiled", [("f16", "passed")])
    assert "f16: spliced, seam of 8" in line
    keep("Q8_0/Q8_0", Outcome.FAILED, installed)
    status, told, line = listed()
    assert (status, told) == ("gate failed", [("f16", "passed"), ("q8_0", "failed")])
    assert "f16: spliced, seam of 8, q8_0: read" in line


@pytest.mark.slow
def test_compile_with_verify_measures_once_and_keeps_the_verdict(
    kvnotes_here: Kvnotes, skills: Path, tiny: Path, tmp_path: Path
) -> None:
    compiled = kvnotes_here(
        "skills", "compile", "pilot", "--skills-dir", skills, "--threads", 1, "--model", tiny, "--verify", "--json"
    )
    assert compiled.code in (0, 3), compiled.err
    (told,) = json.loads(compiled.out)["verdicts"]
    assert (compiled.code == 3) == (told["verdict"] == "failed")
    (one,) = entry(kvnotes_here, skills, "pilot")["artifacts"]  # what was made behind other leads in vain is gone
    key = read_artifact_meta(Path(one["path"])).key
    verdicts = VerdictStore(tmp_path / "cache" / "verdicts").list()
    (kept,) = (verdict for verdict in verdicts if verdict.conditions.artifact_key == key)
    assert json.loads(compiled.out)["artifacts"][0]["path"] == one["path"]
    assert [shown["verdict"] for shown in one["verdicts"]] == [kept.outcome.value] == [told["verdict"]]
    assert one["status"] == {"passed": "compiled", "failed": "gate failed"}[told["verdict"]]
    # A verdict that is there is not measured again.
    again = kvnotes_here(
        "skills", "compile", "pilot", "--skills-dir", skills, "--threads", 1, "--model", tiny, "--verify", "--json"
    )
    assert again.code == compiled.code
    assert "measuring" not in again.err


def test_a_renamed_model_stays_the_same_and_changed_weights_do_not(
    kvnotes_here: Kvnotes, skills: Path, tiny: Path, tmp_path: Path
) -> None:
    renamed, other = tmp_path / "moved" / "renamed.gguf", tmp_path / "other.gguf"
    renamed.parent.mkdir()
    data = tiny.read_bytes()
    renamed.write_bytes(data)
    other.write_bytes(data[:-8] + bytes(8))
    common = ("skills", "compile", "harbour", "--skills-dir", skills, "--json", "--threads", 1, "--model")
    first, second, third = (document(kvnotes_here(*common, model))["artifacts"][0] for model in (tiny, renamed, other))
    assert first["status"] == "compiled"
    assert (second["status"], second["path"]) == ("up to date", first["path"])
    assert third["status"] == "compiled"
    assert third["path"] != first["path"]
    (of_other,) = entry(kvnotes_here, skills, "harbour", "--model", other)["artifacts"]
    assert of_other["path"] == third["path"]


def test_show_tells_all_about_a_skill(kvnotes_here: Kvnotes, tmp_path: Path) -> None:
    folder = skill(tmp_path / "skills", "harbour", metadata="license: MIT\nmetadata:\n  kvnotes.pin: true\nmodel: x\n")
    (folder / "harbour" / "references").mkdir()
    (folder / "harbour" / "references" / "x.md").write_text("More.")
    shown = document(kvnotes_here("skills", "show", "harbour", "--skills-dir", folder, "--json"))
    assert shown["fields"] == {"opening time": "six"}
    assert shown["settings"]["pin"] is True
    assert shown["references"] == ["references/x.md"]
    assert shown["extra"] == {"model": "x"}
    text = kvnotes_here("skills", "show", "harbour", "--skills-dir", folder)
    assert "opening time: six" in text.out
    assert "Not compiled" in text.out
    missing = kvnotes_here("skills", "show", "harbor", "--skills-dir", folder)
    assert missing.code == 1
    assert "did you mean harbour" in missing.err


def test_new_writes_a_skill_that_lints_clean(kvnotes_here: Kvnotes, tmp_path: Path) -> None:
    (tmp_path / "home" / "project" / ".git").mkdir(parents=True)
    made = document(kvnotes_here("skills", "new", "ferry-times", "--to", tmp_path / "mine", "--json"))
    assert Path(made["path"]) == tmp_path / "mine" / "ferry-times" / "SKILL.md"
    assert (
        document(kvnotes_here("skills", "lint", "ferry-times", "--skills-dir", tmp_path / "mine", "--json"))["findings"]
        == []
    )
    copy = document(
        kvnotes_here("skills", "new", "my-refunds", "--like", "refund-policy", "--to", tmp_path / "mine", "--json")
    )
    assert "name: my-refunds" in Path(copy["path"]).read_text()
    again = kvnotes_here("skills", "new", "ferry-times", "--to", tmp_path / "mine")
    assert again.code == 1
    assert "is there already" in again.err
    for bad in ("Ferry", "../x", "a--b", "x" * 65):
        assert kvnotes_here("skills", "new", bad, "--to", tmp_path / "mine").code == 1
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["ferry-times", "my-refunds"]


def test_lint_names_line_and_reason_and_counts_with_a_model(kvnotes_here: Kvnotes, tmp_path: Path, tiny: Path) -> None:
    folder = skill(tmp_path / "skills", "loose", "# T\n\nAs said above, greet $ARGUMENTS.\n" + BODY)
    skill(folder, "twin", "The harbour opens at {{opening time|seven}} o'clock. " * 10)
    skill(folder, "brief", "Open the door.")
    found = document(kvnotes_here("skills", "lint", "loose", "twin", "brief", "--skills-dir", folder, "--json"))[
        "findings"
    ]
    assert {(one["skill"], one["code"], one["line"]) for one in found} >= {
        ("loose", "elsewhere", 7),
        ("loose", "substitution", 7),
        ("", "field-conflict", 0),
        ("brief", "too-short", 5),
    }
    assert kvnotes_here("skills", "lint", "loose", "--skills-dir", folder).code == 0
    assert kvnotes_here("skills", "lint", "loose", "--skills-dir", folder, "--strict").code == 1
    common = ("--skills-dir", folder, "--threads", 1, "--model", tiny, "--n-ctx", 1024)
    assert "Not measured yet" in kvnotes_here("skills", "lint", "brief", *common).err
    speed = ModelSpeed(prefill=100.0, splice_seconds=1.0, splice_token_seconds=0.0)
    SpeedMemory(tmp_path / "cache").put(model_fingerprint(tiny, None), speed)
    counted = document(kvnotes_here("skills", "lint", "loose", "brief", *common, "--json"))["findings"]
    messages = {(one["skill"], one["code"]): one["message"] for one in counted}
    assert "tokens take more than half of a context of 1,024" in messages["loose", "crowded"]
    assert "measured on this model: below 101" in messages["brief", "too-short"]


def test_remove_deletes_artifacts_and_never_skills(
    kvnotes_here: Kvnotes, skills: Path, tiny: Path, tmp_path: Path
) -> None:
    assert (
        kvnotes_here(
            "skills", "compile", "harbour", "pilot", "--skills-dir", skills, "--threads", 1, "--model", tiny
        ).code
        == 0
    )
    would = document(kvnotes_here("skills", "remove", "harbour", "--dry-run", "--json"))
    assert len(list((tmp_path / "cache" / "artifacts").glob("*/*"))) == 2
    gone = document(kvnotes_here("skills", "remove", "harbour", "--json"))
    assert gone["deleted"] == would["deleted"]
    assert [path.name[:5] for path in (tmp_path / "cache" / "artifacts").glob("*/*")] == ["pilot"]
    assert (skills / "harbour" / "SKILL.md").exists()
    other = kvnotes_here("skills", "remove", "pilot", "--model", "other")
    assert other.code == 1
    assert "There are some for llama-" in other.err
    of_file = document(kvnotes_here("skills", "remove", "pilot", "--model", tiny, "--dry-run", "--json"))
    assert [one["skill"] for one in of_file["deleted"]] == ["pilot"]
    assert kvnotes_here("skills", "remove", "pilot", "pilot/references/x.md").code == 1
    assert len(list((tmp_path / "cache" / "artifacts").glob("*/*"))) == 1  # nothing goes where a name is wrong
    wrong = kvnotes_here("skills", "remove", "harbour")
    assert wrong.code == 1
    assert "Compiled are: pilot" in wrong.err
    assert kvnotes_here("skills", "remove").code == 2
    assert len(document(kvnotes_here("skills", "remove", "--all", "--json"))["deleted"]) == 1


def test_gc_deletes_by_age_and_size_and_spares_pinned_skills(kvnotes_here: Kvnotes, tmp_path: Path, tiny: Path) -> None:
    home = tmp_path / "home" / ".agents" / "skills"
    skill(skill(home, "harbour"), "pilot", metadata="metadata:\n  kvnotes.pin: true\n")
    skill(home, "ferry", "Ferries leave at noon. " * 20)
    assert kvnotes_here("skills", "compile", "harbour", "pilot", "ferry", "--threads", 1, "--model", tiny).code == 0
    files = {path.name.split("-")[0]: path for path in (tmp_path / "cache" / "artifacts").glob("*/*")}
    for name in ("harbour", "pilot"):
        os.utime(files[name], (time.time() - 40 * 86400,) * 2)
    would = document(kvnotes_here("skills", "gc", "--older-than", "30d", "--dry-run", "--json"))
    assert [one["skill"] for one in would["deleted"]] == ["harbour"]
    assert files["harbour"].exists()
    done = document(kvnotes_here("skills", "gc", "--older-than", "30d", "--json"))
    assert done["bytes"] == would["bytes"]
    assert done["bytes_left"] == would["bytes_left"] == sum(files[name].stat().st_size for name in ("pilot", "ferry"))
    assert not files["harbour"].exists()
    assert [
        one["skill"] for one in document(kvnotes_here("skills", "gc", "--max-bytes", "1k", "--json"))["deleted"]
    ] == ["ferry"]
    assert files["pilot"].exists()
    assert kvnotes_here("skills", "gc", "--max-bytes", "many").code == 2
    assert kvnotes_here("skills", "gc", "--older-than", "30").code == 2


def test_gc_spares_pinned_skills_wherever_they_lie_and_their_references(
    kvnotes_here: Kvnotes, tmp_path: Path, tiny: Path
) -> None:
    pinned = "metadata:\n  kvnotes.pin: true\n"
    folder = skill(skill(tmp_path / "far", "harbour"), "pilot", metadata=pinned)
    (folder / "pilot" / "references").mkdir()
    (folder / "pilot" / "references" / "x.md").write_text("Ships carry salt. " * 10)
    there = ("--skills-dir", folder, "--threads", 1, "--model", tiny)
    assert kvnotes_here("skills", "compile", "harbour", "pilot", "pilot/references/x.md", *there).code == 0
    gc = ("skills", "gc", "--max-bytes", "0", "--dry-run", "--json")
    for more in ((), ("--skills-dir", folder)):
        assert [one["skill"] for one in document(kvnotes_here(*gc, *more))["deleted"]] == ["harbour"]
    (tmp_path / "cache" / "pinned.json").unlink()
    assert [one["skill"] for one in document(kvnotes_here(*gc, "--skills-dir", folder))["deleted"]] == ["harbour"]
    assert kvnotes_here("skills", "compile", "pilot", *there).code == 0  # up to date, and remembered again
    assert len(document(kvnotes_here(*gc))["deleted"]) == 1
    skill(folder, "pilot")  # the pin is read from the skill as it is now
    assert len(document(kvnotes_here(*gc))["deleted"]) == 3
    for data in ("[", "{}", '[1, "relative", "\\u0000"]'):
        (tmp_path / "cache" / "pinned.json").write_text(data)
        assert len(document(kvnotes_here(*gc))["deleted"]) == 3


def test_gc_says_what_stays_whether_or_not_it_deletes(kvnotes_here: Kvnotes, tmp_path: Path, tiny: Path) -> None:
    folder = skill(tmp_path / "skills", "harbour")
    assert (
        kvnotes_here("skills", "compile", "harbour", "--skills-dir", folder, "--threads", 1, "--model", tiny).code == 0
    )
    (artifact,) = (tmp_path / "cache" / "artifacts").glob("*/*")
    left_over = artifact.with_name(f"{TEMPORARY_PREFIX}x{TEMPORARY_SUFFIX}")
    left_over.write_bytes(b"x" * 1000)
    os.utime(left_over, (0, 0))
    would = document(kvnotes_here("skills", "gc", "--dry-run", "--json"))
    done = document(kvnotes_here("skills", "gc", "--json"))
    assert (would["bytes"], done["bytes"]) == (1000, 1000)
    assert would["bytes_left"] == done["bytes_left"] == artifact.stat().st_size


def test_a_part_of_a_skill_is_shown_with_its_own_artifacts(kvnotes_here: Kvnotes, tmp_path: Path, tiny: Path) -> None:
    folder = skill(tmp_path / "skills", "pilot")
    (folder / "pilot" / "references").mkdir()
    (folder / "pilot" / "references" / "x.md").write_text("Ships carry salt. " * 10)
    there = ("--skills-dir", folder)
    model = ("--threads", 1, "--model", tiny)
    assert kvnotes_here("skills", "compile", "pilot/references/x.md", *there, *model).code == 0
    (one,) = document(kvnotes_here("skills", "show", "pilot/references/x.md", *there, "--json"))["artifacts"]
    assert (one["skill"], one["status"]) == ("pilot/references/x.md", "compiled")
    assert "Not compiled" not in kvnotes_here("skills", "show", "pilot/references/x.md", *there).out


def test_lint_tells_broken_skills_and_goes_on(kvnotes_here: Kvnotes, tmp_path: Path) -> None:
    folder = skill(skill(tmp_path / "skills", "pilot", "Ask the harbour-master first. " * 20), "harbour-master")
    skill(folder, "late", "Text. " * 1000)
    with (folder / "late" / "SKILL.md").open("ab") as file:
        file.write(b"\xe9")
    (folder / "nothing").mkdir()
    (folder / "nothing" / "SKILL.md").write_text("no frontmatter")
    run = kvnotes_here("skills", "lint", "--skills-dir", folder, "--json")
    assert run.code == 1
    assert "2 skills cannot be read" in run.err
    found = {(one["skill"], one["code"]) for one in json.loads(run.out)["findings"]}
    assert found >= {("nothing", "broken"), ("late", "broken"), ("pilot", "elsewhere")}
    named = kvnotes_here("skills", "lint", "pilot", "--skills-dir", folder)
    assert named.code == 0
    assert "'harbour-master' is another skill" in named.out
    assert kvnotes_here("skills", "lint", "late", "--skills-dir", folder).code == 1


@pytest.mark.parametrize(
    "text",
    [
        "---\nname: other\ndescription: d\n---\nname: stays\n",
        "---\r\nname: other\r\ndescription: d\r\n---\r\nname: stays\r\n",
        "---\ndescription: d\n---\nname: stays\n",
    ],
    ids=["usual", "CRLF", "no name"],
)
def test_a_copy_of_a_skill_gets_its_name_in_the_frontmatter(kvnotes_here: Kvnotes, tmp_path: Path, text: str) -> None:
    folder = skill(tmp_path / "skills", "other")
    (folder / "other" / "SKILL.md").write_bytes(text.encode())
    to = tmp_path / "mine"
    made = document(
        kvnotes_here("skills", "new", "twin", "--like", "other", "--skills-dir", folder, "--to", to, "--json")
    )
    shown = document(kvnotes_here("skills", "show", "twin", "--skills-dir", to, "--json"))
    assert (shown["name"], shown["warnings"]) == ("twin", [])
    assert "name: stays" in Path(made["path"]).read_text()


def test_export_and_import_carry_a_skill_to_another_cache(
    kvnotes_here: Kvnotes, skills: Path, tiny: Path, tmp_path: Path, zoo_directory: Path
) -> None:
    archive = tmp_path / "harbour.zip"
    assert (
        kvnotes_here("skills", "export", "harbour", "--skills-dir", skills, "-o", archive).code == 1
    )  # nothing compiled
    for model in (tiny, zoo_model("qwen2", zoo_directory)):
        assert (
            kvnotes_here("skills", "compile", "harbour", "--skills-dir", skills, "--threads", 1, "--model", model).code
            == 0
        )
    both = kvnotes_here("skills", "export", "harbour", "--skills-dir", skills, "-o", archive)
    assert both.code == 1
    assert "--model" in both.err
    export = ("skills", "export", "harbour", "--skills-dir", skills, "-o", archive, "--model", tiny, "--json")
    assert document(kvnotes_here(*export))["n_artifacts"] == 1

    there = {"KVNOTES_CACHE_DIR": str(tmp_path / "there")}
    taken = document(kvnotes_here("skills", "import", archive, "--threads", 1, "--model", tiny, "--json", env=there))
    assert taken["artifacts"][0]["status"] == "checked"
    assert Path(taken["folder"]) == tmp_path / "home" / ".agents" / "skills" / "harbour"
    ask = ("ask", "Hi", "--skill", "harbour", "--threads", 1, "--model", tiny, "--max-tokens", 2, "--json")
    assert document(kvnotes_here(*ask, env=there))["tokens"]["spliced"] > 300
    (one,) = next(
        one
        for one in document(kvnotes_here("skills", "list", "--json", env=there))["skills"]
        if one["name"] == "harbour"
    )["artifacts"]
    assert (one["status"], one["origin"]) == ("compiled", "imported from harbour.zip")

    later = {"KVNOTES_CACHE_DIR": str(tmp_path / "later")}
    waiting = document(kvnotes_here("skills", "import", archive, "--later", "--json", env=later))
    assert waiting["artifacts"][0]["status"] == "not checked yet"
    listed = kvnotes_here("skills", "list", env=later).out
    assert "imported, not checked yet" in listed
    compiled = document(
        kvnotes_here("skills", "compile", "harbour", "--threads", 1, "--model", tiny, "--json", env=later)
    )
    assert compiled["artifacts"][0]["status"] == "up to date"


def test_a_skills_folder_that_is_not_there_is_a_usage_mistake(kvnotes_here: Kvnotes, tiny: Path) -> None:
    for command in (("skills", "list"), ("skills", "compile", "--all"), ("ask", "Hi", "--threads", 1, "--model", tiny)):
        run = kvnotes_here(*command, "--skills-dir", "/nowhere/skills")
        assert run.code == 2
        assert "/nowhere/skills" in run.err


def test_the_projects_skills_are_found_from_a_folder_below(tmp_path: Path) -> None:
    project = tmp_path / "project"
    skill(project / ".claude" / "skills", "local-rules")
    (project / ".git").mkdir()
    below = project / "src" / "deep"
    below.mkdir(parents=True)
    run = subprocess.run(
        [sys.executable, "-m", "kvnotes_local", "skills", "list", "--json"],
        cwd=below,
        env={**os.environ, "HOME": str(tmp_path / "home"), "KVNOTES_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "local-rules" in {one["name"] for one in json.loads(run.stdout)["skills"]}


def test_listing_200_skills_reads_each_once_and_loads_neither_llama_cpp_nor_textual(tmp_path: Path) -> None:
    for number in range(200):
        skill(tmp_path / "skills", f"skill-{number:03}")
    code = (
        "import sys\n"
        "opened = []\n"
        "sys.addaudithook(lambda name, args: opened.append(str(args[0])) if name == 'open' else None)\n"
        "from kvnotes_local.__main__ import run\n"
        "try:\n    run()\n"
        "finally:\n"
        "    n = [path for path in opened if path.endswith('SKILL.md') and 'skill-' in path]\n"
        "    sys.stderr.write(f'{len(n)} {len(set(n))} '\n"
        "                     + ' '.join(m for m in ('llama_cpp', 'textual') if m in sys.modules))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, "skills", "list", "--skills-dir", str(tmp_path / "skills"), "--json"],
        env={**os.environ, "HOME": str(tmp_path), "KVNOTES_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(json.loads(run.stdout)["skills"]) >= 200
    assert run.stderr.splitlines()[-1].split() == ["200", "200"]


def test_commands_find_a_skill_however_its_accents_are_spelled(
    kvnotes_here: Kvnotes, tmp_path: Path, tiny: Path
) -> None:
    taken_apart, together = (unicodedata.normalize(form, "café") for form in ("NFD", "NFC"))
    skills = skill(tmp_path / "skills", taken_apart)
    places = ("--skills-dir", skills)
    assert kvnotes_here("skills", "compile", together, *places, "--model", tiny, "--threads", 1).code == 0
    for name in (together, taken_apart):
        assert entry(kvnotes_here, skills, together)["artifacts"][0]["status"] == "compiled"
        assert document(kvnotes_here("skills", "show", name, *places, "--json"))["name"] == together
        assert "1 artifact" in kvnotes_here("skills", "remove", name, "--dry-run").out
    assert "1 artifact" in kvnotes_here("skills", "remove", taken_apart).out
