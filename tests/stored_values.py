"""What the files in ``fixtures/stored_before`` were written from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvnotes_local.chat_format.format import (
    ChatFormat,
    FormatSource,
    Reasoning,
    SkillPlace,
    SystemPlace,
    Trim,
    Wrapper,
)
from kvnotes_local.chat_format.turns import FieldSpan
from kvnotes_local.contract.generation import Sampling
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.kv.angles import AngleArithmetic, Fusion
from kvnotes_local.kv.layout import GGMLType
from kvnotes_local.kv.rotation import LayerRotation, ModelRotation, Pairing
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.notebook.on_full import OnFull
from kvnotes_local.notebook.proof import Proof
from kvnotes_local.notebook.segment import Freshness, Kind, Run, Segment
from kvnotes_local.notebook.store.params import ChatParams
from kvnotes_local.skills.speeds import ModelSpeed
from kvnotes_local.skills.verdicts import Conditions, Outcome, Verdict
from kvnotes_local.tui.last_session import LastSession
from kvnotes_local.tui.settings import Settings

SEGMENTS = (
    Segment(Kind.SYSTEM, (1, 5, 2), "Be brief.", content_start=1, content_stop=2, runs=(Run(3, Freshness.FRESH),)),
    Segment(
        Kind.SKILL,
        tuple(range(10, 30)),
        "The limit is 30 €.",
        "expenses/rates",
        content_start=2,
        content_stop=18,
        fields=(FieldSpan("limit", "30 €", 6, 9), FieldSpan("note", "", 9, 9)),
        runs=(
            Run(8, Freshness.REPAIRED),
            Run(2, Freshness.EDITED),
            Run(4, Freshness.SPLICED),
            Run(6, Freshness.STALE),
        ),
        artifact="/cache/artifacts/m/expenses-0123.safetensors",
        seam=8,
    ),
    Segment(
        Kind.ERRATUM,
        (7, 8),
        "Correction: limit is 35 €.",
        "limit",
        content_stop=2,
        value="35 €",
        runs=(Run(2, Freshness.FRESH),),
    ),
    Segment(Kind.USER, (3, 200_000), "What is the limit?", content_stop=2, runs=(Run(2, Freshness.FRESH),)),
    Segment(
        Kind.ASSISTANT,
        (4, 4, 4, 4, 6),
        "35 €.",
        content_start=1,
        content_stop=5,
        runs=(Run(5, Freshness.FRESH),),
        reasoning="Hm.",
        reasoning_start=1,
        reasoning_stop=3,
        stopped=True,
        proof=Proof(5, 4, 3, 2, 1, 6, 0.5, 12, 1.25, 0.125, 0.0625, None, 31.5),
    ),
)
PARAMS = ChatParams(Sampling(0.7, 20, 0.9, 0.1, 1.5, 32, 2**40, 'root ::= "ä"'), 77, OnFull.REFUSE, "Q8_0", "F16", 4096)

VERDICT = Verdict(
    Conditions("a" * 64, "Q8_0/F16", "llama-cpp-python 0.3.36, GPU"),
    Outcome.FAILED,
    "expenses",
    "SmolLM2",
    32,
    0.99,
    0.5,
    1e-09,
    1,
    0.875,
    384,
    "2026-01-31T12:00:00+00:00",
)
SPEEDS = {"a" * 64: ModelSpeed(150.25, 0.01, 1e-05), "b" * 64: ModelSpeed(100.0)}
SETTINGS = Settings(
    theme="nord",
    edit_level=EditLevel.AUTO,
    preset="lively",
    max_tokens=1000,
    mouse=False,
    presets={"exact": Sampling(), "lively": Sampling(temperature=1.0, top_k=0, seed=3, min_p=0.02)},
    keys={"chat.new": "ctrl+n,f4"},
)
LAST_SESSION = LastSession(
    Path("/models/caf\udce9.gguf"),
    EngineParams(
        n_ctx=2048, type_k=GGMLType.Q8_0, type_v=GGMLType.Q8_0, n_gpu_layers=-1, n_threads=3, extra_buffers=False
    ),
    "0badcafe",
    "Draft: ä\n",
)
ADDED = (Path("/models"), Path("/other/caf\udce9.gguf"))


def layer(n_rot: int, arithmetic: AngleArithmetic | None) -> LayerRotation:
    return LayerRotation(2, 8, 0, n_rot, Pairing.HALVES, 0.1 ** np.arange(n_rot // 2) / 3, arithmetic)


ROTATION = ModelRotation(
    (
        (layer(8, None), layer(8, None), layer(0, None)),
        (
            layer(
                8,
                AngleArithmetic(
                    0.1, 0.25, np.array([1, 2, 4, 8.5], np.float32), np.linspace(0, 1, 4, dtype=np.float32)
                ),
            ),
            layer(
                8, AngleArithmetic(0.7498942, turning=np.array([True, True, True, False]), fusion=Fusion.EXTRAPOLATED)
            ),
        ),
    )
)
RESIDUAL = 1.5e-07

FORMAT = ChatFormat(
    head="<s>",
    empty_head="<s>\n",
    default_system=None,
    system=Wrapper("<s>system\n", "</s>\n", Trim.BOTH),
    system_place=SystemPlace.FIRST_QUESTION,
    system_opens_question=True,
    question_open="",
    question_trim=Trim.LINES,
    user=Wrapper("user\n", "</s>\n"),
    assistant=Wrapper("assistant\n", "</s>\n"),
    generation_open="assistant\n",
    skill=Wrapper("user\n", "</s>\n", Trim.START),
    skill_place=SkillPlace.ACKNOWLEDGED,
    source=FormatSource.TEMPLATE,
    proven=True,
    reasoning=Reasoning("<think>", "</think>", True),
    end_markers=("</s>",),
    date_patterns=("%d %B %Y",),
)
