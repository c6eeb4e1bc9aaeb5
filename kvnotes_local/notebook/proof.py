"""What an answer cost, counted and measured: tokens by where their rows came from, and the time to the first token."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvnotes_local.contract.plan import Applied


@dataclass(frozen=True)
class Proof:
    """Tokens, and times in milliseconds, of one answer.

    ``prefilled``: computed, without ``repaired`` (the seams of spliced skills). ``reused``: in place before and left there.
    ``moved``: kept and rotated. ``spliced``: taken from artifacts. ``change_ms``: spent on splices and edits since the
    answer before, compiling not included. ``ttft_ms``: from the question to the first token.
    ``recompute_ms``: what reading the whole chat would have taken at the speed measured here, or else at another time with this
    model; None where neither is known.
    """

    prefilled: int = 0
    reused: int = 0
    moved: int = 0
    spliced: int = 0
    repaired: int = 0
    generated: int = 0
    change_ms: float = 0.0
    ttft_ms: float = 0.0
    decode_ms: float = 0.0
    reposition_ms: float = 0.0
    restore_ms: float = 0.0
    recompute_ms: float | None = None
    tokens_per_second: float | None = None

    @property
    def n_new(self) -> int:
        """Tokens whose rows were not in place before."""
        return self.prefilled + self.repaired + self.spliced + self.moved

    def plus(self, applied: Applied, repaired: int = 0, *, is_question: bool = False) -> Proof:
        """This proof and one more change of the cache, of whose decoded tokens ``repaired`` were seams.

        ``reused`` is not counted here: what one change leaves in place, an earlier one of the same answer may have put there.
        """
        return replace(
            self,
            prefilled=self.prefilled + applied.decoded - repaired,
            moved=self.moved + applied.moved,
            spliced=self.spliced + applied.spliced,
            repaired=self.repaired + repaired,
            change_ms=self.change_ms + (0.0 if is_question else applied.seconds * 1e3),
            decode_ms=self.decode_ms + applied.decode_seconds * 1e3,
            reposition_ms=self.reposition_ms + applied.reposition_seconds * 1e3,
            restore_ms=self.restore_ms + applied.restore_seconds * 1e3,
        )

    def since(self, before: Proof) -> Proof:
        """What was added to ``before``."""
        return Proof(
            prefilled=self.prefilled - before.prefilled,
            moved=self.moved - before.moved,
            spliced=self.spliced - before.spliced,
            repaired=self.repaired - before.repaired,
            change_ms=self.change_ms - before.change_ms,
            decode_ms=self.decode_ms - before.decode_ms,
            reposition_ms=self.reposition_ms - before.reposition_ms,
            restore_ms=self.restore_ms - before.restore_ms,
        )


class PrefillSpeed:
    """How fast this engine reads, from what it has read: the estimate for full recompute.

    Only runs of at least ``min_tokens`` count, since short ones are dominated by the start of a batch. ``known``: tokens per
    second as measured at another time, which serves as long as nothing was measured here.
    """

    def __init__(self, known: float | None = None, min_tokens: int = 64) -> None:
        self._known = known
        self._min_tokens = min_tokens
        self._tokens = 0
        self._seconds = 0.0

    def add(self, n_tokens: int, seconds: float) -> None:
        if n_tokens >= self._min_tokens and seconds > 0:
            self._tokens += n_tokens
            self._seconds += seconds

    @property
    def measured(self) -> float | None:
        """Tokens per second as measured here; None as long as nothing was."""
        return self._tokens / self._seconds if self._tokens else None

    def milliseconds(self, n_tokens: int) -> float | None:
        """Estimated time to read ``n_tokens``; None as long as nothing is known."""
        speed = self.measured or self._known
        return n_tokens / speed * 1e3 if speed else None
