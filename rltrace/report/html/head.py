"""The top of the page: the verdict, its evidence, four figures, and what is wrong with the run."""

from __future__ import annotations

import math
from datetime import datetime, timezone

from rltrace.analysis.summary import Summary
from rltrace.analysis.walls.wall import LIKELY, WEAK
from rltrace.report import run_lines, units, verdict
from rltrace.report.html.markup import NOTHING, Html, join, prose, sentence, tag
from rltrace.report.html.parts import Part
from rltrace.report.layout import labelled, listed

_ADVICE = ("first: ", "do nothing", "no fix is known")
_MOODS = {LIKELY: "sure", WEAK: "unsure"}


def head_part(summary: Summary) -> Part:
    """The verdict."""
    found = summary.verdict
    mood = "alarm" if found.alarms else _MOODS.get(found.confidence, "open")
    said = "not well" if found.alarms else "balanced" if found.balanced else found.confidence
    command, facts = run_lines.facts(summary)
    body = tag(
        "section",
        tag("p", "Verdict ", tag("span", said, class_=f"chip {mood}"), class_="eyebrow"),
        tag("h1", prose(verdict.headline(summary)), id="verdict-heading"),
        _warnings(summary),
        _advice(summary),
        tag(
            "div",
            _evidence(summary),
            tag("div", _tiles(summary), _unseen(summary)),
            class_="columns",
        ),
        tag("p", tag("code", command), class_="command"),
        tag("p", prose(facts), _began(summary), class_="facts"),
        id="verdict",
        class_=mood,
        aria_labelledby="verdict-heading",
    )
    return Part("verdict", "Verdict", body)


def _advice(summary: Summary) -> Html:
    """What to do, before why: who has five seconds reads this."""
    said = [one for one in verdict.evidence(summary) if one.startswith(_ADVICE)]
    return join(*(tag("p", sentence(one), class_="advice") for one in said))


def _evidence(summary: Summary) -> Html:
    said = [one for one in verdict.evidence(summary) if not one.startswith(_ADVICE)]
    sentences = [tag("li", sentence(one)) for one in said]
    return tag("ul", *sentences, class_="evidence") if sentences else NOTHING


def _warnings(summary: Summary) -> Html:
    said = [tag("li", prose(one)) for one in run_lines.warnings(summary)]
    return tag("ul", *said, class_="warnings", aria_label="warnings") if said else NOTHING


def _began(summary: Summary) -> Html:
    run = summary.run
    if not run.start_ns:
        return NOTHING
    began = datetime.fromtimestamp(run.start_ns / 1e9, timezone.utc)
    version = f" · rltrace {run.rltrace_version}" if run.rltrace_version else ""
    return join(f" · began {began:%Y-%m-%d %H:%M} UTC{version}")


def _tiles(summary: Summary) -> Html:
    tiles = (_step(summary), _goodput(summary), _lag(summary), _wall_clock(summary))
    return tag("dl", *tiles, class_="tiles")


def _unseen(summary: Summary) -> Html:
    """What the verdict was reached without."""
    names = [labelled(stage.name, stage.symbol) for stage in summary.coverage.unseen]
    if not names:
        return NOTHING
    where = tag("a", "why", href="#unseen")
    return tag("p", prose(f"Not seen: {listed(names)}"), " (", where, ").", class_="facts")


def _tile(name: str, value: str, says: str) -> Html:
    return tag("div", tag("dt", name), tag("dd", prose(value)), tag("dd", prose(says)))


def _step(summary: Summary) -> Html:
    step = summary.steps.step_s
    if summary.steps.whole_run or not step.n:
        return _tile("A step", units.UNKNOWN, "no step was completed")
    count = f"n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{step.n}"
    says = f"p95 {units.seconds(step.p95)}, {count}"
    if step.n > 1:
        low, high = units.seconds(max(0.0, step.low)), units.seconds(step.high)
        says = f"95 % {low} to {high}, {count}"
    return _tile("A step, mean", units.seconds(step.mean), says)


def _goodput(summary: Summary) -> Html:
    goodput = summary.goodput
    if goodput is None:
        return _tile("Goodput", units.UNKNOWN, "nobody recorded what was trained on")
    rate = goodput.useful_tokens_per_device_s
    if math.isnan(rate):
        return _tile("Goodput", units.UNKNOWN, goodput.devices.source)
    return _tile(
        "Goodput",
        units.count(rate),
        f"useful tokens per {goodput.devices.kind}-second, steady steps",
    )


def _lag(summary: Summary) -> Html:
    lags = summary.staleness
    if not lags.known_uses:
        return _tile("Lag, mean", units.UNKNOWN, "no policy versions were recorded")
    says = f"{lags.unit}; p95 {lags.p95_lag:.0f}, largest {lags.largest_lag}"
    return _tile("Lag, mean", units.number(lags.mean_lag), says)


def _wall_clock(summary: Summary) -> Html:
    cascade = summary.cascade
    if cascade is None:
        return _tile("Recorded", units.seconds(summary.run.recorded_s), "wall-clock not told")
    share = cascade.available_s / cascade.wall_s if cascade.wall_s else math.nan
    return _tile("Wall-clock", units.seconds(cascade.wall_s), f"{units.share(share)} in steps")
