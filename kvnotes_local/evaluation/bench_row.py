"""What a benchmark of one length has measured."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class SpliceStages:
    """Where the time of a splice and its question goes, in milliseconds; the stages add up to the time to the first token.

    ``lookup_ms``: skill, artifact and plan are found. ``open_ms``: the artifact is mapped and checked, cells are shared.
    ``seam_ms``: the seam is computed. ``reposition_ms``: rows are turned and converted. ``restore_ms``: they are handed to
    llama.cpp. ``question_ms``: the question is computed. ``rest_ms``: the plan of the question, undo, drawing the first token.
    """

    lookup_ms: float
    open_ms: float
    seam_ms: float
    reposition_ms: float
    restore_ms: float
    question_ms: float
    rest_ms: float

    @property
    def total_ms(self) -> float:
        return float(sum(getattr(self, one.name) for one in fields(self)))


@dataclass(frozen=True)
class BenchRow:
    """One length. Milliseconds to the first token, medians of ``n`` runs, unless said otherwise.

    ``whole_ms``: the whole chat read from nothing. ``recompute_ms``: the chat in place, the skill read. ``prefix_hit_ms``: chat
    and skill in place, which is the limit. ``first_token_ms``: the skill spliced; of that, ``splice_ms`` is for the splice
    (seam included) and ``cold_first_token_ms`` the same with the artifact not in the page cache (None where that cannot be
    arranged). ``speedup``: recompute against splice. ``edit_ms``: a field of the skill changed, by level. ``switch_ms``: coming
    back to a chat that was left, ``fork_ms``: a fork of it; both without a question. ``memcpy_ms``: as many bytes as the chat
    with the skill has, copied. ``stages``: of the splice, medians one by one. ``proof_error``: largest relative
    difference of the time that the answers' proofs claim from the wall clock.
    """

    n_skill_tokens: int
    n_chat_tokens: int
    repair_tokens: int
    n: int
    whole_ms: float
    recompute_ms: float
    prefix_hit_ms: float
    splice_ms: float
    first_token_ms: float
    cold_first_token_ms: float | None
    speedup: float
    edit_ms: dict[str, float]
    switch_ms: float
    fork_ms: float
    memcpy_ms: float
    compile_ms: float
    stages: SpliceStages
    proof_error: float

    @property
    def over_prefix_hit(self) -> float:
        """Time to the first token after a splice, as a multiple of that with everything in place."""
        return self.first_token_ms / self.prefix_hit_ms
