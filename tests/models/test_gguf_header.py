"""The GGUF header reader, against files that the gguf package writes and against damaged ones."""

from __future__ import annotations

import ctypes
import os
import random
import struct
import tracemalloc
from pathlib import Path

import llama_cpp.llama_cpp as api
import numpy as np
import pytest
from gguf import GGUFWriter
from gguf.constants import GGUFEndian, LlamaFileType

from kvnotes_local.engine.llama import native
from kvnotes_local.errors import ModelError
from kvnotes_local.models.gguf_header import SplitPart
from kvnotes_local.models.gguf_reader import read_gguf_header
from kvnotes_local.models.scan import embedded_model


def write_model(path: Path, *, endianess: GGUFEndian = GGUFEndian.LITTLE) -> Path:
    writer = GGUFWriter(path, "llama", endianess=endianess)
    writer.add_name("Tiny Model")
    writer.add_size_label("1M")
    writer.add_context_length(4096)
    writer.add_embedding_length(64)
    writer.add_block_count(3)
    writer.add_head_count(8)
    writer.add_head_count_kv([2, 0, 4])
    writer.add_rope_freq_base(10000.0)
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_token_list([f"token{i}" * (i % 50) for i in range(5000)])
    writer.add_token_scores([0.5] * 5000)
    writer.add_chat_template("{{ messages }}")
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_tensor("a", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "tiny.gguf")


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def crafted(path: Path, pairs: bytes, *, n_pairs: int, n_tensors: int = 0, version: int = 3, tail: bytes = b"") -> Path:
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_pairs) + pairs + tail)
    return path


def number(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


ARCH = text("general.architecture") + struct.pack("<I", 8) + text("llama")


def test_metadata_is_what_was_written(model: Path) -> None:
    header = read_gguf_header(model)
    assert (header.version, header.n_tensors, header.file_bytes) == (3, 1, model.stat().st_size)
    assert (header.architecture, header.name, header.kind) == ("llama", "Tiny Model", "model")
    assert (header.context_length, header.n_layer, header.n_embd, header.n_head) == (4096, 3, 64, 8)
    assert header.numbers("{arch}.attention.head_count_kv") == (2, 0, 4)
    assert header.number("{arch}.attention.head_count_kv") == 4
    assert (header.key_length, header.value_length) == (8, 8)
    assert (header.file_type, header.quantization) == (15, "Q4_K_M")
    assert header.metadata["llama.rope.freq_base"] == 10000.0
    assert header.metadata["tokenizer.ggml.add_bos_token"] is True
    assert header.n_vocab == 5000
    assert header.split is None


def test_missing_entries_are_zero_or_empty(tmp_path: Path) -> None:
    header = read_gguf_header(crafted(tmp_path / "bare.gguf", ARCH, n_pairs=1))
    assert (header.name, header.quantization, header.file_type) == ("bare", "unknown", None)
    assert (header.n_layer, header.n_head, header.key_length, header.n_vocab) == (0, 0, 0, 0)


@pytest.mark.model
def test_real_model_reads_as_llama_cpp_reads_it() -> None:
    path = embedded_model()
    assert path is not None
    header = read_gguf_header(path)
    native.start()
    params = api.llama_model_default_params()
    params.vocab_only = True
    model = api.llama_model_load_from_file(str(path).encode(), params)
    try:
        seen = set()
        buffer = ctypes.create_string_buffer(1 << 16)
        for index in range(api.llama_model_meta_count(model)):
            api.llama_model_meta_key_by_index(model, index, buffer, len(buffer))
            key = buffer.value.decode()
            api.llama_model_meta_val_str_by_index(model, index, buffer, len(buffer))
            value, expected = header.metadata[key], buffer.value.decode()
            if isinstance(value, float):
                assert value == pytest.approx(float(expected)), key
            else:
                assert (str(value).lower() if isinstance(value, bool) else str(value)) == expected, key
            seen.add(key)
        assert seen == set(header.metadata)
        vocab = api.llama_model_get_vocab(model)
        assert header.n_vocab == api.llama_vocab_n_tokens(vocab)
    finally:
        api.llama_model_free(model)


def test_every_truncation_is_refused(model: Path, tmp_path: Path) -> None:
    whole = model.read_bytes()
    end = whole.index(b"tokenizer.ggml.add_bos_token") + 30
    cut = tmp_path / "cut.gguf"
    for length in [*range(0, 400, 3), *range(400, end, 2999), end]:
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut\.gguf is (damaged|not a GGUF)"):
            read_gguf_header(cut)


def test_damaged_bytes_never_end_in_another_error(model: Path, tmp_path: Path) -> None:
    whole, chance = model.read_bytes(), random.Random(7)
    n_read = n_refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            damaged[chance.randrange(4, 700)] = chance.choice([0, 1, 8, 9, 127, 255, chance.randrange(256)])
        path = tmp_path / "damaged.gguf"
        path.write_bytes(damaged)
        try:
            header = read_gguf_header(path)
            _ = (header.kind, header.n_head, header.key_length, header.quantization, header.n_vocab, header.split)
            n_read += 1
        except ModelError:
            n_refused += 1
    assert min(n_read, n_refused) > 20  # both ways were tried


HUGE = (1 << 63) - 1


@pytest.mark.parametrize(
    ("pairs", "n_pairs", "n_tensors"),
    [
        (ARCH, HUGE, 0),
        (ARCH, 1 << 40, 0),
        (ARCH, 1, HUGE),
        (struct.pack("<Q", HUGE) + b"key", 1, 0),
        (ARCH + text("k") + struct.pack("<IQ", 8, HUGE) + b"text", 2, 0),
        (ARCH + text("k") + struct.pack("<IIQ", 9, 8, HUGE) + text("t"), 2, 0),
        (ARCH + text("k") + struct.pack("<IIQ", 9, 8, 2) + struct.pack("<QQ", HUGE, 1), 2, 0),
        (ARCH + text("k") + struct.pack("<IIQ", 9, 4, HUGE) + bytes(64), 2, 0),
        (ARCH + text("k") + struct.pack("<IIQ", 9, 4, 4000) + bytes(64), 2, 0),
        (ARCH + text("k") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 4, 1) + bytes(64), 2, 0),
        (ARCH + text("k") + struct.pack("<I", 99) + bytes(64), 2, 0),
        (ARCH + text("") + struct.pack("<II", 4, 1) + bytes(64), 2, 0),
        (ARCH + ARCH, 2, 0),
        (text("other") + struct.pack("<II", 4, 1), 1, 0),
    ],
)
def test_crafted_counts_are_refused_at_once(tmp_path: Path, pairs: bytes, n_pairs: int, n_tensors: int) -> None:
    path = crafted(tmp_path / "crafted.gguf", pairs, n_pairs=n_pairs, n_tensors=n_tensors, tail=bytes(64))
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=r"crafted\.gguf is damaged or incomplete.*Download it again"):
            read_gguf_header(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_memory_stays_bounded_where_a_sparse_file_backs_huge_texts(tmp_path: Path) -> None:
    size = 1 << 36
    path = crafted(tmp_path / "sparse.gguf", ARCH + text("k") + struct.pack("<IQ", 8, size - 4096), n_pairs=2)
    os.truncate(path, size)
    with pytest.raises(ModelError, match="a text in it claims"):
        read_gguf_header(path)
    many = ARCH + text("k") + struct.pack("<IIQ", 9, 8, size // 16)
    os.truncate(crafted(path, many, n_pairs=2), size)
    with pytest.raises(ModelError, match="an array claims"):
        read_gguf_header(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 a zip", "GGUF format"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"tjgg\x03\x00\x00\x00", "before GGUF"),
    ],
)
def test_other_formats_are_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=f"other.gguf is not a GGUF file: .*{said}"):
        read_gguf_header(path)


