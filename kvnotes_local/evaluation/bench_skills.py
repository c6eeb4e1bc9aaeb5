"""Skills of given lengths to measure with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvnotes_local.contract.protocol import Engine
from kvnotes_local.evaluation.decision_cases import decision_texts
from kvnotes_local.skills.library import SkillLibrary

FIELD = "limit"


def bench_skills(engine: Engine, folder: Path, lengths: Sequence[int]) -> tuple[SkillLibrary, list[str]]:
    """Skills of about these lengths, with a field near the beginning."""
    names = []
    prose = "\n\n".join(text.text for text in decision_texts(long=True))
    words = prose.replace("{{", "").replace("}}", "").replace("|", " ").split(" ")
    for length in lengths:
        head = f"Rules of the house. The limit is {{{{{FIELD}|900 euros}}}} for a night.\n\n"
        wanted = max(1, length - len(engine.tokenize(head)) - 12)
        n_words = max(1, wanted // 2)
        for _ in range(8):  # towards the number of words that makes that many tokens
            body = _repeated(words, n_words)
            n_words = max(1, round(n_words * wanted / max(1, len(engine.tokenize(body)))))
        name = f"bench-{length}"
        target = folder / name
        target.mkdir(parents=True)
        text = f"---\nname: {name}\ndescription: Text for measuring.\n---\n{head}{_repeated(words, n_words)}\n"
        (target / "SKILL.md").write_text(text, "utf-8")
        names.append(name)
    return SkillLibrary([folder]), names


def _repeated(words: Sequence[str], n_words: int) -> str:
    """That many words; each round through the pool is numbered, so that nothing is there twice."""
    parts = []
    for number in range(-(-n_words // len(words))):
        parts.append(f"Part {number + 1}. " + " ".join(words[: n_words - number * len(words)]))
    return "\n\n".join(parts)
