"""Models that choose their frequencies by the size of the context: an artifact fits the live choice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvnotes_local.contract.compile_job import ArtifactLabels, CompileJob
from kvnotes_local.contract.plan import Decode, Splice
from kvnotes_local.engine.llama_engine import LlamaEngine


@pytest.mark.parametrize("n_ctx", [1024, 6144])
@pytest.mark.parametrize("name", ["phi3", "llama-yarn"])
def test_rows_compiled_for_a_context_of_any_size_are_those_of_reading_in_it(
    tiny_engine: Callable[..., LlamaEngine], tmp_path: Path, name: str, n_ctx: int
) -> None:
    engine = tiny_engine(name, n_ctx=n_ctx)
    tokens = tuple(engine.tokenize("A lamp on the quay, and another one behind it."))
    lead, question = tuple(engine.tokenize("Good evening. ")), tuple(engine.tokenize("And?"))
    path = tmp_path / "a.safetensors"
    engine.compile(CompileJob(tokens, (lead,), path, ArtifactLabels("s", "", "", "")))
    logits = []
    for middle in (Splice(path, 0, len(tokens)), Decode(tokens)):
        seq = engine.new_sequence()
        engine.apply(seq, [Decode(lead), middle, Decode(question)])
        logits.append(engine.logits(seq))
    # The rows went through F16 once; nothing else differs.
    assert np.abs(logits[0] - logits[1]).max() <= 2e-2 * np.abs(logits[1]).max()
