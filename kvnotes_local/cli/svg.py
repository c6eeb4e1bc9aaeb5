"""Pictures as SVG text: a heat strip of tokens, and lines over a logarithmic axis."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from kvnotes_local.atomic_file import write_atomically
from kvnotes_local.errors import KvnotesError
from kvnotes_local.terminal_text import safe_line

_CHAR, _LINE, _COLUMNS = 8.0, 22, 96
_COLORS = ("#4269d0", "#ff725c", "#3ca951", "#efb118", "#a463f2", "#6cc5b0", "#97bbf5", "#9c6b4e")


def check_picture(path: Path) -> None:
    """Find out before minutes of measuring that a picture cannot be written there. Raises KvnotesError."""
    folder = next((one for one in path.absolute().parents if one.exists()), path.absolute().parent)
    if path.is_dir():
        reason = "it is a folder"
    elif not folder.is_dir():
        reason = f"{folder} is no folder"
    elif not os.access(folder, os.W_OK):
        reason = f"{folder} cannot be written to"
    else:
        return
    raise KvnotesError(f"The picture cannot be written to {path}: {reason}.")


def write_svg(path: Path, svg: str) -> None:
    """Write a picture. Raises KvnotesError where it cannot be written."""
    try:
        write_atomically(path, svg)
    except OSError as error:
        raise KvnotesError(f"The picture cannot be written to {path}: {error.strerror or error}.") from error


def heat_strip(pieces: Sequence[str], heat: Sequence[float], title: str) -> str:
    """Tokens as running text; ``heat`` 0 … 1 is how strongly each is coloured, negative for the ones to be underlined."""
    body: list[str] = []
    row = column = 0
    for piece, value in zip(pieces, heat, strict=True):
        text = safe_line(piece.replace("\n", "⏎"))
        if column and column + len(text) > _COLUMNS:
            row, column = row + 1, 0
        x, y = 16 + column * _CHAR, 40 + row * _LINE
        if value < 0:
            body.append(f'<rect x="{x}" y="{y + 14}" width="{len(text) * _CHAR}" height="2" fill="#4269d0"/>')
        elif value > 0:
            body.append(
                f'<rect x="{x}" y="{y - 3}" width="{len(text) * _CHAR}" height="18" fill="#ff725c" '
                f'fill-opacity="{min(1.0, value):.2f}"/>'
            )
        body.append(f'<text x="{x}" y="{y + 10}" textLength="{len(text) * _CHAR}">{escape(text)}</text>')
        column += len(text)
        if piece.endswith("\n"):
            row, column = row + 1, 0
    height = 40 + (row + 1) * _LINE + 12
    return _document(round(32 + _COLUMNS * _CHAR), height, title, body, 'font-family="monospace" font-size="13"')


@dataclass(frozen=True)
class Axis:
    """``label`` of an axis; values are positive, the scale is logarithmic."""

    label: str


def line_plot(series: Mapping[str, Sequence[tuple[float, float]]], x: Axis, y: Axis, title: str) -> str:
    """Lines through points (x, y), both axes logarithmic. Raises ValueError where there is no positive point."""
    points = [(a, b) for line in series.values() for a, b in line if a > 0 and b > 0]
    if not points:
        raise ValueError("a plot needs positive values")
    left, top, width, height = 70, 44, 560, 320
    x0, x1 = _range([a for a, _ in points], whole=False)
    y0, y1 = _range([b for _, b in points], whole=True)

    def at(a: float, b: float) -> tuple[float, float]:
        return (
            left + (log10(a) - x0) / (x1 - x0) * width,
            top + height - (log10(b) - y0) / (y1 - y0) * height,
        )

    body = [f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#999"/>']
    for power in range(floor(y0), ceil(y1) + 1):
        if y0 <= power <= y1:
            _, py = at(10**x0, 10.0**power)
            body.append(f'<line x1="{left}" x2="{left + width}" y1="{py:.1f}" y2="{py:.1f}" stroke="#ddd"/>')
            body.append(f'<text x="{left - 6}" y="{py + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for value in sorted({a for a, _ in points}):
        px, _ = at(value, 10**y0)
        body.append(f'<text x="{px:.1f}" y="{top + height + 18}" text-anchor="middle">{value:g}</text>')
    for number, (name, line) in enumerate(series.items()):
        color = _COLORS[number % len(_COLORS)]
        places = [at(a, b) for a, b in line if a > 0 and b > 0]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
        body.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        body += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{color}"/>' for px, py in places]
        body.append(f'<rect x="{left + width + 14}" y="{top + number * 20}" width="12" height="12" fill="{color}"/>')
        body.append(f'<text x="{left + width + 32}" y="{top + number * 20 + 11}">{escape(safe_line(name))}</text>')
    body.append(f'<text x="{left + width / 2}" y="{top + height + 40}" text-anchor="middle">{escape(x.label)}</text>')
    body.append(
        f'<text x="18" y="{top + height / 2}" text-anchor="middle" '
        f'transform="rotate(-90 18 {top + height / 2})">{escape(y.label)}</text>'
    )
    return _document(left + width + 230, top + height + 56, title, body, 'font-family="sans-serif" font-size="12"')


def _range(values: Sequence[float], *, whole: bool) -> tuple[float, float]:
    """Logarithms of the ends of an axis."""
    low, high = log10(min(values)), log10(max(values))
    if whole:
        return float(floor(low)), float(max(floor(low) + 1, ceil(high)))
    return low - 0.05, max(high, low + 0.3) + 0.05


def _document(width: float, height: float, title: str, body: Sequence[str], font: str) -> str:
    name = safe_line(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}" '
        f'xml:space="preserve" role="img" aria-label={quoteattr(name)} {font}>\n'
        f'<rect width="{width:g}" height="{height:g}" fill="white"/>\n'
        f'<text x="16" y="22" font-weight="bold">{escape(name)}</text>\n' + "\n".join(body) + "\n</svg>\n"
    )
