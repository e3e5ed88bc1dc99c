"""One analysis of a run: each figure computed once, when it is first asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from rltrace.analysis.alarms.alarm import Health, health_of
from rltrace.analysis.figures.devices import busy, count_devices, device_load, is_laid_out
from rltrace.analysis.figures.goodput import Goodput, StepGoodput, goodput, step_goodput
from rltrace.analysis.figures.weight_updates import Syncs, Update, syncs, updates_of
from rltrace.analysis.stuck.observed import Stuck, newest
from rltrace.analysis.timeline.analysed_part import (
    TrainingPhase,
    find_phases,
    last_phase,
    whole_steps,
)
from rltrace.analysis.timeline.path_events import Followed, follow
from rltrace.analysis.timeline.process_intervals import Activity, read_activity
from rltrace.analysis.timeline.stage_chains import Chain
from rltrace.analysis.timeline.stages import between_steps, break_down, stage_rows, without_stalls
from rltrace.analysis.timeline.steps import Steps, find_steps
from rltrace.analysis.trajectories.freshness import Freshness, freshness
from rltrace.analysis.trajectories.staleness import Staleness, staleness
from rltrace.analysis.trajectories.tail import Tail, tail
from rltrace.analysis.whatif.workload import Constants
from rltrace.trace.errors import RltraceError
from rltrace.trace.read.framework_figure import logged_figures
from rltrace.trace.read.run import OpenedRun, recorded_until
from rltrace.trace.run_dir import STUCK
from rltrace.trace.untrusted_files import packaged_toml

if TYPE_CHECKING:
    from rltrace.analysis.figures.coverage import Coverage
    from rltrace.analysis.figures.devices import Busy, DeviceLoad, Devices
    from rltrace.analysis.figures.goodput_factors import Cascade
    from rltrace.analysis.timeline.critical_path import CriticalPath, PathSegment
    from rltrace.analysis.timeline.placement import Composition
    from rltrace.analysis.timeline.probe import Probe
    from rltrace.analysis.timeline.stage_chains import Seconds
    from rltrace.analysis.timeline.stages import Breakdown, StageRow
    from rltrace.analysis.trajectories.engine_gaps import EngineGaps
    from rltrace.analysis.trajectories.reward_signal import RewardCurve
    from rltrace.analysis.walls.observability import Captured
    from rltrace.analysis.whatif.predict import Source
    from rltrace.analysis.whatif.workload import StepWorkload
    from rltrace.trace.read.framework_figure import LoggedFigure

# OpenBLAS takes its memory with the first product, and ends the process, by 1, where it gets none.
np.dot(np.ones((2, 2)), np.ones((2, 2)))

_Figure = TypeVar("_Figure")


def _once(figure: Callable[[RunAnalysis], _Figure]) -> _Figure:
    return cast(_Figure, cached_property(figure))


def _of_all(module: str, function: str) -> Any:
    """What a function of the whole analysis computes, of a module that imports this one."""

    def figure(analysis: RunAnalysis) -> Any:
        return getattr(import_module(f"rltrace.analysis.{module}"), function)(analysis)

    return _once(figure)


class RunAnalysis:
    """What is known of `run`: of its last phase where it has several and no part was chosen, of its
    whole steps where a process stopped recording.

    `price_usd_per_hour` (of a device) overrides the run's and the price table's; `lag_budget` is
    the largest lag, in policy versions, at which a token still counts as useful. Times are Unix ns.
    What a figure says, and when there is none, is said by the module that computes it.
    """

    def __init__(
        self, run: OpenedRun, price_usd_per_hour: float | None = None, lag_budget: float = math.inf
    ) -> None:
        self.run = whole_steps(last_phase(run))
        self.until_ns = recorded_until(self.run)  # first: a job that goes on records more meanwhile
        self._price, self._lag_budget = price_usd_per_hour, lag_budget

    phases: tuple[TrainingPhase, ...] = _once(lambda of: find_phases(of.run))
    """Of the whole run, whichever is analysed."""

    activity: Activity = _once(lambda of: read_activity(of.run))
    _all_steps: Steps = _once(
        lambda of: find_steps(of.run, (of.activity.first_ns, of.activity.last_ns))
    )
    breakdown: Breakdown = _once(lambda of: break_down(of.activity, of._all_steps))
    steps: Steps = _once(lambda of: without_stalls(of._all_steps, of.breakdown))
    stages: tuple[StageRow, ...] = _once(
        lambda of: stage_rows(of.activity, of.steps, of.breakdown, of.overlap_known)
    )
    between_steps: dict[str, float] = _once(lambda of: between_steps(of.activity, of.steps))
    """Stages that run between the steady steps -> seconds a step."""

    overlap_known: bool = _once(lambda of: not is_laid_out(of.run))
    """Whether the trace tells what ran at once: a log of durations does not."""

    @property
    def steady(self) -> list[int]:
        """Places of the steady steps in `steps.windows`; none where the run has no steps."""
        return [] if self.steps.whole_run else list(self.steps.steady)

    @property
    def steps_s(self) -> Seconds:
        """Lengths of the steady steps."""
        return np.asarray(self.breakdown.steps_s[self.steady])

    @property
    def step_s(self) -> float:
        """The mean length of a steady step; there has to be one."""
        return float(self.steps_s.mean())

    @property
    def longest_chain(self) -> float:
        """The part of the steady steps in which the busier of actors and learner works: work that
        is only put beside other work leaves no step shorter. 0 where there is no step."""
        whole_s, chains = float(self.steps_s.sum()), (Chain.ACTORS, Chain.LEARNER)
        busy_s = [float(self.breakdown.chains_s(one)[self.steady].sum()) for one in chains]
        return max(busy_s) / whole_s if whole_s > 0 else 0.0

    @property
    def begins_s(self) -> Seconds:
        """When each steady step begins, since the first of them."""
        begins = self.steps.starts_ns[self.steady]
        return (begins - begins[:1]) / 1e9

    @property
    def shown_ns(self) -> int:
        begins_ns = self.run.begins_ns
        return self.activity.first_ns if begins_ns is None else begins_ns

    @cached_property
    def drawn_ns(self) -> tuple[int, int]:
        """From the first to the last thing that a timeline has, the end where something hangs."""
        query = packaged_toml("analysis/data/queries.toml")["first_and_last"]
        first, last = self.run.ask(query)[0]
        began = [moment for moment in (self.activity.first_ns, first) if moment > 0]
        hangs_until = self.until_ns if self.coverage.in_progress else 0
        return (min(began), max(self.activity.last_ns, last, hangs_until)) if began else (0, 0)

    devices: Devices = _once(lambda of: count_devices(of.run))
    gpus: tuple[DeviceLoad, ...] = _once(lambda of: device_load(of.run, *of.drawn_ns))
    busy: Busy | None = _once(busy)

    staleness: Staleness = _once(lambda of: staleness(of.run))
    freshness: Freshness = _once(lambda of: freshness(of.run, of.staleness))
    goodput: Goodput | None = _once(lambda of: goodput(of.run, of.steps, of._price, of._lag_budget))
    goodput_of_steps: tuple[StepGoodput, ...] = _once(lambda of: step_goodput(of.run, of.steps))
    cascade: Cascade | None = _of_all("figures.goodput_factors", "cascade")
    tail: Tail = _once(lambda of: tail(of.run, of.steps))
    engine_gaps: EngineGaps = _of_all("trajectories.engine_gaps", "engine_gaps")
    reward: RewardCurve | None = _of_all("trajectories.reward_signal", "reward_curve")

    @cached_property
    def kept(self) -> Captured:
        from rltrace.analysis.walls.observability import captured

        return captured(self.run)

    updates: tuple[Update, ...] = _once(lambda of: updates_of(of.run))
    syncs: Syncs | None = _once(lambda of: syncs(of.run, of.steps))

    stuck: Stuck | None = _once(
        lambda of: newest((said.get(STUCK) for said in of.run.problems), of.activity.last_ns)
    )

    no_rollout: str = _of_all("timeline.placement", "no_rollout")
    """What the job does where it is no RL."""

    composition: Composition | None = _of_all("timeline.placement", "compose")

    @property
    def placement(self) -> str:
        """Its name; empty where it is not known."""
        return "" if self.composition is None else self.composition.placement

    tracks: Followed = _once(lambda of: follow(of.run, of.steps))
    """Samples, followed from generation to the learner."""

    path_segments: tuple[PathSegment, ...] | str = _of_all("timeline.critical_path", "find_path")
    """The stretches of the critical path, or why there is none."""

    critical_path: CriticalPath | None = _of_all("timeline.critical_path", "critical_path")

    @property
    def drawn_path(self) -> tuple[PathSegment, ...]:
        """The stretches of the critical path; none where it cannot be followed."""
        found, segments = self.critical_path, self.path_segments
        traced = found is not None and found.is_traced
        return segments if traced and not isinstance(segments, str) else ()

    @property
    def path(self) -> CriticalPath | None:
        """The critical path, where samples could be followed and little of it is unknown."""
        found = self.critical_path
        return found if found is not None and found.well_known else None

    @property
    def followed(self) -> CriticalPath | None:
        """The same, where it tells more than exposed times: chains ran beside each other."""
        return self.path if self.composition is not None and self.composition.beside else None

    probe: Probe | None = _of_all("timeline.probe", "find_probe")

    @cached_property
    def source(self) -> Source | None:
        """The workload of the run under given constants; None where it cannot be replayed."""
        from rltrace.analysis.whatif.workload_of_run import workload_of

        _ = self.syncs  # which need much memory for a moment: before all samples are in it
        try:
            return workload_of(self)
        except RltraceError:
            return None

    workload: StepWorkload | None = _once(lambda of: of.source(Constants()) if of.source else None)
    """The same under the usual constants."""

    logged: Mapping[str, LoggedFigure] = _once(lambda of: logged_figures(of.run))
    """What the log of an imported run says of its samples."""

    health: Health = _once(health_of)
    coverage: Coverage = _of_all("figures.coverage", "coverage")
