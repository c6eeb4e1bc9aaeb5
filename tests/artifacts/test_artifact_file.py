"""Artifacts: what is written is what is read, and nothing else is accepted."""

from __future__ import annotations

import json
import os
import signal
import stat
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from kvnotes_local.artifacts import meta as artifact_meta
from kvnotes_local.artifacts.artifact import (
    FORMAT_VERSION,
    ArtifactKind,
    artifact_key,
    open_artifact,
    read_artifact_meta,
    text_sha256,
)
from kvnotes_local.artifacts.tensor_file import TensorSpec, write_tensor_file
from kvnotes_local.artifacts.writer import write_artifact, write_state_artifact
from kvnotes_local.chat_format.turns import FieldSpan
from kvnotes_local.contract.store_type import StoreType
from kvnotes_local.errors import ArtifactError, OtherVersionError
from kvnotes_local.kv.layout import CacheLayout, CacheRows, GGMLType, StateLayout, StateRows
from tests.artifacts.samples import LAYOUTS, META, layer, meta_for, random_rows, same_rows
from tests.conftest import REPOSITORY

EACH_LAYOUT = pytest.mark.parametrize(("layout", "counts"), LAYOUTS.values(), ids=LAYOUTS.keys())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model" / "refund-policy-0123456789abcdef.safetensors"


@EACH_LAYOUT
def test_rows_come_back_as_they_were_written(path: Path, layout: StateLayout, counts: tuple[int, ...]) -> None:
    rows = random_rows(layout, counts)

    written = write_artifact(path, meta_for(layout), rows)

    with open_artifact(path) as artifact:
        assert artifact.meta == written == replace(meta_for(layout), layout=layout)
        assert not artifact.is_state
        assert same_rows(artifact.rows(), rows)
    assert read_artifact_meta(path) == written


@EACH_LAYOUT
def test_the_safetensors_library_reads_the_file(path: Path, layout: StateLayout, counts: tuple[int, ...]) -> None:
    rows = random_rows(layout, counts)
    write_artifact(path, meta_for(layout), rows)

    with safe_open(str(path), "np") as file:
        assert file.metadata()["skill"] == "refund-policy"
        for number, cache in enumerate(rows.caches):
            assert np.array_equal(file.get_tensor(f"cache{number}.pos"), cache.pos)
            for at, k in enumerate(cache.k):
                assert file.get_tensor(f"cache{number}.layer{at}.k").tobytes() == k.tobytes()


def test_rows_are_views_of_the_file_that_nobody_can_write_to(path: Path) -> None:
    layout, counts = LAYOUTS["plain"]
    write_artifact(path, META, random_rows(layout, counts))

    artifact = open_artifact(path)
    k = artifact.rows().caches[0].k[0]
    before = k.copy()
    artifact.close()

    assert np.array_equal(k, before)
    with pytest.raises(ValueError, match="read-only"):
        k[0, 0] = 1
    base: Any = k
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    assert type(base).__name__ in ("mmap", "memmap")


