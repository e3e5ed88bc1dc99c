"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

UNKNOWN = "–"
_LONG, _SHORT = 1e9, 1e-6  # beyond these there is an exponent


def _of_finite(show: Callable[[float], str]) -> Callable[[float], str]:
    """How `show` writes a number, where it is finite."""

    @wraps(show)
    def shown(value: float) -> str:
        if math.isfinite(value):
            return show(value)
        return UNKNOWN if math.isnan(value) else "not finite"

    return shown


@_of_finite
def seconds(value: float) -> str:
    """`0.0421` -> `42.1 ms`, `83.2` -> `1 min 23 s`."""
    size = abs(value)
    if size >= 3599.5 * _LONG:
        return f"{_exponent(value / 3600)} h"
    if size >= 3599.5:
        return f"{value / 3600:.1f} h"
    if size >= 120:
        minutes, rest = divmod(round(size), 60)
        return f"{'-' * (value < 0)}{minutes} min {rest} s"
    if size >= 1 or size == 0:
        return f"{number(value)} s"
    if size >= 1e-3:
        return f"{number(value * 1e3)} ms"
    return f"{number(value * 1e6)} µs"


def before_after(before_s: float, after_s: float) -> str:
    """`678 → 513 ms`, `0.950 → 1.20 s`: both in the unit of the longer one."""
    one = scale(max(before_s, after_s))
    before, after = (number(value * one.per_second) for value in (before_s, after_s))
    return f"{before} → {after} {one.unit}"


def lasted(value: float, shown_s: float | None) -> str:
    """What something lasted, and how much of that is shown: `19.5 s, 440 ms of it shown`."""
    whole = seconds(value)
    return whole if shown_s is None else f"{whole}, {seconds(shown_s)} of it shown"


@_of_finite
def count(value: float) -> str:
    """`1234` -> `1,234`, `1234567` -> `1.23 M`."""
    if abs(value) >= 1e12 * _LONG:
        return _exponent(value)
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if abs(value) >= size:
            return f"{number(value / size)} {unit}"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return number(value)


@_of_finite
def size(value: float) -> str:
    """Bytes in powers of ten: `15231233024` -> `15.2 GB`."""
    for unit, step in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= step:
            return f"{number(value / step)} {unit}"
    return f"{value:.0f} B"


@_of_finite
def share(value: float) -> str:
    """`0.0421` -> `4.2 %`, `0.78` -> `78 %`."""
    if abs(value) >= _LONG:
        return f"{_exponent(value, 2)} %"
    percent = 100 * value
    if percent and abs(percent) < 0.01:
        return "<0.01 %" if percent > 0 else ">-0.01 %"
    if abs(percent) < 0.1:
        return f"{percent:.2f} %" if percent else "0 %"
    return f"{percent:.1f} %" if abs(percent) < 9.95 else f"{percent:.0f} %"


def plural(number: int, word: str) -> str:
    """`1 step`, `12 steps`, `3 processes`."""
    ending = "" if number == 1 else "es" if word.endswith("s") else "s"
    return f"{count(number)} {word}{ending}"


@_of_finite
def ratio(value: float) -> str:
    """`3.664` -> `3.7×`."""
    return f"{value:.1f}×" if abs(value) < _LONG else f"{_exponent(value)}×"


@dataclass(frozen=True)
class Scale:
    """One unit of time for a whole table."""

    unit: str
    per_second: float
    decimals: int

    def show(self, seconds: float) -> str:
        """The number without its unit."""
        value = seconds * self.per_second
        if not abs(value) < _LONG:
            return number(value)
        rounded = round(value, self.decimals) + 0.0  # and no minus nought
        return f"{rounded:,.{self.decimals}f}"


def scale(seconds: float) -> Scale:
    """A unit in which `seconds` has four figures or so."""
    if math.isnan(seconds) or seconds >= 1:
        return Scale("s", 1, 1 if seconds >= 100 else 2 if seconds >= 10 else 3)
    if seconds >= 1e-3:
        return Scale("ms", 1e3, 1 if seconds >= 0.1 else 2)
    return Scale("µs", 1e6, 1)


@_of_finite
def number(value: float) -> str:
    """Three significant figures, with an exponent where they stand behind many noughts."""
    value = float(f"{value:.3g}")
    if value == 0:
        return "0"
    if not _SHORT <= abs(value) < _LONG:
        return _exponent(value)
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{min(max(digits, 0), 6)}f}"


def between(low: str, high: str) -> str:
    """`1.0 s to 2.0 s`; one figure where both ends read the same."""
    return low if low == high else f"{low} to {high}"


def _exponent(value: float, more: int = 0) -> str:
    """`1e308`, `1.25e-9`; `more` powers of ten more, which a float need not be able to hold."""
    mantissa, _, power = f"{value:.2e}".partition("e")
    return f"{float(mantissa):g}e{int(power) + more}"
