"""What work of others, on cores that it shares with a job, makes of one more thread of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rltrace.analysis.devices import AGENT, count_devices
from rltrace.analysis.whatif.parts import Parts
from rltrace.trace.vocabulary import Stage

if TYPE_CHECKING:
    from rltrace.trace.run import Run

_MOST = 0.75  # of the cores, below which others leave the job some of its own
_COMPUTES = (Stage.ROLLOUT, Stage.REFERENCE, Stage.LOGPROB, Stage.VALUE, Stage.TRAIN)


def one_more(run: Run, parts: Parts) -> float:
    """How many times as long work takes once one more thread of the job wants a core than with one
    less, where others keep the cores busy and a fair scheduler gives all of them turns: n threads
    on c cores take n / c times as long. 1.0 where others do not, nobody read how many threads there
    are, or the run has several nodes."""
    cores = count_devices(run).count
    if sum(process.role == AGENT for process in run.processes) != 1 or not cores:
        return 1.0
    steady = list(parts.steps.steady)
    windows = [parts.steps.windows[i] for i in steady]
    rows = run.ask(f"""
        select value from raw_samples join names on names.id = counter
        where text = 'host/runnable_threads' and isfinite(value)
              and time_ns between {windows[0].start_ns} and {windows[-1].end_ns}
    """)
    if not rows:
        return 1.0
    worked_s = parts.breakdown.tau_s[steady][:, _COMPUTES].sum()
    own = float(worked_s / parts.breakdown.steps_s[steady].sum())
    others = float(np.mean(rows)) - own
    if others < _MOST * cores:
        return 1.0
    return max(1.0, (others + 2) / cores) / max(1.0, (others + 1) / cores)
