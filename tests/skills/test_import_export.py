"""A skill that travels to another machine: one file, nothing unsafe, nothing unverified."""

from __future__ import annotations

import itertools
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from skill_samples import simple_skill, write_skill

from kvnotes_local.artifacts.artifact import open_artifact, read_artifact_meta
from kvnotes_local.artifacts.writer import write_artifact
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.errors import ArtifactError, KvnotesError, SkillError
from kvnotes_local.kv.layout import StateRows
from kvnotes_local.kv.rows import slice_rows
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import CompileStatus, SkillCompiler
from kvnotes_local.skills.imports import ImportShelf, spans_to_check
from kvnotes_local.skills.skill import Skill
from kvnotes_local.skills.skill_file import load_part, load_skill
from kvnotes_local.skills.transfer import export_skill, import_skill
from tests.conftest import MakeEngine, both_engines

BODY = "The harbour opens at {{opening time|six}} in the morning. " * 8 + "Ships wait for the pilot. " * 8
OTHER = "Nobody may enter the harbour before the bell has rung. " * 14


@pytest.fixture
def skill(tmp_path: Path) -> Skill:
    folder = simple_skill(tmp_path / "skills" / "harbour", BODY)
    (folder / "references").mkdir()
    (folder / "references" / "ships.md").write_text("Ships carry salt and rope. " * 6)
    (folder / "notes.txt").write_text("private")
    return load_skill(folder)


def machine(tmp_path: Path, name: str) -> ArtifactStore:
    return ArtifactStore(tmp_path / name / "artifacts")


def exported(engine: LlamaEngine, skill: Skill, tmp_path: Path, name: str = "here") -> Path:
    store = machine(tmp_path, name)
    SkillCompiler(engine, store).compile(skill)
    target = tmp_path / "out" / "harbour.kvnotes.zip"
    export_skill(skill, store.list(), target)
    return target


