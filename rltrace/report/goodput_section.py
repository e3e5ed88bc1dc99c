"""Goodput in words: the headline, what it is made of, and where the other tokens went."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rltrace.analysis.goodput import Goodput
from rltrace.analysis.summary import Summary
from rltrace.report import units
from rltrace.report.layout import Column, Grid, Section

_TITLE = "Goodput"
_TAKEN = "handed to the learner"


def goodput_section(summary: Summary) -> Section:
    """The goodput section of a report."""
    goodput = summary.goodput
    if goodput is None:
        line = "Unknown: nobody recorded which samples the learner trained on."
        return Section(_TITLE, (line,))
    rows = [
        (
            _TAKEN if goodput.handed_only else "trained on",
            goodput.trained_share,
            goodput.generated_tokens - sum(loss.tokens for loss in goodput.losses),
        ),
        *((loss.reason, loss.share, loss.tokens) for loss in goodput.losses),
    ]
    columns = (
        Column("generated tokens, whole run"),
        Column("tokens", right=True),
        Column("share", right=True),
    )
    cells = [(name, units.count(n), units.share(share)) for name, share, n in rows]
    return Section(
        _TITLE,
        tuple(_headline(goodput)),
        Grid(columns, tuple(cells)) if goodput.generated_tokens else None,
        tuple(_conditions(goodput)),
    )


def _headline(goodput: Goodput) -> Iterator[str]:
    devices = goodput.devices
    rate = goodput.useful_tokens_per_device_s
    if not goodput.window_s:
        yield "Unknown: no step was completed."
        if goodput.handed_only:
            yield "Nobody saw the learner train on what it was handed."
        return
    useful = goodput.trained.useful_tokens
    if math.isnan(rate):
        yield (
            f"{units.count(useful)} useful tokens in "
            f"{units.seconds(goodput.window_s)} ({devices.source})."
        )
    else:
        low = goodput.useful_known_tokens_per_device_s
        at_least = f" (at least {units.count(low)} for sure)" if low < rate else ""
        yield (
            f"{units.count(rate)} useful tokens per {devices.kind}-second{at_least}: "
            f"{units.count(useful)} tokens / "
            f"({units.plural(devices.count, devices.kind)} × {units.seconds(goodput.window_s)})."
        )
        yield f"{devices.kind}s counted: {devices.source}."
    yield from _dollars(goodput)


def _dollars(goodput: Goodput) -> Iterator[str]:
    price, devices = goodput.price, goodput.devices
    if price is None:
        yield (
            "No dollar figure: the price of "
            f"{devices.name or f'a {devices.kind}-hour'} is not known; give it with --price."
        )
        return
    if math.isnan(goodput.useful_tokens_per_usd()):  # the devices are not known, which is said
        return
    per_usd = units.count(goodput.useful_tokens_per_usd())
    line = f"{per_usd} useful tokens per US$ at {price.usd_per_hour:g} $/{devices.kind}-hour"
    if price.date:
        least = units.count(goodput.useful_tokens_per_usd(price.high_usd_per_hour))
        most = units.count(goodput.useful_tokens_per_usd(price.low_usd_per_hour))
        yield (
            f"{line} (indicative list price of {price.date}; {least} to {most} over "
            f"{price.low_usd_per_hour:g} to {price.high_usd_per_hour:g} $)."
        )
    else:
        yield f"{line} ({price.source})."


def _conditions(goodput: Goodput) -> Iterator[str]:
    trained = goodput.trained
    if not trained.tokens:
        return

    def part(tokens: int) -> str:
        return f"{units.count(tokens)} ({units.share(tokens / trained.tokens)})"

    text = f"Of {units.count(trained.tokens)} tokens trained on in steady steps: "
    text += f"{part(trained.zero_advantage_tokens)} in groups of equal reward (zero advantage)"
    if trained.unknown_advantage_tokens:
        text += f", {part(trained.unknown_advantage_tokens)} of unknown advantage"
    if math.isinf(goodput.lag_budget):
        text += "; no lag budget is set"
    else:
        over = part(trained.over_lag_budget_tokens)
        text += f"; {over} over the lag budget of {goodput.lag_budget:g}"
    if trained.unknown_lag_tokens:
        text += f", {part(trained.unknown_lag_tokens)} of unknown lag"
    yield f"{text}. Useful: {part(trained.useful_tokens)}."