def test_big_endian_files_are_named(tmp_path: Path) -> None:
    path = write_model(tmp_path / "big.gguf", endianess=GGUFEndian.BIG)
    with pytest.raises(ModelError, match="big-endian GGUF file"):
        read_gguf_header(path)


@pytest.mark.parametrize(
    ("version", "said"), [(1, "Convert the model again"), (4, "A newer kvnotes"), (0, "version 0")]
)
def test_other_versions_are_refused(tmp_path: Path, version: int, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        read_gguf_header(crafted(tmp_path / "v.gguf", ARCH, n_pairs=1, version=version))


def test_missing_files_folders_and_pipes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="There is no file"):
        read_gguf_header(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="directory"):
        read_gguf_header(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.gguf")
        with pytest.raises(ModelError, match="device"):
            read_gguf_header(tmp_path / "pipe.gguf")


def test_the_number_of_entries_is_bounded(tmp_path: Path) -> None:
    pairs = ARCH + b"".join(number(f"k{i}", i) for i in range(1 << 16))
    with pytest.raises(ModelError, match="65,537 metadata entries"):
        read_gguf_header(crafted(tmp_path / "many.gguf", pairs, n_pairs=(1 << 16) + 1))


def test_a_guessed_file_type_counts_too(tmp_path: Path) -> None:
    path = crafted(tmp_path / "g.gguf", ARCH + number("general.file_type", 1024 + 7), n_pairs=2)
    assert read_gguf_header(path).quantization == "Q8_0"


def test_entry_of_the_wrong_type_is_named(tmp_path: Path) -> None:
    pairs = ARCH + text("llama.context_length") + struct.pack("<I", 8) + text("many")
    header = read_gguf_header(crafted(tmp_path / "typed.gguf", pairs, n_pairs=2))
    with pytest.raises(ModelError, match=r"llama\.context_length is 'many'"):
        _ = header.context_length


def test_parts_of_a_split_model_are_recognised(tmp_path: Path) -> None:
    second = crafted(tmp_path / "renamed.gguf", number("split.no", 1) + number("split.count", 3), n_pairs=2)
    assert read_gguf_header(second).split == SplitPart(2, 3)
    first = crafted(tmp_path / "m-00001-of-00002.gguf", ARCH, n_pairs=1)
    assert read_gguf_header(first).split == SplitPart(1, 2)
    whole = crafted(tmp_path / "m-00001-of-00001.gguf", ARCH, n_pairs=1)
    assert read_gguf_header(whole).split is None


def test_projectors_and_adapters_are_no_models(tmp_path: Path) -> None:
    clip = text("general.architecture") + struct.pack("<I", 8) + text("clip")
    assert read_gguf_header(crafted(tmp_path / "a.gguf", clip, n_pairs=1)).kind == "mmproj"
    adapter = ARCH + text("general.type") + struct.pack("<I", 8) + text("adapter")
    assert read_gguf_header(crafted(tmp_path / "b.gguf", adapter, n_pairs=2)).kind == "adapter"


def test_mla_models_cache_no_values(tmp_path: Path) -> None:
    mla = ARCH + number("llama.attention.key_length_mla", 192) + number("llama.attention.key_length", 576)
    assert not read_gguf_header(crafted(tmp_path / "mla.gguf", mla, n_pairs=3)).caches_values
    assert read_gguf_header(crafted(tmp_path / "plain.gguf", ARCH, n_pairs=1)).caches_values
