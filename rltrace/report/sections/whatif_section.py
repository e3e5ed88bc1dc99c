"""What-if answers in words and tables: before and after for each change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rltrace.analysis.plan.placement_breakdown import CostedWall, binding
from rltrace.analysis.whatif.predict import NO_GAIN, UNSURE, Prediction, ReplayBaseline
from rltrace.report import units
from rltrace.report.layout import Section, brief, listed, numbers, table
from rltrace.report.sections.gate_section import interval_beside as beside_it
from rltrace.report.sections.verdict_section import gain_words, replay_check

_MOST_ROWS = 20
_MOST_NOTES = 8


def alarmed(alarms: Sequence[str]) -> str:
    """Why no gains are listed for a run with these alarms."""
    return (
        f"no gains are predicted, because of the run's alarm: {'; '.join(alarms)}; repair that "
        "first, or ask for one change with --lever NAME=VALUE"
    )


def one(
    base: ReplayBaseline, found: Prediction, alarms: Sequence[str] = (), beside: Sequence[str] = ()
) -> Section:
    """These levers moved together, below alarms and what is left out (`beside`)."""
    warned = [f"! {alarm}: the prediction is only as good as these steps." for alarm in alarms]
    lines = (*warned, *_left_out(beside), *_answer(base, found))
    title = f"What if {', '.join(found.levers)}: {found.outcome}"
    return Section(title, lines, notes=("This rests on:", *brief(found.rests_on, _MOST_NOTES)))


def ranked(
    base: ReplayBaseline,
    found: Sequence[Prediction],
    untold: Mapping[str, str],
    beside: Sequence[str] = (),
    walls: tuple[CostedWall, ...] = (),
) -> Section:
    """All levers, one at a time, below what is left out (`beside`) and the walls of stated seconds;
    `untold`: why not these."""
    rows, idle, slower = [], [], []
    for one in found:
        levers, gain = ", ".join(one.levers), one.goodput_gain
        if one.outcome == NO_GAIN:
            idle.append(levers)
        elif gain.is_no_gain:
            slower.append(f"{levers} ({gain_words(gain)})")
        else:
            step = units.before_after(one.before_s, one.step_s.value)
            maybe = "maybe" if one.outcome == UNSURE else ""
            rows.append((levers, step, gain_words(gain), maybe))
    title = f"What if: {rows[0][0]} gains most" if rows else "What if: no change gains"
    below = [f"{len(rows) - _MOST_ROWS} more that gain less: --json."] if rows[_MOST_ROWS:] else []
    below += [f"No gain: {', '.join(idle)}."] if idle else []
    below += [f"Costs more than it gains: {', '.join(slower)}."] if slower else []
    if untold:
        missing: dict[str, list[str]] = {}
        for name, why in untold.items():
            missing.setdefault(why, []).append(name)
        said = (f"{listed(names)} ({why})" for why, names in missing.items())
        below.append(f"Cannot tell: {'; '.join(said)}.")
    check = replay_check(base.replay_error_share, base.step_s)
    below += [check] if check else [f"{note}." for note in base.rests_on[:2]]
    below.append("Gains do not add up: give several --lever to see them together.")
    grid = table(rows[:_MOST_ROWS], "lever", *numbers("step", "goodput per device"), "")
    devices = _devices(base.devices)
    now = f"Now: {units.seconds(base.step_s)} a step, {base.placement}{devices}."
    wall = [wall_line(walls, binding(walls))] if walls else []
    return Section(title, (*_left_out(beside), now, *wall), grid, tuple(below))


def _left_out(beside: Iterable[str]) -> list[str]:
    return [f"Left out: {says}." for says in beside]


def _answer(base: ReplayBaseline, found: Prediction) -> Iterator[str]:
    step = units.before_after(base.step_s, found.step_s.value)
    yield f"{step} a step{beside_it(found.step_s, units.seconds)}."
    rate, per_usd = found.useful_tokens_per_device_s, found.useful_tokens_per_usd
    line = f"Goodput per device: {gain_words(found.goodput_gain)}"
    if not math.isnan(rate.value):
        line += f", then {units.count(rate.value)} useful tokens/s{beside_it(rate, units.count)}"
    if not math.isnan(per_usd.value):
        line += f", {units.count(per_usd.value)} per US${beside_it(per_usd, units.count)}"
    yield f"{line}."
    before, after = _devices(base.devices), _devices(found.devices)
    if after and after != before:
        yield f"Then{after}; now{before or ' on other devices'}."
    if found.learner_waits_share > 0:
        yield f"The learner waits {units.share(found.learner_waits_share)} of the step for samples."
    if found.lag_shares:
        stale = f"; {units.share(found.stale_share)} come too late" if found.stale_share > 0 else ""
        most = max(lag for lag, part in found.lag_shares.items() if part)
        yield f"Samples lag by {found.mean_lag:.1f} versions on average, at most {most}{stale}."


def _devices(devices: Mapping[str, float]) -> str:
    pools = " + ".join(f"{count:g} {pool}" for pool, count in devices.items())
    return f" on {pools} devices" if pools else ""


def wall_line(walls: Sequence[CostedWall], binding: Sequence[str]) -> str:
    if not binding:
        return "No wall: nothing takes more than a tenth of the step by itself."
    shares = {wall.name: units.share(wall.share) for wall in walls}
    named = [f"{name} (without it: a step {shares[name]} shorter)" for name in binding]
    plural = "s" * (len(named) > 1)
    return f"Wall{plural}, the bottleneck{plural}: {listed(named)}."
