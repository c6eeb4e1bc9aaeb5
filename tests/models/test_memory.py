"""Memory of contexts: sizes as llama.cpp allocates them, limits of control groups, refusals."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from kvnotes_local.errors import LayoutError, ModelError
from kvnotes_local.kv.layout import GGMLType
from kvnotes_local.models import memory
from kvnotes_local.models.gguf_header import GGUFHeader
from kvnotes_local.models.gguf_reader import read_gguf_header
from kvnotes_local.models.memory import available_memory, check_memory, kv_cache_bytes, kv_heads_per_layer
from kvnotes_local.models.scan import embedded_model

GIB = 1 << 30


def header(arrays: dict[str, tuple[int, ...]] | None = None, **entries: int) -> GGUFHeader:
    """A made-up llama of 4 layers with 2 key heads of 64 elements."""
    plain = {"block_count": 4, "embedding_length": 512, "attention.head_count": 8, "attention.head_count_kv": 2}
    numbers = plain | {name.replace("__", "."): value for name, value in entries.items()}
    metadata: dict[str, int | str] = {f"llama.{name}": value for name, value in numbers.items()}
    lists = {f"llama.{name}": value for name, value in (arrays or {}).items()}
    for name in lists:
        metadata.pop(name, None)
    lengths = {"tokenizer.ggml.tokens": 1000}
    return GGUFHeader(Path("m.gguf"), GIB, 3, 1, metadata | {"general.architecture": "llama"}, lists, lengths)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """How much memory is free, as far as the code can tell."""
    state = SimpleNamespace(available=100 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: state)
    monkeypatch.setattr(memory, "_cgroup_room", lambda *_: [])
    return state


# Run in a child, as llama.cpp's log can be sent to one place per process only.
ASK_LLAMA_CPP = """
import ctypes, sys
import llama_cpp.llama_cpp as api
lines = []
log = api.llama_log_callback(lambda level, text, data: lines.append(text.decode("utf-8", "replace")))
api.llama_log_set(log, ctypes.c_void_p(0))
api.llama_backend_init()
model = api.llama_model_load_from_file(sys.argv[1].encode(), api.llama_model_default_params())
params = api.llama_context_default_params()
params.n_ctx, params.n_batch, params.type_k, params.type_v, params.swa_full = 1000, 512, 8, 1, True
context = api.llama_init_from_model(model, params)
print("".join(lines))
"""


@pytest.mark.model
def test_sizes_are_those_that_llama_cpp_allocates() -> None:
    model = embedded_model()
    assert model is not None
    run = subprocess.run([sys.executable, "-c", ASK_LLAMA_CPP, str(model)], capture_output=True, text=True, check=True)
    allocated = {
        kind: float(size) for kind, size in re.findall(r"(KV|compute) buffer size = +([\d.]+) MiB", run.stdout)
    }
    estimate = check_memory(read_gguf_header(model), 1000, GGMLType.Q8_0, GGMLType.F16)
    assert estimate.kv_bytes / 2**20 == pytest.approx(allocated["KV"], abs=0.01)
    assert estimate.compute_bytes / 2**20 == pytest.approx(allocated["compute"], rel=0.05)


def test_cache_bytes_follow_types_and_padding() -> None:
    assert kv_cache_bytes(256, 2, 64, 64, GGMLType.F16, GGMLType.F16) == 256 * 2 * (128 + 128)
    assert kv_cache_bytes(256, 2, 64, 32, GGMLType.Q8_0, GGMLType.F32) == 256 * 2 * (68 + 128)
    assert kv_cache_bytes(257, 1, 64, 0, GGMLType.F16, GGMLType.F16) == 512 * 128
    with pytest.raises(LayoutError):
        kv_cache_bytes(256, 1, 40, 40, GGMLType.Q8_0, GGMLType.Q8_0)


def test_a_context_that_fits_is_estimated(free: SimpleNamespace) -> None:
    estimate = check_memory(header(), 1024, GGMLType.F16, GGMLType.F16)
    assert estimate.kv_bytes == 1024 * 4 * (2 * 64 * 2) * 2
    assert (estimate.weight_bytes, estimate.available_bytes) == (GIB, 100 * GIB)
    assert not estimate.is_tight


def test_a_context_that_does_not_fit_is_refused_with_numbers_and_a_way_out(free: SimpleNamespace) -> None:
    free.available = GIB // 2
    with pytest.raises(
        ModelError, match=r"1,048,576 tokens with m\.gguf: it needs 2\.0 GiB, 512 MiB are free.*--n-ctx"
    ):
        check_memory(header(), 1 << 20, GGMLType.F16, GGMLType.F16)
    assert check_memory(header(), 1 << 17, GGMLType.F16, GGMLType.F16).kv_bytes == GIB // 4
    with pytest.raises(ModelError, match="--kv-type q8_0"):
        check_memory(header(), 1 << 18, GGMLType.F16, GGMLType.F16)
    assert check_memory(header(), 1 << 18, GGMLType.Q8_0, GGMLType.Q8_0).kv_bytes < GIB // 2


def test_weights_alone_never_refuse_but_are_told(free: SimpleNamespace) -> None:
    free.available = GIB // 2
    assert check_memory(header(), 1024, GGMLType.F16, GGMLType.F16).is_tight


def test_layers_on_a_gpu_take_no_main_memory(free: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")

    def kv_share(n_gpu_layers: int, *, has_gpu: bool) -> float:
        estimate = check_memory(header(), 4096, GGMLType.F16, GGMLType.F16, n_gpu_layers, has_gpu=has_gpu)
        return estimate.kv_bytes / kv_cache_bytes(4096, 4, 128, 128, GGMLType.F16, GGMLType.F16)

    assert kv_share(0, has_gpu=True) == 1
    assert kv_share(1, has_gpu=True) == 0.75
    assert kv_share(-1, has_gpu=True) == 0
    assert kv_share(99, has_gpu=True) == 0
    assert kv_share(-1, has_gpu=False) == 1
    monkeypatch.setattr(sys, "platform", "darwin")  # one memory for both
    assert kv_share(-1, has_gpu=True) == 1


def test_layers_without_a_cache_of_their_own_count_nothing() -> None:
    assert kv_heads_per_layer(header()) == (2, 2, 2, 2)
    assert kv_heads_per_layer(header({"attention.head_count_kv": (0, 2, 0, 4)})) == (0, 2, 0, 4)
    assert kv_heads_per_layer(header(full_attention_interval=4)) == (0, 0, 0, 2)
    assert kv_heads_per_layer(header({"attention.recurrent_layers": (1, 0, 1, 0)})) == (0, 2, 0, 2)
    assert kv_heads_per_layer(header(attention__shared_kv_layers=1)) == (2, 2, 2, 0)
    assert kv_heads_per_layer(header(attention__head_count_kv=0, attention__head_count=0)) == (0, 0, 0, 0)


def test_values_of_mla_models_count_nothing(free: SimpleNamespace) -> None:
    mla = header(attention__key_length_mla=96, attention__key_length=576, attention__head_count_kv=1)
    assert check_memory(mla, 256, GGMLType.F16, GGMLType.F16).kv_bytes == 256 * 4 * 576 * 2


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def group_v2(root: Path, path: str, limit: int | str, used: int, cached: int = 0) -> None:
    write(root / path / "memory.max", f"{limit}\n")
    write(root / path / "memory.current", f"{used}\n")
    write(root / path / "memory.stat", f"anon 1\ninactive_file {cached}\nother x\n")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=8 * GIB))
    return tmp_path / "proc"


def test_without_control_groups_the_machines_free_memory_counts(proc: Path, tmp_path: Path) -> None:
    assert available_memory(proc=proc, cgroups=tmp_path / "none") == 8 * GIB


def test_the_tightest_group_above_the_process_counts(proc: Path, tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    write(proc / "self/cgroup", "0::/user/app\n")
    group_v2(root, "user/app", "max", 1 * GIB)
    assert available_memory(proc=proc, cgroups=root) == 8 * GIB
    group_v2(root, "user", 4 * GIB, 3 * GIB, cached=GIB // 2)
    assert available_memory(proc=proc, cgroups=root) == 1 * GIB + GIB // 2
    group_v2(root, "user/app", 2 * GIB, 3 * GIB)
    assert available_memory(proc=proc, cgroups=root) == 0
    group_v2(root, "user/app", 100 * GIB, 1 * GIB)
    group_v2(root, "user", 100 * GIB, 1 * GIB)
    assert available_memory(proc=proc, cgroups=root) == 8 * GIB


def test_a_container_sees_its_own_group_at_the_top(proc: Path, tmp_path: Path) -> None:
    write(proc / "self/cgroup", "0::/docker/of-the-host\n")
    group_v2(tmp_path / "cgroup", ".", 3 * GIB, 1 * GIB)
    assert available_memory(proc=proc, cgroups=tmp_path / "cgroup") == 2 * GIB


def test_version_1_groups_count_too(proc: Path, tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    write(proc / "self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/job\n")
    write(root / "memory/job/memory.limit_in_bytes", str(2 * GIB))
    write(root / "memory/job/memory.usage_in_bytes", str(2 * GIB))
    write(root / "memory/job/memory.stat", f"total_inactive_file {GIB}\n")
    write(root / "memory/memory.limit_in_bytes", str(0x7FFFFFFFFFFFF000))
    write(root / "memory/memory.usage_in_bytes", str(3 * GIB))
    assert available_memory(proc=proc, cgroups=root) == 1 * GIB
