"""What tests ask of `rltrace.analysis`."""

from typing import Any

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.summary import Summary, summary_of
from rltrace.analysis.whatif.of_run import workload_of as _workload_of
from rltrace.analysis.whatif.predict import Source
from rltrace.testing.inside import finder
from rltrace.trace.run import Run

__getattr__ = finder(
    "analysis",
    {
        "CANNOT_TELL": "walls.wall:CANNOT_TELL",
        "FRESHNESS": "walls.wall:FRESHNESS",
        "Floats": "stats.least_squares:Floats",
        "KINDS": "plan.placements:KINDS",
        "LIKELY": "walls.wall:LIKELY",
        "PARTIAL": "plan.placements:PARTIAL",
        "PLACEMENTS": "whatif.workload:PLACEMENTS",
        "predict_Estimate": "stats.estimate:Estimate",
        "Pace": "trial:Pace",
        "plan": "plan.plan:plan",
        "place": "plan.placements:place",
        "UNSURE": "gate.findings:UNSURE",
        "Window": "live.snapshot:Window",
        "baseline": "whatif.predict:baseline",
        "frameworks": "playbook:frameworks",
        "freshness": "freshness:freshness",
        "learner": "plan.learner:learner",
        "merged": "plan.reading:merged",
        "ranked": "whatif.predict:ranked",
        "rollout": "plan.generation:rollout",
        "walls": "whatif.predict:walls",
        "without_stalls": "gate.panel:without_stalls",
    },
)


def summarize(run: Run, **options: Any) -> Summary:
    """All that its report shows; options are those of `RunAnalysis` and of `summary_of`."""
    how = {name: options.pop(name) for name in ("figures", "predict") if name in options}
    return summary_of(RunAnalysis(run, **options), **how)


def workload_of(run: Run) -> Source:
    """Its workload, or the error that says why there is none."""
    return _workload_of(RunAnalysis(run))
