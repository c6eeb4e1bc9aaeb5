"""State blobs: our writer and reader against a naive writer that follows llama.cpp line by line."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_samples import F16, LAYOUTS, Q8, assert_same_rows, cache, naive_blob, random_rows, tensor

from kvnotes_local.errors import LayoutError, StateFormatError
from kvnotes_local.kv.layout import CacheLayout, GGMLType, LayerLayout, StateLayout, StateRows
from kvnotes_local.kv.state import infer_layout, parse_state, state_bytes, take_cells, validate_state, write_state
from kvnotes_local.kv.state_plan import CELL


def rows_of(name: str, seed: int = 0) -> StateRows:
    layout = LAYOUTS[name]
    return random_rows(layout, tuple(7 - 2 * i for i in range(len(layout.caches))), seed)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_blob_is_what_llama_cpp_would_write(name: str) -> None:
    rows = rows_of(name)
    blob = write_state(rows, seq_id=2)
    assert bytes(blob) == naive_blob(rows, 2)
    assert len(blob) == state_bytes(rows.layout, [len(c.pos) for c in rows.caches])


@pytest.mark.parametrize("name", LAYOUTS)
def test_reading_gives_back_rows_and_bytes(name: str) -> None:
    rows = rows_of(name)
    blob = naive_blob(rows, 1)
    parsed = parse_state(blob, rows.layout)
    assert_same_rows(parsed, rows)
    assert bytes(write_state(parsed, 1)) == blob
    validate_state(blob, rows.layout, n_cells_max=7, check_values=True)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_layout_is_found_from_the_bytes_alone(name: str) -> None:
    assert infer_layout(naive_blob(rows_of(name), 3)) == LAYOUTS[name]


@pytest.mark.parametrize("name", LAYOUTS)
def test_one_cell_is_enough_to_find_the_layout(name: str) -> None:
    layout = LAYOUTS[name]
    for start in (-1, 0, 5):
        rows = random_rows(layout, (1,) * len(layout.caches), start=start)
        assert infer_layout(naive_blob(rows)) == layout


def test_an_empty_cache_shows_no_layers_but_the_other_one_is_found() -> None:
    layout = LAYOUTS["sliding window"]
    rows = random_rows(layout, (4, 0))
    found = infer_layout(naive_blob(rows))
    assert found.caches[0] == layout.caches[0]
    assert found.caches[1].layers == ()


def test_empty_caches_keep_the_layers_of_the_layout() -> None:
    for name, layout in LAYOUTS.items():
        rows = random_rows(layout, (0,) * len(layout.caches))
        blob = write_state(rows)
        assert bytes(blob) == naive_blob(rows), name
        assert_same_rows(parse_state(blob, layout), rows)
        validate_state(blob, layout, n_cells_max=0, check_values=True)
        with pytest.raises(LayoutError, match="all caches empty"):
            infer_layout(blob)


def test_key_rows_are_views_of_the_blob() -> None:
    blob = bytearray(naive_blob(rows_of("plain F16")))
    data = parse_state(blob, LAYOUTS["plain F16"]).caches[0]
    assert all(np.shares_memory(np.frombuffer(blob, np.uint8), x) for x in (*data.k, *data.v) if x is not None)


def test_cells_that_lie_in_another_order_come_out_in_the_order_of_positions() -> None:
    """A sliding window's cache reuses cells, so the youngest positions may lie first."""
    for name in ("plain F16", "flash attention off", "M-RoPE"):
        rows = rows_of(name)
        data = rows.caches[0]
        order = np.array([4, 5, 6, 0, 1, 2, 3])
        turned = replace(
            data,
            pos=data.pos[order],
            k=tuple(k[order] for k in data.k),
            v=tuple(None if v is None else v[order] for v in data.v),
            ext=None if data.ext is None else data.ext[order],
        )
        blob = naive_blob(StateRows(rows.layout, (turned,)))
        assert_same_rows(parse_state(blob, rows.layout), rows)
        assert infer_layout(blob) == rows.layout
        validate_state(blob, rows.layout, n_cells_max=7)


types = st.sampled_from(list(GGMLType))
plain_types = st.sampled_from([GGMLType.F32, GGMLType.F16, GGMLType.BF16])
widths = st.sampled_from([32, 64, 160])


@st.composite
def cache_layouts(draw: st.DrawFn, has_ext: bool) -> CacheLayout:
    v_trans = draw(st.booleans())
    has_v = draw(st.booleans())
    value_types = plain_types if v_trans else types
    layers = tuple(
        LayerLayout(tensor(draw(types), draw(widths)), tensor(draw(value_types), draw(widths)) if has_v else None)
        for _ in range(draw(st.integers(1, 3)))
    )
    return CacheLayout(layers, v_trans=v_trans, has_ext=has_ext, n_stream=draw(st.sampled_from([1, 1, 3])))


