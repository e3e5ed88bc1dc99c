"""The metrics that `rltrace export prometheus` serves: names, kinds, labels, meanings.

Base units throughout: seconds, bytes, tokens; a counter ends in `_total`. `run` is the run's id;
`role` and `rank` are those of the process, empty where it has none. What was never seen has no
series: an unknown is not 0. docs/dashboards.md says which dashboard shows what.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


@dataclass(frozen=True)
class Metric:
    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def _metric(kind: str, name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, kind, ("run", *labels), meaning)


_counter, _gauge, _histogram = (partial(_metric, kind) for kind in (COUNTER, GAUGE, HISTOGRAM))
_PROCESS = ("role", "rank")
_DEVICE = ("host", "device")

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        # the run
        _gauge(
            "rltrace_run_info",
            "Always 1; who it is that the other metrics are about.",
            "framework",
            "framework_version",
        ),
        _gauge("rltrace_run_alive", "1 while the job runs, 0 once it has ended."),
        _gauge("rltrace_run_start_time_seconds", "When the run began, Unix time."),
        _gauge(
            "rltrace_run_last_event_time_seconds",
            "When the job last began or ended anything that is traced, Unix time.",
        ),
        _gauge(
            "rltrace_run_devices",
            "Devices that the job holds, GPUs or else cores: what goodput is divided by.",
            "kind",
        ),
        _gauge(
            "rltrace_run_stopped_processes",
            "Processes that stopped recording, on a full disk: all else lacks what they do since.",
        ),
        # steps
        _gauge("rltrace_step", "Number of the newest learner step."),
        _counter("rltrace_steps_total", "Learner steps that were completed."),
        _gauge(
            "rltrace_step_running_seconds",
            "For how long the step in progress has been running; 0 between steps.",
        ),
        _histogram("rltrace_step_duration_seconds", "Length of a completed step."),
        # stages
        _counter(
            "rltrace_stage_seconds_total",
            "Time in which the process was in the stage; those that share role and rank add up.",
            "stage",
            *_PROCESS,
        ),
        _counter(
            "rltrace_stage_tau_seconds_total",
            "Time in which any process was in the stage: the union, never a sum over processes.",
            "stage",
        ),
        _gauge("rltrace_stage_running", "1 while the process is in the stage.", "stage", *_PROCESS),
        # rollout
        _counter(
            "rltrace_generated_tokens_total",
            "Response tokens of the trajectories that have ended.",
            *_PROCESS,
        ),
        _counter("rltrace_trajectories_total", "Trajectories that have ended, by how.", "finish"),
        _gauge("rltrace_trajectories_running", "Trajectories in flight."),
        _gauge(
            "rltrace_trajectories_waiting",
            "Trajectories that ended since the last ten steps began and have not met the learner.",
        ),
        _gauge(
            "rltrace_trajectory_oldest_seconds",
            "For how long the oldest trajectory in flight has been running; 0 where none is.",
        ),
        _histogram("rltrace_trajectory_duration_seconds", "From a trajectory's begin to its end."),
        _histogram("rltrace_response_tokens", "Response tokens of a trajectory that has ended."),
        # rewards
        _counter("rltrace_rewards_total", "Verdicts reached, by outcome.", "outcome"),
        _histogram(
            "rltrace_reward_duration_seconds", "Time that a verdict took, where it was timed."
        ),
        # what was trained on
        _counter(
            "rltrace_samples_total", "Samples that met the learner, by what became of them.", "fate"
        ),
        _counter("rltrace_trained_tokens_total", "Response tokens trained on, or their mean."),
        _counter(
            "rltrace_useful_tokens_total",
            "Those of them that count as far as is known: in a group whose rewards differ, and "
            "within the lag budget.",
        ),
        _histogram(
            "rltrace_lag_versions",
            "Policy versions between a sample's first token and its training.",
        ),
        _counter(
            "rltrace_lag_unknown_samples_total", "Samples trained on whose lag nobody can tell."
        ),
        _gauge(
            "rltrace_lag_budget_versions", "The lag budget, where one was stated (--lag-budget)."
        ),
        # weights
        _gauge("rltrace_policy_version", "The newest policy version of any process."),
        _histogram(
            "rltrace_sync_duration_seconds",
            "One participant's part (source, relay, sink) in one weight update.",
            "part",
        ),
        _counter(
            "rltrace_sync_bytes_total", "Bytes of weights that participants gave or took.", "part"
        ),
        # devices and hosts
        _gauge("rltrace_gpu_busy_ratio", "Busy share of the GPU (NVML), 0 to 1.", *_DEVICE),
        _gauge("rltrace_gpu_memory_used_bytes", "GPU memory in use.", *_DEVICE),
        _gauge("rltrace_gpu_memory_total_bytes", "GPU memory there is.", *_DEVICE),
        _gauge("rltrace_gpu_power_watts", "Power that the GPU draws.", *_DEVICE),
        _counter("rltrace_host_cpu_busy_seconds_total", "Busy time of all cores.", "host"),
        _gauge("rltrace_host_memory_available_bytes", "Memory that can be had.", "host"),
        _gauge("rltrace_host_memory_total_bytes", "Memory there is.", "host"),
        # the exporter
        _counter("rltrace_exporter_cpu_seconds_total", "CPU time of the exporter itself."),
    )
}
"""By name, in the order in which they are served."""

READINGS: dict[str, tuple[str, float]] = {
    "gpu/busy_percent": ("rltrace_gpu_busy_ratio", 0.01),
    "gpu/memory_used_bytes": ("rltrace_gpu_memory_used_bytes", 1.0),
    "gpu/memory_total_bytes": ("rltrace_gpu_memory_total_bytes", 1.0),
    "gpu/power_watts": ("rltrace_gpu_power_watts", 1.0),
    "host/cpu_busy_seconds": ("rltrace_host_cpu_busy_seconds_total", 1.0),
    "host/memory_available_bytes": ("rltrace_host_memory_available_bytes", 1.0),
    "host/memory_total_bytes": ("rltrace_host_memory_total_bytes", 1.0),
}
"""The metric of each counter that the agents read, and its unit in that of the metric."""
