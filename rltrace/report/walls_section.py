"""The walls in words and tables: what each costs, what to do, and what else the trace shows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

from rltrace.analysis.fixes import Fix
from rltrace.analysis.stats.interval import Estimate
from rltrace.analysis.verdict import Verdict
from rltrace.analysis.walls.wall import WEIGHTS, Figure, Wall
from rltrace.analysis.walls.weights import IN_PHASE, UPDATE, UPDATE_BYTES
from rltrace.report import units
from rltrace.report.layout import Column, Section, listed, lowered, numbers, raised, table

_MOST_FIGURES = 4
_WALLS, _FIXES = "Walls", "Fixes"
_MATTERS = 0.05
_MUCH = 0.2
"""Share of the goodput from which a wall that nothing is known against is no wall to live with."""
_MANY_UNKNOWN = 5  # walls: then they are named and no more
_WOULD_TELL = "What would tell each: `rltrace report --json`."


def walls_section(verdict: Verdict) -> Section:
    unknown = [wall for wall in verdict.walls if not wall.cost.known]
    left_out = unknown if len(unknown) >= _MANY_UNKNOWN else []
    shown = [wall for wall in verdict.walls if wall not in left_out]
    if not shown:
        return Section(_WALLS, (f"None can be told: {verdict.because}. {_WOULD_TELL}",))
    grid = table(map(_wall, shown), "wall", *numbers("costs", "95 % CI"), "how sure")
    return Section(_WALLS, (), grid, (*_evidence(verdict), *_unknown(unknown)))


def _wall(wall: Wall) -> tuple[str, ...]:
    cost = wall.cost
    known = cost.known and not math.isnan(cost.low)
    interval = f"{units.share(cost.low)} to {units.share(cost.high)}" if known else ""
    share = units.share(cost.share) if cost.known else units.UNKNOWN
    return wall.name, share, interval, wall.confidence


def _evidence(verdict: Verdict) -> Iterator[str]:
    """What the cost of each wall that matters is, and the figures that go with it."""
    for wall in verdict.walls:
        if wall in verdict.binding or (wall.cost.known and wall.cost.share >= _MATTERS):
            telling = sorted(wall.evidence, key=lambda one: not one.value)  # nothing comes last
            said = "; ".join(figure_words(one) for one in telling[:_MOST_FIGURES])
            yield f"{wall.name}: {wall.because}." + f" {raised(said)}." * bool(said)


def figure_words(one: Figure) -> str:
    """`exposed rollout 1.78 s a step`."""
    if one.unit == "share":
        return f"{one.name} {units.share(one.value)}"
    if one.unit.startswith("bytes"):
        return f"{one.name} {units.size(one.value)}{one.unit[5:]}"
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
            yield f"{wall.name}: {wall.because}. What would tell: {'; '.join(wall.missing)}."


def fixes_section(verdict: Verdict) -> Section | None:
    """What to change, best first; None where nothing binds or nobody can tell."""
    if verdict.alarms:
        return Section(_FIXES, ("No advice before what is wrong is mended.",))
    why_none = why_no_fix(verdict)
    if not (verdict.fixes or verdict.no_gain or verdict.not_worth_it or why_none):
        return None
    lines = []
    if verdict.do_nothing:
        lines.append(
            f"{nothing_to_do(verdict).capitalize()}: no known move against {against(verdict)} is "
            "predicted to gain. `rltrace whatif` tries every lever."
        )
    if why_none:
        lines.append(f"{raised(why_none)}.")
    rows = [
        (f"{number}. {fix.sized}", setting_words(fix), gain_words(fix.goodput_gain))
        for number, fix in enumerate(verdict.fixes, 1)
    ]
    grid = table(rows, "fix", Column("setting", copied=True), *numbers("goodput per device"))
    return Section(_FIXES, tuple(lines), grid, tuple(_fix_notes(verdict)))


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


def _fix_notes(verdict: Verdict) -> Iterator[str]:
    if verdict.no_gain:
        yield f"No gain: {listed(verdict.no_gain)}."
    if verdict.not_worth_it:
        yield f"Costs more than it gains: {listed(verdict.not_worth_it)}."
    if not verdict.fixes:
        return
    if verdict.unpredicted:
        yield f"No gain is predicted: {verdict.unpredicted}."
    else:
        tries = any(fix.setting for fix in verdict.fixes)
        yield (
            "Each gain is for that fix alone. The order is by gain and effort."
            + " `rltrace experiment --fix N` tries the Nth." * tries
        )
    for number, fix in enumerate(verdict.fixes, 1):
        yield f"{number}. Risk: {lowered(fix.risk)} Watch {fix.watch}."


def model_check(verdict: Verdict, step_s: float) -> str:
    """How far the replay of the run as it was misses it; empty where there was none."""
    return "" if verdict.unpredicted else replay_check(verdict.replay_error_share, step_s)


def replay_check(error: float, step_s: float) -> str:
    """How far a replay misses a step, by its share; empty where that is not known."""
    if math.isnan(error) or not step_s > 0:
        return ""
    played, measured = units.seconds(step_s * (1 + error)), units.seconds(step_s)
    return f"Model check, of the run as it was: a step takes {played}; measured {measured}."


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
        f"no fix is known: no move against {against(verdict)} has an option in this job or a "
        "predicted gain"
    )


def _beside_bytes(wall: Wall) -> str:
    """Of updates whose bytes are no load to any link: where else their time may be."""
    found = {one.name: one for one in wall.evidence}
    took, size = units.seconds(found[UPDATE].value), units.size(found[UPDATE_BYTES].value)
    says = (
        f"{size} are little for a link: most of the {took} of an update is likely spent elsewhere"
    )
    phases = [one for one in wall.evidence if one.name.startswith(IN_PHASE)]
    if phases:
        most = max(phases, key=lambda one: one.value)
        name = most.name.removeprefix(IN_PHASE)
        return f"{says}. Look at its longest phase, “{name}” ({units.seconds(most.value)})"
    return (
        f"{says}. Put a span with a `phase` around each part (gather, convert, wait for engines, "
        "load) to see which"
    )
