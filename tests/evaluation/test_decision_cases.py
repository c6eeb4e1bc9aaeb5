"""The bundled decisions: enough of them, and each text says what its cases need."""

from __future__ import annotations

from kvnotes_local.evaluation.decision_cases import decision_texts


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
