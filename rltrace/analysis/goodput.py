"""Useful tokens for each device-second and dollar, and where the other tokens went.

A useful token is a response token that was trained on, in a group whose rewards differ (else a
group-relative advantage is zero), and whose lag is within the budget. Each condition is counted
apart, and what is not known is counted as not known: the useful tokens then have a range.
Frameworks' own "tokens/s" count other things (HybridFlow: prompt and response; AReaL: consumed by
updates; NeMo-RL: all), so nothing here is comparable with them without saying so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.codes import named
from rltrace.analysis.devices import Devices, count_devices
from rltrace.analysis.prices import Price, given_price, table_price
from rltrace.analysis.samples import DECIDED_SAMPLES, TRAINED_SAMPLES
from rltrace.analysis.steps import Steps
from rltrace.trace.vocabulary import Fate, Finish, Stage

if TYPE_CHECKING:
    from rltrace.trace.run import Run


@dataclass(frozen=True)
class Trained:
    """The response tokens that were trained on in a window, and how many of them meet which
    condition. `useful_tokens` meet all as far as is known, `useful_known_tokens` for sure."""

    samples: int
    tokens: int
    zero_advantage_tokens: int
    unknown_advantage_tokens: int
    over_lag_budget_tokens: int
    unknown_lag_tokens: int
    useful_tokens: int
    useful_known_tokens: int


@dataclass(frozen=True)
class Loss:
    """Generated samples that were not trained on, by reason, with their response tokens."""

    reason: str
    samples: int
    tokens: int
    share: float


@dataclass(frozen=True)
class Goodput:
    """Useful tokens over the steady steps (`window_s`, gaps between steps included).

    Rates are NaN where the devices are not known, dollars where the price is not. `losses` are of
    the whole run: with `trained_share` they make up all `generated_tokens`. Where the first step
    was begun and never completed the window is 0, and there is no rate; `handed_only` is whether
    no training was seen to end either: then "trained" is only what the learner was handed.
    """

    window_s: float
    steps: int
    trained: Trained
    devices: Devices
    price: Price | None
    lag_budget: float
    generated_samples: int
    generated_tokens: int
    trained_share: float
    losses: tuple[Loss, ...]
    handed_only: bool = False

    @property
    def device_seconds(self) -> float:
        """Devices times window; NaN where the devices are not known."""
        return self.devices.count * self.window_s if self.devices.count else math.nan

    @property
    def useful_tokens_per_device_s(self) -> float:
        """The headline: useful tokens for each second of each device."""
        return self._a_device_second(self.trained.useful_tokens)

    @property
    def useful_known_tokens_per_device_s(self) -> float:
        """The same counting only tokens that are surely useful: the lower end of the range."""
        return self._a_device_second(self.trained.useful_known_tokens)

    @property
    def trained_tokens_per_device_s(self) -> float:
        """All tokens trained on for each second of each device."""
        return self._a_device_second(self.trained.tokens)

    def _a_device_second(self, tokens: float) -> float:
        return tokens / self.device_seconds if self.window_s else math.nan

    def useful_tokens_per_usd(self, usd_per_hour: float | None = None) -> float:
        """Useful tokens for a US dollar, at the price used or at another price."""
        if usd_per_hour is None:
            usd_per_hour = self.price.usd_per_hour if self.price else math.nan
        return self.useful_tokens_per_device_s * 3600 / usd_per_hour if usd_per_hour else math.nan


def goodput(
    run: Run, steps: Steps, price_usd_per_hour: float | None, lag_budget: float = math.inf
) -> Goodput | None:
    """The goodput of `run`; None where no learner said what it trained on.

    `lag_budget` is the largest lag, in policy versions, at which a token counts as useful.
    """
    if not run.ask("select 1 from raw_uses where time_ns > 0 limit 1"):
        return None
    steady = [] if steps.none_complete else [steps.windows[i] for i in steps.steady]
    since, until = (steady[0].start_ns, steady[-1].end_ns) if steady else (0, 0)
    devices = count_devices(run)
    whole = _losses(run)
    return Goodput(
        window_s=(until - since) / 1e9,
        steps=0 if steps.whole_run else len(steady),
        trained=trained_in(run, since, until, lag_budget),
        devices=devices,
        price=_price(run, devices, price_usd_per_hour),
        lag_budget=lag_budget,
        generated_samples=whole.samples,
        generated_tokens=whole.tokens,
        trained_share=whole.trained / whole.tokens if whole.tokens else math.nan,
        losses=whole.losses,
        handed_only=handed_only(run, steps),
    )


def handed_only(run: Run, steps: Steps) -> bool:
    """Whether the first step was begun and never completed, and no training was seen to end: the
    learner took samples, and nobody saw it train on them."""
    query = f"select 1 from raw_spans where stage = {int(Stage.TRAIN)} and end_ns >= start_ns"
    return steps.none_complete and not run.ask(f"{query} limit 1")


def _price(run: Run, devices: Devices, stated: float | None) -> Price | None:
    if stated is not None:
        return given_price(stated, "--price")
    of_run = run.meta.get("price")
    if isinstance(of_run, int | float) and not isinstance(of_run, bool):
        return given_price(float(of_run), "the run's settings")
    return table_price(devices.name) if devices.kind == "GPU" and devices.name else None


def trained_in(run: Run, since: int, until: int, lag_budget: float) -> Trained:
    """What was trained on between two moments (Unix ns, both included)."""
    fresh = "true" if math.isinf(lag_budget) else f"lag <= {lag_budget}"
    row = run.ask(f"""
        {TRAINED_SAMPLES},
        judged as (
            select coalesce(tokens, 0) as tokens, signal, lag, {fresh} as fresh
            from (select tokens, signal,
                         case when version >= 0 then version - first_version end as lag
                  from trained left join signals using ("group")
                  where time_ns between {since} and {until}))
        select count(*), sum(tokens),
               sum(tokens) filter (not signal),
               sum(tokens) filter (signal is null),
               sum(tokens) filter (not fresh),
               sum(tokens) filter (lag is null),
               sum(tokens) filter (coalesce(signal, true) and coalesce(fresh, true)),
               sum(tokens) filter (signal and fresh)
        from judged
    """)[0]
    return Trained(*(round(value or 0) for value in row))


@dataclass(frozen=True)
class _Whole:
    """Of a whole run: samples and tokens generated, tokens trained on, and the losses."""

    samples: int
    tokens: int
    trained: int
    losses: tuple[Loss, ...]


def _losses(run: Run) -> _Whole:
    """What became of all that was generated. Every sample has one reason."""
    rows = run.ask(f"""
        {DECIDED_SAMPLES}
        select case when met then coalesce(fate, -1) end, case when not met then finish end,
               round(sum(weight))::bigint, round(sum(tokens * weight))::bigint
        from decided group by 1, 2 having sum(weight) > 0 order by 4 desc
    """)
    tokens = sum(row[3] for row in rows)
    lost: dict[str, tuple[int, int]] = {}
    for fate, finish, *more in rows:
        if fate != Fate.TRAINED:
            reason = _reason(fate, finish)
            samples, of_tokens = lost.get(reason, (0, 0))
            lost[reason] = (samples + more[0], of_tokens + more[1])
    return _Whole(
        samples=sum(row[2] for row in rows),
        tokens=tokens,
        trained=sum(row[3] for row in rows if row[0] == Fate.TRAINED),
        losses=tuple(
            Loss(reason, samples, of_tokens, of_tokens / tokens if tokens else math.nan)
            for reason, (samples, of_tokens) in sorted(lost.items(), key=lambda item: -item[1][1])
        ),
    )


def _reason(fate: int | None, finish: int | None) -> str:
    if fate is not None:
        return named(Fate, fate) if fate in set(Fate) else "unknown fate"
    if finish in (Finish.ABORT, Finish.TIMEOUT, Finish.ERROR):
        return f"never used ({named(Finish, finish)})"
    return "never used"


# --- useful tokens step by step: which of them trained on what, of the kind that goodput counts


@dataclass(frozen=True)
class StepGoodput:
    """Response tokens that were booked as trained on within a step, and those of them that are
    useful as far as is known; NaN where the devices are not known."""

    trained_tokens: int
    useful_tokens: int
    useful_tokens_per_device_s: float


def step_goodput(run: Run, steps: Steps) -> tuple[StepGoodput, ...]:
    """A figure for each of `Steps.windows`; tokens that were booked between steps are in none."""
    rows = run.ask(f"""
        {TRAINED_SAMPLES}
        select time_ns, sum(coalesce(tokens, 0))::bigint,
               coalesce(sum(coalesce(tokens, 0)) filter (coalesce(signal, true)), 0)::bigint
        from trained left join signals using ("group") group by time_ns
    """)
    time, trained, useful = np.array(rows, np.int64).reshape(-1, 3).T
    starts = np.array([window.start_ns for window in steps.windows], np.int64)
    ends = np.array([window.end_ns for window in steps.windows], np.int64)
    place = np.searchsorted(starts, time, side="right") - 1
    inside = (place >= 0) & (time <= np.append(ends, 0)[place])
    tokens = np.zeros((len(starts), 2), np.int64)
    np.add.at(tokens, place[inside], np.stack([trained, useful], axis=1)[inside])
    devices = count_devices(run).count
    return tuple(
        StepGoodput(
            int(all_tokens),
            int(useful_tokens),
            useful_tokens / (devices * window.length_s)
            if devices and window.length_s
            else math.nan,
        )
        for window, (all_tokens, useful_tokens) in zip(steps.windows, tokens, strict=True)
    )
