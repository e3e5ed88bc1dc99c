"""The metrics of a run in Prometheus's text format (version 0.0.4).

Written here and not by `prometheus_client`: the exporter runs in the environment of a job, where
nothing should have to be installed for it, and it would use the format alone.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rltrace import dashboards
from rltrace.analysis.alarms.alarm import ALARM
from rltrace.analysis.figures.devices import count_devices, framework_of
from rltrace.analysis.live.role_activity import role_of
from rltrace.analysis.live.run_meters import RunMeters
from rltrace.analysis.live.sample_meter import Histogram
from rltrace.trace.metadata_validation import whole_text
from rltrace.trace.untrusted_files import parsed_toml
from rltrace.trace.vocabulary import word

if TYPE_CHECKING:
    from rltrace.analysis.summary import Summary


@dataclass(frozen=True)
class ExportedMetric:
    """One of dashboards/prometheus/metrics.toml."""

    name: str
    kind: str
    meaning: str
    labels: tuple[str, ...]


def _declared(kind: str, key: str, meaning: str) -> ExportedMetric:
    name, *labels = re.findall(r"\w+", key)
    return ExportedMetric(name, kind, meaning, ("run", *labels))


_TOLD = parsed_toml((dashboards.folder("prometheus") / "metrics.toml").read_text("utf-8"))
_READINGS: dict[str, tuple[str, float]] = _TOLD.pop("reading")
_DECLARED = (_declared(kind, *one) for kind, of in _TOLD.items() for one in of.items())
METRICS = {metric.name: metric for metric in _DECLARED}  # in the order in which they are served
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})  # in labels
Labels = tuple[str, ...]
Value = tuple[str, Labels, "float | Histogram | None"]  # metric, labels but the run, value
Families = dict[str, dict[Labels, "float | Histogram"]]  # by metric, as in `METRICS`


def families(meters: RunMeters, judged: Iterable[Value] = ()) -> Families:
    """What the meters stand at, and `judgement` said; without what was never seen."""
    found: Families = {name: {} for name in METRICS}
    for metric, labels, value in (*_values(meters), *judged):
        if value is None:
            continue
        if value.count if isinstance(value, Histogram) else math.isfinite(value):
            found[metric][(meters.job.id, *labels)] = value
    return {name: values for name, values in found.items() if values}


def exposition(values: Families) -> str:
    lines = []
    for name, of_labels in values.items():
        metric = METRICS[name]
        meaning = metric.meaning.replace("\\", "\\\\").replace("\n", "\\n")
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {metric.kind}"]
        for labels, value in of_labels.items():
            said = (whole_text(label).translate(_ESCAPED) for label in labels)
            pairs = [f'{label}="{text}"' for label, text in zip(metric.labels, said, strict=True)]
            for suffix, own, number in _samples(value):
                lines.append(f"{name}{suffix}{{{','.join(pairs + own)}}} {_number(number)}")
    return "".join(f"{line}\n" for line in lines)


def to_json(values: Families) -> list[dict[str, Any]]:
    found = []
    for name, of_labels in values.items():
        samples = [
            {"labels": dict(zip(METRICS[name].labels, labels, strict=True)), **_as_json(value)}
            for labels, value in of_labels.items()
        ]
        found.append({"name": name, "kind": METRICS[name].kind, "samples": samples})
    return found


def _as_json(value: float | Histogram) -> dict[str, Any]:
    if not isinstance(value, Histogram):
        return {"value": value}
    bounds = map(_number, (*value.bounds, math.inf))
    at_most = dict(zip(bounds, value.cumulative(), strict=True))
    return {"count": value.count, "sum": value.sum, "at_most": at_most}


def judgement(summary: Summary) -> list[tuple[str, Labels, float]]:
    """What the report says: where a step goes, the wall, the first fix, what is wrong."""
    # An exporter does without.
    from rltrace.report.sections.verdict_section import best_fix, setting_words

    found, spent = summary.verdict, [(row.name, row.exposed_s.mean) for row in summary.stages]
    spent.append(("untraced", summary.steps.untraced_s.mean))
    values: list[tuple[str, Labels, float]] = []
    values += [("rltrace_step_exposed_seconds", (stage,), s) for stage, s in spent]
    wrong = dict.fromkeys(one.short for one in summary.health.alarms if one.severity == ALARM)
    values += [("rltrace_alarm", (short,), 1) for short in wrong]
    if found.binding and not found.alarms:
        values += [("rltrace_wall_cost_ratio", (w.name,), w.cost.share) for w in found.binding]
        fix = best_fix(found)
        labels = (fix.sized, setting_words(fix) if fix.setting else "") if fix else ("none", "")
        gain = fix.goodput_gain.value - 1 if fix and fix.goodput_gain else 0.0
        values.append(("rltrace_first_fix_gain_ratio", labels, gain))
    elif found.balanced and not found.alarms:
        values.append(("rltrace_wall_cost_ratio", ("no wall",), 0))
    return [one for one in values if math.isfinite(one[2])]


def _values(meters: RunMeters) -> list[Value]:
    job, samples, weights = meters.job, meters.samples, meters.weights
    now_ns, last_ns, step_s = meters.clock_ns, meters.last_event_ns, meters.step_s
    devices = count_devices(meters.follower)
    budget = samples.lag_budget
    stepped = meters.step is not None
    generated = bool(samples.finishes) or meters.in_flight > 0
    trained, counted = bool(samples.fates), samples.trained_tokens
    started_ns = meters.follower.meta.get("start_real_ns")
    started_s = started_ns / 1e9 if isinstance(started_ns, int) else None
    values: list[Value] = [
        ("rltrace_run_info", framework_of(meters.follower), 1),
        ("rltrace_run_alive", (), 0 if job.is_over else 1),
        ("rltrace_run_start_time_seconds", (), started_s),
        ("rltrace_run_last_event_time_seconds", (), last_ns / 1e9 if last_ns > 0 else None),
        ("rltrace_run_devices", (devices.kind,), devices.count or None),
        ("rltrace_run_stopped_processes", (), len(meters.follower.stopped()) or None),
        ("rltrace_step", (), meters.step),
        ("rltrace_steps_total", (), step_s.count if stepped else None),
        ("rltrace_step_running_seconds", (), _age(now_ns, meters.step_since_ns, stepped)),
        ("rltrace_step_duration_seconds", (), step_s),
        ("rltrace_trajectories_running", (), meters.in_flight if generated else None),
        ("rltrace_trajectories_waiting", (), meters.waiting() if trained else None),
        ("rltrace_trajectory_oldest_seconds", (), _age(now_ns, meters.oldest_ns, generated)),
        ("rltrace_trajectory_duration_seconds", (), samples.trajectory_s),
        ("rltrace_response_tokens", (), samples.response_tokens),
        ("rltrace_reward_duration_seconds", (), samples.verdict_s),
        ("rltrace_trained_tokens_total", (), counted or None),
        ("rltrace_useful_tokens_total", (), samples.useful_tokens if counted else None),
        ("rltrace_lag_versions", (), samples.lag),
        ("rltrace_lag_unknown_samples_total", (), samples.unknown_lags if trained else None),
        ("rltrace_lag_budget_versions", (), budget if math.isfinite(budget) else None),
        ("rltrace_policy_version", (), weights.version),
        ("rltrace_exporter_cpu_seconds_total", (), sum(os.times()[:4])),
    ]
    values += [("rltrace_trajectories_total", (f,), n) for f, n in samples.finishes.items()]
    values += [("rltrace_rewards_total", (o,), n) for o, n in samples.outcomes.items()]
    values += [("rltrace_samples_total", (f,), n) for f, n in samples.fates.items()]
    values += [("rltrace_sync_duration_seconds", (p,), d) for p, d in weights.seconds.items()]
    values += [("rltrace_sync_bytes_total", (p,), n) for p, n in weights.bytes.items()]
    return [*values, *_of_processes(meters), *_of_devices(meters)]


def _of_processes(meters: RunMeters) -> list[tuple[str, Labels, float]]:
    processes = meters.follower.processes
    who = [(role_of(p), "" if p.rank is None else str(p.rank)) for p in processes]
    seconds: dict[Labels, float] = {}
    for (process, stage), ns in meters.stages.by_process.items():
        labels = (word(stage), *who[process])
        seconds[labels] = seconds.get(labels, 0.0) + ns / 1e9
    running = {(word(stage), *who[process]) for process, stage in meters.running}
    tokens: Counter[Labels] = Counter()
    for process, count in meters.samples.generated_tokens.items():
        tokens[who[process]] += count
    known, by_stage = sorted(running | seconds.keys()), meters.stages.by_stage.items()
    found: list[tuple[str, Labels, float]] = []
    found += [("rltrace_stage_seconds_total", labels, total) for labels, total in seconds.items()]
    found += [("rltrace_stage_tau_seconds_total", (word(s),), ns / 1e9) for s, ns in by_stage]
    found += [("rltrace_stage_running", labels, float(labels in running)) for labels in known]
    found += [("rltrace_generated_tokens_total", labels, n) for labels, n in tokens.items()]
    return found


def _of_devices(meters: RunMeters) -> list[tuple[str, Labels, float]]:
    found: list[tuple[str, Labels, float]] = []
    for one in meters.readings.now(meters.follower):
        if one.counter in _READINGS:
            name, unit = _READINGS[one.counter]
            device = (str(one.device),) if "device" in METRICS[name].labels else ()
            found.append((name, (one.host, *device), one.value * unit))
    return found


def _samples(value: float | Histogram) -> list[tuple[str, list[str], float]]:
    """`(suffix of the name, labels of its own, number)` of each line of a value."""
    if not isinstance(value, Histogram):
        return [("", [], value)]
    counts = zip((*value.bounds, math.inf), value.cumulative(), strict=True)
    buckets = [("_bucket", [f'le="{_number(bound)}"'], float(n)) for bound, n in counts]
    return [*buckets, ("_sum", [], value.sum), ("_count", [], value.count)]


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _age(now_ns: int, since_ns: int | None, seen: bool) -> float | None:
    """Seconds of what is in progress: 0 where nothing is, None where nothing ever was `seen`."""
    if since_ns is None:
        return 0.0 if seen else None
    return max(now_ns - since_ns, 0) / 1e9