def rezip(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    """Write the archive anew with other members."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


@both_engines
def test_another_machine_uses_what_was_exported(tiny_engine: MakeEngine, skill: Skill, tmp_path: Path) -> None:
    engine = tiny_engine("qwen2")
    archive = exported(engine, skill, tmp_path)
    there = machine(tmp_path, "there")
    imported = import_skill(archive, ImportShelf(there), tmp_path / "their-skills")
    assert imported.skill.body == skill.body
    assert imported.model_fingerprint == engine.info.fingerprint
    files = {path.relative_to(imported.skill.folder).as_posix() for path in imported.skill.folder.rglob("*.*")}
    assert files == {"SKILL.md", "references/ships.md"}
    assert there.list() == ()
    (waiting,) = imported.waiting
    assert waiting.meta is not None
    assert waiting.meta.origin == "imported from harbour.kvnotes.zip"

    found = SkillCompiler(engine, there).compile(imported.skill)
    assert found.status is CompileStatus.UP_TO_DATE
    assert read_artifact_meta(found.path).origin == waiting.meta.origin
    assert not waiting.path.exists()
    ours = machine(tmp_path, "here").list()[0]
    with open_artifact(found.path) as one, open_artifact(ours.path) as other:
        assert one.meta.tokens == other.meta.tokens
        assert all(np.array_equal(a, b) for a, b in zip(one.rows().caches[0].k, other.rows().caches[0].k, strict=True))


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt-oss", "stablelm"])
def test_honest_artifacts_pass_whatever_the_model(
    tiny_engine: MakeEngine, skill: Skill, tmp_path: Path, name: str
) -> None:
    engine = tiny_engine(name)
    there = machine(tmp_path, "there")
    import_skill(exported(engine, skill, tmp_path), ImportShelf(there), None)
    assert SkillCompiler(engine, there).find(skill) is not None


def test_a_rotation_measured_with_other_last_bits_is_the_same_rotation(
    tiny_engine: MakeEngine, skill: Skill, tmp_path: Path
) -> None:
    engine = tiny_engine()
    store = machine(tmp_path, "here")
    compiled = SkillCompiler(engine, store).compile(skill)
    with open_artifact(compiled.path) as artifact:
        meta = replace(artifact.meta, rotation_fingerprint="0" * 64)
        write_artifact(compiled.path, meta, artifact.rows())
    archive = tmp_path / "x.zip"
    export_skill(skill, store.list(), archive)
    there = machine(tmp_path, "there")
    import_skill(archive, ImportShelf(there), None)
    found = SkillCompiler(engine, there).find(skill)
    assert found is not None
    assert read_artifact_meta(found.path).rotation_fingerprint == engine.info.rotation_fingerprint


def of_another_text(engine: LlamaEngine, store: ArtifactStore, skill: Skill, there: StateRows) -> StateRows:
    folder = simple_skill(store.directory.parent / "evil" / "harbour", OTHER)
    compiled = SkillCompiler(engine, ArtifactStore(store.directory.parent / "evil-store")).compile(load_skill(folder))
    with open_artifact(compiled.path) as artifact:
        return slice_rows(artifact.rows(), 0, len(there.caches[0].pos))


def scaled_keys(engine: LlamaEngine, store: ArtifactStore, skill: Skill, there: StateRows) -> StateRows:
    cache = there.caches[0]
    k = tuple((rows.view(np.float16) * np.float16(2)).view(np.uint8) for rows in cache.k)
    return replace(there, caches=(replace(cache, k=k),))


def turned_back(engine: LlamaEngine, store: ArtifactStore, skill: Skill, there: StateRows) -> StateRows:
    """As if the keys stood 40 positions further on: the content is right, the rotation wrong."""
    pos = there.caches[0].pos + 40
    moved = replace(there, caches=(replace(there.caches[0], pos=pos),))
    back = engine._transfer.moved(moved, -40, there.layout)
    return replace(there, caches=(replace(back.caches[0], pos=there.caches[0].pos),))


@pytest.mark.parametrize("forge", [of_another_text, scaled_keys, turned_back])
def test_rows_that_the_model_does_not_compute_are_refused_and_removed(
    tiny_engine: MakeEngine,
    skill: Skill,
    tmp_path: Path,
    forge: Callable[[LlamaEngine, ArtifactStore, Skill, StateRows], StateRows],
) -> None:
    engine = tiny_engine(n_ctx=2048)
    store = machine(tmp_path, "here")
    compiled = SkillCompiler(engine, store).compile(skill)
    with open_artifact(compiled.path) as artifact:
        rows = forge(engine, store, skill, artifact.rows())
        write_artifact(compiled.path, artifact.meta, rows)
    archive = tmp_path / "forged.kvnotes.zip"
    export_skill(skill, store.list(), archive)
    there = machine(tmp_path, "there")
    shelf = ImportShelf(there)
    (waiting,) = import_skill(archive, shelf, None).waiting
    compiler = SkillCompiler(engine, there)
    with pytest.raises(ArtifactError, match=r"does not hold what .* computes.*It was removed"):
        compiler.compile(skill)
    assert not waiting.path.exists()
    assert there.list() == ()
    assert compiler.compile(skill).status is CompileStatus.COMPILED


def test_places_to_check_cannot_be_foreseen_and_cover_both_ends() -> None:
    chosen = [spans_to_check(1000) for _ in range(20)]
    assert len(set(map(tuple, chosen))) > 1
    for spans in chosen:
        assert spans[0][0] == 0
        assert spans[-1][1] == 1000
        assert all(a < b <= c for (a, b), (c, _) in itertools.pairwise(spans))
    assert spans_to_check(3) == [(0, 3)]


def test_whole_states_are_neither_exported_nor_imported(tiny_engine: MakeEngine, skill: Skill, tmp_path: Path) -> None:
    engine = tiny_engine("mamba")
    with pytest.raises(ArtifactError, match="no other machine could check"):
        exported(engine, skill, tmp_path)
    (one,) = machine(tmp_path, "here").list()
    assert one.meta is not None
    model = {"name": one.meta.model_name, "arch": one.meta.model_arch, "sha256": one.meta.model_fingerprint}
    manifest = {"format": "kvnotes-export", "format_version": 1, "skill": skill.name, "model": model}
    path = tmp_path / "crafted.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("kvnotes.json", json.dumps(manifest))
        archive.write(skill.folder / "SKILL.md", "SKILL.md")
        archive.write(one.path, "artifacts/0.safetensors")
    with pytest.raises(ArtifactError, match="cannot be checked; compile it here"):
        import_skill(path, ImportShelf(machine(tmp_path, "there")), None)


def test_what_is_compiled_already_does_not_wait_for_its_check_for_ever(
    tiny_engine: MakeEngine, skill: Skill, tmp_path: Path
) -> None:
    engine = tiny_engine("llama")
    archive = exported(engine, skill, tmp_path)
    store = machine(tmp_path, "there")
    compiler = SkillCompiler(engine, store)
    compiler.compile(skill)
    import_skill(archive, ImportShelf(store), None)
    assert len(ImportShelf(store).waiting.list()) == 1
    assert compiler.find(skill) is not None
    assert ImportShelf(store).waiting.list() == ()


def test_a_reference_that_cannot_travel_is_said_when_exporting(
    tiny_engine: MakeEngine, skill: Skill, tmp_path: Path
) -> None:
    engine, store = tiny_engine("llama"), machine(tmp_path, "here")
    (skill.folder / "references" / "two words.md").write_text("Ships carry salt. " * 6)
    SkillCompiler(engine, store).compile(load_part(skill, "references/two words.md"))
    with pytest.raises(SkillError, match=r"two words\.md .* cannot go along.* Rename it"):
        export_skill(skill, store.list(), tmp_path / "out.zip")
    with pytest.raises(SkillError, match="is a part; export harbour"):
        export_skill(load_part(skill, "references/ships.md"), store.list(), tmp_path / "out.zip")


def test_a_disk_that_fills_up_during_an_import_is_no_fault_of_the_file(
    tiny_engine: MakeEngine, skill: Skill, tmp_path: Path
) -> None:
    archive = exported(tiny_engine("llama"), skill, tmp_path)
    there = machine(tmp_path, "there")
    there.directory.parent.mkdir()
    (there.directory.parent / "imports").write_text("a file where a folder has to be")
    with pytest.raises(ArtifactError, match=r"imports cannot be written .* --cache-dir"):
        import_skill(archive, ImportShelf(there), None)


@pytest.mark.parametrize(
    "name",
    [
        "../../evil.md",
        "/etc/evil",
        "references/../../evil.md",
        "C:\\evil.md",
        "references/con.md",
        "scripts/run.sh",
        "artifacts/../x.safetensors",
        "references/.hidden.md",
        "SKILL.md/x",
    ],
)
def test_no_name_in_an_archive_leads_anywhere(tiny_engine: MakeEngine, skill: Skill, tmp_path: Path, name: str) -> None:
    archive = exported(tiny_engine(), skill, tmp_path)
    rezip(archive, lambda members: members.update({name: b"evil"}))
    before = set(tmp_path.rglob("*"))
    with pytest.raises(ArtifactError, match="is no export"):
        import_skill(archive, ImportShelf(machine(tmp_path, "there")), tmp_path / "their-skills")
    assert set(tmp_path.rglob("*")) == before


def test_archives_that_are_no_exports_are_refused(tiny_engine: MakeEngine, skill: Skill, tmp_path: Path) -> None:
    archive = exported(tiny_engine(), skill, tmp_path)
    shelf = ImportShelf(machine(tmp_path, "there"))
    good = archive.read_bytes()

    def refused(match: str, change: Callable[[dict[str, bytes]], None]) -> None:
        archive.write_bytes(good)
        rezip(archive, change)
        with pytest.raises(KvnotesError, match=match):
            import_skill(archive, shelf, tmp_path / "their-skills")
        assert shelf.waiting.list() == ()
        assert not (tmp_path / "their-skills").exists()

    def manifest(**changes: object) -> Callable[[dict[str, bytes]], None]:
        def change(members: dict[str, bytes]) -> None:
            members["kvnotes.json"] = json.dumps(json.loads(members["kvnotes.json"]) | changes).encode()

        return change

    refused("needs", lambda members: members.pop("SKILL.md") and None)
    refused("needs", lambda members: members.pop("artifacts/0.safetensors") and None)
    refused("cannot be read", lambda members: members.update({"kvnotes.json": b"[1"}))
    refused("does not know", manifest(format_version=2))
    refused("names its skill", manifest(skill="../x"))
    refused("is named", manifest(skill="other"))
    refused("another model", manifest(model={"name": "m", "arch": "a", "sha256": "f" * 64}))
    refused("malformed", manifest(model={"name": "\x1b[31m", "arch": "a", "sha256": "f" * 64}))
    refused("another text", lambda m: m.update({"SKILL.md": m["SKILL.md"].replace(b"harbour opens", b"harbour shuts")}))
    refused("larger than", lambda members: members.update({"references/big.md": b"x" * (1 << 20) + b"x"}))
    refused("twice", lambda members: members.update({"skill.MD": b"x"}))
    refused("damaged", lambda m: m.update({"artifacts/0.safetensors": m["artifacts/0.safetensors"][:-1] + b"\x77"}))
    for at in (10, len(good) // 2, len(good) - 10):
        archive.write_bytes(good[:at])
        with pytest.raises(ArtifactError, match="let it be exported again"):
            import_skill(archive, shelf, None)
    with pytest.raises(ArtifactError, match="There is no file"):
        import_skill(tmp_path / "none.zip", shelf, None)


def test_compressed_members_are_refused(tiny_engine: MakeEngine, skill: Skill, tmp_path: Path) -> None:
    archive = exported(tiny_engine(), skill, tmp_path)
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("references/bomb.md", b"0" * 900_000)
    with pytest.raises(ArtifactError, match="compressed"):
        import_skill(archive, ImportShelf(machine(tmp_path, "there")), None)


def test_a_skill_that_is_there_already_is_never_overwritten(
    tiny_engine: MakeEngine, skill: Skill, tmp_path: Path
) -> None:
    archive = exported(tiny_engine(), skill, tmp_path)
    shelf = ImportShelf(machine(tmp_path, "there"))
    theirs = tmp_path / "their-skills"
    import_skill(archive, shelf, theirs)
    import_skill(archive, shelf, theirs)  # the same again does no harm
    write_skill(theirs / "harbour", "---\nname: harbour\ndescription: mine\n---\nMy own.\n")
    with pytest.raises(SkillError, match="differs from the imported skill"):
        import_skill(archive, shelf, theirs)
    assert "My own." in (theirs / "harbour" / "SKILL.md").read_text()


def test_an_export_that_cannot_be_written_leaves_nothing(tiny_engine: MakeEngine, skill: Skill, tmp_path: Path) -> None:
    engine = tiny_engine()
    store = machine(tmp_path, "here")
    SkillCompiler(engine, store).compile(skill)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(KvnotesError, match="cannot be written"):
        export_skill(skill, store.list(), tmp_path / "file" / "x.zip")
    with pytest.raises(ArtifactError, match="has no artifact"):
        export_skill(skill, (), tmp_path / "x.zip")
    assert not [name for name in map(str, tmp_path.iterdir()) if name.endswith((".zip", ".tmp"))]


def test_an_artifact_that_lacks_rows_is_refused(tiny_engine: MakeEngine, skill: Skill, tmp_path: Path) -> None:
    engine = tiny_engine()
    store = machine(tmp_path, "here")
    compiled = SkillCompiler(engine, store).compile(skill)
    with open_artifact(compiled.path) as artifact:
        write_artifact(compiled.path, artifact.meta, slice_rows(artifact.rows(), 0, artifact.meta.n_tokens - 9))
    archive = tmp_path / "x.zip"
    export_skill(skill, store.list(), archive)
    there = machine(tmp_path, "there")
    import_skill(archive, ImportShelf(there), None)
    with pytest.raises(ArtifactError, match="lacks rows"):
        SkillCompiler(engine, there).find(skill)