@st.composite
def state_rows(draw: st.DrawFn) -> StateRows:
    has_ext = draw(st.booleans())
    layout = StateLayout(tuple(draw(cache_layouts(has_ext)) for _ in range(draw(st.integers(1, 3)))))
    n_cells = tuple(draw(st.integers(0, 6)) for _ in layout.caches)
    return random_rows(layout, n_cells, draw(st.integers(0, 99)), start=draw(st.integers(-1, 5)))


@settings(max_examples=150, deadline=None)
@given(state_rows(), st.integers(0, 255))
def test_any_rows_survive_writing_and_reading(rows: StateRows, seq_id: int) -> None:
    blob = write_state(rows, seq_id)
    assert bytes(blob) == naive_blob(rows, seq_id)
    parsed = parse_state(blob, rows.layout)
    assert_same_rows(parsed, rows)
    assert write_state(parsed, seq_id) == blob
    if all(len(c.pos) for c in rows.caches):
        assert infer_layout(blob) == rows.layout


def patched(blob: bytes, offset: int, form: str, *values: int) -> bytearray:
    out = bytearray(blob)
    struct.pack_into("<" + form, out, offset, *values)
    return out


FIRST_CELL = 8 + 8
DATA = FIRST_CELL + 7 * CELL.itemsize
"""Where v_trans stands in the blob of seven cells without ext."""

