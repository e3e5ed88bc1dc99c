"""What tests ask of `rltrace.report`."""

from rltrace.report import (
    compare_section,
    html,
    live_json,
    loopback,
    markdown,
    perfetto,
    printed,
    rows,
    run_lines,
    terminal,
    to_json,
    units,
    verdict,
)
from rltrace.report.coverage_section import coverage_section
from rltrace.report.event_file import EventFile
from rltrace.report.experiment_section import section
from rltrace.report.freshness_section import staleness_section
from rltrace.report.goodput_section import reward_section
from rltrace.report.html.head import fixes_part
from rltrace.report.inventory import inventory
from rltrace.report.layout import Column, Grid, Section, bar
from rltrace.report.listing import entries
from rltrace.report.live_frame import frame
from rltrace.report.otlp import Exported, requests
from rltrace.report.own_figures_section import figures_of
from rltrace.report.perfetto import counters, findings, serving, torch_profile
from rltrace.report.perfetto.findings import Findings, find
from rltrace.report.prometheus_metrics import COUNTER, GAUGE, HISTOGRAM, METRICS
from rltrace.report.run_lines import warnings
from rltrace.report.to_json import plain
from rltrace.report.verdict import evidence, headline
from rltrace.report.walls_section import fixes_section, gain_words
from rltrace.report.whole_file import whole_file
