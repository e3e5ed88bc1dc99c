"""The whole analysis of a run: what `rltrace report` shows."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from rltrace.analysis.alarms.alarm import Health
from rltrace.analysis.figures.coverage import (
    AsOf,
    Coverage,
    OwnCost,
    as_of,
    holds_token_ids,
    own_cost,
    step_known_until,
)
from rltrace.analysis.figures.devices import DeviceLoad, is_laid_out, version_of
from rltrace.analysis.figures.goodput import Goodput
from rltrace.analysis.figures.goodput_factors import Cascade
from rltrace.analysis.figures.weight_updates import Syncs
from rltrace.analysis.fixes.fixes import Fix, bytes_take_time, fixes_for
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.confidence_interval import Spread, spread
from rltrace.analysis.stuck.observed import Stuck
from rltrace.analysis.timeline.analysed_part import TrainingPhase
from rltrace.analysis.timeline.critical_path import CriticalPath
from rltrace.analysis.timeline.placement import Composition
from rltrace.analysis.timeline.probe import Probe
from rltrace.analysis.timeline.stages import StageRow, TypicalStep, typical_step
from rltrace.analysis.timeline.waits import Wait, waits
from rltrace.analysis.trajectories.engine_gaps import EngineGaps
from rltrace.analysis.trajectories.freshness import Freshness
from rltrace.analysis.trajectories.reward_signal import GroupSignal, RewardCurve, group_signal
from rltrace.analysis.trajectories.staleness import Staleness
from rltrace.analysis.trajectories.tail import Tail
from rltrace.analysis.walls.rank import Ranking, rank
from rltrace.analysis.walls.wall import too_few
from rltrace.analysis.whatif.predict import OffTheRun, is_off, replay_error
from rltrace.trace.job_devices import AGENT
from rltrace.trace.read.framework_figure import LoggedFigure
from rltrace.trace.run_dir import READ_FROM

if TYPE_CHECKING:
    from rltrace.analysis.figures.framework_figures import ComparedFigure
    from rltrace.trace.read.framework_figure import OwnFigure

_MUCH = 0.05  # of the steps: less time between them is in no line of its own


@dataclass(frozen=True)
class RunFacts:
    """What the run is. It began at `start_ns`, and what is shown of it at `shown_since_ns` (Unix
    ns): later where only some steps were asked for. `recorded_s` is
    from then to the last event. `lasted_s`, `command_s` and `shown_s` are those of `OpenedRun`.
    `ended`: `wrap` saw it end. `processes` are the job's, `roles` has the agents too. `imported`
    names the log that an imported run was made of (empty: traced), whose `durations_only` had no
    begins; where it `is_log`, no run was kept, and `path` is the log's. It shows `phase` of
    `StepsSummary.phases` (0: there is no other). `no_rollout`: what it does where it is no RL (else
    empty). `token_ids` is whether the run holds those of samples, None: nobody asked. `as_of`:
    until when a run that goes on is known."""

    id: str
    path: str
    command: str
    framework: str
    rltrace_version: str
    start_ns: int
    shown_since_ns: int
    recorded_s: float
    lasted_s: float | None
    command_s: float | None
    shown_s: float | None
    ended: bool
    exit_code: int | None
    nodes: int
    processes: int
    roles: tuple[tuple[str, int], ...]
    spans: int
    phase: int
    no_rollout: str
    imported: str
    is_log: bool
    durations_only: bool
    steps_are_means: bool
    some_steps_only: bool
    token_ids: bool | None
    as_of: AsOf | None = None


@dataclass(frozen=True)
class StepTimes:
    """One step and where its time went; seconds by stage name ("wait" among them)."""

    step: int
    start_ns: int
    step_s: float
    warmup: bool
    steady: bool
    generates: bool
    exposed_s: dict[str, float]
    tau_s: dict[str, float]
    untraced_s: float


@dataclass(frozen=True)
class StepsSummary:
    """The steps of the run. Everything about stages is over the `steady` ones of `complete`; where
    some `stalled` (their numbers), these are the longest stretch without one. Where one generation
    serves `steps_per_generation` steps in turns (else 0), they are those of `generations` whole
    ones, and others are `left_out`; 0 generations: none is whole, and parts of them count. `phases`
    are those of the whole run, whichever is shown."""

    complete: int
    steady: int
    warmup: tuple[int, ...]
    stalled: tuple[int, ...]
    steps_per_generation: int
    generations: int
    left_out: tuple[int, ...]
    whole_run: bool
    in_progress: tuple[tuple[int, float], ...]  # number, seconds since it began
    repeated: int
    phases: tuple[TrainingPhase, ...]
    step_s: Spread
    untraced_s: Spread
    untraced_share: float
    between_steps_s: float
    between: Mapping[str, float]
    times: tuple[StepTimes, ...]


@dataclass(frozen=True)
class Summary:
    """Everything that the report shows; a part is None where the trace has nothing to say on it."""

    run: RunFacts
    steps: StepsSummary
    typical_step: TypicalStep | None
    stages: tuple[StageRow, ...]
    waits: tuple[Wait, ...]
    verdict: Verdict
    critical_path: CriticalPath | None
    probe: Probe | None
    composition: Composition | None
    tail: Tail
    staleness: Staleness
    syncs: Syncs | None
    goodput: Goodput | None
    cascade: Cascade | None
    gpus: tuple[DeviceLoad, ...]
    freshness: Freshness
    engine_gaps: EngineGaps
    stuck: Stuck | None
    health: Health
    reward: RewardCurve | None
    signal: GroupSignal | None
    coverage: Coverage
    logged: Mapping[str, LoggedFigure]
    own_cost: OwnCost
    own_figures: tuple[ComparedFigure, ...]


def summary_of(
    analysis: RunAnalysis, figures: Sequence[OwnFigure] = (), predict: bool = True
) -> Summary:
    """`figures` are the framework's own, to hold against what was traced. Without `predict`, which
    takes most of the time, no gain of a fix is predicted."""
    run, steps = analysis.run, analysis.steps
    own: dict[str, Any] = {
        "run": _facts(analysis),
        "steps": steps_of(analysis),
        "typical_step": typical_step(analysis.activity, steps),
        "waits": waits(run, steps),
        "verdict": verdict(analysis, predict),
        "signal": group_signal(run),
        "own_cost": own_cost(run, analysis.activity, analysis.until_ns),
        "own_figures": (),
    }
    if figures:
        from rltrace.analysis.figures.framework_figures import compare_figures

        own["own_figures"] = compare_figures(analysis, figures)
    rest = (one.name for one in fields(Summary) if one.name not in own)
    return Summary(**own, **{name: getattr(analysis, name) for name in rest})


def steps_of(analysis: RunAnalysis) -> StepsSummary:
    run, activity, until = analysis.run, analysis.activity, analysis.until_ns
    steps, breakdown, rows = analysis.steps, analysis.breakdown, analysis.stages
    steady, counted = list(steps.steady), set(steps.steady)
    steps_s, idle_s = breakdown.steps_s[steady], breakdown.untraced_s[steady]
    return StepsSummary(
        complete=0 if steps.whole_run else len(steps.windows),
        steady=len(analysis.steady),
        warmup=tuple(window.step for window in steps.windows if window.warmup),
        stalled=tuple(steps.windows[i].step for i in steps.stalled),
        steps_per_generation=steps.per_generation,
        generations=sum(steps.windows[i].generates for i in steps.whole_generations),
        left_out=tuple(steps.windows[i].step for i in steps.unbroken if i not in counted),
        whole_run=steps.whole_run,
        in_progress=tuple(
            (n, (step_known_until(run, activity, start, until) - start) / 1e9)
            for n, start in steps.in_progress
        ),
        repeated=steps.repeated,
        phases=analysis.phases,
        step_s=spread(steps_s),
        untraced_s=spread(idle_s),
        untraced_share=float(idle_s.sum() / steps_s.sum()) if steps_s.any() else math.nan,
        between_steps_s=steps.between_s,
        between=analysis.between_steps if steps.between_s > _MUCH * steps_s.sum() else {},
        times=tuple(
            StepTimes(
                step=window.step,
                start_ns=window.start_ns,
                step_s=window.length_s,
                warmup=window.warmup,
                steady=i in counted,
                generates=window.generates,
                exposed_s={r.name: float(breakdown.exposed_s[i, r.stage]) for r in rows},
                tau_s={r.name: float(breakdown.tau_s[i, r.stage]) for r in rows},
                untraced_s=float(breakdown.untraced_s[i]),
            )
            for i, window in enumerate(steps.windows)
        ),
    )


def _facts(analysis: RunAnalysis) -> RunFacts:
    run, activity, until = analysis.run, analysis.activity, analysis.until_ns
    meta = run.meta
    command, imported = meta.get("command"), meta.get("imported")
    framework = " ".join(str(meta[k]) for k in ("framework", "framework_version") if meta.get(k))
    adapters = sorted({f"{p.adapter} {version_of(p)}".strip() for p in run.processes if p.adapter})
    roles = Counter(
        process.role or (f"child of {process.child_of}" if process.child_of else "unknown")
        for process in run.processes
    )
    start = meta.get("start_real_ns")
    shown = analysis.shown_ns
    several = analysis.phases if len(analysis.phases) > 1 else ()
    phase = next((p for p in reversed(several) if p.since_ns <= run.since_ns), None)
    exit_code = meta.get("exit_code")
    return RunFacts(
        id=str(meta.get("id") or run.path.name),
        path=str(meta.get(READ_FROM) or run.path),
        command=shlex.join(map(str, command)) if isinstance(command, list) else str(command or ""),
        framework=framework or ", ".join(adapters),
        rltrace_version=str(meta.get("rltrace_version") or ""),
        start_ns=start if isinstance(start, int) else activity.first_ns,
        shown_since_ns=shown,
        recorded_s=max(0, until - shown) / 1e9 if shown else 0.0,
        lasted_s=run.lasted_s,
        command_s=run.command_s,
        shown_s=run.shown_s,
        ended=meta.get("end_real_ns") is not None,
        exit_code=exit_code if isinstance(exit_code, int) else None,
        nodes=len({process.node for process in run.processes}),
        processes=sum(process.role != AGENT for process in run.processes),
        roles=tuple(sorted(roles.items(), key=lambda item: (-item[1], item[0]))),
        spans=sum(activity.spans_of_stage.values()),
        phase=phase.number if phase else 0,
        no_rollout=analysis.no_rollout,
        imported=_imported(imported),
        is_log=READ_FROM in meta,
        durations_only=is_laid_out(run),
        steps_are_means=isinstance(imported, dict) and "steps_a_mean" in imported,
        some_steps_only=run.since_ns > (phase.since_ns if phase else 0),
        token_ids=holds_token_ids(run),
        as_of=as_of(run, until),
    )


def _imported(source: object) -> str:
    """The log of an imported run in words: "trainer, kind of log"."""
    if not isinstance(source, dict):
        return ""
    said = [str(source[key]) for key in ("trainer", "kind") if source.get(key)] or ["a log"]
    if steps := source.get("steps_a_mean"):
        said.append(f"means over {steps} steps")
    return ", ".join(said)


@dataclass(frozen=True)
class Verdict(Ranking):
    """The walls as they are ranked, and what follows from it. `alarms` forbid advice: figures of a
    run that crashes, hangs or forgets describe that, and not the job; then `fixes` is empty. Fixes
    are in the order of `fixes_for`. `no_gain` are moves that are predicted to
    change nothing, `not_worth_it` those that gain nothing for what they cost. `bytes_take_time`:
    what a weight update sends may be why it takes so long. `replay_error_share` is that of the
    replay which predicts the gains: replayed over measured step before any fit, minus 1 (NaN: there
    is none), and `unpredicted` says why none is."""

    alarms: tuple[str, ...]
    fixes: tuple[Fix, ...]
    no_gain: tuple[str, ...]
    not_worth_it: tuple[str, ...]
    bytes_take_time: bool
    replay_error_share: float
    unpredicted: str

    @property
    def do_nothing(self) -> bool:
        """Whether no fix with a predicted gain is known, though some were tried."""
        tried = [fix for fix in self.fixes if fix.goodput_gain is not None]
        gains = any(fix.gains for fix in tried)
        return bool(tried or self.no_gain or self.not_worth_it) and not gains


def verdict(analysis: RunAnalysis, predict: bool = True) -> Verdict:
    """Without `predict` no fix has a gain."""
    ranking, predict = rank(analysis), predict and not too_few(len(analysis.steady))
    source = analysis.source if predict else None
    alarms = analysis.health.forbids
    judged = ranking.first is not None and not alarms
    fixes = fixes_for(analysis, ranking, source) if judged else ()
    load = analysis.workload if predict else None
    return Verdict(
        **vars(ranking),
        alarms=alarms,
        fixes=tuple(fix for fix in fixes if not fix.idle and not fix.loses),
        no_gain=tuple(fix.move for fix in fixes if fix.idle),
        not_worth_it=tuple(fix.move for fix in fixes if fix.loses),
        bytes_take_time=bytes_take_time(analysis),
        replay_error_share=replay_error(load) if load else math.nan,
        unpredicted=str(OffTheRun(load)) if load and is_off(load) else "",
    )