def test_strided_rows_are_written_without_copying_them_whole(path: Path) -> None:
    layout = StateLayout((CacheLayout((layer(n_embd=8192),)),))
    n = 12 * 100
    wide = np.repeat(random_rows(layout, (12,)).caches[0].k[0], 200, axis=0)
    strided = (wide[::2],)
    rows = StateRows(layout, (CacheRows(np.arange(n, dtype=np.int32), strided, strided),))
    meta = replace(META, tokens=tuple(range(n)), position_start=0, fields=())

    tracemalloc.start()
    write_artifact(path, meta, rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert same_rows(open_artifact(path).rows(), rows)
    assert path.stat().st_size > 39e6
    assert peak < 12e6


def test_a_whole_state_comes_back_as_it_was_written(path: Path) -> None:
    blob = os.urandom(100_001)

    written = write_state_artifact(path, META, memoryview(blob))

    with open_artifact(path, rotation="another one", llama_cpp_version="0.3.36") as artifact:
        assert artifact.is_state
        assert bytes(artifact.state()) == blob
        assert artifact.meta == written == replace(META, kind=ArtifactKind.STATE)
        with pytest.raises(ArtifactError, match="holds a whole state and no rows"):
            artifact.rows()
    with pytest.raises(ArtifactError, match=r"is a whole state from llama.cpp 0\.3\.36, which 0\.3\.37 may read"):
        open_artifact(path, llama_cpp_version="0.3.37")
    with pytest.raises(ArtifactError, match="empty state"):
        write_state_artifact(path, META, b"")


def test_rows_have_no_whole_state(path: Path) -> None:
    write_artifact(path, META, random_rows(*LAYOUTS["plain"]))

    with pytest.raises(ArtifactError, match="holds rows and no whole state"):
        open_artifact(path).state()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_only_the_user_may_read_it(path: Path) -> None:
    write_artifact(path, META, random_rows(*LAYOUTS["plain"]))

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [one.name for one in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"model_fingerprint": "cd" * 32}, r"was compiled for another model \(SmolLM2 135M, llama\)"),
        ({"skill_sha256": "6" * 64}, "was compiled from another text"),
        ({"rotation": "r2"}, "was compiled under another rotation"),
        ({"layout": StateLayout((CacheLayout((layer(n_embd=32),) * 3),))}, "layers or rows of other sizes"),
        ({"layout": StateLayout((CacheLayout((layer(),) * 2),))}, "layers or rows of other sizes"),
        ({"layout": StateLayout((CacheLayout((layer(v=None),) * 3),))}, "layers or rows of other sizes"),
        ({"layout": StateLayout((CacheLayout((layer(),) * 3, has_ext=True),))}, "layers or rows of other sizes"),
    ],
)
def test_what_does_not_fit_is_refused_with_reason_and_advice(
    path: Path, expected: dict[str, Any], message: str
) -> None:
    write_artifact(path, META, random_rows(*LAYOUTS["plain"]))

    with pytest.raises(ArtifactError, match=message) as caught:
        open_artifact(path, **expected)

    assert str(caught.value).startswith(str(path))
    assert str(caught.value).endswith("compile it again with 'kvnotes skills compile refund-policy'")


def test_what_fits_is_opened_whatever_the_live_types_are(path: Path) -> None:
    write_artifact(path, META, random_rows(*LAYOUTS["plain"]))
    live = StateLayout((CacheLayout((layer(GGMLType.Q8_0, GGMLType.Q5_1),) * 3, k_hadamard=64),))

    open_artifact(path, model_fingerprint="ab" * 32, rotation="r1", skill_sha256="5" * 64, layout=live)
    open_artifact(path, llama_cpp_version="9.9.9")  # rows do not depend on it


def test_a_missing_file_says_what_to_do(path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"does not exist.*'kvnotes skills compile refund-policy'"):
        open_artifact(path)


def test_other_files_are_told_apart(path: Path) -> None:
    write_tensor_file(path, [TensorSpec("x", "U8", (3,))], {}, lambda _: [memoryview(b"abc")])
    with pytest.raises(ArtifactError, match="none that kvnotes-local wrote"):
        open_artifact(path)
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ArtifactError, match="no complete safetensors file"):
        open_artifact(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ArtifactError, match="cannot be read"):
        open_artifact(path)


@pytest.mark.parametrize("number", [0, FORMAT_VERSION + 1])
def test_another_format_is_refused_as_such(path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr("kvnotes_local.artifacts.writer.FORMAT_VERSION", number)
    write_artifact(path, META, random_rows(*LAYOUTS["plain"]))

    for read in (open_artifact, read_artifact_meta):
        with pytest.raises(OtherVersionError, match="another version of kvnotes-local; compile it again") as caught:
            read(path)
        assert caught.value.model_name == META.model_name


@pytest.mark.parametrize("key", ["kind", "skill", "store", "origin", "layout", "tokens", "n_tokens", "lead"])
def test_keys_that_are_not_there_are_those_of_another_version(path: Path, key: str) -> None:
    craft(path, lambda strings: strings.__delitem__(key), plain_tensors())
    with pytest.raises(OtherVersionError):
        read_artifact_meta(path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"format_version", b"format_versiom"))  # the checksum tells damage apart
    with pytest.raises(ArtifactError, match="damaged") as caught:
        read_artifact_meta(path)
    assert not isinstance(caught.value, OtherVersionError)


