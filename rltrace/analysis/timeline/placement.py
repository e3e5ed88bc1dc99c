"""What kind of job it is: whether it generates, and how it is placed."""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.analysis.figures.devices import Described, is_laid_out
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.timeline.stage_chains import Chain
from rltrace.analysis.timeline.stages import Breakdown
from rltrace.analysis.trajectories.staleness import Staleness
from rltrace.analysis.whatif.workload import PLACEMENTS
from rltrace.trace.vocabulary import Stage

_OF_RL = {Stage.ROLLOUT, Stage.ENV, Stage.REWARD, Stage.SYNC}
_UNSEEN = 0.1  # of the steps; where more is untraced, or waits, samples may come from there

_ACTORS, _LEARNER = Chain.ACTORS, Chain.LEARNER
_TAKE_TURNS = 0.1  # chains that overlap for less of the shorter one than this take turns
_SAME_LAG = 0.9
_GOES_ON = 0.2  # of the time in which weights move


@dataclass(frozen=True)
class Composition:
    """`overlap_share` is the part of the shorter chain during which the other ran too, steady
    steps."""

    placement: str
    placement_source: str
    overlap_share: float

    @property
    def beside(self) -> bool:
        """Whether actors and learner ran beside each other; else the job takes turns."""
        return self.overlap_share > _TAKE_TURNS


def no_rollout(analysis: RunAnalysis) -> str:
    """What a job does that is no RL, as its trainer says ("supervised fine-tuning") or, of a loop
    of the user's own, as all of its steps show; empty: it is RL, or nobody can tell."""
    run, steady, breakdown = analysis.run, analysis.steady, analysis.breakdown
    rows = " union all ".join(
        f"(select 1 from raw_{table} where {column} > 0 limit 1)"
        for table, column in (("trajectories", "start_ns"), ("rewards", "start_ns"),
                              ("syncs", "start_ns"), ("uses", "time_ns"))
    )  # fmt: skip
    seen = analysis.activity.spans_of_stage.keys()
    if not steady or seen & _OF_RL or run.ask(rows):
        return ""
    stated = {p.facts.get("no_rollout") for p in run.processes if p.role == "learner"}
    if len(stated) == 1 and isinstance(said := stated.pop(), str):
        return said
    is_own = not (run.meta.get("imported") or any(p.adapter for p in run.processes))
    odd = any(problem.get("what") != "no-gpu" for problem in run.problems)
    is_whole = not (run.cut_short or odd)
    unseen_s = breakdown.untraced_s[steady] + breakdown.exposed_s[steady, Stage.WAIT]
    explained = float(unseen_s.sum()) <= _UNSEEN * float(analysis.steps_s.sum())
    if is_own and is_whole and explained and Stage.TRAIN in seen:
        return "training"
    return ""


def compose(analysis: RunAnalysis) -> Composition | None:
    """How the run is placed; None where there is no step or no stage to tell it by, or no rollout
    that has a place."""
    run, steady, breakdown = analysis.run, analysis.steady, analysis.breakdown
    if not steady or analysis.no_rollout:
        return None
    actors_s, learner_s, weights_s, both_s = (
        float(breakdown.chains_s(*chains)[steady].sum())
        for chains in ([_ACTORS], [_LEARNER], [Chain.WEIGHTS], [_ACTORS, _LEARNER])
    )
    if not actors_s + learner_s + weights_s:
        return None
    shorter = min(actors_s, learner_s)
    overlap_share = both_s / shorter if shorter else 0.0
    if (found := stated_placement(run)) is None:
        found = "placement unknown", "the log tells durations only"
        if not is_laid_out(run):
            lags, goes_on = analysis.staleness, _goes_on(breakdown)
            found = _detected(actors_s, learner_s, overlap_share, lags, goes_on)
    return Composition(*found, overlap_share)


def stated_placement(run: Described) -> tuple[str, str] | None:
    """`(placement, how it is known)` that the run's settings name, or else one of its processes."""
    settings = run.meta.get("settings") or {}
    facts = [process.facts for process in run.processes]
    for source, stated in (("the run's settings", [settings]), ("as the job states", facts)):
        for one in stated:
            if one.get("placement") in PLACEMENTS:
                return str(one["placement"]), source
    return None


def _detected(
    actors_s: float, learner_s: float, overlap_share: float, lags: Staleness, goes_on: bool
) -> tuple[str, str]:
    if not actors_s or not learner_s:
        missing = "learner" if actors_s else "actors"
        return "placement unknown", f"nothing of the {missing} was seen"
    if overlap_share < _TAKE_TURNS:
        return "colocated", "actors and learner take turns"
    percent = f"the chains overlap for {100 * overlap_share:.0f} % of the shorter"
    counts = {b.lag: b.trajectories for b in lags.by_first_token if b.lag is not None}
    known = sum(counts.values())
    if not known:
        return "disaggregated", f"{percent}; lag unknown, so it may be async"
    if max(counts) <= 0:
        return "disaggregated", f"{percent}, lag 0"
    if counts.get(1, 0) >= _SAME_LAG * known and not goes_on:
        return "one-step-off", f"{percent}, lag 1"
    return "async", f"{percent}, lag {min(counts)} to {max(counts)}"


def _goes_on(breakdown: Breakdown) -> bool:
    """Whether something is generated while weights move: then no step begins a batch."""
    _, mask, seconds = breakdown.sets
    sent = mask >> Stage.SYNC & 1 == 1
    both = sent & (mask >> Stage.ROLLOUT & 1 == 1)
    return float(seconds[both].sum()) > _GOES_ON * float(seconds[sent].sum())
