"""The walls of a run by what they cost, and which bind."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass, field, replace

from rltrace.analysis.figures.coverage import NOT_LOGGED
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.timeline.waits import waits
from rltrace.analysis.walls import wall as w
from rltrace.analysis.walls.attribute import idle_share, lost_s
from rltrace.trace.job_devices import AGENT
from rltrace.trace.vocabulary import Stage, word

BINDS = 0.1
"""A wall that costs less than this part of the goodput does not bind: without it the run would be
less than 1.11 times better."""

_HOOKS = (
    "the functions of the job, by your own names: `rltrace wrap --hook __main__:generate=rollout "
    "--hook __main__:update=train -- {}` (`rltrace doctor` says which of a framework's resolved)"
)
_BEGINS = "a longer run, or why no step begins: `rltrace doctor` says whether its hooks fit"
_WRAPPED = "`rltrace wrap` right before `python`, inside its container or ssh (`rltrace doctor`)"
NO_STAGE = "no stage was seen"
_TRACED = "a traced run: the log has no time of any stage"
_RECURS = "steps that hold all that recurs"
_ROOM = "room on the disk for the whole run"
_OVERLAP = "what ran at once, which a log of durations does not tell: a traced run"
_SURE = (w.CANNOT_TELL, w.WEAK, w.LIKELY).index


@dataclass(frozen=True)
class Ranking:
    """`walls`: the dearest first, those that cannot be told last. `first` binds, and `co_walls`
    cost as much within 5 points. `balanced`: all is known that matters, and nothing binds. Neither:
    `because` says what is missing, `would_tell` what would help; where it is not missing, but of no
    wall, it is `other_work`, a stage. `may_cost_more`: the walls that cannot be told and may cost
    more than the first."""

    walls: tuple[w.Wall, ...]
    first: w.Wall | None
    co_walls: tuple[w.Wall, ...]
    confidence: str
    balanced: bool
    because: str
    would_tell: tuple[str, ...]
    may_cost_more: tuple[str, ...]
    other_work: str = field(default="", kw_only=True)

    @property
    def binding(self) -> tuple[w.Wall, ...]:
        return () if self.first is None else (self.first, *self.co_walls)


def rank(analysis: RunAnalysis) -> Ranking:
    if analysis.no_rollout:
        because = f"{analysis.no_rollout}, no rollout"
        return Ranking((), None, (), w.CANNOT_TELL, False, because, (), ())
    found = [wall.test(analysis) for wall in w.walls().values()]
    known = sorted((one for one in found if one.cost.known), key=lambda one: _order(analysis, one))
    unknown = [wall for wall in found if not wall.cost.known]
    uncovered = idle_share(analysis)
    ranked = (*known, *unknown)

    def nothing(because: str, *would_tell: str) -> Ranking:
        shown = ranked
        if len(analysis.steady) < w.FEWEST_STEPS or uncovered > BINDS:  # then no wall is likely
            weak = {wall.name: min(wall.confidence, w.WEAK, key=_SURE) for wall in ranked}
            shown = tuple(replace(wall, confidence=weak[wall.name]) for wall in ranked)
        return Ranking(shown, None, (), w.CANNOT_TELL, False, because, would_tell, ())

    steps, run = analysis.steps, analysis.run
    imported = run.meta.get("imported")
    if not (imported or any(one.role != AGENT for one in run.processes)):
        return nothing("no Python process was traced", _WRAPPED)
    asked = run.processes if steps.whole_run and not imported else ()
    adapters = [str(one.adapter) for one in asked if one.adapter]
    if not analysis.stages and not adapters:
        command = shlex.join(map(str, run.meta.get("command") or ["python", "train.py"]))
        return nothing(NO_STAGE, _TRACED if imported else _HOOKS.format(command))
    if not (analysis.stages or steps.none_complete):
        return nothing(f"no step of {adapters[0]} has begun", _BEGINS)
    if steps.none_complete:
        number = [*steps.failed, *steps.in_progress][-1][0]
        because = f"no complete step was recorded: step {number} was begun and has no end"
        return nothing(because, "a longer run, or why that step does not end")
    if steps.whole_run and run.cut_short and run.step_rows():
        return nothing("no step was whole when a process stopped recording", _ROOM)
    if steps.whole_run and any("spans" in one.tables for one in analysis.coverage.damaged):
        return nothing("no step is left: a file of spans is damaged", "that file as it was")
    if steps.whole_run:
        say = f"saying what a step is, with {w.SAY_STEPS}"
        said = say if analysis.overlap_known else "how long a step took, which the log lacks"
        return nothing("no step was recorded", said)
    # A log's one step is a mean over all ranks and samples: it is what its owner goes by.
    if analysis.overlap_known and (few := w.too_few(len(analysis.steady))):
        if run.cut_short:
            return nothing(f"a process stopped recording then: {few}", _ROOM)
        return nothing(few, "more steps")
    if not analysis.steps_s.sum() > 0:
        return nothing("the steps have no length", f"steps that last, with {w.SAY_STEPS}")
    first = known[0] if known else None
    cost = first.cost.share if first else 0.0
    if uncovered > max(cost, BINDS):
        where, would_tell = _idle(analysis, uncovered, unknown)
        return nothing(f"{where}, more than any wall costs", would_tell)
    outside = steps.between_s / (steps.between_s + float(analysis.steps_s.sum()))
    if outside > max(cost * (1 - outside), BINDS):
        where, would_tell = f"{100 * outside:.0f} % of the time passes between the steps", _RECURS
        if names := " and ".join(analysis.between_steps):
            where, would_tell = f"{where}, in {names}", f"the same with less {names}"
        return nothing(f"{where}, more than any wall costs", would_tell)
    other, beside = _of_no_wall(analysis)
    if beside > max(cost, BINDS):
        where = f"{100 * beside:.0f} % of the step is {word(other)}, which is none of the walls"
        would_tell = f"the same without {word(other)}, or with less of it"
        if other is Stage.OTHER:
            would_tell = "stages for these spans, with `--hook module:function=STAGE`"
        because = f"{where} and more than any of them costs"
        return replace(nothing(because, would_tell), other_work=word(other))
    others, most = (wall for wall in ranked if wall is not first), max(cost - w.ALIKE, BINDS)
    hidden = [wall for wall in others if _at_most(wall, found) > most]
    tells = [what for wall in hidden for what in wall.missing]
    if first is None or cost < BINDS:
        why = f"no wall costs {100 * BINDS:.0f} % of the goodput"
        if hidden:
            names = " and ".join(wall.name for wall in hidden)
            return nothing(f"{why} of those that can be told, and {names} cannot", *tells)
        # Balance is likely where no wall's interval reaches far beyond the limit.
        surely = all(one.cost.share + one.cost.half_width < 2 * BINDS for one in known)
        surely &= not w.too_few(len(analysis.steady))
        confidence = w.LIKELY if surely else w.WEAK
        return Ranking(ranked, None, (), confidence, True, why, (), ())
    # A log's figure for generation may hold scoring too, which has none of its own.
    within = {"what": NOT_LOGGED, "stage": word(Stage.REWARD)}.items()
    held = any(within <= one.items() for one in run.problems) and not _is_generation(analysis)
    if first.name in (w.ROLLOUT, w.TAIL) and held:
        share = f"{100 * cost:.0f} % of the step is generation or scoring"
        return nothing(f"{share}, which the log has in one figure", _OVERLAP)
    # It is likely where it is surely ahead of the others, and surely level with those that bind.
    near = tuple(one for one in known[1:] if one.cost.share >= max(BINDS, cost - w.ALIKE))
    level = all(one.confidence == w.LIKELY and _apart(first, one) <= 2 * w.ALIKE for one in near)
    behind = [one for one in known[1:] if one not in near]
    as_dear = [one.name for one in behind if cost - one.cost.share <= _apart(first, one)]
    sure = first.confidence == w.LIKELY and level and not as_dear and not hidden
    sure &= analysis.overlap_known or not w.stages_of(first.name)
    if as_dear and not hidden:
        names = " and ".join(as_dear)
        first = replace(first, because=f"{first.because}; {names} may cost as much")
    tells = [*first.missing, *tells, *(() if analysis.overlap_known else (_OVERLAP,))]
    return Ranking(
        (first, *ranked[1:]), first, near, w.LIKELY if sure else w.WEAK, False, first.because,
        tuple(tells), tuple(wall.name for wall in hidden),
    )  # fmt: skip


def _is_generation(analysis: RunAnalysis) -> bool:
    """Whether the log's longest sample generates for nearly all of the figure for rollout."""
    longest = analysis.logged.get("longest_generation_s")
    rollout_s = analysis.breakdown.tau_s[analysis.steady, Stage.ROLLOUT].mean()
    return longest is not None and longest.mean >= (1 - BINDS) * float(rollout_s)


