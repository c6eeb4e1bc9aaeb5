"""Rotations as they are remembered: the same comes back, anything else is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from kvnotes_local.engine.rotation.record import from_json, rotation_fingerprint, to_json
from kvnotes_local.errors import RotationError
from kvnotes_local.kv.angles import AngleArithmetic, Fusion, theta_scale
from kvnotes_local.kv.rotation import LayerRotation, ModelRotation, Pairing, angles


def layer(pairing: Pairing) -> LayerRotation:
    return LayerRotation(
        3, 64, 0, 64, pairing, 10000.0 ** -(np.arange(32) * 2 / 64), AngleArithmetic(theta_scale(10000.0, 64))
    )


def varied() -> ModelRotation:
    yarn = AngleArithmetic(
        0.7498942, 0.25, np.linspace(1, 8, 32).astype(np.float32), np.linspace(0, 1, 32).astype(np.float32)
    )
    still = AngleArithmetic(0.75, turning=np.arange(32) < 24, fusion=Fusion.NONE)
    plain = layer(Pairing.ADJACENT)
    return ModelRotation(
        (
            (plain, plain, LayerRotation(3, 64, 0, 0, Pairing.HALVES, np.empty(0))),
            (replace(plain, arithmetic=yarn), replace(plain, arithmetic=still), replace(plain, arithmetic=None)),
        )
    )


def test_json_gives_the_same_rotation_back() -> None:
    rotation = varied()
    again = from_json(to_json(rotation))
    assert to_json(again) == to_json(rotation)
    positions = np.array([0, 1, 77, 30000])
    for ours, theirs in zip(again.caches, rotation.caches, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert (a.n_head, a.head_dim, a.offset, a.n_rot, a.pairing) == (
                b.n_head,
                b.head_dim,
                b.offset,
                b.n_rot,
                b.pairing,
            )
            np.testing.assert_array_equal(angles(a, positions), angles(b, positions))


def test_layers_that_rotate_alike_are_stored_once() -> None:
    assert len(json.loads(to_json(ModelRotation(((layer(Pairing.HALVES),) * 40,))))["rotations"]) == 1


def test_the_fingerprint_tells_content_apart_and_nothing_else() -> None:
    rotation = varied()
    first = rotation_fingerprint(rotation)
    assert len(first) == 64
    assert rotation_fingerprint(varied()) == first
    assert rotation_fingerprint(from_json(to_json(rotation))) == first
    seen = {first}
    plain = rotation.caches[0][0]
    changed = [
        replace(plain, frequencies=np.nextafter(plain.frequencies, 2)),
        replace(plain, pairing=Pairing.HALVES),
        replace(plain, n_head=6, head_dim=32, n_rot=32, frequencies=plain.frequencies[:16], arithmetic=None),
        replace(plain, arithmetic=None),
        replace(plain, arithmetic=AngleArithmetic(0.5)),
        replace(plain, arithmetic=AngleArithmetic(0.5, fusion=Fusion.NONE)),
    ]
    for other in changed:
        seen.add(rotation_fingerprint(ModelRotation(((other, *rotation.caches[0][1:]), rotation.caches[1]))))
    assert len(seen) == 1 + len(changed)
    negative_zero = replace(plain, frequencies=plain.frequencies * -0.0)
    zero = replace(plain, frequencies=plain.frequencies * 0.0)
    assert rotation_fingerprint(ModelRotation(((zero,),))) == rotation_fingerprint(ModelRotation(((negative_zero,),)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"version": 1}',
        '{"version": 2, "caches": [], "rotations": []}',
        '{"version": 1, "caches": [[0]], "rotations": []}',
        '{"version": 1, "caches": [[true]], "rotations": [null]}',
        "[" * 100_000,
    ],
)
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(RotationError, match="measure the model again"):
        from_json(text)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n_rot", "64"),
        ("n_rot", 62),
        ("n_head", True),
        ("head_dim", 1.5),
        ("pairing", "neox"),
        ("frequencies", None),
        ("frequencies", [1.0] * 31),
        ("frequencies", [[1.0]] * 32),
        ("frequencies", ["a"] * 32),
        ("arithmetic", {}),
        ("arithmetic", 3),
        ("arithmetic", {"theta_scale": 1e99}),
    ],
)
def test_json_with_one_wrong_field_is_refused(key: str, value: object) -> None:
    content = json.loads(to_json(varied()))
    content["rotations"][0][key] = value
    with pytest.raises(RotationError):
        from_json(as_written(content))


@pytest.mark.parametrize("key", json.loads(to_json(varied()))["rotations"][0])
def test_json_with_one_damaged_key_is_refused(key: str) -> None:
    """Also where the layer would be sound without it, only turned by other angles."""
    content = json.loads(to_json(varied()))
    content["rotations"][0][f"{key[:-1]}#"] = content["rotations"][0].pop(key)
    with pytest.raises(RotationError, match="measure the model again"):
        from_json(as_written(content))


def as_written(content: object) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))
