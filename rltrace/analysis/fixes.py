"""The playbook's moves against the walls of a run, best first: settings, predicted gains, risks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rltrace.analysis.ceiling import NO_MORE, most_gain
from rltrace.analysis.differing import stated_settings
from rltrace.analysis.gains import freshness_gain, samples_gain
from rltrace.analysis.playbook import Move, Setting, moves, settings_for
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.estimate import Estimate
from rltrace.analysis.walls.cost import stages_of
from rltrace.analysis.walls.rank import Ranking
from rltrace.analysis.walls.sparse_reward import successes
from rltrace.analysis.walls.stage_wall import that_count
from rltrace.analysis.walls.stage_walls import TOOLS
from rltrace.analysis.walls.wall import ENV_REWARD, FRESHNESS, Wall
from rltrace.analysis.whatif.levers import LEVERS, ON
from rltrace.analysis.whatif.predict import Prediction, Source, predictor
from rltrace.analysis.whatif.trust import OffTheRun, is_off
from rltrace.trace.errors import RltraceError
from rltrace.trace.vocabulary import Stage, word

_Predict = Callable[[Sequence[tuple[str, str]]], Prediction]
_GOOD = 1.02  # a gain below this is none

_SLOW_LINK_GB_PER_S = 1.0  # about what one 10 Gbit/s link carries
_LEAST_OF_UPDATE = 0.05
_ESS_FALLS = ("ESS falls with each version of lag by one factor (low end) or faster (high end)",)


@dataclass(frozen=True)
class Fix:
    """One move against `wall`. `setting` and `value` are the option that makes it in this framework
    and version (empty and None: none does), `needs` what has to be set with it, `also` further
    options that make the same move. `lever` is what was moved to predict it, as on `rltrace whatif
    --lever`, and `size` how far, in words.

    `gain` is the step now over the step then, `goodput_gain` the same in useful tokens for each
    device-second; None where nothing predicts it, then `no_number` says why. `verdict` is "faster",
    "slower", "no gain", "may be either" or "" without a prediction; `rests_on` is its basis.
    """

    wall: str
    move: str
    size: str
    setting: str
    value: Any
    needs: Mapping[str, Any]
    effect: str
    also: tuple[str, ...]
    lever: str
    gain: Estimate | None
    goodput_gain: Estimate | None
    verdict: str
    no_number: str
    rests_on: tuple[str, ...]
    effort: int
    risk: str
    watch: str
    source: str

    @property
    def sized(self) -> str:
        """The move and how far: "more reward workers (x4)"; the move alone where its setting has
        the very value that the lever was moved to, as it is shown beside it."""
        stated = self.setting and str(self.value) == self.lever.partition("=")[2]
        return f"{self.move} ({self.size})" if self.size and not stated else self.move

    @property
    def worth(self) -> float:
        """Predicted gain in goodput for the effort, by which fixes are ranked; 0: unknown."""
        if self.goodput_gain is None:
            return 0.0
        return (self.goodput_gain.middle - 1) / self.effort

    @property
    def gains(self) -> bool:
        """Whether it is predicted to gain more than next to nothing."""
        return self.goodput_gain is not None and self.goodput_gain.middle > _GOOD

    @property
    def idle(self) -> bool:
        """Whether it is predicted to change nothing, to the percent."""
        gains = [one for one in (self.goodput_gain, self.gain) if one is not None]
        return bool(gains) and all(round(100 * (one.middle - 1)) == 0 for one in gains)

    @property
    def loses(self) -> bool:
        """Whether it is predicted to gain nothing for what it costs, though it changes the job."""
        gain = self.goodput_gain
        return gain is not None and not self.idle and gain.is_no_gain


def fixes_for(
    analysis: RunAnalysis,
    ranking: Ranking,
    source: Source | None,
    framework: tuple[str, str],
    current: Mapping[str, Any],
) -> tuple[Fix, ...]:
    """All moves against the walls that bind: those with a predicted gain first, then those that
    nothing predicts, then those that gain nothing. What neither a setting makes nor anything
    predicts is left out (but where the replay is off the run), and what changes a stage that was
    not seen. `framework` is its name and version, `current` its settings as far as they are known:
    what the run has already is not advised, nor an option that it lacks where it states all."""
    walls = ranking.binding
    names = [wall.name for wall in walls]
    predict = predictor(source) if source is not None else None
    stages = _stages(analysis, walls)
    aside: tuple[str, ...] = ()
    if not bytes_take_time(analysis):
        aside = ("bytes",) if framework[0] else ("bytes", "pieces")
    load = analysis.workload
    off = load is not None and is_off(load)
    tools_hold = load is not None and load.engine.tools_hold
    found: dict[tuple[str, str, str], Fix] = {}  # a move may be against two walls that bind
    for move in moves():
        seen = not move.stage or move.stage in stages
        if move.wall not in names or not seen or move.saves in aside:
            continue
        known = settings_for(*framework, move)
        fix = _fix(analysis, _worded(move, stages), known, predict, current)
        if fix and (fix.setting or fix.goodput_gain is not None or (off and fix.lever)):
            held = _within(fix, ranking.walls, tools_hold)
            found.setdefault((fix.move, fix.setting, fix.lever), held)
    return tuple(sorted(found.values(), key=lambda fix: (_rank(fix), -fix.worth, fix.effort)))


def _stages(analysis: RunAnalysis, walls: tuple[Wall, ...]) -> set[str]:
    """The stages that moves may change: those that were seen, and of tools and verdicts those that
    take the time."""
    rows = [row for row in analysis.stages if row.stage in stages_of(ENV_REWARD)]
    slight = {row.stage for row in rows} - {row.stage for row in that_count(rows)}
    found = {word(row.stage) for row in analysis.stages if row.stage not in slight}
    unseen = Stage.ENV not in {row.stage for row in rows}
    if unseen and any(f.name == TOOLS for wall in walls for f in wall.evidence):
        found.add(word(Stage.ENV))
    return found


def bytes_take_time(analysis: RunAnalysis) -> bool:
    """Whether what an update sends may be why it takes so long: not where a slow link would carry
    it in a small part of that time, and something else in it waits or works. True where its bytes
    are not known."""
    moved = analysis.syncs
    if moved is None or not moved.bytes_per_update.n or not moved.update_s.mean > 0:
        return True
    at_least_s = moved.bytes_per_update.mean / (_SLOW_LINK_GB_PER_S * 1e9)
    return at_least_s >= _LEAST_OF_UPDATE * moved.update_s.mean


def _within(fix: Fix, walls: tuple[Wall, ...], tools_hold: bool) -> Fix:
    """The fix, with no end of a gain beyond what the run would gain without the stage that it
    shortens at all."""
    if fix.goodput_gain is None:
        return fix
    most = most_gain([fix.lever], walls, tools_hold)
    gain = fix.gain.at_most(most) if fix.gain else None
    held = replace(fix, gain=gain, goodput_gain=fix.goodput_gain.at_most(most))
    return fix if held == fix else replace(held, rests_on=(*fix.rests_on, NO_MORE))


def _rank(fix: Fix) -> int:
    if fix.goodput_gain is None:
        return 1
    return 0 if fix.gains else 2


def _worded(move: Move, stages: set[str]) -> Move:
    """The move, said of what is slow here: of verdicts, where no tool was seen."""
    if word(Stage.ENV) in stages or move.wall != ENV_REWARD:
        return move
    said, risk = (text.replace("tools", "verdicts") for text in (move.move, move.risk))
    return replace(move, move=said, risk=risk)


def _fix(
    analysis: RunAnalysis,
    move: Move,
    known: tuple[Setting, ...],
    predict: _Predict | None,
    current: Mapping[str, Any],
) -> Fix | None:
    """A move as the settings `known` make it; None where it does not apply to the run."""
    stated, values = stated_settings(analysis.run), move.values
    if move.lever == "lag_bound":  # below 1 actors wait for every update
        values = (str(max(1, analysis.freshness.bound.sure)),)
    settings = not_yet(tuple(one for one in known if one.is_of(stated)), values, current)
    if not settings and (not move.lever or any(not _is_amount(one.value) for one in known)):
        return None
    found: Prediction | None = None
    gain: Estimate | None = None
    lever = ""
    rests: tuple[str, ...] = _ESS_FALLS
    why = move.no_number or "no lever of the what-if replay stands for this move"
    if move.wall == FRESHNESS and move.lever == "lag_bound":
        lever = f"lag_bound={values[0]}"
        gain = _of_freshness(analysis, float(values[0]))
        why = "the lag keeps within this bound already"
    elif move.lever == "samples":
        gain = samples_gain(successes(analysis), float(values[0].removeprefix("x")))
        why = "too few groups succeed to tell how chances differ between prompts"
        if gain is not None and predict is not None:
            try:
                found = predict([(move.lever, values[0])])
                lever, gain = f"{move.lever}={values[0]}", gain.and_then(found.goodput_gain)
            except OffTheRun as error:  # what the samples cost is half of it
                gain, lever, why = None, f"{move.lever}={values[0]}", str(error)
            except RltraceError:  # what they cost is not known
                pass
        beta = "a chance of success for each prompt, drawn from one beta distribution"
        costs = found.rests_on if found else ()
        rests = (beta, *(costs or ("a sample costs what it costs now",)))
    elif move.lever and predict is not None:
        for value in values:
            try:
                other = predict([(move.lever, value)])
            except OffTheRun as error:
                why, lever = str(error), f"{move.lever}={value}"
                break
            except RltraceError as error:
                why = str(error)
                if "cannot be moved here" in why and "already" in why:
                    return None
                continue
            if found is None or other.goodput_gain.middle > found.goodput_gain.middle:
                found, lever = other, f"{move.lever}={value}"
    elif move.lever:
        why = "the run cannot be replayed"
    first = settings[0] if settings else None
    if gain is None:
        rests = found.rests_on if found else ()
    return Fix(
        wall=move.wall,
        move=move.move,
        size=_size(move, lever),
        setting=first.option if first else "",
        value=_value(first, values, current) if first else None,
        needs=first.needs if first else {},
        effect=first.effect if first else "",
        also=tuple(f"{s.option}={s.value}" for s in settings[1:]),
        lever=lever,
        gain=found.gain if found else None,
        goodput_gain=gain if gain is not None else found.goodput_gain if found else None,
        verdict="faster" if gain is not None else found.verdict if found else "",
        no_number=why if found is None and gain is None else "",
        rests_on=rests,
        effort=move.effort,
        risk=move.risk,
        watch=move.watch,
        source=move.source,
    )


def not_yet(
    settings: tuple[Setting, ...], values: tuple[str, ...], current: Mapping[str, Any]
) -> tuple[Setting, ...]:
    """Of the settings that make a move those that the run does not have, each with what it needs
    and the run lacks. One that it has tells in which of the configurations it is."""

    def has(option: str, value: Any) -> bool:
        return option in current and bool(current[option] == value)

    made = {one.config for one in settings if has(one.option, _value(one, values, current))}

    def lacks(one: Setting) -> dict[str, Any]:
        unmet = {k: v for k, v in one.needs.items() if not _meets(current.get(k), v)}
        return unmet | {k: v for k, v in one.exactly.items() if not has(k, v)}

    return tuple(
        replace(one, needs=lacks(one))
        for one in settings
        if not has(one.option, _value(one, values, current)) and (not made or one.config in made)
    )


def _meets(now: Any, needed: Any) -> bool:
    """Whether what an option is now serves as well as the example of what has to be set: numbers
    and places are the run's own affair, but a number of one may be the lack of what is needed."""
    if isinstance(needed, str) and set(needed) & set("./:"):
        return bool(now)
    numbers = isinstance(now, int | float) and isinstance(needed, int | float)
    if numbers and not isinstance(now, bool) and not isinstance(needed, bool):
        return bool(now >= min(needed, 2))
    return bool(now == needed)


