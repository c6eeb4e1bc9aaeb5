"""What docs/models.md says about llama.cpp's own way to move keys (K-shift), each with its smallest case.

kvnotes does not use it. These tests say when an update of llama.cpp makes the page out of date.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import llama_cpp.llama_cpp as api
import numpy as np
import pytest
from numpy.typing import NDArray

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.llama.context import LlamaContext
from kvnotes_local.engine.llama.model import LlamaModel
from kvnotes_local.engine.rotation.live_layout import read_live_layout
from kvnotes_local.kv.block_types import block_type
from kvnotes_local.kv.layout import GGMLType, StateRows
from kvnotes_local.kv.state import parse_state
from tests.conftest import REPOSITORY
from tests.zoo import zoo_model

TOKEN, BY = 100, 777
MOVED, STAYING, DIRECT, CLOCK = range(4)


@dataclass(frozen=True)
class Shifted:
    """The key rows of one token, layer by layer: at 0 as computed, saved at once after the shift, saved after the next
    decode, at 0 in a sequence that was not moved, and computed where the shift went to; all float32 (n_embd,)."""

    before: list[NDArray[np.float32]]
    pending: list[NDArray[np.float32]]
    pending_position: int
    after: list[NDArray[np.float32]]
    staying: list[NDArray[np.float32]]
    direct: list[NDArray[np.float32]]

    def errors(self) -> list[float]:
        """Distance of shifted from computed keys, relative to these."""
        pairs = zip(self.after, self.direct, strict=True)
        return [float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs]

    def growth(self) -> list[float]:
        """Length of shifted keys, relative to computed ones."""
        pairs = zip(self.after, self.direct, strict=True)
        return [float(np.linalg.norm(a) / np.linalg.norm(b)) for a, b in pairs]


def shift(path: Path, kind: GGMLType = GGMLType.F32) -> Shifted:
    model = LlamaModel(path, n_gpu_layers=0)
    context = LlamaContext(model, EngineParams(n_ctx=256, type_k=kind, type_v=kind, n_threads=1), n_seq=4)
    layout = read_live_layout(model, context, MOVED, TOKEN)

    def saved(seq: int) -> StateRows:
        return parse_state(context.get_state(seq), layout)

    def keys(rows: StateRows) -> list[NDArray[np.float32]]:
        return [block_type(kind).dequantize(k)[0] for cache in rows.caches for k in cache.k]

    for seq, position in ((MOVED, 0), (STAYING, 0), (DIRECT, BY)):
        context.decode(seq, [TOKEN], position, logits=True)
    before, direct = keys(saved(MOVED)), keys(saved(DIRECT))
    api.llama_memory_seq_add(context.memory, MOVED, 0, -1, BY)
    pending = saved(MOVED)
    context.decode(CLOCK, [TOKEN], 0, logits=True)
    after, staying = keys(saved(MOVED)), keys(saved(STAYING))
    context.close()
    model.close()
    return Shifted(before, keys(pending), int(pending.caches[0].pos[0]), after, staying, direct)


def test_it_moves_plain_keys_to_where_they_would_be_computed(zoo_directory: Path) -> None:
    for name in ("llama", "qwen2", "gemma3", "glm4"):
        assert max(shift(zoo_model(name, zoo_directory)).errors()) < 1e-6, name


def test_positions_change_at_once_and_keys_with_the_next_decode(zoo_directory: Path) -> None:
    moved = shift(zoo_model("llama", zoo_directory))
    assert moved.pending_position == BY
    for before, pending, after in zip(moved.before, moved.pending, moved.after, strict=True):
        np.testing.assert_array_equal(before, pending)
        assert np.abs(after - pending).max() > 0.1


@pytest.mark.parametrize(
    ("name", "layer", "magnitude"),
    [
        ("llama-yarn", 0, 1 + 0.1 * math.log(4)),
        ("olmo3", 0, 1 + 0.1 * math.log(8)),
        ("gpt-oss", 0, 1 + 0.1 * math.log(32)),
        ("phi3", 0, 1.19),
    ],
)
def test_it_applies_the_magnitude_again_and_to_cells_that_stay(
    name: str, layer: int, magnitude: float, zoo_directory: Path
) -> None:
    moved = shift(zoo_model(name, zoo_directory))
    assert moved.growth()[layer] == pytest.approx(magnitude, rel=1e-5)
    stayed = np.linalg.norm(moved.staying[layer]) / np.linalg.norm(moved.before[layer])
    assert stayed == pytest.approx(magnitude, rel=1e-5)


@pytest.mark.parametrize(("name", "layer"), [("llama4", 0), ("cohere2", 0), ("smollm3", 3)])
def test_it_turns_layers_that_do_not_rotate(name: str, layer: int, zoo_directory: Path) -> None:
    errors = shift(zoo_model(name, zoo_directory)).errors()
    assert errors.pop(layer) > 0.5
    assert max(errors) < 1e-6


_SHIFT = "import sys; from pathlib import Path; from tests.engine import test_llama_cpp_shift as t; \
t.shift(Path(sys.argv[1]), t.GGMLType[sys.argv[2]])"


@pytest.mark.parametrize(
    ("name", "kind", "disabled"),
    [("llama", "Q8_0", True), ("phi3", "Q8_0", False), ("glm4", "Q8_0", False), ("deepseek2", "Q8_0", False),
     ("deepseek2-heads", "Q8_0", False), ("qwen2vl", "F16", False)],
)  # fmt: skip
def test_it_kills_the_process(name: str, kind: str, disabled: bool, zoo_directory: Path) -> None:
    """Quantized keys without a Hadamard matrix (a null pointer), those of which a part of the head turns or all but a part
    (a copy that is not implemented), and M-RoPE (an assertion). The first case lives when it has its matrix."""

    def dies(environment: dict[str, str]) -> bool:
        # Without the variable llama.cpp starts a debugger when it aborts.
        done = subprocess.run(
            [sys.executable, "-c", _SHIFT, str(zoo_model(name, zoo_directory)), kind],
            env=environment | {"GGML_NO_BACKTRACE": "1"},
            cwd=REPOSITORY,
            capture_output=True,
            timeout=120,
            check=False,
        )
        if done.returncode == 1:
            assert b"llama.cpp gave up" in done.stderr, done.stderr[-2000:]
        return done.returncode != 0

    plain = {key: value for key, value in os.environ.items() if key != "LLAMA_ATTN_ROT_DISABLE"}
    if disabled:
        assert not dies(plain)
        assert dies(plain | {"LLAMA_ATTN_ROT_DISABLE": "1"})
    else:
        assert dies(plain)


def test_hybrid_models_say_that_they_can_shift(zoo_directory: Path) -> None:
    """But their recurrent part has no positions that could move."""
    model = LlamaModel(zoo_model("falcon-h1", zoo_directory), n_gpu_layers=0)
    context = LlamaContext(model, EngineParams(n_ctx=256, n_threads=1), n_seq=2)
    assert api.llama_memory_can_shift(context.memory)
    context.close()
    model.close()
