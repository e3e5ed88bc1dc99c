"""Weights that did not arrive, or engines that sample otherwise than the learner assumes."""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.analysis.alarms.alarm import NAMED, Said, alarm, counted, grave, note
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.trajectories.engine_gaps import LARGE_NATS, Departure, EngineGaps
from rltrace.trace.vocabulary import SyncRole

counted(
    "digests", "engines hold other weights than were sent",
    f"""select count(*) filter (sink.checksum <> source.checksum), count(*)
        from raw_syncs sink join (
            select version, min(checksum) as checksum from raw_syncs
            where start_ns > 0 and role = {int(SyncRole.SOURCE)} and checksum <> -1
            group by version having min(checksum) = max(checksum)) source using (version)
        where start_ns > 0 and role = {int(SyncRole.SINK)} and sink.checksum <> -1""",
    "the weights of {n} of {of} updates that engines took have another digest than what was sent",
    judged_anyway=True,
)  # fmt: skip


@alarm("weights", "engines sample from something else than the policy")
def departures(analysis: RunAnalysis) -> Iterator[Said]:
    gaps, found = analysis.engine_gaps, analysis.engine_gaps.departures
    for one in found[:NAMED]:
        says = _says(one, gaps) + _digest(analysis, one)
        sure = gaps.alone and (one.engine or not one.first)
        yield grave(says, judged_anyway=True) if sure else note(says)
    if len(found) > NAMED:
        yield note(f"gaps of engines to the learner grew {len(found) - NAMED} more times")


def _says(one: Departure, gaps: EngineGaps) -> str:
    gap = f"the gap of {one.engine or 'engines'} to the learner is {one.nats:.2g} nats a token"
    told = f"{gap}, usually {one.usual_nats:.2g}"
    step = "" if one.step < 0 else f" (step {one.step})"
    old = f"; so say samples that are {gaps.lag} versions old" if gaps.lag else ""
    why = "the weights are not the learner's, or the temperature is another"
    if one.cut:
        why = "tokens come from a part of the distribution only (top-p, top-k or min-p)"
    if one.first:
        told = f"{gap}, of which bfloat16 explains about {LARGE_NATS / 2:.2g}"
        if one.engine:
            told = f"{gap}, that of other engines {one.usual_nats:.2g}"
        return f"in all {one.versions} versions {told}: {why}{old}"
    if one.versions > 1 or one.until_version is None:
        until = "on" if one.until_version is None else f"to {one.until_version - 1}"
        return f"from version {one.version} {until}{step}, {told}: {why}{old}"
    what = f"the weight sync of version {one.version} changed nothing, or not all there was"
    if one.engine:
        what = f"{one.engine} did not take version {one.version}, or not all of it"
    return f"{what}{step}: {told}{old}"


def _digest(analysis: RunAnalysis, one: Departure) -> str:
    """What digests say of what was sent for the version."""
    sent = dict(
        analysis.run.ask(f"""
        select version, min(checksum) from raw_syncs
        where start_ns > 0 and role = {int(SyncRole.SOURCE)} and checksum <> -1
              and version <= {one.version}
        group by version order by version desc limit 2
    """)
    )
    again = one.version in sent and len(set(sent.values())) < len(sent) and not one.first
    return f". What was sent has the digest of version {min(sent)}" if again else ""
