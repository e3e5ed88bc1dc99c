"""What tests ask of `rltrace.analysis`."""

from typing import Any

from rltrace.analysis import intervals
from rltrace.analysis.activity import read_activity
from rltrace.analysis.alarm import ALARM, NOTE, Alarm
from rltrace.analysis.binding import Binding
from rltrace.analysis.command_form import forms, given, with_settings
from rltrace.analysis.compare import compare
from rltrace.analysis.critical_path import CriticalPath, PathSegment, find_path
from rltrace.analysis.differing import Difference, stated_settings
from rltrace.analysis.fixes import Fix
from rltrace.analysis.for_samples import MOST_SPANS, stretches
from rltrace.analysis.framework import is_laid_out
from rltrace.analysis.freshness import (
    LagBound,
    LagPoint,
    RatioSums,
    ess_by_step,
    freshness,
    point,
    ratio_sums,
)
from rltrace.analysis.gate import findings, metrics
from rltrace.analysis.gate.baseline import Baseline as baseline_Baseline
from rltrace.analysis.gate.baseline import make_baseline, read_baseline, write_baseline, wrong_with
from rltrace.analysis.gate.conditions import (
    FORBID,
    MAX_REGRESSION,
    MAXIMUM,
    MINIMUM,
    WALL,
    Condition,
    parse_condition,
)
from rltrace.analysis.gate.findings import PASS, REGRESSION, UNSURE, Finding, Judgement
from rltrace.analysis.gate.judge import judge_series
from rltrace.analysis.gate.metrics import find_metric
from rltrace.analysis.gate.panel import panel_of, warmup_steps, without_stalls
from rltrace.analysis.gate.series import HOST, MOST_STEPS, RunSeries, series_of
from rltrace.analysis.goodput import Goodput, goodput, trained_in
from rltrace.analysis.group_signal import group_signal
from rltrace.analysis.health import Health
from rltrace.analysis.intervals import mapped, union
from rltrace.analysis.lag_priors import prior_for
from rltrace.analysis.lint import Lint, lint
from rltrace.analysis.live import snapshot
from rltrace.analysis.live.job import SILENT_NS, job_of
from rltrace.analysis.live.run_meters import RunMeters
from rltrace.analysis.live.snapshot import Snapshot, StepDone, Window
from rltrace.analysis.live.state import LiveState
from rltrace.analysis.named_queries import named_queries, named_query
from rltrace.analysis.order_statistics import log_deviation, longest_of_lognormal
from rltrace.analysis.own_figures import ComparedFigure
from rltrace.analysis.plan import hardware, shapes
from rltrace.analysis.plan.advice import advise
from rltrace.analysis.plan.breakdown import costed
from rltrace.analysis.plan.constants import PlanConstants, packaged
from rltrace.analysis.plan.constants import table as plan_constants_table
from rltrace.analysis.plan.frameworks import Framework, catalogue
from rltrace.analysis.plan.generation import rollout
from rltrace.analysis.plan.hardware import all_gather_s, all_reduce_s, broadcast_s, gpu
from rltrace.analysis.plan.learner import learner
from rltrace.analysis.plan.placements import (
    ASYNC,
    COLOCATED,
    KINDS,
    PARTIAL,
    THREE_POOLS,
    Kind,
    Placed,
    Pools,
    movement,
    parts_of,
    place,
)
from rltrace.analysis.plan.plan import Plan, asked, plan, sweep
from rltrace.analysis.plan.reading import STACKS, Tables, merged, read_workload, seconds, spec_of
from rltrace.analysis.plan.shapes import from_config
from rltrace.analysis.plan.spec import STALENESS, Environment, Spec
from rltrace.analysis.playbook import WRAP_SYNC, Setting, frameworks, settings_for
from rltrace.analysis.playbook import moves as playbook_moves
from rltrace.analysis.probe import HALF_WIDTH, Doses, Probe, ProbedStage, work_crosses_steps
from rltrace.analysis.progress import killed, lost
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stages import break_down
from rltrace.analysis.staleness import Staleness, UnknownTokens, lag_history, staleness
from rltrace.analysis.stats.estimate import Estimate as predict_Estimate
from rltrace.analysis.stats.interval import UNKNOWN as interval_UNKNOWN
from rltrace.analysis.stats.interval import Interval
from rltrace.analysis.stats.least_squares import Floats, fit
from rltrace.analysis.stats.resampling import drawn_counts, mean_block
from rltrace.analysis.stats.student import quantile
from rltrace.analysis.stats.student import tail as student_tail
from rltrace.analysis.step_range import Asked, asked_steps, narrow
from rltrace.analysis.steps import find_steps
from rltrace.analysis.summary import Summary, summary_of
from rltrace.analysis.syncs import Syncs, syncs, updates_of
from rltrace.analysis.tail import SHARES, distributions, tail
from rltrace.analysis.trial import CONFIRMED, Pace, Trial, trial
from rltrace.analysis.walls import wall
from rltrace.analysis.walls.wall import (
    CANNOT_TELL,
    ENV_REWARD,
    FRESHNESS,
    LEARNER,
    LIKELY,
    NAMES,
    OBSERVABILITY,
    ROLLOUT,
    SPARSE_REWARD,
    TAIL,
    WEIGHTS,
    Figure,
    Wall,
)
from rltrace.analysis.whatif.constants import (
    MECHANISMS,
    MEMORY_TB_PER_S,
    PEAK_TFLOPS,
    Constants,
    train_mfu,
    weight_bytes,
)
from rltrace.analysis.whatif.constants import table as whatif_constants_table
from rltrace.analysis.whatif.engine_fit import places_of, room_of
from rltrace.analysis.whatif.events import draft_speed
from rltrace.analysis.whatif.levers import LEVERS
from rltrace.analysis.whatif.levers import moves as levers_moves
from rltrace.analysis.whatif.of_run import workload_of as _workload_of
from rltrace.analysis.whatif.predict import Baseline as predict_Baseline
from rltrace.analysis.whatif.predict import Prediction, Source, baseline, predict, ranked, walls
from rltrace.analysis.whatif.replay import Play, forget, replay
from rltrace.analysis.whatif.stated import Stated, read_stages, stated
from rltrace.analysis.whatif.trust import OffTheRun
from rltrace.analysis.whatif.workload import (
    AT_ONCE,
    GOES_ON,
    NOT_PLAYED,
    PLACEMENTS,
    Batch,
    Engine,
    Sync,
    Workload,
    played,
)
from rltrace.trace.run import Run


def summarize(run: Run, **options: Any) -> Summary:
    """All that its report shows; options are those of `RunAnalysis` and of `summary_of`."""
    how = {name: options.pop(name) for name in ("figures", "predict") if name in options}
    return summary_of(RunAnalysis(run, **options), **how)


def workload_of(run: Run) -> Source:
    """Its workload, or the error that says why there is none."""
    return _workload_of(RunAnalysis(run))
