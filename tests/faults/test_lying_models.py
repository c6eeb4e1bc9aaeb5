"""Model files whose header says what cannot be: llama.cpp gives up on them, and kvnotes says so in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.zoo import zoo_model

Kvnotes = Callable[..., Run]


@pytest.fixture
def negative_epsilon(zoo_directory: Path, tmp_path: Path) -> Path:
    """Passes every check of the header, and fails an assertion of ggml at the first decode."""
    data = bytearray(zoo_model("llama", zoo_directory).read_bytes())
    key = b"llama.attention.layer_norm_rms_epsilon"
    value = data.index(key) + len(key) + 4  # behind the type
    data[value + 3] |= 0x80  # the sign of a little-endian F32
    path = tmp_path / "liar.gguf"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("options", "said"),
    [([], "llama.cpp gave up"), (["--isolate"], "SIGABRT while loading")],
    ids=["here", "apart"],
)
def test_a_model_that_llama_cpp_gives_up_on_is_an_error_in_words(
    kvnotes: Kvnotes, negative_epsilon: Path, options: list[str], said: str
) -> None:
    run = kvnotes("ask", "Hi", "--model", negative_epsilon, "--n-ctx", 512, "--threads", 1, *options)
    assert run.code == 1
    assert "GGML_ASSERT" in run.err
    assert said in run.err
    assert len(run.err.splitlines()) <= 3, "no backtrace"
