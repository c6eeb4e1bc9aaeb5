"""The KV layer stays free of llama.cpp and of the terminal UI."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import importlib, json, pkgutil, sys
import kvnotes_local.kv
names = [m.name for m in pkgutil.walk_packages(kvnotes_local.kv.__path__, "kvnotes_local.kv.")]
for name in names:
    importlib.import_module(name)
print(json.dumps({"imported": names, "modules": sorted(sys.modules)}))
"""


def test_importing_all_of_kv_loads_neither_llama_cpp_nor_textual() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert "kvnotes_local.kv.reposition" in found["imported"]
    loaded = {name.partition(".")[0] for name in found["modules"]}
    assert "numpy" in loaded
    assert not loaded & {"llama_cpp", "textual", "typer", "safetensors", "msgspec"}
    ours = {name for name in found["modules"] if name.startswith("kvnotes_local.")}
    assert {n for n in ours if not n.startswith("kvnotes_local.kv")} == {"kvnotes_local.errors"}
