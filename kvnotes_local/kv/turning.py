"""Turning many key rows by given angles, fast.

numpy is several times slower when its innermost loop is as short as half a head, so the cosines and sines are laid out
once over whole rows (all heads), and every pass over the keys is one long loop.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.kv.rotation import LayerRotation, Pairing


class TurningTable:
    """Cosines and sines of up to ``m`` cells, laid out as the key rows are."""

    def __init__(self, rotation: LayerRotation, angles: NDArray[np.float64], m: int) -> None:
        """``angles``: float64 (m, n_rot/2), or (1, n_rot/2) when all cells turn alike."""
        self._rotation = rotation
        self._complex: NDArray[np.complex64] | None = None
        shape = (m, rotation.n_head, rotation.head_dim)
        if not rotation.n_rot:
            return
        first, half = rotation.offset, rotation.n_rot // 2
        cosines = np.cos(angles).astype(np.float32)[:, None]
        sines = np.sin(angles).astype(np.float32)[:, None]
        if rotation.pairing is Pairing.ADJACENT:
            table = np.zeros(shape, np.float32)
            table[:, :, 0::2] = 1
            table[:, :, first : first + 2 * half : 2] = cosines
            table[:, :, first + 1 : first + 2 * half : 2] = sines
            self._complex = table.reshape(m, -1).view(np.complex64)
            return
        straight = np.ones(shape, np.float32)
        crossed = np.zeros(shape, np.float32)
        straight[:, :, first : first + half] = cosines
        straight[:, :, first + half : first + 2 * half] = cosines
        np.negative(sines, out=crossed[:, :, first : first + half])
        crossed[:, :, first + half : first + 2 * half] = sines
        self._straight = straight.reshape(m, -1)
        self._crossed = crossed.reshape(m, -1)

    def turn(self, keys: NDArray[np.float32], scratch: NDArray[np.float32]) -> None:
        """Turn contiguous float32 keys (at most m cells, n_embd) in place. ``scratch``: as large, overwritten."""
        if not self._rotation.n_rot or not keys.size:
            return
        if self._complex is not None:
            pairs = keys.view(np.complex64)
            np.multiply(pairs, self._complex[: len(keys)], out=pairs)
            return
        self._swap_halves(keys, scratch)
        np.multiply(keys, self._straight[: len(keys)], out=keys)
        np.multiply(scratch, self._crossed[: len(keys)], out=scratch)
        np.add(keys, scratch, out=keys)

    def _swap_halves(self, keys: NDArray[np.float32], scratch: NDArray[np.float32]) -> None:
        """Put into ``scratch`` for each element the one it is paired with, and 0 for those that stay."""
        rotation = self._rotation
        half = rotation.n_rot // 2
        # Half a head copied as one item of raw bytes: one memcpy each instead of a loop over floats.
        chunk = np.dtype(f"V{4 * half}")
        window = slice(rotation.offset, rotation.offset + 2 * half)
        shape = (len(keys), rotation.n_head, rotation.head_dim)
        if rotation.n_rot != rotation.head_dim:
            scratch[...] = 0
        source = keys.reshape(shape)[:, :, window].view(chunk)
        target = scratch.reshape(shape)[:, :, window].view(chunk)
        target[:, :, 0] = source[:, :, 1]
        target[:, :, 1] = source[:, :, 0]
