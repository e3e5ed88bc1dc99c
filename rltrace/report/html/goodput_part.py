"""Goodput as a cascade of its factors, and where the wall-clock and the tokens went."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rltrace.analysis.cascade import USEFUL, Cascade, Factor
from rltrace.analysis.summary import Summary
from rltrace.report import units
from rltrace.report.goodput_section import cascade_section, goodput_section
from rltrace.report.html import parts
from rltrace.report.html.drawing import WIDTH, Axis, box, drawing, label, line
from rltrace.report.html.markup import Html, tag

_PEAK = "peak rate"
_NAME, _END, _LOST = 190.0, 660.0, 830.0
_ROW = 38.0
_LEAST_SHARE = 0.005
_LETTER = 6.3  # pixels


def goodput_part(summary: Summary) -> parts.Part:
    section, cascade = goodput_section(summary), summary.cascade
    if cascade is None:
        why = "an imported log tells no wall-clock" if summary.run.imported else "no step was begun"
        below = parts.missing(f"What goodput is made of is not known: {why}.")
    else:
        pictures = [_cascade(cascade), _wall_clock(cascade), _tokens(cascade)]
        below = parts.under(
            cascade_section(cascade), *(parts.picture(one) for one in pictures if one)
        )
    return parts.part("goodput", "Goodput", section.title, parts.told(section), below)


def _cascade(cascade: Cascade) -> parts.Picture | None:
    """From the rate while at work down to what was useful and fresh, factor by factor."""
    peak = next(one for one in cascade.factors if one.name == _PEAK)
    if math.isnan(peak.value) or not peak.value:
        return None
    device = cascade.device or "device"
    unit = f"/{device}-s"
    axis = Axis(0, peak.value, _NAME, _END)
    rows = [_row(0, "generated while at work", 0.0, peak.value, axis, units.count(peak.value))]
    numbers: list[tuple[str, ...]] = [(_PEAK, "", f"{units.count(peak.value)} {unit}", "")]
    level = peak.value
    for factor in (one for one in cascade.factors if one.name != _PEAK):
        left = level * factor.value
        known = not math.isnan(factor.value)
        said = f"× {units.share(factor.value)}" if known else f"unknown: {factor.basis}"
        if known and level - left > 0:
            said += f"\t−{units.count(level - left)}"
        rows.append(_row(len(rows), factor.name, level, left, axis, said))
        numbers.append(_numbers(factor, level, left, unit))
        level = left
        if not known:
            break
    else:
        rows.append(_row(len(rows), "goodput", 0.0, level, axis, units.count(level), "goodput"))
        numbers.append(("goodput", "", f"{units.count(level)} {unit}", ""))
    return parts.Picture(
        key="cascade",
        title="From what was generated to what was useful and fresh",
        says=f"Tokens per {device}-second of the whole run: each factor leaves "
        "the solid part of what was there before.",
        around=parts.legend([("bar", "left"), ("lost", "lost to this factor")]),
        drawing=drawing(_ROW * len(rows) + 6, *rows, title="Goodput as a cascade of its factors"),
        columns=("factor", "value", "left", "lost"),
        rows=numbers,
    )


def _row(n: int, name: str, before: float, left: float, axis: Axis, said: str,
         kind: str = "bar") -> Html:  # fmt: skip
    y = n * _ROW + 4
    drawn = [label(_NAME - 10, y + 19, name, "end", "name")]
    if not math.isnan(left):
        drawn.append(box(axis(0), y, axis.length(left), _ROW - 12, kind))
    if before and not math.isnan(left) and before > left:
        drawn.append(box(axis(left), y, axis(before) - axis(left), _ROW - 12, "lost"))
        drawn.append(line(axis(left), y + _ROW - 12, axis(left), y + _ROW, "link"))
    value, _, lost = said.partition("\t")
    drawn.append(label(_END + 14, y + 19, value, css="value"))
    drawn.append(label(_LOST, y + 19, lost, "end", "tick"))
    drawn.append(box(0, y - 4, WIDTH, _ROW, "hit", data_row=n))
    return tag("g", *drawn)


def _numbers(factor: Factor, before: float, left: float, unit: str) -> tuple[str, ...]:
    lost = units.UNKNOWN if math.isnan(left) else f"{units.count(before - left)} {unit}"
    kept = units.UNKNOWN if math.isnan(left) else f"{units.count(left)} {unit}"
    return factor.name, units.share(factor.value), kept, lost


def _wall_clock(cascade: Cascade) -> parts.Picture | None:
    if not cascade.seconds or not cascade.wall_s:
        return None
    spent = []
    for p in cascade.seconds:
        colour = "lost" if p.lost or p.reason not in parts.COLOURED else parts.css(p.reason)
        spent.append((p.reason, p.seconds, p.share, colour))
    return parts.Picture(
        key="wall-clock",
        title=f"Where {units.seconds(cascade.wall_s)} of wall-clock went",
        says="Every second of the run has one reason; grey: no work of a stage held it up then.",
        drawing=_stacked([(name, share, kind) for name, _, share, kind in spent],
                         "Wall-clock of the run by reason"),
        columns=("reason", "time", "share"),
        rows=[(name, units.seconds(s), units.share(share)) for name, s, share, _ in spent],
    )  # fmt: skip


def _tokens(cascade: Cascade) -> parts.Picture | None:
    if not cascade.tokens or not cascade.generated_tokens:
        return None
    kinds = {USEFUL: "goodput"}
    fates = [(one.reason, one.share, kinds.get(one.reason, "lost")) for one in cascade.tokens]
    return parts.Picture(
        key="tokens",
        title=f"What became of {units.count(cascade.generated_tokens)} generated tokens",
        drawing=_stacked(fates, "Generated tokens by fate"),
        columns=("fate", "tokens", "share"),
        rows=[(t.reason, units.count(t.tokens), units.share(t.share)) for t in cascade.tokens],
    )


def _stacked(shares: Sequence[tuple[str, float, str]], title: str) -> Html:
    """One bar of shares, with the names of those that have room for them on two lines below it."""
    axis = Axis(0, 1, 0, WIDTH)
    drawn, names, at, free = [], [], 0.0, [0.0, 0.0]
    for n, (name, share, kind) in enumerate(shares):
        if math.isnan(share) or share <= 0:
            continue
        x, wide = axis(at), axis.length(share)
        drawn.append(box(x, 2, max(0.5, wide - 1), 30, kind))
        said = f"{name} {units.share(share)}"
        needed = _LETTER * len(said) + 4
        begins = min(x, WIDTH - needed)  # at the right edge a name ends where it would else begin
        row = next((row for row in (0, 1) if begins >= free[row]), None)
        if share > _LEAST_SHARE and row is not None:
            drawn.append(line(x + 0.5, 32, x + 0.5, 38 + 16 * row, "link"))
            names.append(label(begins, 50 + 16 * row, said, css="tick over"))
            free[row] = begins + needed + 10
        drawn.append(box(x, 0, wide, 68, "hit", data_row=n))
        at += share
    return drawing(72 if free[1] else 56, *drawn, *names, title=title)
