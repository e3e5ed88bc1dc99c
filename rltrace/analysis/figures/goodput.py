"""Useful tokens for each device-second and dollar, and where the other tokens went.

A useful token is a response token that was trained on, whose advantage is not zero (as one that is
relative to a group of equal rewards is), and whose lag is within the budget; what is not known
gives a range. Frameworks' own "tokens/s" count other things (HybridFlow: prompt and response;
AReaL: consumed by updates; NeMo-RL: all).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.figures.devices import Devices, count_devices, device_load
from rltrace.analysis.timeline.steps import Steps
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.read.sql_views import Tables
from rltrace.trace.read.trajectory_lifecycle import DECIDED_SAMPLES, TRAINED_SAMPLES
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Fate, Finish, Stage, named, word

_SQL = packaged_toml("analysis/data/queries.toml")
MASKED = "masked out of the loss"


@dataclass(frozen=True)
class Trained:
    """The response tokens that were trained on in a window. `useful_tokens` meet all conditions as
    far as is known, `useful_known_tokens` for sure. A sample of unknown length
    (`uncounted_samples`) is taken to be as long as the others in the mean."""

    samples: int
    tokens: int
    zero_advantage_tokens: int
    unknown_advantage_tokens: int
    over_lag_budget_tokens: int
    unknown_lag_tokens: int
    useful_tokens: int
    useful_known_tokens: int
    uncounted_samples: int = 0

    @property
    def is_counted(self) -> bool:
        return bool(self.tokens) or self.uncounted_samples < self.samples or not self.samples


@dataclass(frozen=True)
class Loss:
    """Generated samples that were not trained on, by reason; of `MASKED` tokens they were."""

    reason: str
    samples: int
    tokens: int
    share: float


@dataclass(frozen=True)
class Goodput:
    """Useful tokens over the steady steps (`window_s`, gaps included; 0 where the first never
    ended); NaN: devices or price are not known. `losses` are of the whole run: with `trained_share`
    they make up all `generated_tokens`. `handed_only`: no training was seen to end."""

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
    uncounted_samples: int = 0
    handed_only: bool = False
    joules: float = math.nan

    @property
    def joules_per_useful_token(self) -> float:
        useful = self.trained.useful_tokens
        return self.joules / useful if useful and self.trained.is_counted else math.nan

    @property
    def useful_tokens_per_device_s(self) -> float:
        return self._a_device_second(self.trained.useful_tokens)

    @property
    def useful_known_tokens_per_device_s(self) -> float:
        return self._a_device_second(self.trained.useful_known_tokens)

    def _a_device_second(self, tokens: float) -> float:
        device_s = self.devices.count * self.window_s
        return tokens / device_s if device_s and self.trained.is_counted else math.nan

    def useful_tokens_per_usd(self) -> float:
        usd_per_hour = self.price.usd_per_hour if self.price else math.nan
        return self.useful_tokens_per_device_s * 3600 / usd_per_hour if usd_per_hour else math.nan


def goodput(
    run: OpenedRun, steps: Steps, price_usd_per_hour: float | None, lag_budget: float = math.inf
) -> Goodput | None:
    """None where no learner said what it trained on. `lag_budget` is in policy versions."""
    if not run.ask("select 1 from raw_uses where time_ns > 0 limit 1"):
        return None
    steady = [] if steps.none_complete else [steps.windows[i] for i in steps.steady]
    since, until = (steady[0].start_ns, steady[-1].end_ns) if steady else (0, 0)
    devices = count_devices(run)
    loads = device_load(run, since, until, counters="gpu/energy_joules")
    samples, tokens, uncounted = _fates(run)
    generated, trained = tokens.total(), word(Fate.TRAINED)
    trainings = f"select 1 from raw_spans where stage = {int(Stage.TRAIN)} and end_ns > 0 limit 1"
    return Goodput(
        window_s=(until - since) / 1e9,
        steps=0 if steps.whole_run else len(steady),
        trained=trained_in(run, since, until, lag_budget),
        devices=devices,
        price=_price(run, devices, price_usd_per_hour),
        lag_budget=lag_budget,
        generated_samples=samples.total(),
        generated_tokens=generated,
        trained_share=tokens[trained] / generated if generated else math.nan,
        losses=tuple(
            Loss(reason, samples[reason], lost, lost / generated if generated else math.nan)
            for reason, lost in tokens.most_common()
            if reason != trained
        ),
        uncounted_samples=uncounted,
        handed_only=steps.none_complete and not run.ask(trainings),
        joules=math.fsum(one.joules for one in loads) or math.nan,
    )


def _price(run: OpenedRun, devices: Devices, stated: float | None) -> Price | None:
    of_run, source = run.meta.get("price"), "--price"
    if stated is None and isinstance(of_run, int | float) and not isinstance(of_run, bool):
        stated, source = float(of_run), "the run's settings"
    if stated is not None:
        return Price(stated, stated, stated, "", source)
    return table_price(devices.name) if devices.kind == "GPU" and devices.name else None


def trained_in(run: Tables, since: int, until: int, lag_budget: float = math.inf) -> Trained:
    """What was trained on between two moments (Unix ns, both included)."""
    fresh = "true" if math.isinf(lag_budget) else f"lag <= {lag_budget}"
    asked = _SQL["trained_between"].format(fresh=fresh, since=since, until=until)
    row = run.ask(f"{_TRAINED_SIGNALS}, {asked}")[0]
    return Trained(*(round(value or 0) for value in row))


_TRAINED_SIGNALS = f"{TRAINED_SAMPLES}, {_SQL['told']}"


def _fates(run: OpenedRun) -> tuple[Counter[str], Counter[str], int]:
    """Samples, and tokens, by what became of them, and how many samples are uncounted."""
    rows = run.ask(f"{DECIDED_SAMPLES} {_SQL['fates']}")
    samples, tokens = Counter[str](), Counter[str]()
    for fate, finish, n, of_tokens, masked, _ in rows:
        samples[_reason(fate, finish)] += n
        tokens[_reason(fate, finish)] += of_tokens
        if masked:
            tokens[MASKED] += masked
    if samples[word(Fate.TRAINED)] and not tokens[word(Fate.TRAINED)] + tokens[MASKED]:
        tokens.clear()  # of those that were trained on no length is known
    return samples, tokens, sum(row[-1] or 0 for row in rows)


def _reason(fate: int | None, finish: int | None) -> str:
    if fate is not None:
        return named(Fate, fate) if fate in set(Fate) else "unknown fate"
    if finish in (Finish.ABORT, Finish.TIMEOUT, Finish.ERROR):
        return f"never used ({named(Finish, finish)})"
    return "never used"


@dataclass(frozen=True)
class StepGoodput:
    """Response tokens that were booked as trained on within a step; NaN: devices are unknown."""

    trained_tokens: int
    useful_tokens: int
    useful_tokens_per_device_s: float


USEFUL_BY_TIME = f"{_TRAINED_SIGNALS} {_SQL['useful_by_time']}"


def step_goodput(run: OpenedRun, steps: Steps) -> tuple[StepGoodput, ...]:
    """A figure for each of `Steps.windows`; tokens that were booked between steps are in none."""
    time, *counts = np.array(run.ask(USEFUL_BY_TIME), np.int64).reshape(-1, 3).T
    tokens = np.zeros((len(steps.windows) + 1, 2), np.int64)
    np.add.at(tokens, steps.places_at(time), np.stack(counts, axis=1))  # the last: in no step
    devices = count_devices(run).count
    return tuple(
        StepGoodput(trained, useful, useful / device_s if device_s else math.nan)
        for (trained, useful), device_s in zip(
            tokens[:-1].tolist(), (devices * w.length_s for w in steps.windows), strict=True
        )
    )


@dataclass(frozen=True)
class Price:
    """US$ per device-hour, the range of public lists, and the table's date; empty: it was given."""

    usd_per_hour: float
    low_usd_per_hour: float
    high_usd_per_hour: float
    date: str
    source: str


def table_price(device: str) -> Price | None:
    """The price of a device by its name as the driver tells it; None: unknown."""
    table = packaged_toml("analysis/data/prices.toml")
    for entry in table["gpu"]:
        if any(part in device.lower() for part in entry["match"]):
            low, high = entry["range_usd_per_hour"]
            source = f"{entry['name']}: {entry['source']}"
            return Price(entry["usd_per_hour"], low, high, table["date"], source)
    return None