def _is_amount(value: Any) -> bool:
    """Whether an option's value is a number, of which there can be more; a rule is one too."""
    if isinstance(value, str):
        return value == "lag bound" or not math.isnan(_number(value.removeprefix("x")))
    return isinstance(value, int | float) and not isinstance(value, bool)


def _of_freshness(analysis: RunAnalysis, bound: float) -> Estimate | None:
    fresh = analysis.freshness
    base = next((p.ess_share for p in fresh.curve if p.lag == 0 and p.enough), 1.0)
    lag = analysis.staleness.token_weighted_lag
    found = freshness_gain(fresh.weight, base, lag, bound)
    if found is None:
        return None
    # What counts now is known within an interval, and the gain is over that.
    least, most = (
        freshness_gain(w, base, lag, bound) or found for w in (fresh.weight_high, fresh.weight_low)
    )
    return Estimate(min(least.low, found.low), found.middle, max(most.high, found.high))


def _size(move: Move, lever: str) -> str:
    name, _, value = lever.partition("=")
    if move.size and value:
        return move.size.format(value=value)
    is_switch = name in LEVERS and LEVERS[name].tries == ON
    return value if _is_amount(value) and not is_switch else ""


def _value(setting: Setting, values: tuple[str, ...], current: Mapping[str, Any]) -> Any:
    """The value to set: a rule ("x2", "lag bound") worked out where the settings are known."""
    rule = setting.value
    if rule == "lag bound":
        return int(values[0])
    now = current.get(setting.option)
    if isinstance(rule, str) and rule.startswith("x") and isinstance(now, int | float):
        factor = _number(rule[1:])
        if not math.isnan(factor):
            return type(now)(now * factor)
    return rule


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
