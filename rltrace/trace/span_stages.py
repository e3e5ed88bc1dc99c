"""The table of who was in which stage, which many questions are about: a row for each stage of each
process, counted in one pass over the spans."""

from __future__ import annotations

SPAN_STAGES = """
create or replace table span_stages as
select process, stage, count(*) as spans, count(*) filter (end_ns < 0) as open,
       count(*) filter (end_ns >= 0 and end_ns < start_ns) as backwards,
       min(lane) as first_lane, max(lane) as last_lane
from raw_spans where start_ns > 0 group by process, stage"""
"""`spans` have begun, of which `open` have not ended and `backwards` ended before (clocks); their
lanes lie between two numbers."""
