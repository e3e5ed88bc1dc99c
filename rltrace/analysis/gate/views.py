"""By which figures a metric is judged where the work of the two sides is not the same.

Longer answers take longer, and that is no regression. So seconds are held against the tokens of a
step where these drifted, and goodput against all tokens trained on where the share that carries a
signal did (the policy learns, and more groups are all right or all wrong).

A step has a part that no token changes. With fewer tokens a step each of them then takes longer
though nothing is slower, so what drifted is called a regression only where it is one in seconds
as well; a pass is one by token alone.

Where nothing surely drifted, chance in the work still is noise in a figure. Of the two ways to look
at it the one with the smaller error is taken: which that is depends on the noise, and not on what
is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rltrace.analysis.gate import metrics as m
from rltrace.analysis.gate.changes import SIGNAL_SHARE, TOKENS_OF_STEP, rate
from rltrace.analysis.gate.findings import Drift
from rltrace.analysis.gate.metrics import Metric


@dataclass(frozen=True)
class View:
    """`judged` is the figure that is held to the limit; `and_also` (None: none) has to have
    regressed too. `normalised` says what was made equal (empty: nothing). `or_else` is another way
    to look at it, of which the same says `or_normalised`, to take where it is sharper."""

    judged: Metric
    and_also: Metric | None = None
    normalised: str = ""
    or_else: Metric | None = None
    or_normalised: str = ""


def view_of(metric: Metric, drift: Sequence[Drift], scaled: bool) -> View:
    """How to judge `metric` after this drift; `scaled`: across other hardware or settings, for each
    device and token."""
    changed = {one.name: one for one in drift if one.changed}
    tokens, signal = changed.get(TOKENS_OF_STEP), changed.get(SIGNAL_SHARE)
    if scaled:
        says = "for each device and token"
        if metric.of == m.USEFUL and signal is not None:
            metric, says = replace(metric, of=m.TRAINED), f"{says}, {_counting(signal)}"
        return View(_scaled(metric), None, says)
    if metric.work and tokens is not None:
        by_token = replace(metric, per=metric.work)
        return View(by_token, metric, f"by token, as {_told(tokens)}")
    if metric.of == m.USEFUL and signal is not None:
        return View(replace(metric, of=m.TRAINED), _pace(tokens), _counting(signal))
    if metric.of in (m.USEFUL, m.GENERATED) and tokens is not None:
        return View(metric, _pace(tokens), f"by token, as {_told(tokens)}")
    if metric.of == m.USEFUL:
        says = "counting tokens without a signal, which is sharper"
        return View(metric, or_else=replace(metric, of=m.TRAINED), or_normalised=says)
    if metric.work:
        by_token = replace(metric, per=metric.work)
        return View(metric, or_else=by_token, or_normalised="by token, which is sharper")
    return View(metric)


def _pace(tokens: Drift | None) -> Metric | None:
    return None if tokens is None else replace(rate("step", m.STEPS, m.LENGTH), name="steps")


def _scaled(metric: Metric) -> Metric:
    """Seconds become device-seconds a token, and tokens a second those of a device."""
    if metric.per == m.LENGTH:
        return replace(metric, per=m.DEVICES)
    if metric.of == m.LENGTH:
        return replace(metric, of=m.DEVICES, per=m.GENERATED)
    return replace(metric, per=metric.work) if metric.work else metric


def _counting(signal: Drift) -> str:
    return f"counting tokens without a signal, as {_told(signal)}"


def _told(drift: Drift) -> str:
    return f"{drift.name} went from {drift.before:.4g} to {drift.after:.4g}"