def _swap(rows: StateRows, **changes: Any) -> StateRows:
    return replace(rows, caches=(replace(rows.caches[0], **changes),))


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: _swap(rows, pos=rows.caches[0].pos[::-1]),
        lambda rows: _swap(rows, pos=rows.caches[0].pos - 1),
        lambda rows: _swap(rows, pos=rows.caches[0].pos + 1),
        lambda rows: _swap(rows, pos=rows.caches[0].pos[:-1]),
        lambda rows: _swap(rows, k=rows.caches[0].k[:-1]),
        lambda rows: _swap(rows, k=tuple(k[:, :-2] for k in rows.caches[0].k)),
        lambda rows: _swap(rows, k=tuple(k.view(np.float16) for k in rows.caches[0].k)),
        lambda rows: _swap(rows, v=(None,) * 3),
        lambda rows: _swap(rows, ext=np.zeros((12, 3), np.int32)),
        lambda rows: replace(rows, caches=()),
        lambda rows: replace(rows, layout=StateLayout((CacheLayout((layer(GGMLType.BF16),) * 3),))),
    ],
)
def test_rows_that_contradict_their_layout_are_not_written(
    path: Path, change: Callable[[StateRows], StateRows]
) -> None:
    with pytest.raises(ArtifactError):
        write_artifact(path, META, change(random_rows(*LAYOUTS["plain"])))

    assert not path.exists()
    assert not list(path.parent.glob("*")) if path.parent.exists() else True


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": ()},
        {"tokens": (-1,) * 12},
        {"position_start": 2**31 - 5},
        {"fields": (FieldSpan("a", "b", 5, 3),)},
        {"fields": (FieldSpan("a", "b", 5, 99),)},
        {"fields": (FieldSpan("a", "b", 5, 7), FieldSpan("c", "d", 6, 8))},
    ],
)
def test_metadata_that_contradicts_itself_is_not_written(path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError):
        write_artifact(path, replace(META, **change), random_rows(*LAYOUTS["plain"]))

    assert not path.exists()


def test_names_from_elsewhere_become_one_printable_line(path: Path) -> None:
    meta = replace(META, model_name="evil\x1b[2J\nname \u202e", lead="\x00\n\ud800")
    write_artifact(path, meta, random_rows(*LAYOUTS["plain"]))

    assert read_artifact_meta(path).model_name == "evil [2J name"
    assert read_artifact_meta(path).lead == meta.lead


def test_a_disk_error_names_the_way_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtifactError, match=r"No space left.*kvnotes skills gc"):
        write_artifact(path, META, random_rows(*LAYOUTS["plain"]))
    assert list(path.parent.iterdir()) == []


# ---- crafted files: well-formed, with right checksums, and wrong


def craft(path: Path, change: Callable[[dict[str, str]], None], tensors: dict[str, tuple[TensorSpec, bytes]]) -> None:
    layout, _ = LAYOUTS["plain"]
    strings = artifact_meta.meta_to_strings(replace(META, layout=layout))
    change(strings)
    specs = [spec for spec, _ in tensors.values()]
    write_tensor_file(path, specs, strings, lambda spec: [memoryview(tensors[spec.name][1])])


def plain_tensors() -> dict[str, tuple[TensorSpec, bytes]]:
    rows = random_rows(*LAYOUTS["plain"]).caches[0]
    tensors = {"cache0.pos": (TensorSpec("cache0.pos", "I32", (12,)), rows.pos.tobytes())}
    for at, (k, v) in enumerate(zip(rows.k, rows.v, strict=True)):
        for part, data in (("k", k), ("v", v)):
            name = f"cache0.layer{at}.{part}"
            assert data is not None
            tensors[name] = (TensorSpec(name, "F16", (12, 64)), data.tobytes())
    return tensors


