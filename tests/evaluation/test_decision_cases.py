"""The bundled decisions: enough of them, and each text says what its cases need."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.errors import KvnotesError
from kvnotes_local.evaluation.decision_cases import choice_margin, decision_texts
from tests.evaluation.samples import single_layer_model


def test_there_are_ten_domains_of_four_decisions_each() -> None:
    texts = decision_texts()
    assert len({text.name for text in texts}) == 10
    assert all(len(text.cases) == 4 for text in texts)
    fields = [case.field for text in texts for case in text.cases]
    assert len(set(fields)) == len(fields)


def test_each_text_holds_its_fields_and_the_rule_for_either_value() -> None:
    for text in (way for one in decision_texts() for way in (one, one.reversed())):
        rules = [line for line in text.text.replace("\n", " ").split(". ") if " If " in f" {line} "]
        for case in text.cases:
            assert f"{{{{{case.field}|{case.values[0]}}}}}" in text.text, case.field
            for value, answer in zip(case.values, case.answers, strict=True):
                assert any(value in rule and answer in rule for rule in rules), (case.field, value)


def test_a_margin_counts_only_tokens_that_tell_the_answers_apart(zoo_directory: Path, measurements: Path) -> None:
    """With one token a byte, ``" Yes"`` and ``" No"`` both begin with the blank."""
    with LlamaEngine(single_layer_model(zoo_directory), EngineParams(n_threads=1), cache_dir=measurements) as engine:
        _check_margins(engine)


def _check_margins(byte_engine: LlamaEngine) -> None:
    blank, yes, no = (byte_engine.tokenize(text)[0] for text in (" x", "Yes", "No"))
    logits = np.zeros(byte_engine.info.n_vocab, np.float32)
    assert blank == byte_engine.tokenize(" Yes")[0] == byte_engine.tokenize(" No")[0]
    logits[[yes, no]] = 3.0, 1.0
    before = choice_margin(byte_engine, logits, "Yes", "No")
    assert before > 0
    logits[blank] = 50.0
    assert choice_margin(byte_engine, logits, "Yes", "No") == pytest.approx(before)
    assert choice_margin(byte_engine, logits, "No", "Yes") == pytest.approx(-before)
    with pytest.raises(KvnotesError, match="begin differently"):
        choice_margin(byte_engine, logits, "Yes", "Yesterday")
