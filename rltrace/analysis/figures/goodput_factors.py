"""Goodput as a product of measured factors, so that each says what it costs.

    goodput = availability × placement efficiency × useful share × freshness weight × peak rate

The peak rate is what remains, so the product is exactly the measured goodput: useful tokens,
weighted by freshness, over the devices' seconds of the whole run. (`Goodput`, the headline, is over
steady steps and without the weight.) The split follows Google's ML goodput (arXiv 2502.06982) with
the two factors that RL adds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.figures.devices import Busy, DevicePool
from rltrace.analysis.figures.goodput import Goodput, trained_in
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.confidence_interval import within
from rltrace.analysis.timeline.process_intervals import Activity
from rltrace.analysis.timeline.stage_chains import Seconds
from rltrace.analysis.timeline.stages import Breakdown, break_down
from rltrace.analysis.timeline.steps import Steps, Window
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.vocabulary import Stage, word

USEFUL = "useful"
_ALL_TIME = (0, (1 << 63) - 1)
_APART = (Stage.EVAL, Stage.CHECKPOINT)
_NO_WORK = (Stage.WAIT, Stage.SYNC, Stage.SWITCH, Stage.OTHER)


@dataclass(frozen=True)
class Factor:
    """A share of 1, or tokens per device-second for the peak rate, and what it rests on."""

    name: str
    value: float
    low: float
    high: float
    basis: str


@dataclass(frozen=True)
class TokensOf:
    """Generated tokens with one fate: "useful", or the reason why not."""

    reason: str
    tokens: int
    share: float


@dataclass(frozen=True)
class SecondsOf:
    """Wall-clock seconds with one reason. `lost`: no work of a stage; `in_steps`: in available
    time."""

    reason: str
    wall_s: float
    share: float
    lost: bool
    in_steps: bool


@dataclass(frozen=True)
class Cascade:
    """Goodput of a whole run and its factors; NaN: unknown. `wall_clock` adds up to `wall_s`,
    `tokens` to `generated_tokens`. Rates are per device-second (`device`: "GPU" or "core"; the
    placement efficiency is of `efficiency_of`); `effective` is weighted by freshness."""

    device: str
    devices: int
    efficiency_of: str
    wall_s: float
    available_s: float
    factors: tuple[Factor, ...]
    useful_tokens_per_device_s: float
    effective_tokens_per_device_s: float
    effective_tokens_per_usd: float
    generated_tokens: int
    tokens: tuple[TokensOf, ...]
    wall_clock: tuple[SecondsOf, ...]
    pools: tuple[DevicePool, ...]


def cascade(analysis: RunAnalysis) -> Cascade | None:
    """None where the run has no steps, or no rollout, and for an imported log, which tells no
    wall-clock."""
    none = analysis.run.meta.get("imported") or analysis.no_rollout
    clock = None if none else _wall_clock(analysis)
    if clock is None:
        return None
    run, goodput, fresh, work = analysis.run, analysis.goodput, analysis.freshness, analysis.busy
    efficiency, basis = _efficiency(clock, work)
    tokens, unsure = _tokens(run, goodput, clock) if goodput is not None else ((), 0)
    generated = goodput.generated_tokens if goodput is not None else 0
    useful = sum(one.tokens for one in tokens if one.reason == USEFUL)
    device_s = goodput.devices.count * clock.wall_s if goodput and goodput.devices.count else 0.0
    rate = useful / device_s if device_s and generated else math.nan
    share = useful / generated if generated else math.nan
    availability = clock.available_s / clock.wall_s
    done = availability * efficiency
    peak = generated / (device_s * done) if generated and device_s and done else math.nan
    effective = rate * fresh.effective_share.value
    price = goodput.price.usd_per_hour if goodput and goodput.price else math.nan
    known = max(0, useful - unsure) / generated if generated else math.nan
    weight = fresh.effective_share.value, fresh.effective_share.low, fresh.effective_share.high
    of_clock = "the steps' time over the run's wall-clock"
    of_tokens = "useful over generated tokens"
    if not generated:
        of_tokens = "nobody recorded how many tokens were trained on"
    peak_basis = "tokens generated for each device-second of work: what remains"
    if math.isnan(peak):
        peak_basis = "needs tokens, devices and the factors before it"
    return Cascade(
        device=goodput.devices.kind if goodput else "",
        devices=goodput.devices.count if goodput else 0,
        efficiency_of=work.unit if work else "",
        wall_s=clock.wall_s,
        available_s=clock.available_s,
        factors=(
            Factor("availability", availability, availability, availability, of_clock),
            Factor("placement efficiency", efficiency, efficiency, efficiency, basis),
            Factor("useful share", share, known, share, of_tokens),
            Factor("freshness weight", *weight, fresh.effective_share_source),
            Factor("peak rate", peak, peak, peak, peak_basis),
        ),
        useful_tokens_per_device_s=rate,
        effective_tokens_per_device_s=effective,
        effective_tokens_per_usd=effective * 3600 / price if price else math.nan,
        generated_tokens=generated,
        tokens=tokens,
        wall_clock=clock.parts,
        pools=work.pools if work else (),
    )


def _efficiency(clock: _WallClock, work: Busy | None) -> tuple[float, str]:
    if work is None or not clock.available_s:
        return math.nan, "no process was seen to work in a step"
    worked_s = float((work.work_s * clock.kept).sum())
    basis = "processes that work, each standing for a device"
    if work.unit == "GPU":
        basis = "devices, each working while a process that holds it does"
    return within(worked_s / (work.count * clock.available_s)), f"{work.count} {basis}"


def _tokens(
    run: OpenedRun, goodput: Goodput, clock: _WallClock
) -> tuple[tuple[TokensOf, ...], int]:
    """All generated tokens by fate, useful ones first; and how many of these are not surely so."""
    whole = trained_in(run, *_ALL_TIME, goodput.lag_budget)
    again = [trained_in(run, w.start_ns, w.end_ns, goodput.lag_budget) for w in clock.done_again]
    repeated = sum(one.tokens for one in again)
    useful = whole.useful_tokens - sum(one.useful_tokens for one in again)
    zero = whole.zero_advantage_tokens - sum(one.zero_advantage_tokens for one in again)
    lost = {
        "trained in groups without a signal": zero,
        "trained over the lag budget": whole.tokens - useful - zero - repeated,
        "trained in steps that were done again": repeated,
        **{loss.reason: loss.tokens for loss in goodput.losses},
    }
    known = whole.useful_known_tokens - sum(one.useful_known_tokens for one in again)
    fates = [(USEFUL, useful), *sorted(lost.items(), key=lambda item: -item[1])]
    generated = goodput.generated_tokens or math.nan
    told = (TokensOf(of, n, n / generated) for of, n in fates if n or of == USEFUL)
    return tuple(told), useful - known


# --- where the wall-clock of a whole run went: every second has one reason
# Around the steps that is start-up, a gap, or a step that failed or never ended; in them a restart,
# what warm-up and stalls took beyond a usual step, and else each stage's exposed time. Evaluation
# and checkpoints are apart in both.


@dataclass(frozen=True)
class _WallClock:
    """A whole run of `wall_s` seconds. `parts` add up to it, longest first. `available_s` is the
    time in steps that counts: without those done again, evaluation, checkpoints and what warm-up
    and stalls took longer. `kept` is the part of each step (place in `Steps.windows`) in it."""

    wall_s: float
    available_s: float
    parts: tuple[SecondsOf, ...]
    kept: Seconds
    done_again: tuple[Window, ...]


def _wall_clock(analysis: RunAnalysis) -> _WallClock | None:
    """Of the run as far as it is shown; None where it records no steps."""
    steps, breakdown = analysis.steps, analysis.breakdown
    if steps.whole_run and not steps.in_progress:
        return None
    windows = () if steps.whole_run else steps.windows
    since_ns = min([analysis.shown_ns, *(w.start_ns for w in windows[:1])])
    until_ns = max([analysis.until_ns, *(w.end_ns for w in windows[-1:])])
    if until_ns <= since_ns:
        return None
    seconds = _around(analysis.activity, steps, windows, since_ns, until_ns)
    numbers = np.array([w.step for w in windows], np.int64)
    later = np.append(np.minimum.accumulate(numbers[::-1])[::-1][1:], np.iinfo(np.int64).max)
    again = (numbers >= 0) & (later <= numbers)  # it, or a smaller one, came later: thrown away
    kept, in_steps = np.zeros(len(windows)), dict[str, float]()
    if windows:
        apart_s = breakdown.exposed_s[:, list(_APART)]
        rest_s = breakdown.steps_s - apart_s.sum(axis=1)
        seconds["steps done again"] += breakdown.steps_s[again].sum()
        once = ~again
        for column, stage in enumerate(_APART):
            seconds[word(stage)] += apart_s[once, column].sum()
        usual = _usual_share(steps, breakdown)
        beyond_s = rest_s * (1 - usual)
        warm = np.array([w.warmup for w in windows])
        seconds["warm-up, beyond a usual step"] += beyond_s[once & warm].sum()
        seconds["stalls, beyond a usual step"] += beyond_s[once & ~warm].sum()
        kept = np.where(once, usual, 0.0)
        in_steps = {
            word(stage): (breakdown.exposed_s[:, stage] * kept).sum()
            for stage in Stage
            if stage not in (*_APART, Stage.STEP)
        }
        in_steps["untraced"] = (breakdown.untraced_s * kept).sum()
    wall_s = (until_ns - since_ns) / 1e9
    idle = {word(stage) for stage in _NO_WORK} | {"untraced"}
    parts = [
        SecondsOf(name, float(s), float(s) / wall_s, not inside or name in idle, inside)
        for inside, known in ((False, seconds), (True, in_steps))
        for name, s in known.items()
        if s > 0
    ]
    return _WallClock(
        wall_s=wall_s,
        available_s=float(sum(in_steps.values())),
        parts=tuple(sorted(parts, key=lambda one: -one.wall_s)),
        kept=kept,
        done_again=tuple(w for w, twice in zip(windows, again, strict=True) if twice),
    )


def _around(
    activity: Activity, steps: Steps, windows: tuple[Window, ...], since_ns: int, until_ns: int
) -> dict[str, float]:
    edges = [since_ns, *(t for w in windows for t in (w.start_ns, w.end_ns)), until_ns]
    gaps = [Window(-1, a, b, -1, False) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    apart_s = np.zeros((len(gaps), len(_APART)))
    if any(stage in activity.spans_of_stage for stage in _APART):
        around = break_down(activity, Steps(tuple(gaps), True, (), 0))
        apart_s = around.exposed_s[:, list(_APART)]
    rest_s = np.array([gap.length_s for gap in gaps]) - apart_s.sum(axis=1)
    seconds: dict[str, float] = defaultdict(float)
    for column, stage in enumerate(_APART):
        seconds[word(stage)] += apart_s[:, column].sum()
    failed_s = np.zeros(len(gaps))
    for _, start, next_ns in steps.failed:
        place = max(i for i, gap in enumerate(gaps) if gap.start_ns <= max(start, since_ns))
        failed_s[place] += (min(next_ns, gaps[place].end_ns) - start) / 1e9
    failed_s = np.clip(failed_s, 0.0, rest_s)
    seconds["steps that failed"] += failed_s.sum()
    rest_s -= failed_s
    begun = [start for _, start in steps.in_progress if start >= gaps[-1].start_ns]
    unfinished_s = min((until_ns - min(begun)) / 1e9, rest_s[-1]) if begun else 0.0
    seconds["a step that never ended"] += unfinished_s
    rest_s[-1] -= unfinished_s
    seconds["start-up"] += rest_s[0]
    seconds["between steps"] += rest_s[1:-1].sum()
    seconds["after the last step"] += rest_s[-1] if windows else 0.0
    return seconds


def _usual_share(steps: Steps, breakdown: Breakdown) -> Seconds:
    """Of each step of warm-up, or that stalled, the part that a usual one would have taken."""
    odd = np.array([w.warmup for w in steps.windows])
    odd[list(steps.stalled)] = True
    if not odd.any() or odd.all():
        return np.ones(len(odd))
    generates = np.array([w.generates for w in steps.windows])
    usual_s = np.zeros(len(odd))
    for kind in (True, False):
        alike = ~odd & (generates == kind)
        known = alike if alike.any() else ~odd
        usual_s[generates == kind] = np.median(breakdown.steps_s[known])
    with np.errstate(all="ignore"):
        share = np.nan_to_num(usual_s / breakdown.steps_s, nan=1.0)
    return np.where(odd, np.minimum(1.0, share), 1.0)