def test_the_crafting_itself_makes_a_file_that_opens(path: Path) -> None:
    craft(path, lambda _: None, plain_tensors())

    assert same_rows(open_artifact(path).rows(), random_rows(*LAYOUTS["plain"]))


def test_crafted_positions_are_refused(path: Path) -> None:
    nan = np.full(12, np.nan, np.float32).tobytes()
    good = np.arange(20, 32, dtype=np.int32)
    for spec, data in (
        (TensorSpec("cache0.pos", "F32", (12,)), nan),
        (TensorSpec("cache0.pos", "I32", (12,)), nan),
        (TensorSpec("cache0.pos", "I32", (12,)), good[::-1].tobytes()),
        (TensorSpec("cache0.pos", "I32", (12,)), (good - 21).tobytes()),
        (TensorSpec("cache0.pos", "I32", (12,)), np.full(12, 20, np.int32).tobytes()),
        (TensorSpec("cache0.pos", "I32", (3, 4)), good.tobytes()),
        (TensorSpec("cache0.pos", "I32", (11,)), good[1:].tobytes()),
        (TensorSpec("cache0.pos", "I32", (13,)), np.arange(20, 33, dtype=np.int32).tobytes()),
        (TensorSpec("cache0.pos", "I32", (0,)), b""),
    ):
        craft(path, lambda _: None, {**plain_tensors(), "cache0.pos": (spec, data)})
        with pytest.raises(ArtifactError):
            open_artifact(path)
        if spec.shape != (12,):
            with pytest.raises(ArtifactError, match=r"no usable positions|do not fit its layout|holds no rows"):
                read_artifact_meta(path)


def test_crafted_tensors_are_refused(path: Path) -> None:
    without = plain_tensors()
    del without["cache0.layer1.v"]
    more = {**plain_tensors(), "cache0.layer3.k": (TensorSpec("cache0.layer3.k", "F16", (12, 64)), bytes(1536))}
    narrow = {**plain_tensors(), "cache0.layer1.v": (TensorSpec("cache0.layer1.v", "F16", (12, 32)), bytes(768))}
    long = {
        name: (replace(spec, shape=(13, *spec.shape[1:])), data + data[: len(data) // 12])
        for name, (spec, data) in plain_tensors().items()
    }
    for tensors in (without, more, narrow, long, {}):
        craft(path, lambda _: None, tensors)
        with pytest.raises(ArtifactError):
            read_artifact_meta(path)


LAYOUT_JSON = json.dumps(json.loads(artifact_meta.meta_to_strings(replace(META, layout=LAYOUTS["plain"][0]))["layout"]))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format_version", "1e999"), ("format_version", "-1"), ("format_version", "NaN"),
        ("format_version", "9" * 5000), ("kind", "state"), ("kind", "rowz"), ("store", "q4_0"), ("n_tokens", "13"),
        ("n_tokens", "NaN"),
        ("position_start", "NaN"), ("position_start", "4294967295"), ("position_start", "-1"), ("position_start", "²"),
        ("tokens", ""), ("tokens", "1 2"), ("tokens", "1 -2 3"), ("tokens", " ".join(["99999999999"] * 12)),
        ("tokens", " ".join(["4294967295"] * 12)), ("fields", "nope"), ("fields", "[[1,2,3,4]]"),
        ("fields", '[["a","b",0,13]]'),
        ("fields", '[["a","b",0]]'), ("fields", '[["a","b",0,1.5]]'), ("fields", "3"), ("fields", "[" * 100_000),
        ("fields", '[["a","b",5,true]]'), ("layout", "null"), ("layout", "[]"), ("layout", "7"), ("layout", "[[]]"),
        ("layout", LAYOUT_JSON.replace("64", "-64")), ("layout", LAYOUT_JSON.replace("64", "1e2")),
        ("layout", LAYOUT_JSON.replace("64", "99999999999")), ("layout", LAYOUT_JSON.replace("F16", "F99")),
        ("layout", LAYOUT_JSON.replace("F16", "F32")), ("layout", LAYOUT_JSON.replace("false", "0")),
        ("layout", LAYOUT_JSON.replace('"n_stream": 1', '"n_stream": 0')), ("layout", LAYOUT_JSON.replace("[[", "[[[")),
        ("layout", LAYOUT_JSON.replace('["F16", 64]', "null")), ("skill", "a\x1b[2J"), ("model_name", "\u202e"),
    ],
)  # fmt: skip
def test_crafted_metadata_is_refused(path: Path, key: str, value: str) -> None:
    craft(path, lambda strings: strings.__setitem__(key, value), plain_tensors())

    with pytest.raises(ArtifactError):
        open_artifact(path)
    with pytest.raises(ArtifactError):
        read_artifact_meta(path)