def _at_most(wall: w.Wall, found: list[w.Wall]) -> float:
    """What a wall may take of which not all was seen: the tail is a part of generation."""
    whole = next(one for one in found if one.name == w.ROLLOUT)
    in_it = wall.name == w.TAIL and not wall.cost.known and whole.confidence == w.LIKELY
    return whole.cost.high if in_it else wall.cost_at_most


def _order(analysis: RunAnalysis, wall: w.Wall) -> tuple[float, float]:
    """The dearest first; of those that cost the same, that of the stages which take longest."""
    tau_s = analysis.breakdown.tau_s[analysis.steady][:, list(w.stages_of(wall.name))]
    return -round(wall.cost.share, 3), -float(tau_s.sum())


def _of_no_wall(analysis: RunAnalysis) -> tuple[Stage, float]:
    """The stage of no wall by which steps lose the most, and that share of them."""
    work = [s for s in Stage if s not in w.wall_of() and s not in (Stage.WAIT, Stage.STEP)]
    lost = {stage: float(lost_s(analysis, [stage]).sum()) for stage in work}
    most = max(work, key=lost.__getitem__)
    return most, lost[most] / float(analysis.steps_s.sum())


def _idle(analysis: RunAnalysis, uncovered: float, unknown: list[w.Wall]) -> tuple[str, str]:
    """Where the time is that no stage explains, and what would tell more of it."""
    waited_s = analysis.breakdown.exposed_s[analysis.steady, Stage.WAIT]
    waited = float(waited_s.sum() / analysis.steps_s.sum())
    if waited > uncovered / 2:
        names = [wait.name for wait in waits(analysis.run, analysis.steps) if wait.in_step]
        imported = analysis.run.meta.get("imported")
        told = imported.get("waits_for") if isinstance(imported, dict) else None
        if names and isinstance(told, dict) and (stage := told.get(names[0])):
            where = f"{100 * waited:.0f} % of the step waits for {stage} (“{names[0]}”)"
            return where, f"what {stage} does then: a traced run"
        of = f" (“{names[0]}”)" if names else ""
        share = f"{100 * waited:.0f} % of the step is wait{of} while nothing else runs"
        return share, "what it waits for: untraced work, or a poll that is too slow"
    unseen = f" (cannot be told: {', '.join(one.name for one in unknown)})" if unknown else ""
    return f"{100 * uncovered:.0f} % of the step is untraced", f"spans for that time{unseen}"


def _apart(one: w.Wall, other: w.Wall) -> float:
    """By how much their costs have to differ for one to be surely the larger."""
    return math.hypot(one.cost.half_width, other.cost.half_width)
