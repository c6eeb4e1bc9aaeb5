"""Ten thousand damaged blobs: each is refused with our own error or read, and never costs much memory."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from kv_samples import LAYOUTS, naive_blob, random_rows

from kvnotes_local.errors import LayoutError, StateFormatError
from kvnotes_local.kv.layout import StateLayout
from kvnotes_local.kv.state import infer_layout, parse_state, validate_state, write_state

CRAFTED = [0, 1, 2, 3, 8, 30, 127, 255, 256, 257, 2**15, 2**16, 2**24, 2**28, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1]
HEADER_BYTES = 400


def mutate(blob: bytes, rng: random.Random) -> bytes:
    out = bytearray(blob)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        kind = rng.randrange(7)
        near_start = rng.random() < 0.7
        at = rng.randrange(min(len(out), HEADER_BYTES) if near_start else len(out)) if out else 0
        if kind == 0:
            del out[at:]
        elif kind == 1:
            out += rng.randbytes(rng.choice([1, 4, 8, 64, 1000]))
        elif kind == 2 and out:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 3 and len(out) >= 4:
            struct.pack_into("<I", out, min(at & ~3, len(out) - 4), rng.choice(CRAFTED))
        elif kind == 4 and len(out) >= 8:
            struct.pack_into("<Q", out, min(at & ~3, len(out) - 8), rng.choice([*CRAFTED, 2**63, 2**64 - 1, 2**40]))
        elif kind == 5:
            del out[at : at + rng.choice([1, 4, 12, 100])]
        else:
            out[at:at] = out[at : at + rng.choice([4, 12, 16, 100])]
    return bytes(out)


def damaged_blobs(n: int, seed: int) -> Iterator[tuple[bytes, StateLayout]]:
    rng = random.Random(seed)
    blobs = [
        (naive_blob(random_rows(layout, counts[: len(layout.caches)])), layout)
        for layout in LAYOUTS.values()
        for counts in ((5, 3, 2), (1, 1, 1), (4, 0, 2))
    ]
    for i in range(n):
        blob, layout = blobs[i % len(blobs)]
        yield mutate(blob, rng), layout


def read_everywhere(damaged: bytes, layout: StateLayout) -> tuple[str, str]:
    """Read, validate and infer; returns what became of it."""
    try:
        infer_layout(damaged)
        inference = "inferred"
    except (LayoutError, StateFormatError):
        inference = "unknown"
    try:
        rows = parse_state(damaged, layout)
    except StateFormatError:
        with pytest.raises(StateFormatError):
            validate_state(damaged, layout, n_cells_max=64)
        return "refused", inference
    assert all((np.diff(c.pos) > 0).all() for c in rows.caches)
    assert len(write_state(rows, struct.unpack_from("<i", damaged, 4)[0])) == len(damaged)
    with contextlib.suppress(StateFormatError):
        validate_state(damaged, layout, n_cells_max=64, check_values=True)
    return "read", inference


@pytest.mark.filterwarnings("error")
def test_damaged_blobs_are_refused_or_read_and_nothing_else() -> None:
    outcomes = Counter(word for blob in damaged_blobs(10_000, 20) for word in read_everywhere(*blob))
    assert all(outcomes[word] > 100 for word in ("refused", "read", "inferred", "unknown")), outcomes


def test_damaged_blobs_never_cost_much_memory() -> None:
    tracemalloc.start()
    try:
        for damaged, layout in damaged_blobs(1_500, 21):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            read_everywhere(damaged, layout)
            spent = tracemalloc.get_traced_memory()[1] - before
            assert spent < 8 * len(damaged) + (1 << 18), f"{spent} bytes for a blob of {len(damaged)}"
    finally:
        tracemalloc.stop()
