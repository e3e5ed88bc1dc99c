"""Goodput as a product of measured factors, so that each says what it costs.

    goodput = availability × placement efficiency × useful share × freshness weight × peak rate

The first two are of `wall_clock` and `busy`, the weight is of `freshness`, and the peak rate is
what remains. So the product is the measured goodput exactly: useful tokens, weighted by freshness,
over the devices' seconds of the whole run. (`Goodput`, the headline, is over steady steps and
without the weight.) The split follows Google's ML goodput (arXiv 2502.06982) with the two factors
that RL adds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rltrace.analysis.busy import Busy, Pool
from rltrace.analysis.goodput import Goodput, trained_in
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.interval import within
from rltrace.analysis.wall_clock import SecondsOf, WallClock, wall_clock
from rltrace.trace.run import Run

USEFUL = "useful"
_ALL_TIME = (0, (1 << 63) - 1)


@dataclass(frozen=True)
class Factor:
    """One factor: a share of 1, or tokens per device-second for the peak rate. NaN: unknown; then
    `basis` says what is missing, and else what it rests on."""

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
class Cascade:
    """Goodput of a whole run and its factors. `seconds` add up to `wall_s`, `tokens` to
    `generated_tokens`. Rates are per device-second (`device`: "GPU" or "core"; the placement
    efficiency is of `efficiency_of`), NaN where a part is unknown; `effective` is weighted by
    freshness. Dollars are NaN where the price is unknown."""

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
    seconds: tuple[SecondsOf, ...]
    pools: tuple[Pool, ...]


def cascade(analysis: RunAnalysis) -> Cascade | None:
    """The cascade of the run. None where it has no steps, and for an imported log, which tells no
    wall-clock."""
    if analysis.run.meta.get("imported"):
        return None
    recorded = analysis.shown_ns, analysis.until_ns
    clock = wall_clock(analysis.activity, analysis.steps, analysis.breakdown, *recorded)
    if clock is None:
        return None
    run, goodput, fresh = analysis.run, analysis.goodput, analysis.freshness
    work = analysis.busy
    efficiency, basis = _efficiency(clock, work)
    tokens, unsure = _tokens(run, goodput, clock) if goodput is not None else ((), 0)
    generated = goodput.generated_tokens if goodput is not None else 0
    useful = sum(one.tokens for one in tokens if one.reason == USEFUL)
    device_s = goodput.devices.count * clock.wall_s if goodput and goodput.devices.count else 0.0
    rate = useful / device_s if device_s and generated else math.nan
    share = useful / generated if generated else math.nan
    done = clock.availability * efficiency
    peak = generated / (device_s * done) if generated and device_s and done else math.nan
    effective = rate * fresh.weight
    price = goodput.price.usd_per_hour if goodput and goodput.price else math.nan
    known = max(0, useful - unsure) / generated if generated else math.nan
    weight = fresh.weight, fresh.weight_low, fresh.weight_high
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
            _exactly("availability", clock.availability, of_clock),
            _exactly("placement efficiency", efficiency, basis),
            Factor("useful share", share, known, share, of_tokens),
            Factor("freshness weight", *weight, fresh.weight_source),
            _exactly("peak rate", peak, peak_basis),
        ),
        useful_tokens_per_device_s=rate,
        effective_tokens_per_device_s=effective,
        effective_tokens_per_usd=effective * 3600 / price if price else math.nan,
        generated_tokens=generated,
        tokens=tokens,
        seconds=clock.parts,
        pools=work.pools if work else (),
    )


def _exactly(name: str, value: float, basis: str) -> Factor:
    return Factor(name, value, value, value, basis)


def _efficiency(clock: WallClock, work: Busy | None) -> tuple[float, str]:
    """`(placement efficiency, what it rests on)`."""
    if work is None or not clock.available_s:
        return math.nan, "no process was seen to work in a step"
    worked_s = float((work.work_s * clock.kept).sum())
    if work.unit == "GPU":
        basis = f"{work.count} devices, each working while a process that holds it does"
    else:
        basis = f"{work.count} processes that work, each standing for a device"
    return within(worked_s / (work.count * clock.available_s)), basis


def _tokens(run: Run, goodput: Goodput, clock: WallClock) -> tuple[tuple[TokensOf, ...], int]:
    """All generated tokens by fate, useful ones first, then the largest loss; and how many count as
    useful although a condition of it is unknown."""
    whole = trained_in(run, *_ALL_TIME, goodput.lag_budget)
    again = [
        trained_in(run, window.start_ns, window.end_ns, goodput.lag_budget)
        for window in clock.done_again
    ]
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
