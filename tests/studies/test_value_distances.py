"""Distances between two readings of the same tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvnotes_local.kv.layout import CacheLayout, CacheRows, StateLayout, StateRows
from studies.value_distances import value_distances
from tests.kv.kv_samples import LAYOUTS, decoded, random_rows


@pytest.mark.parametrize("name", LAYOUTS)
def test_distances_between_readings_are_those_of_their_values(name: str) -> None:
    layout = LAYOUTS[name]
    counts = (9, 7, 5)[: len(layout.caches)]
    first, other = random_rows(layout, counts, 0), random_rows(layout, counts, 1)
    second = StateRows(layout, tuple(replace(a, v=b.v) for a, b in zip(first.caches, other.caches, strict=True)))
    positions, distances = value_distances(first, second)
    np.testing.assert_array_equal(positions, np.unique(np.concatenate([one.pos for one in first.caches])))
    assert value_distances(first, first)[1].max() == 0
    shares: dict[int, list[float]] = {int(pos): [] for pos in positions}
    for described, a, b in zip(layout.caches, first.caches, second.caches, strict=True):
        for layer in range(len(described.layers)):
            if a.v[layer] is None:
                continue
            alone = [StateRows(StateLayout((one_layer(described, layer),)), (only(c, layer),)) for c in (a, b)]
            x, y = (decoded(rows)[-1] for rows in alone)
            share = np.linalg.norm(x - y, axis=1) / np.linalg.norm(x, axis=1)
            for pos, value in zip(a.pos.tolist(), share.tolist(), strict=True):
                shares[pos].append(value)
    wanted = [np.mean(shares[int(pos)]) if shares[int(pos)] else 0.0 for pos in positions]
    np.testing.assert_allclose(distances, wanted, rtol=1e-4)


def one_layer(described: CacheLayout, layer: int) -> CacheLayout:
    return replace(described, layers=(described.layers[layer],))


def only(rows: CacheRows, layer: int) -> CacheRows:
    return replace(rows, k=(rows.k[layer],), v=(rows.v[layer],))
