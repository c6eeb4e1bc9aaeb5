"""An answer of the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.contract.generation import StopReason
from kvnotes_local.notebook.edit import EditResult
from kvnotes_local.notebook.proof import Proof
from kvnotes_local.notebook.segment import Segment


@dataclass(frozen=True)
class Reply:
    """An answer with its proof; what the model thought before is in ``segment.reasoning``. ``first_logits``: float32 (n_vocab,)
    before its first token, where asked for.

    ``edits``: how the fields that were set with AUTO were settled for this question.
    """

    text: str
    proof: Proof
    stop_reason: StopReason
    segment: Segment
    first_logits: NDArray[np.float32] | None = None
    edits: tuple[EditResult, ...] = ()