@pytest.mark.parametrize("key", artifact_meta.meta_to_strings(META).keys())
def test_missing_metadata_is_refused(path: Path, key: str) -> None:
    craft(path, lambda strings: strings.__delitem__(key), plain_tensors())

    with pytest.raises(ArtifactError):
        open_artifact(path)


ENTRY = b'{"__metadata__": {}, "x": {"dtype": "%s", "shape": %s, "data_offsets": %s}}'


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "no complete safetensors file"),
        (b"null", "no JSON object"),
        (b"[]", "no JSON object"),
        (b"{}", "no readable metadata"),
        (b'{"a": NaN}', "unreadable header"),
        (b"[" * 100_000, "unreadable header"),
        (b"\xff{}", "unreadable header"),
        (b'{"__metadata__": {}, "__metadata__": {}}', "a key occurs twice"),
        (b'{"__metadata__": 3}', "no readable metadata"),
        (b'{"__metadata__": {"a": 3}}', "no readable metadata"),
        (b'{"__metadata__": {}, "x": 1}', "malformed entry"),
        (ENTRY % (b"U8", b"[4]", b"[0, 9]"), "does not fit its size"),
        (ENTRY % (b"U8", b"[2, -2]", b"[0, 4]"), "malformed entry"),
        (ENTRY % (b"U8", b"[4]", b"[-4, 0]"), "malformed entry"),
        (ENTRY % (b"U8", b"[4]", b"[4, 8]"), "gap or an overlap"),
        (ENTRY % (b"X8", b"[4]", b"[0, 4]"), "malformed entry"),
        (ENTRY % (b"U8", b"[true, 4]", b"[0, 4]"), "malformed entry"),
        (ENTRY % (b"U8", b"[4.0]", b"[0, 4]"), "malformed entry"),
        (ENTRY % (b"U8", b"[18446744073709551617]", b"[0, 4]"), "malformed entry"),
        (ENTRY % (b"U8", b"[1" + b"0" * 5000 + b"]", b"[0, 4]"), "unreadable header"),
        (ENTRY % (b"U8", b"[2]", b"[0, 2]"), "where its header asks for"),
        (ENTRY % (b"I32", b"[2]", b"[0, 8]"), "where its header asks for"),
        (ENTRY.replace(b"}}", b"}, ") % (b"U8", b"[3]", b"[0, 3]") + ENTRY[21:] % (b"U8", b"[4]", b"[0, 4]"), "twice"),
        (
            ENTRY.replace(b"}}", b"}, ") % (b"U8", b"[3]", b"[0, 3]")
            + ENTRY[21:].replace(b"x", b"y") % (b"U8", b"[2]", b"[2, 4]"),
            "gap or an overlap",
        ),
    ],
)
def test_crafted_headers_are_refused(path: Path, header: bytes, message: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))

    with pytest.raises(ArtifactError, match=message) as caught:
        open_artifact(path)
    assert str(caught.value).endswith("compile it again with 'kvnotes skills compile refund-policy'")


