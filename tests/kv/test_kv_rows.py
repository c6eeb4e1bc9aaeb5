"""Cutting, joining and averaging rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kv_samples import F16, LAYOUTS, Q8, assert_same_rows, cache, decoded, random_rows, rotation_for

from kvnotes_local.errors import LayoutError
from kvnotes_local.kv.layout import GGMLType, StateLayout, StateRows
from kvnotes_local.kv.reposition import reposition
from kvnotes_local.kv.rows import (
    average_rows,
    concat,
    sink_positions,
    slice_positions,
    slice_rows,
)


def at(rows: StateRows, *positions: np.ndarray) -> StateRows:
    caches = tuple(replace(c, pos=np.asarray(p, np.int32)) for c, p in zip(rows.caches, positions, strict=True))
    return StateRows(rows.layout, caches)


def test_a_slice_by_index_is_a_view_of_those_cells() -> None:
    rows = random_rows(LAYOUTS["plain F16"], (8,))
    part = slice_rows(rows, 2, 5)
    np.testing.assert_array_equal(part.caches[0].pos, rows.caches[0].pos[2:5])
    for a, b in zip(part.caches[0].k, rows.caches[0].k, strict=True):
        np.testing.assert_array_equal(a, b[2:5])
        assert np.shares_memory(a, b)


def test_an_index_means_nothing_when_the_caches_hold_different_cells() -> None:
    with pytest.raises(LayoutError, match="slice by positions"):
        slice_rows(random_rows(LAYOUTS["sliding window"], (8, 4)), 0, 2)


def test_a_slice_by_positions_finds_the_cells_in_every_cache() -> None:
    rows = at(random_rows(LAYOUTS["sliding window"], (8, 3)), np.arange(10, 18), np.array([14, 15, 17]))
    part = slice_positions(rows, 13, 16)
    np.testing.assert_array_equal(part.caches[0].pos, [13, 14, 15])
    np.testing.assert_array_equal(part.caches[1].pos, [14, 15])
    np.testing.assert_array_equal(part.caches[0].k[0], rows.caches[0].k[0][3:6])
    np.testing.assert_array_equal(part.caches[1].k[2], rows.caches[1].k[2][:2])
    for p0, p1 in ((0, 5), (18, 100), (15, 13), (14, 14)):
        assert [len(c.pos) for c in slice_positions(rows, p0, p1).caches] == [0, 0]
    assert_same_rows(slice_positions(rows, -5, 1000), rows)


@pytest.mark.parametrize("name", LAYOUTS)
def test_parts_joined_are_the_whole(name: str) -> None:
    layout = LAYOUTS[name]
    rows = random_rows(layout, (9, 7, 5)[: len(layout.caches)])
    middle = int(rows.caches[0].pos[4])
    parts = [slice_positions(rows, 0, middle), slice_positions(rows, middle, 2**31 - 1)]
    assert_same_rows(concat(parts), rows)
    assert_same_rows(concat([slice_positions(rows, 0, 0), rows]), rows)


def test_parts_that_do_not_follow_each_other_are_refused() -> None:
    rows = random_rows(LAYOUTS["plain F16"], (4,))
    with pytest.raises(LayoutError, match="strictly ascending"):
        concat([rows, rows])
    with pytest.raises(LayoutError, match="different layouts"):
        concat([rows, random_rows(LAYOUTS["Q8_0"], (4,))])
    with pytest.raises(LayoutError, match="nothing to join"):
        concat([])
    streams = random_rows(LAYOUTS["four streams"], (4,))
    a = replace(streams.caches[0], stream=0)
    b = replace(streams.caches[0], stream=1, pos=a.pos + 100)
    with pytest.raises(LayoutError, match="different streams"):
        concat([StateRows(streams.layout, (a,)), StateRows(streams.layout, (b,))])


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_average_is_the_mean_in_f16(name: str) -> None:
    layout = LAYOUTS[name]
    counts = (9, 7, 5)[: len(layout.caches)]
    first = random_rows(layout, counts, 0)
    parts = [first] + [
        StateRows(layout, tuple(replace(a, k=b.k, v=b.v) for a, b in zip(first.caches, other.caches, strict=True)))
        for other in (random_rows(layout, counts, 1), random_rows(layout, counts, 2))
    ]
    mean = average_rows(parts)
    for ours, *theirs in zip(decoded(mean), *(decoded(p) for p in parts), strict=True):
        np.testing.assert_allclose(ours, np.mean(theirs, axis=0), rtol=6e-4, atol=1e-7)
    for described, before in zip(mean.layout.caches, layout.caches, strict=True):
        assert all(y.k.type is F16 and (y.v is None or y.v.type is F16) for y in described.layers)
        assert (described.v_trans, described.has_ext) == (before.v_trans, before.has_ext)
    np.testing.assert_array_equal(mean.caches[0].pos, first.caches[0].pos)


def test_averaging_undoes_hadamard_and_works_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = StateLayout((cache(2, GGMLType.F32, GGMLType.F32, 128),))
    a = random_rows(plain, (9,), 0)
    other = random_rows(plain, (9,), 1).caches[0]
    b = StateRows(plain, (replace(a.caches[0], k=other.k, v=other.v),))
    mixed = StateLayout((cache(2, GGMLType.F32, GGMLType.F32, 128, k_hadamard=128, v_hadamard=64),))
    parts = [reposition(rows, mixed, rotation_for(plain), 0) for rows in (a, b)]
    monkeypatch.setattr("kvnotes_local.kv.rows._CHUNK_ELEMENTS", 128 * 4)
    mean = average_rows(parts)
    assert mean.layout.caches[0].k_hadamard == mean.layout.caches[0].v_hadamard == 0
    wanted = (np.array(decoded(a)) + np.array(decoded(b))) / 2
    np.testing.assert_allclose(decoded(mean), wanted, rtol=6e-4, atol=1e-5)


def test_a_token_that_is_a_sink_in_one_part_only_comes_from_the_first_part() -> None:
    """In one layer of the second part the values of one token are ten times as long: its rows of all layers are not averaged."""
    layout = StateLayout((cache(3, F16, F16),))
    first, second = (random_rows(layout, (8,), seed) for seed in (1, 2))
    second = at(second, first.caches[0].pos)
    values = list(second.caches[0].v)
    assert values[2] is not None
    numbers = values[2].view(np.float16).copy()
    numbers[5] *= np.float16(10)
    values[2] = numbers.view(np.uint8)
    second = StateRows(layout, (replace(second.caches[0], v=tuple(values)),))
    assert sink_positions([first, second]).tolist() == [first.caches[0].pos[5]]

    mean = decoded(average_rows([first, second]))
    for got, a, b in zip(mean, decoded(first), decoded(second), strict=True):
        wanted = ((a + b) / 2).astype(np.float16).astype(np.float32)
        wanted[5] = a[5]
        np.testing.assert_allclose(got, wanted, atol=1e-3)


def test_rows_at_different_places_are_not_averaged() -> None:
    rows = random_rows(LAYOUTS["plain F16"], (4,))
    moved = StateRows(rows.layout, (replace(rows.caches[0], pos=rows.caches[0].pos + 1),))
    with pytest.raises(LayoutError, match="reposition them first"):
        average_rows([rows, moved])
    with pytest.raises(LayoutError, match="reposition them first"):
        average_rows([rows, random_rows(StateLayout((cache(3, Q8, F16),)), (4,))])
    with pytest.raises(LayoutError, match="nothing to average"):
        average_rows([])
