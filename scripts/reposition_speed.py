#!/usr/bin/env python3
"""How fast rows of an artifact become rows of a live cache: keys turned, both converted. A Markdown table.

.venv/bin/python scripts/reposition_speed.py --cells 4096 --layers 30 --heads 3 --head-size 64

Stored rows are F16 and random; elements are those of keys and values together. The last column is what the converter bundled with
llama.cpp does alone, on one thread, with nothing turned: F16 to float32 and from there to the live type.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kvnotes_local.engine.llama import native
from kvnotes_local.engine.llama.ggml_converter import GGMLConverter
from kvnotes_local.kv.block_types import block_type
from kvnotes_local.kv.layout import CacheLayout, CacheRows, GGMLType, LayerLayout, StateLayout, StateRows, TensorLayout
from kvnotes_local.kv.reposition import reposition_into
from kvnotes_local.kv.rotation import LayerRotation, ModelRotation, Pairing
from studies.machine import machine_name
from tests.kv_oracles import expected_hadamard

LIVE = (GGMLType.F16, GGMLType.Q8_0, GGMLType.Q4_0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--heads", type=int, default=3, help="of keys and values")
    parser.add_argument("--head-size", type=int, default=64)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=15)
    args = parser.parse_args()
    native.start(None)
    converter = GGMLConverter()
    n_embd = args.heads * args.head_size
    rows = stored_rows(args.cells, args.layers, n_embd)
    rotation = same_rotation(args.layers, args.heads, args.head_size)
    elements = 2 * args.cells * args.layers * n_embd
    print(f"{args.cells:,} cells, {args.layers} layers, {args.heads} heads of {args.head_size}; {machine_name()};")
    print(f"million elements a second, medians of {args.repeat}\n")
    print(
        "| live type |", " | ".join(f"{n} thread{'s' * (n > 1)}" for n in args.threads), "| scaling | converter alone |"
    )
    print("|---|" + "---:|" * (len(args.threads) + 2))
    for live in LIVE:
        keys, values = (expected_hadamard(args.head_size, live, values=which) for which in (False, True))
        to = layout(live, args.layers, n_embd, keys, values)
        speeds = []
        for n in args.threads:
            work = partial(reposition_into, rows, to, rotation, 1000, converter, n_threads=n)
            speeds.append(elements / timed(work, args.repeat))
        alone = converted_alone(live, converter, args.repeat)
        shown = " | ".join(f"{speed / 1e6:,.0f}" for speed in speeds)
        print(f"| {live.name} | {shown} | {speeds[-1] / speeds[0]:.2f}× | {alone / 1e6:,.0f} |", flush=True)
    return 0


def timed(work: Callable[[], object], repeat: int) -> float:
    """Median seconds."""
    work()
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def converted_alone(live: GGMLType, converter: GGMLConverter, repeat: int) -> float:
    """Elements a second, one megabyte or so at a time."""
    n = 1 << 18
    source = block_type(GGMLType.F16).quantize(np.random.default_rng(0).standard_normal((n // 256, 256), np.float32))
    middle = np.empty((n // 256, 256), np.float32)
    target = np.empty((n // 256, block_type(live).row_bytes(256)), np.uint8)

    def work() -> None:
        for _ in range(16):
            converter.dequantize(GGMLType.F16, source, middle)
            converter.quantize(live, middle, target)

    return 16 * n / timed(work, repeat)


def layout(type: GGMLType, n_layer: int, n_embd: int, keys: int = 0, values: int = 0) -> StateLayout:
    layer = LayerLayout(TensorLayout(type, n_embd), TensorLayout(type, n_embd))
    return StateLayout((CacheLayout((layer,) * n_layer, k_hadamard=keys, v_hadamard=values),))


def stored_rows(n_cells: int, n_layer: int, n_embd: int) -> StateRows:
    rng = np.random.default_rng(0)
    codec = block_type(GGMLType.F16)
    tensors = [codec.quantize(rng.standard_normal((n_cells, n_embd), np.float32)) for _ in range(2 * n_layer)]
    pos = np.arange(100, 100 + n_cells, dtype=np.int32)
    cache = CacheRows(pos, tuple(tensors[:n_layer]), tuple(tensors[n_layer:]))
    return StateRows(layout(GGMLType.F16, n_layer, n_embd), (cache,))


def same_rotation(n_layer: int, n_head: int, head_size: int) -> ModelRotation:
    frequencies = 10000.0 ** -(np.arange(head_size // 2) * 2 / head_size)
    return ModelRotation(((LayerRotation(n_head, head_size, 0, head_size, Pairing.HALVES, frequencies),) * n_layer,))


if __name__ == "__main__":
    sys.exit(main())
