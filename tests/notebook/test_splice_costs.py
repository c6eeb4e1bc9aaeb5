"""What a splice may cost, counted: calls of llama.cpp, bytes through its state API, rows converted, memory."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import llama_cpp.llama_cpp as api
import numpy as np
import pytest
from numpy.typing import NDArray

from kvnotes_local.contract.plan import Splice
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.kv.layout import GGMLType
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.library import SkillLibrary

MakeEngine = Callable[..., LlamaEngine]
COUNTED = (
    "llama_decode",
    "llama_state_seq_set_data_ext",
    "llama_state_seq_get_data_ext",
    "llama_memory_seq_cp",
    "llama_tokenize",
)


@pytest.fixture
def library(tmp_path: Path) -> SkillLibrary:
    folder = tmp_path / "skills" / "harbor"
    folder.mkdir(parents=True)
    text = " ".join(f"Berth {number} takes boats of {number % 9 + 4} metres." for number in range(20))
    (folder / "SKILL.md").write_text(f"---\nname: harbor\ndescription: harbor\n---\n{text}\n")
    return SkillLibrary([folder.parent])


class Counts:
    """Calls of llama.cpp since the last ``clear``, and the elements that were converted."""

    def __init__(self, engine: LlamaEngine, patch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        self.elements = 0
        for name in COUNTED:
            patch.setattr(api, name, self._counted(name, getattr(api, name)))
        quantize = engine._converter.quantize

        def counted(type: GGMLType, values: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
            self.elements += values.size
            quantize(type, values, out)

        patch.setattr(engine._converter, "quantize", counted)

    def _counted(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object) -> object:
            self.calls[name] += 1
            return function(*args)

        return call

    def clear(self) -> None:
        self.calls.clear()
        self.elements = 0


def chat(engine: LlamaEngine, library: SkillLibrary, store: ArtifactStore) -> Notebook:
    notebook = Notebook(engine, library=library, compiler=SkillCompiler(engine, store, n_leads=1))
    notebook.say("Good morning.", "Good morning.")
    notebook.read()
    return notebook


@pytest.mark.parametrize(("seam", "batches"), [(0, 1), (8, 2)])
@pytest.mark.parametrize("kv_type", [GGMLType.F16, GGMLType.Q8_0])
def test_a_splice_and_its_question_cost_one_hand_over_and_one_batch(
    tiny_engine: MakeEngine,
    library: SkillLibrary,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kv_type: GGMLType,
    seam: int,
    batches: int,
) -> None:
    engine = tiny_engine("llama", kv_type=kv_type, n_ctx=4096)
    notebook = chat(engine, library, ArtifactStore(tmp_path / "artifacts"))
    notebook.splice("harbor", repair=seam)
    notebook.undo()
    counts = Counts(engine, monkeypatch)

    segment = notebook.splice("harbor", repair=seam)
    spliced = segment.n_tokens - seam
    assert counts.calls["llama_state_seq_set_data_ext"] == 1
    assert counts.calls["llama_state_seq_get_data_ext"] == 0
    assert counts.calls["llama_decode"] == (seam > 0)
    # The skill's tokens are known from the first time; what is tokenized again does not grow with it.
    assert counts.calls["llama_tokenize"] == 0
    width = sum(layer.k.n_embd for cache in engine.layout.caches for layer in cache.layers)
    # F16 values are copied; for a quantized cache they are converted once, as the keys are.
    assert counts.elements == spliced * width * (1 if kv_type is GGMLType.F16 else 2)

    notebook.ask("Which berth?", max_tokens=1)
    assert counts.calls["llama_decode"] == batches
    assert counts.calls["llama_state_seq_set_data_ext"] == 1


def test_the_bytes_handed_over_are_those_of_the_rows(
    tiny_engine: MakeEngine, library: SkillLibrary, tmp_path: Path
) -> None:
    engine = tiny_engine("llama", kv_type=GGMLType.F16, n_ctx=4096)
    store = ArtifactStore(tmp_path / "artifacts")
    notebook = chat(engine, library, store)
    segment = notebook.splice("harbor", repair=0)
    seq = engine.new_sequence()
    applied = engine.apply(seq, [Splice(Path(segment.artifact or ""), 0, segment.n_tokens)], logits=False)
    rows = segment.n_tokens * engine.info.kv_bytes_per_token
    assert applied.decoded == 0
    assert rows <= applied.bytes_restored <= rows + 16 * segment.n_tokens + 4096


def test_fork_and_undo_hand_nothing_over(
    tiny_engine: MakeEngine, library: SkillLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine("llama", n_ctx=4096)
    notebook = chat(engine, library, ArtifactStore(tmp_path / "artifacts"))
    notebook.splice("harbor", repair=0)
    counts = Counts(engine, monkeypatch)
    twin = notebook.fork()
    twin.undo()
    notebook.undo()
    notebook.redo()
    assert counts.calls["llama_decode"] == 0
    assert counts.calls["llama_state_seq_set_data_ext"] == counts.calls["llama_state_seq_get_data_ext"] == 0
    twin.close()


def test_memory_for_a_splice_does_not_grow_with_the_skill(
    tiny_engine: MakeEngine, library: SkillLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine("llama", kv_type=GGMLType.F16, n_ctx=4096)
    notebook = chat(engine, library, ArtifactStore(tmp_path / "artifacts"))
    segment = notebook.splice("harbor", repair=0)
    per_token = engine.info.kv_bytes_per_token
    monkeypatch.setattr("kvnotes_local.engine.sequences.rows_transfer._BUFFER_BYTES", 40 * per_token)

    def peak(n_tokens: int) -> int:
        seq = engine.new_sequence()
        tracemalloc.start()
        try:
            engine.apply(seq, [Splice(Path(segment.artifact or ""), 0, n_tokens)], logits=False)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            engine.free_sequence(seq)

    short, long = segment.n_tokens // 4, segment.n_tokens
    peak(long)  # the buffer is there from now on
    assert peak(long) - peak(short) < (long - short) * per_token // 4


@pytest.mark.parametrize(
    ("name", "flash_attn", "kv_type"),
    [
        ("llama", None, GGMLType.F16),
        ("llama", False, GGMLType.F16),
        ("gemma3", None, GGMLType.F16),
        ("llama", None, GGMLType.Q8_0),
        ("qwen2vl", None, GGMLType.F16),
    ],
)
def test_rows_handed_over_in_pieces_are_those_handed_over_as_a_whole(
    tiny_engine: MakeEngine,
    library: SkillLibrary,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    flash_attn: bool | None,
    kv_type: GGMLType,
) -> None:
    engine = tiny_engine(name, kv_type=kv_type, n_ctx=4096, flash_attn=flash_attn)
    notebook = chat(engine, library, ArtifactStore(tmp_path / "artifacts"))
    counts = Counts(engine, monkeypatch)

    def spliced() -> tuple[bytes, int]:
        twin = notebook.fork()
        twin.splice("harbor", repair=0)
        counts.clear()
        twin.undo()
        twin.splice("harbor", repair=0)
        pieces = counts.calls["llama_state_seq_set_data_ext"]
        twin.check()
        # The rows themselves: logits would also depend on the cells that they lie in, and on how the CPU sums over those.
        rows = engine._transfer.read(twin._cache.seq, 0, twin.n_cached)
        twin.close()
        return b"".join(layer.tobytes() for cache in rows.caches for layer in (*cache.k, *cache.v)), pieces

    whole, one = spliced()
    monkeypatch.setattr(
        "kvnotes_local.engine.sequences.rows_transfer._BUFFER_BYTES", 40 * engine.info.kv_bytes_per_token
    )
    in_pieces, many = spliced()
    assert one == 1
    assert many > 10
    # A rotated number may round the other way: numpy's vector loops and their remainders differ by one unit in the last place.
    wrong = np.abs(np.frombuffer(in_pieces, np.uint8).astype(int) - np.frombuffer(whole, np.uint8))
    wrong = np.minimum(wrong, 256 - wrong)
    assert wrong.max() <= 1
    assert np.count_nonzero(wrong) < 1e-4 * wrong.size
