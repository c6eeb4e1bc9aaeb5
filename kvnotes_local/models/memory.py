"""How much memory a context takes, and whether this machine has it: asked before llama.cpp aborts the process.

The sizes follow llama.cpp's src/llama-kv-cache.cpp (one row of keys and one of values per cell and layer) and
src/llama-context.cpp (the context is padded to 256 cells). Sliding-window layers are counted as full ones, since
kvnotes makes its contexts with ``swa_full``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from kvnotes_local.contract.params import padded_n_ctx
from kvnotes_local.errors import ModelError
from kvnotes_local.kv.block_types import block_type
from kvnotes_local.kv.layout import GGMLType
from kvnotes_local.models.gguf_header import GGUFHeader

UBATCH = 512
NO_LIMIT = 1 << 60
"""Control groups without a limit report a number of about 2**63 bytes."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a model and one context take of the main memory, and how many are free.

    ``compute_bytes``: the logits and activations of one micro-batch with flash attention, as llama.cpp reserves them
    for plain models. ``is_tight``: the context itself fits, but not beside the whole of the weights, which are then
    read from the disk again and again.
    """

    kv_bytes: int
    compute_bytes: int
    weight_bytes: int
    available_bytes: int

    @property
    def context_bytes(self) -> int:
        return self.kv_bytes + self.compute_bytes

    @property
    def is_tight(self) -> bool:
        return self.context_bytes + self.weight_bytes > self.available_bytes


def available_memory(*, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process can still take: what the machine has free, or what its control groups leave if less."""
    return min([int(psutil.virtual_memory().available), *_cgroup_room(proc, cgroups)])


def kv_cache_bytes(
    n_ctx: int, n_layer: int, n_embd_k_gqa: int, n_embd_v_gqa: int, type_k: GGMLType, type_v: GGMLType
) -> int:
    """Bytes of a KV cache of ``n_ctx`` cells (padded as llama.cpp does); ``n_embd_*``: elements of one layer's row.

    Raises LayoutError when a row is not a whole number of the type's blocks.
    """
    row = block_type(type_k).row_bytes(n_embd_k_gqa) + block_type(type_v).row_bytes(n_embd_v_gqa)
    return padded_n_ctx(n_ctx) * n_layer * row


def check_memory(
    header: GGUFHeader,
    n_ctx: int,
    type_k: GGMLType,
    type_v: GGMLType,
    n_gpu_layers: int = 0,
    *,
    has_gpu: bool = False,
) -> MemoryEstimate:
    """Estimate what a context takes. ``n_gpu_layers`` below 0 means all; without ``has_gpu`` (can llama.cpp compute on one?)
    they stay in main memory.

    Raises ModelError when the context cannot fit. Weights alone never refuse: they are mapped from the file, so that a
    model larger than the memory runs, slowly. Layers on a GPU take no main memory (except on Apple silicon, which
    shares it); the GPU's own memory is not looked at.
    """
    heads = kv_heads_per_layer(header)
    host_layers = _layers_in_main_memory(header.n_layer, n_gpu_layers if has_gpu else 0)
    share = host_layers / header.n_layer if header.n_layer else 1.0
    value_length = header.value_length if header.caches_values else 0
    kv = sum(
        kv_cache_bytes(n_ctx, 1, n * header.key_length, n * value_length, type_k, type_v) for n in heads[:host_layers]
    )
    compute = 4 * UBATCH * (header.n_vocab + 2 * header.n_embd)
    estimate = MemoryEstimate(kv, compute, int(header.file_bytes * share), available_memory())
    if estimate.context_bytes > estimate.available_bytes:
        raise ModelError(
            f"There is not enough memory for a context of {n_ctx:,} tokens with {header.path.name}: "
            f"it needs {_gib(estimate.context_bytes)}, {_gib(estimate.available_bytes)} are free. "
            "Use a smaller --n-ctx or --kv-type q8_0."
        )
    return estimate


def kv_heads_per_layer(header: GGUFHeader) -> tuple[int, ...]:
    """Key heads that each layer caches; 0 for recurrent layers and those that share another layer's cache."""
    n_layer = header.n_layer
    heads = list(header.numbers("{arch}.attention.head_count_kv") or (header.n_head,))
    heads = heads * n_layer if len(heads) == 1 else heads[:n_layer]
    recurrent = header.numbers("{arch}.attention.recurrent_layers")
    interval = header.number("{arch}.full_attention_interval")
    shared = header.number("{arch}.attention.shared_kv_layers")
    for layer in range(len(heads)):
        by_interval = interval > 0 and (layer + 1) % interval != 0
        is_recurrent = bool(recurrent[layer]) if len(recurrent) > layer else by_interval
        if is_recurrent or layer >= n_layer - shared:
            heads[layer] = 0
    return tuple(heads)


def _layers_in_main_memory(n_layer: int, n_gpu_layers: int) -> int:
    if sys.platform == "darwin":
        return n_layer
    return 0 if n_gpu_layers < 0 else max(0, n_layer - n_gpu_layers)


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:,.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:,.0f} MiB"


def _cgroup_room(proc: Path, cgroups: Path) -> list[int]:
    """What each control group above this process leaves, version 2 and version 1; [] where there are none."""
    room = []
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            root, limit, usage, cached = cgroups, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            root, cached = cgroups / "memory", "total_inactive_file"
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        # Inside a container the path may be one of the host's: what is mounted then is the container's own group.
        for folder in [group, *group.parents]:
            bound, used = _read(folder / limit).strip(), _read(folder / usage).strip()
            if bound.isdigit() and used.isdigit() and int(bound) < NO_LIMIT:
                room.append(max(0, int(bound) - int(used) + _statistic(folder / "memory.stat", cached)))
            if folder == root:
                break
    return room


def _statistic(path: Path, name: str) -> int:
    """Page cache counts as used, but the kernel gives it back."""
    values = dict(line.split(" ", 1) for line in _read(path).splitlines() if " " in line)
    return int(values[name]) if values.get(name, "").isdigit() else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # no such group, or no such version of them here
