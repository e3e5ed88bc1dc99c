"""By which figures a metric is judged where the work of the two sides is not the same.

Longer answers take longer, and that is no regression. So seconds are held against the tokens of a
step where these drifted, and goodput against all tokens trained on where the share that carries a
signal did (the policy learns, and more groups are all right or all wrong).

A step has a part that no token changes. With fewer tokens a step each of them then takes longer
though nothing is slower, so what drifted is called a regression only where it is one in seconds
as well; a pass is one by token alone.
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
    regressed too. `normalised` says what was made equal (empty: nothing)."""

    judged: Metric
    and_also: Metric | None = None
    normalised: str = ""


def view_of(metric: Metric, drift: Sequence[Drift], scaled: bool) -> View:
    """How to judge `metric` after this drift; `scaled`: across other hardware or settings, for each
    device and token."""
    changed = {one.name: one for one in drift if one.changed}
    tokens, signal = changed.get(TOKENS_OF_STEP), changed.get(SIGNAL_SHARE)
    if scaled:
        return View(_scaled(metric), None, "for each device and token")
    if metric.work and tokens is not None:
        by_token = replace(metric, per=metric.work)
        return View(by_token, metric, f"by token, as {_told(tokens)}")
    if metric.of == m.USEFUL and signal is not None:
        says = f"counting tokens without a signal, as {_told(signal)}"
        return View(replace(metric, of=m.TRAINED), _pace(tokens), says)
    if metric.of in (m.USEFUL, m.GENERATED) and tokens is not None:
        return View(metric, _pace(tokens), f"by token, as {_told(tokens)}")
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


def _told(drift: Drift) -> str:
    return f"{drift.name} went from {drift.before:.4g} to {drift.after:.4g}"