# ---- keys


def test_the_key_depends_on_everything_that_the_rows_depend_on() -> None:
    known = {
        "skill_sha256": "a", "model_fingerprint": "b", "wrapper": "c", "lead": "d", "rotation_fingerprint": "e",
        "store": StoreType.F16, "llama_cpp_version": "f", "kind": ArtifactKind.ROWS, "format_version": 1,
    }  # fmt: skip
    changes = {key: "other" for key in known if isinstance(known[key], str)}
    variants = [known, *({**known, key: value} for key, value in changes.items())]
    variants += [
        {**known, "store": StoreType.Q8_0},
        {**known, "kind": ArtifactKind.STATE},
        {**known, "format_version": 2},
    ]
    variants += [{**known, "wrapper": "cd", "lead": ""}]

    keys = [artifact_key(**variant) for variant in variants]  # type: ignore[arg-type]

    assert len(set(keys)) == len(keys)
    assert all(len(key) == 64 and int(key, 16) >= 0 for key in keys)
    assert artifact_key(**known) == keys[0]  # type: ignore[arg-type]


def test_an_artifacts_key_is_that_of_its_parts() -> None:
    assert META.key == replace(META, created="later", model_name="other", tokens=(1,)).key
    assert META.key != replace(META, lead="small talk").key
    assert text_sha256("a") == "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"


# ---- several processes, and death

WRITER = """
import sys, time
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.artifacts.samples import LAYOUTS, META, random_rows
from kvnotes_local.artifacts.artifact import open_artifact
from kvnotes_local.artifacts.writer import write_artifact
path, who, rounds = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
rows = random_rows(*LAYOUTS["sliding window"], seed=int(who))
for _ in range(rounds):
    write_artifact(path, replace(META, created=who), rows)
    open_artifact(path).rows()
print("done")
"""

SLOW_WRITER = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.artifacts.samples import LAYOUTS, META, random_rows
from kvnotes_local.artifacts import writer as artifact_writer
from kvnotes_local.artifacts import tensor_file
path, stage = Path(sys.argv[2]), sys.argv[3]

def stop_here(*_):
    print("here", flush=True)
    sys.stdin.read()

if stage == "data":
    whole = artifact_writer._pieces
    def pieces(array):
        yield from whole(array)
        if array.shape[-1] > 3:
            stop_here()
    artifact_writer._pieces = pieces
elif stage == "fsync":
    os.fsync = stop_here
else:
    tensor_file.Path.replace = stop_here
artifact_writer.write_artifact(path, META, random_rows(*LAYOUTS["plain"]))
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, str(REPOSITORY), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def test_two_processes_that_write_the_same_artifact_leave_one_whole_file(path: Path) -> None:
    writers = [start(WRITER, path, who, 25) for who in (1, 2)]

    assert [writer.communicate(timeout=60)[0] for writer in writers] == ["done\n"] * 2
    artifact = open_artifact(path)
    assert same_rows(artifact.rows(), random_rows(*LAYOUTS["sliding window"], seed=int(artifact.meta.created)))
    assert [one.name for one in path.parent.iterdir()] == [path.name]


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
@pytest.mark.parametrize("stage", ["data", "fsync", "rename"])
@pytest.mark.parametrize("existing", [False, True])
def test_a_killed_writer_leaves_the_old_artifact_or_none(path: Path, stage: str, existing: bool) -> None:
    if existing:
        write_artifact(path, META, random_rows(*LAYOUTS["plain"], seed=5))
    writer = start(SLOW_WRITER, path, stage)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "here\n"

    writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=20)

    assert list(path.parent.glob("*.safetensors")) == ([path] if existing else [])
    assert len(list(path.parent.glob(".kvnotes-*.tmp"))) == 1
    if existing:
        assert same_rows(open_artifact(path).rows(), random_rows(*LAYOUTS["plain"], seed=5))
