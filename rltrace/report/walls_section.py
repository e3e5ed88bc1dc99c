"""The walls in words and tables: what each costs, what to do, and what else the trace shows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

from rltrace.analysis.fixes import Fix
from rltrace.analysis.stats.estimate import Estimate
from rltrace.analysis.verdict import Verdict
from rltrace.analysis.walls.wall import WEIGHTS, Figure, Wall
from rltrace.analysis.walls.weights import IN_PHASE, UPDATE, UPDATE_BYTES
from rltrace.report import units
from rltrace.report.layout import Column, Section, listed, numbers, table

_MOST_FIXES = 5
_MOST_FIGURES = 3
_MATTERS = 0.05
_MUCH = 0.2
"""Share of the goodput from which a wall that nothing is known against is no wall to live with."""
_MANY_UNKNOWN = 5  # walls: then they are named and no more
_WOULD_TELL = "`rltrace report --json` has what would tell each."


def walls_section(verdict: Verdict) -> Section:
    unknown = [wall for wall in verdict.walls if not wall.cost.known]
    left_out = unknown if len(unknown) >= _MANY_UNKNOWN else []
    shown = [wall for wall in verdict.walls if wall not in left_out]
    if not shown:
        return Section("The walls", (f"None can be told: {verdict.because}. {_WOULD_TELL}",))
    return Section(
        "The walls",
        (),
        table(map(_wall, shown), "wall", *numbers("costs", "95 %"), "how sure"),
        (
            "costs: the share of goodput that the wall takes. Costs do not add up.",
            *_others(verdict),
            *_unknown(unknown),
        ),
    )


def _wall(wall: Wall) -> tuple[str, ...]:
    cost = wall.cost
    known = cost.known and not math.isnan(cost.low)
    interval = f"{units.share(cost.low)} to {units.share(cost.high)}" if known else ""
    share = units.share(cost.share) if cost.known else units.UNKNOWN
    return wall.name, share, interval, wall.confidence


def _others(verdict: Verdict) -> Iterator[str]:
    """Evidence of walls that matter beside those that bind, whose evidence stands at the top."""
    for wall in verdict.walls:
        if wall not in verdict.binding and wall.cost.known and wall.cost.share >= _MATTERS:
            telling = sorted(wall.evidence, key=lambda one: not one.value)  # nothing comes last
            said = "; ".join(figure_words(one) for one in telling[:_MOST_FIGURES])
            yield f"{wall.name}: {said}."


def figure_words(one: Figure) -> str:
    """`exposed rollout 1.78 s a step`."""
    if one.unit == "share":
        return f"{one.name} {units.share(one.value)}"
    if one.unit == "bytes":
        return f"{one.name} {units.size(one.value)}"
    if one.unit == "s" or one.unit.startswith("s "):
        return f"{one.name} {units.seconds(one.value)}{one.unit[1:]}"
    return f"{one.name} {units.number(one.value)} {one.unit}".rstrip()


def _unknown(unknown: Sequence[Wall]) -> Iterator[str]:
    """What each lacks, unless they are so many that this would hide what is there."""
    if len(unknown) >= _MANY_UNKNOWN:
        yield f"Cannot be told: {listed([wall.name for wall in unknown])}. {_WOULD_TELL}"
        return
    for wall in unknown:
        if wall.missing:
            yield f"{wall.name}: {wall.because}; would be told by {'; '.join(wall.missing)}."


def fixes_section(verdict: Verdict) -> Section | None:
    """What to do, best first; None where nothing binds or nobody can tell."""
    if verdict.alarms:
        text = "The run is not well: no advice on tuning before that is repaired."
        return Section("What to do", (text,))
    why_none = why_no_fix(verdict)
    tried = verdict.fixes or verdict.no_gain or verdict.not_worth_it
    if not tried and not why_none:
        return None
    shown = verdict.fixes[:_MOST_FIXES]
    lines = []
    if verdict.do_nothing:
        lines.append(
            f"{nothing_to_do(verdict).capitalize()}: none of the known moves against "
            f"{against(verdict)} is predicted to gain anything. `rltrace whatif` tries every "
            "lever, whatever it is against."
        )
    if why_none:
        lines.append(f"{why_none[:1].upper()}{why_none[1:]}.")
    rows = [
        (f"{number}. {fix.sized}", setting_words(fix), gain_words(fix.goodput_gain))
        for number, fix in enumerate(shown, 1)
    ]
    grid = table(rows, "fix", Column("setting", copied=True), *numbers("per device"))
    return Section("What to do", tuple(lines), grid, tuple(_fix_notes(shown, verdict)))


def against(verdict: Verdict) -> str:
    return listed([wall.name for wall in verdict.binding])


def setting_words(fix: Fix) -> str:
    """`reward_workers=4` and what has to be set with it; a dash where no option makes the move."""
    if not fix.setting:
        return units.UNKNOWN
    return " ".join(
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in ((fix.setting, fix.value), *fix.needs.items())
    )


def gain_words(gain: Estimate | None) -> str:
    """`+33 % (+22 to +42)`; a dash where nothing predicts it."""
    if gain is None:
        return "no number"
    low, middle, high = (round(100 * (x - 1)) for x in (gain.low, gain.value, gain.high))
    return f"{middle:+d} % ({low:+d} to {high:+d})" if low != high else f"{middle:+d} %"


def _fix_notes(shown: Sequence[Fix], verdict: Verdict) -> Iterator[str]:
    if verdict.no_gain:
        yield f"Predicted to change nothing: {listed(verdict.no_gain)}."
    if verdict.not_worth_it:
        yield f"Predicted to be slower for what it costs: {listed(verdict.not_worth_it)}."
    if not shown:
        return
    caution = f"{shown[0].move}: {shown[0].risk} Watch {shown[0].watch}."
    if verdict.unpredicted:
        yield f"Gains: {verdict.unpredicted}."
        yield caution
        return
    yield (
        "Predicted gains in useful tokens for each device-second, one fix at a time, in order of "
        "gain for their effort. `rltrace whatif` says what they rest on."
    )
    if not math.isnan(verdict.replay_error_share):
        yield f"The replay behind them misses the run by {100 * verdict.replay_error_share:+.1f} %."
    more = len(verdict.fixes) - len(shown)
    also = f" {more} more: `rltrace report --json`." if more else ""
    tries = any(fix.setting for fix in shown)
    if said := ("`rltrace experiment --fix N` tries the Nth." * tries + also).strip():
        yield said
    if not verdict.do_nothing:
        yield caution


def nothing_to_do(verdict: Verdict) -> str:
    """What to say where no move gains: a wall that costs little is no reason to do anything, one
    that costs much is, though nobody here knows what."""
    costs = any(wall.cost.share >= _MUCH for wall in verdict.binding)
    return "no fix is known" if costs else "do nothing"


def why_no_fix(verdict: Verdict) -> str:
    """Why no fix is named against a wall, and what to look at; empty where one is, or nobody can
    tell which wall binds."""
    if verdict.alarms or verdict.first is None or verdict.fixes:
        return ""
    weights = [wall for wall in verdict.binding if wall.name == WEIGHTS]
    if weights and not verdict.bytes_take_time:
        why = _beside_bytes(weights[0])
        return why if verdict.no_gain or verdict.not_worth_it else f"no fix is known: {why}"
    if verdict.no_gain or verdict.not_worth_it:
        return ""
    return (
        f"no fix is known: no move against {against(verdict)} has a setting in this job, or could "
        "be predicted in a replay of it"
    )


def _beside_bytes(wall: Wall) -> str:
    """Of updates whose bytes are no load to any link: where else their time may be."""
    found = {one.name: one for one in wall.evidence}
    took, size = units.seconds(found[UPDATE].value), units.size(found[UPDATE_BYTES].value)
    says = (
        f"{size} are little for a link, so most of the {took} of an update is likely spent on "
        "something else"
    )
    phases = [one for one in wall.evidence if one.name.startswith(IN_PHASE)]
    if phases:
        most = max(phases, key=lambda one: one.value)
        name = most.name.removeprefix(IN_PHASE)
        return f"{says}, the longest phase is “{name}” ({units.seconds(most.value)}): look at that"
    return (
        f"{says}: look at what it does besides (gathering, converting, waiting for engines, "
        "loading), which a span with a `phase` around each would tell"
    )