REFUSED = {
    "magic": (0, "I", 0x67677371, "not a llama.cpp sequence state"),
    "negative sequence": (4, "i", -1, "sequence id -1"),
    "huge sequence": (4, "i", 256, "sequence id 256"),
    "no stream": (8, "I", 0, "0 streams"),
    "too many streams": (8, "I", 2**32 - 1, "4294967295 streams"),
    "another stream count": (8, "I", 2, "streams|cells|ends early"),
    "all cells": (12, "I", 2**32 - 1, "4294967295 cells"),
    "one cell more": (12, "I", 8, "cell"),
    "negative position": (FIRST_CELL, "i", -1, "negative position"),
    "cell of no sequence": (FIRST_CELL + 4, "I", 0, "exactly one sequence"),
    "cell of many sequences": (FIRST_CELL + 4, "I", 2**32 - 1, "exactly one sequence"),
    "cell of another sequence": (FIRST_CELL + 8, "i", 5, "another sequence"),
    "transposition": (DATA, "I", 2, "transposition flag"),
    "other transposition": (DATA, "I", 1, "transposed"),
    "layers": (DATA + 4, "I", 2**32 - 1, "4294967295 layers"),
    "one layer less": (DATA + 4, "I", 2, "layer|bytes"),
    "unknown type": (DATA + 8, "i", 99, "tensor type 99"),
    "negative type": (DATA + 8, "i", -1, "tensor type -1"),
    "another type of that width": (DATA + 8, "i", GGMLType.BF16, "BF16×64 keys"),
    "odd row": (DATA + 12, "Q", 127, "no whole row"),
    "shorter row": (DATA + 12, "Q", 126, "layer"),
    "huge row": (DATA + 12, "Q", 2**63, "no model has such"),
    "largest row": (DATA + 12, "Q", 2**64 - 2, "no model has such"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_blob_with_one_wrong_number_is_refused_by_name(what: str) -> None:
    rows = rows_of("plain F16")
    offset, form, value, message = REFUSED[what]
    blob = patched(naive_blob(rows), offset, form, value)
    with pytest.raises(StateFormatError, match=message):
        parse_state(blob, rows.layout)
    with pytest.raises(StateFormatError, match=message):
        validate_state(blob, rows.layout, n_cells_max=100)


def test_duplicate_positions_are_refused() -> None:
    rows = rows_of("plain F16")
    blob = patched(naive_blob(rows), FIRST_CELL, "i", int(rows.caches[0].pos[1]))
    with pytest.raises(StateFormatError, match="same position"):
        parse_state(blob, rows.layout)
    with pytest.raises(StateFormatError, match="same position"):
        validate_state(blob, rows.layout, n_cells_max=100)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_shortening_and_lengthening_is_refused(name: str) -> None:
    rows = rows_of(name)
    blob = naive_blob(rows)
    step = max(1, len(blob) // 300)
    for end in (*range(0, len(blob), step), len(blob) - 1):
        with pytest.raises(StateFormatError):
            validate_state(blob[:end], rows.layout, n_cells_max=100)
    for more in (b"\0", b"\1\0\0\0", bytes(64)):
        with pytest.raises(StateFormatError, match="follow the state"):
            parse_state(blob + more, rows.layout)


def test_more_cells_than_the_context_has_are_refused() -> None:
    rows = rows_of("sliding window")
    with pytest.raises(StateFormatError, match="7 cells do not fit into a context of 6"):
        validate_state(write_state(rows), rows.layout, n_cells_max=6)


def test_a_state_of_another_model_or_setting_is_refused() -> None:
    blob = write_state(rows_of("plain F16"))
    for wanted, message in (
        (StateLayout((cache(2, F16, F16),)), "3 layers, but the model has 2|values"),
        (StateLayout((cache(3, F16, F16, 128),)), "F16×64 keys .* F16×128"),
        (StateLayout((cache(3, Q8, F16),)), "has Q8_0×64"),
        (StateLayout((cache(3, F16, F16, v_trans=True),)), "flash-attention|transposed"),
        (StateLayout((cache(3, F16, F16), cache(1, F16, F16))), "ends early"),
        (StateLayout((cache(3, F16, None),)), "bytes follow|no values|values"),
        (StateLayout((cache(3, F16, F16, has_ext=True),)), "cell"),
    ):
        with pytest.raises(StateFormatError, match=message):
            parse_state(blob, wanted)


@pytest.mark.parametrize("name", LAYOUTS)
def test_nan_and_infinite_numbers_are_found_on_request(name: str) -> None:
    rows = rows_of(name)
    for at, described in enumerate(rows.layout.caches):
        for number, layer in enumerate(described.layers):
            for kind, t in (("k", layer.k), ("v", layer.v)):
                if t is None:
                    continue
                row = np.array(getattr(rows.caches[at], kind)[number])
                row[1, 0:4] = 0xFF  # NaN as F16, BF16, F32 and as the scale of any block
                tensors = list(getattr(rows.caches[at], kind))
                tensors[number] = row
                caches = list(rows.caches)
                caches[at] = replace(caches[at], **{kind: tuple(tensors)})
                blob = write_state(StateRows(rows.layout, tuple(caches)))
                validate_state(blob, rows.layout, n_cells_max=7)
                what = "keys" if kind == "k" else "values"
                with pytest.raises(
                    StateFormatError, match=f"cache {at}, layer {number}: NaN or infinity among the {what}"
                ):
                    validate_state(blob, rows.layout, n_cells_max=7, check_values=True)


def test_one_sequence_in_two_streams_is_refused() -> None:
    rows = random_rows(LAYOUTS["four streams"], (3,))
    one = naive_blob(replace(rows, caches=(replace(rows.caches[0], stream=0),)))
    body = one[12 : len(one) - 12]
    blob = one[:12] + body + body + bytes(8)
    with pytest.raises(StateFormatError, match="several streams"):
        parse_state(blob, rows.layout)


def test_rows_that_contradict_their_layout_are_not_written() -> None:
    rows = rows_of("plain F16")
    data = rows.caches[0]
    wrong = [
        replace(data, pos=data.pos[::-1]),
        replace(data, pos=data.pos - 10),
        replace(data, pos=np.zeros_like(data.pos)),
        replace(data, pos=data.pos[:-1]),
        replace(data, k=data.k[:-1]),
        replace(data, k=(data.k[0][:, :-2], *data.k[1:])),
        replace(data, v=(None, *data.v[1:])),
        replace(data, ext=np.zeros((7, 3), np.int32)),
        replace(data, stream=1),
    ]
    for bad in wrong:
        with pytest.raises(LayoutError):
            write_state(StateRows(rows.layout, (bad,)))
    with pytest.raises(LayoutError, match="sequence id 256"):
        write_state(rows, 256)
    with pytest.raises(LayoutError, match="cell counts"):
        state_bytes(rows.layout, [1, 2])
    with pytest.raises(LayoutError):
        state_bytes(rows.layout, [-1])


def test_layouts_that_cannot_be_are_refused() -> None:
    with pytest.raises(LayoutError, match="Q8_0 values cannot be stored transposed"):
        state_bytes(StateLayout((cache(1, F16, Q8, v_trans=True),)), [1])
    with pytest.raises(LayoutError, match="0 streams"):
        state_bytes(StateLayout((cache(1, F16, F16, n_stream=0),)), [1])
    with pytest.raises(LayoutError, match="multiple of 32"):
        state_bytes(StateLayout((cache(1, Q8, F16, 40),)), [1])


def test_inference_says_what_it_tried() -> None:
    blob = write_state(rows_of("plain F16"))
    with pytest.raises(
        LayoutError, match=r"tried: .*cache 1 without values, without ext.*cache 0 with values, with ext"
    ):
        infer_layout(bytes(blob) + b"\1\0\0\0")
    with pytest.raises(StateFormatError, match=r"not a llama\.cpp sequence state"):
        infer_layout(bytes(100))
    with pytest.raises(StateFormatError, match="ends early"):
        infer_layout(b"")


def test_memory_that_is_not_contiguous_is_refused() -> None:
    with pytest.raises(StateFormatError, match="contiguous"):
        parse_state(memoryview(bytes(100))[::2], LAYOUTS["plain F16"])


def test_masked_rows_write_as_a_smaller_blob() -> None:
    rows = rows_of("sliding window")
    some = replace(rows, caches=tuple(take_cells(cache, cache.pos % 2 == 0) for cache in rows.caches))
    assert_same_rows(parse_state(write_state(some), rows.layout), some)
