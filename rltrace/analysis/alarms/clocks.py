"""What no order of events explains: clocks of nodes that could not be aligned, or that were set
while the job ran; versions that two sides count differently."""

from __future__ import annotations

from rltrace.analysis.alarms.alarm import NOTE, counted
from rltrace.analysis.samples import TRAINED_SAMPLES

_ROWS = " union all ".join(
    ["select sum(backwards) as wrong, sum(spans) as n from span_stages"]
    + [
        "select count(*) filter (end_ns >= 0 and end_ns < start_ns), count(*) "
        f"from raw_{table} where start_ns > 0"
        for table in ("trajectories", "rewards", "syncs")
    ]
)
counted(
    "clocks", "clocks are out of order",
    f"select sum(wrong)::bigint, sum(n)::bigint from ({_ROWS})",
    "{n} of {of} rows end before they begin, and count nowhere: clocks out of order", severity=NOTE,
)  # fmt: skip
counted(
    "versions", "versions are out of order",
    f"""{TRAINED_SAMPLES}
        select count(*) filter (version < first_version), count(*)
        from trained where version >= 0 and first_version is not null""",
    "{n} of {of} samples were trained on by an older version than generated them: the learner and "
    "those who generate count versions differently, so that their lag says nothing",
    severity=NOTE,
)  # fmt: skip
