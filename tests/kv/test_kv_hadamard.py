"""The Walsh-Hadamard transform against llama.cpp's matrix and ggml's product with it."""

from __future__ import annotations

import ggml_oracle
import numpy as np
import pytest
from numpy.typing import NDArray

from kvnotes_local.errors import LayoutError
from kvnotes_local.kv.hadamard import hadamard
from kvnotes_local.kv.layout import GGMLType
from tests.kv_oracles import expected_hadamard


def llama_matrix(n: int) -> NDArray[np.float32]:
    """``ggml_gen_hadamard`` with its loops."""
    data = np.zeros((n, n), np.float32)
    data[0, 0] = 1 / np.sqrt(np.float32(n))
    s = 1
    while s < n:
        for i in range(s):
            for j in range(s):
                value = data[i, j]
                data[i + s, j] = value
                data[i, j + s] = value
                data[i + s, j + s] = -value
        s *= 2
    return data


@pytest.mark.parametrize("block", [2, 64, 128, 256])
def test_the_matrix_is_the_one_of_llama_cpp(block: int) -> None:
    np.testing.assert_allclose(hadamard(np.eye(block, dtype=np.float32), block), llama_matrix(block), rtol=3e-7)


@pytest.mark.parametrize("block", [64, 128, 256, 512])
def test_rows_come_out_as_from_ggml(block: int) -> None:
    rows = np.random.default_rng(0).standard_normal((37, 3 * block)).astype(np.float32)
    theirs = ggml_oracle.hadamard_product(rows.reshape(-1, block), llama_matrix(block)).reshape(rows.shape)
    np.testing.assert_allclose(hadamard(rows, block), theirs, atol=3e-6)


@pytest.mark.parametrize("block", [0, 1, 2, 32, 64, 128, 256])
def test_twice_is_nothing(block: int) -> None:
    rows = np.random.default_rng(1).standard_normal((2, 5, 256)).astype(np.float32)
    before = rows.copy()
    np.testing.assert_allclose(hadamard(hadamard(rows, block), block), rows, atol=3e-6)
    np.testing.assert_array_equal(rows, before)


@pytest.mark.parametrize(("block", "n"), [(3, 9), (64, 96), (128, 64), (-2, 64)])
def test_a_block_that_does_not_fit_is_refused(block: int, n: int) -> None:
    with pytest.raises(LayoutError, match="Hadamard"):
        hadamard(np.zeros((1, n), np.float32), block)


@pytest.mark.parametrize(
    ("head", "keys", "values"),
    [(64, 64, 64), (128, 128, 64), (192, 64, 64), (256, 256, 64), (576, 64, 64), (80, 0, 0), (0, 0, 0)],
)
def test_the_block_is_the_one_llama_cpp_picks(head: int, keys: int, values: int) -> None:
    assert expected_hadamard(head, GGMLType.Q8_0) == keys
    assert expected_hadamard(head, GGMLType.Q4_1, values=True) == values
    assert expected_hadamard(head, GGMLType.F16) == 0
    assert expected_hadamard(head, GGMLType.BF16, values=True) == 0
    assert expected_hadamard(head, GGMLType.Q8_0, disabled=True) == 0
