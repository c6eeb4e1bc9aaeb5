"""The cache as a strip: one cell per few tokens, and below it what the signs mean, in words and numbers."""

from __future__ import annotations

from itertools import groupby

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from kvnotes_local.notebook.segment import Run
from kvnotes_local.tui.freshness import LOOKS, cells, count_tokens


class CacheStrip(Widget):
    """Two lines: the strip and its legend."""

    runs: reactive[tuple[Run, ...]] = reactive(())

    def render(self) -> Content:
        width = max(1, self.content_size.width)
        if not self.runs:
            return Content("·" * width).stylize("$text-disabled").append(Content("\nThe cache is empty."))
        shown, per_cell = cells(self.runs, width)
        strip = Content.assemble(
            *((LOOKS[one].sign * len(list(group)), LOOKS[one].style) for one, group in groupby(shown)),
            ("·" * (width - len(shown)), "$text-disabled"),
        )
        parts: list[Content | tuple[str, str] | str] = []
        for freshness, n_tokens in count_tokens(self.runs).items():
            if n_tokens:
                look = LOOKS[freshness]
                parts += [(look.sign, look.style), f" {freshness.value} {n_tokens:,}  "]
        scale = f"1 cell = {per_cell} token{'s' if per_cell > 1 else ''}"
        legend = Content.assemble(*parts)
        if legend.cell_length + len(scale) <= width:
            legend = legend.append(Content.assemble((scale, "$text-muted")))
        return Content("\n").join([strip, legend])
