#!/usr/bin/env python3
"""Make the table of docs/models.md: what kvnotes measures on tiny models of many architectures.

.venv/bin/python scripts/model_table.py             write docs/models.md
.venv/bin/python scripts/model_table.py --check     exit 1 when docs/models.md is not what would be written
.venv/bin/python scripts/model_table.py --model F   print the table's row for a model file; docs/models.md stays as it is
"""

from __future__ import annotations

import argparse
import difflib
import math
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kvnotes_local.contract.model_info import ModelClass
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.llama import native
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.errors import KvnotesError
from kvnotes_local.kv.layout import GGMLType
from kvnotes_local.kv.rotation import LayerRotation
from tests.zoo import ZOO, ZooModel, zoo_model

DOCUMENT = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- table: scripts/model_table.py -->\n", "<!-- end of table -->\n"
HEADERS = ("model", "class", "residual", "rotation", "caches", "Hadamard (Q8_0)", "note")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--models", type=Path, help="folder for the tiny models; default: a temporary one")
    parser.add_argument(
        "--model", type=Path, action="append", default=[], metavar="FILE", help="a GGUF file to measure"
    )
    args = parser.parse_args()
    native.start()  # before the tiny models are built, or llama.cpp tells about each on stderr
    if args.model:
        print(table([row(path, path.stem, "") for path in args.model]), end="")
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        rows = [zoo_row(model, args.models or Path(temporary)) for model in ZOO]
    before = DOCUMENT.read_text("utf-8")
    head, rest = before.split(BEGIN)
    _, tail = rest.split(END)
    after = head + BEGIN + table(rows) + END + tail
    if not args.check:
        DOCUMENT.write_text(after, "utf-8")
        return 0
    sys.stdout.writelines(
        difflib.unified_diff(before.splitlines(True), after.splitlines(True), "docs/models.md", "measured")
    )
    return int(before != after)


def table(rows: list[tuple[str, ...]]) -> str:
    """Markdown of a table with the given cells."""
    lines = [HEADERS, tuple("---" for _ in HEADERS), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def zoo_row(model: ZooModel, folder: Path) -> tuple[str, ...]:
    """Cells of a tiny model."""
    name = model.name if not model.variant else f"{model.name} ({', '.join(model.variant)})"
    return row(zoo_model(model.name, folder), name, model.notes)


def row(path: Path, name: str, note: str) -> tuple[str, ...]:
    """Cells of one model file. Where there is no ``note``, the reason of a class that is not splice stands in its place."""
    with LlamaEngine(path, EngineParams(n_ctx=512, n_threads=1)) as engine:
        info = engine.info
        if info.model_class is not ModelClass.SPLICE:
            return name, info.model_class.value, "–", "–", "–", "–", note or info.class_reason
        rotation = engine.rotation
        residual = bound(info.rotation_residual or 0.0)
        turning = sorted({describe(layer) for cache in rotation.caches for layer in cache})
        caches = " + ".join(f"{len(cache.layers)}" for cache in engine.layout.caches)
        values = any(layer.v is not None for cache in engine.layout.caches for layer in cache.layers)
    return (
        name,
        "splice",
        residual,
        "; ".join(turning),
        caches + ("" if values else ", no values"),
        hadamard(path),
        note,
    )


def bound(residual: float) -> str:
    """A power of ten above the residual; float32 noise, which differs between CPUs, is all below 1e-6."""
    return "< 1e-6" if residual < 1e-6 else f"< 1e{math.ceil(math.log10(residual))}"


def describe(layer: LayerRotation) -> str:
    """How one layer rotates."""
    if not layer.n_rot:
        return "none"
    place = f" from {layer.offset}" if layer.offset else ""
    return f"{layer.pairing.value}, {layer.n_rot} of {layer.head_dim}{place}"


def hadamard(path: Path) -> str:
    """Block lengths that the live Q8_0 cache was found to use, keys / values."""
    try:
        with LlamaEngine(
            path, EngineParams(n_ctx=512, n_threads=1, type_k=GGMLType.Q8_0, type_v=GGMLType.Q8_0)
        ) as engine:
            found = {(cache.k_hadamard, cache.v_hadamard) for cache in engine.layout.caches if cache.layers}
    except KvnotesError:
        return "no Q8_0"
    return ", ".join(sorted(f"{k} / {v}" if k or v else "none" for k, v in found))


if __name__ == "__main__":
    sys.exit(main())
