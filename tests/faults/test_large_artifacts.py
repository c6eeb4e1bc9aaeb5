"""Artifacts of any size take the same memory: they are written, verified, read, exported and imported piece by piece."""

from __future__ import annotations

import re
import sys
import tracemalloc
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from kvnotes_local.artifacts.artifact import ArtifactMeta, open_artifact
from kvnotes_local.artifacts.writer import write_artifact
from kvnotes_local.contract.store_type import StoreType
from kvnotes_local.kv.layout import CacheLayout, CacheRows, GGMLType, LayerLayout, StateLayout, StateRows, TensorLayout
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.imports import ImportShelf
from kvnotes_local.skills.skill_file import load_skill
from kvnotes_local.skills.transfer import export_skill, import_skill

MIB = 1 << 20
N_LAYERS, N_EMBD = 16, 512
TOKEN_BYTES = N_LAYERS * 2 * N_EMBD * 2
MAX_BYTES = 24 * MIB
"""Beside what the libraries took before: pieces of 4 MiB on both sides of a copy, and the tokens."""


def rows_of(n_tokens: int) -> StateRows:
    """Rows without memory of their own: each layer repeats one row."""
    tensor = TensorLayout(GGMLType.F16, N_EMBD)
    layout = StateLayout((CacheLayout((LayerLayout(tensor, tensor),) * N_LAYERS),))

    def layer(seed: int) -> np.ndarray:
        some = np.random.default_rng(seed).integers(0, 256, (1, N_EMBD * 2), dtype=np.uint8)
        return np.broadcast_to(some, (n_tokens, N_EMBD * 2))

    pos = np.arange(20, 20 + n_tokens, dtype=np.int32)
    keys, values = tuple(map(layer, range(N_LAYERS))), tuple(map(layer, range(N_LAYERS, 2 * N_LAYERS)))
    return StateRows(layout, (CacheRows(pos=pos, k=keys, v=values),))


def own_memory() -> int:
    """Bytes that belong to this process alone; pages of mapped files are none. 0 where that cannot be asked."""
    if sys.platform != "linux":
        return 0
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def peak_of(step: Callable[[], object]) -> int:
    """Bytes that a step had at most beside what was there before, as Python counts them and as the system does after it."""
    before = own_memory()
    tracemalloc.start()
    step()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return max(peak, own_memory() - before)


def take_through_everything(tmp_path: Path, n_bytes: int) -> dict[str, int]:
    """Peak memory of each step of the life of an artifact of about so many bytes."""
    folder = tmp_path / "lamp"
    folder.mkdir()
    (folder / "SKILL.md").write_text("---\nname: lamp\ndescription: lamp\n---\nThe lamp is green.\n")
    skill = load_skill(folder)
    n_tokens = n_bytes // TOKEN_BYTES
    rows = rows_of(n_tokens)
    meta = ArtifactMeta(
        skill="lamp",
        skill_sha256=sha256(skill.text().encode()).hexdigest(),
        model_fingerprint="ab" * 32,
        model_name="m",
        model_arch="llama",
        tokens=tuple(range(n_tokens)),
        position_start=20,
        lead="lead",
        wrapper="wrapper",
        rotation_fingerprint="r",
        store=StoreType.F16,
        llama_cpp_version="0",
        created="2026-01-31T12:00:00+00:00",
    )
    store = ArtifactStore(tmp_path / "artifacts")
    path = store.path(meta.key, meta.skill, meta.model_fingerprint)

    def verify_and_read() -> None:
        with open_artifact(path) as artifact:
            there = artifact.rows().caches[0]
            for found, wanted in zip(there.k + there.v, rows.caches[0].k + rows.caches[0].v, strict=True):
                assert found is not None
                assert wanted is not None
                assert found.shape == wanted.shape
                for at in range(0, n_tokens, 4096):
                    assert np.array_equal(found[at : at + 4096], wanted[at : at + 4096])

    archive, shelf = tmp_path / "lamp.kvnotes.zip", ImportShelf(ArtifactStore(tmp_path / "there" / "artifacts"))
    steps: dict[str, Callable[[], object]] = {
        "write": lambda: write_artifact(path, meta, rows),
        "read": verify_and_read,
        "export": lambda: export_skill(skill, store.list(), archive),
        "import": lambda: import_skill(archive, shelf, None),
    }
    peaks = {name: peak_of(step) for name, step in steps.items()}
    assert path.stat().st_size > 0.99 * n_bytes
    assert len(shelf.waiting.list()) == 1
    return peaks


def test_a_larger_artifact_takes_no_more_memory(tmp_path: Path) -> None:
    for name in ("small", "large"):
        (tmp_path / name).mkdir()
    small = take_through_everything(tmp_path / "small", 16 * MIB)
    large = take_through_everything(tmp_path / "large", 128 * MIB)
    assert max(small.values()) < MAX_BYTES, small
    assert max(large.values()) < MAX_BYTES, large


@pytest.mark.slow
def test_an_artifact_of_one_gibibyte_takes_no_more_memory(tmp_path: Path) -> None:
    peaks = take_through_everything(tmp_path, 1024 * MIB)
    assert max(peaks.values()) < MAX_BYTES, peaks
