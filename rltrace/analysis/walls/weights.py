"""Weight sync: the step waits while new weights travel and engines sleep.

An update takes bytes over a link, and a call for each piece that is sent. Where pieces are single
parameters the calls take longer, so the evidence has the number of pieces and what each takes.
"""

from __future__ import annotations

import math

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.confidence_interval import spread_of
from rltrace.analysis.walls.stage_wall import exposed_figures, stage_wall
from rltrace.analysis.walls.wall import WEIGHTS, Figure, Wall, figure, register
from rltrace.trace.vocabulary import Stage

# Names of evidence.
UPDATE, UPDATE_BYTES, IN_PHASE = "an update", "bytes of an update", "in phase "
_STAGES = (Stage.SYNC, Stage.SWITCH)


@register(WEIGHTS, *_STAGES)
def weights(analysis: RunAnalysis) -> Wall:
    evidence = [*exposed_figures(analysis, _STAGES), *_of_updates(analysis)]
    missing = ["bytes and pieces of an update: a hook on the weight update"]
    symptom = "a large part of each step gathers, converts, sends and loads weights"
    missing = [] if analysis.syncs else missing
    return stage_wall(analysis, WEIGHTS, symptom, _STAGES, evidence, missing)


def _of_updates(analysis: RunAnalysis) -> list[Figure]:
    moved = analysis.syncs
    if moved is None or not moved.updates:
        return []
    found = [figure(UPDATE, moved.update_s, "s")]
    if moved.bytes_per_update.n:
        found.append(figure(UPDATE_BYTES, moved.bytes_per_update, "bytes"))
        found.append(Figure("moved at", moved.bytes_per_s, "bytes/s", moved.bytes_per_update.n))
    found += [figure(f"{IN_PHASE}{name}", spent, "s an update") for name, spent in moved.phases_s]
    pieces = spread_of(
        analysis.run,
        "n",
        "(select max(buckets) as n from raw_syncs where start_ns > 0 and buckets > 0 "
        "group by case when version >= 0 then version else -start_ns end)",
    )
    if pieces.n:
        found.append(figure("pieces (RPCs) of an update", pieces, ""))
        each_s = moved.update_s.mean / pieces.mean
        found.append(Figure("for each piece (RPC)", each_s, "s", pieces.n))
        if moved.bytes_per_update.n:
            size = moved.bytes_per_update.mean / pieces.mean
            found.append(Figure("bytes of a piece", size, "bytes", pieces.n))
    return [one for one in found if not math.isnan(one.value)]
