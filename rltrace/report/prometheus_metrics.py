"""The metrics that `rltrace export prometheus` serves: names, kinds, labels, buckets, meanings.

Base units throughout: seconds, bytes, tokens; a counter ends in `_total`. `run` is the run's id;
`role` and `rank` are those of the process, empty where it has none. What was never seen has no
series: an unknown is not 0. docs/dashboards.md says which dashboard shows what.
"""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.analysis.meters import distribution

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

_PROCESS = ("run", "role", "rank")
_STAGE = ("run", "stage", "role", "rank")
_DEVICE = ("run", "host", "device")
_HOST = ("run", "host")


@dataclass(frozen=True)
class Metric:
    """One metric family. `buckets` are a histogram's upper bounds, `+Inf` left out."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...] = ()


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        # the run
        Metric(
            "rltrace_run_info",
            GAUGE,
            ("run", "framework", "framework_version"),
            "Always 1; who it is that the other metrics are about.",
        ),
        Metric("rltrace_run_alive", GAUGE, ("run",), "1 while the job runs, 0 once it has ended."),
        Metric("rltrace_run_start_time_seconds", GAUGE, ("run",), "When the run began, Unix time."),
        Metric(
            "rltrace_run_last_event_time_seconds",
            GAUGE,
            ("run",),
            "When the job last began or ended anything that is traced, Unix time.",
        ),
        Metric(
            "rltrace_run_devices",
            GAUGE,
            ("run", "kind"),
            "Devices that the job holds, GPUs or else cores: what goodput is divided by.",
        ),
        Metric(
            "rltrace_run_counted_since_time_seconds",
            GAUGE,
            ("run",),
            "What began until then, Unix time, is counted by no metric: part of it was dropped to "
            "keep the run small.",
        ),
        Metric(
            "rltrace_run_stopped_processes",
            GAUGE,
            ("run",),
            "Processes that stopped recording, on a full disk: all else lacks what they do since.",
        ),
        # steps
        Metric("rltrace_step", GAUGE, ("run",), "Number of the newest learner step."),
        Metric("rltrace_steps_total", COUNTER, ("run",), "Learner steps that were completed."),
        Metric(
            "rltrace_step_running_seconds",
            GAUGE,
            ("run",),
            "For how long the step in progress has been running; 0 between steps.",
        ),
        Metric(
            "rltrace_step_duration_seconds",
            HISTOGRAM,
            ("run",),
            "Length of a completed step.",
            distribution.STEP_S,
        ),
        # stages
        Metric(
            "rltrace_stage_seconds_total",
            COUNTER,
            _STAGE,
            "Time in which the process was in the stage; those that share role and rank add up.",
        ),
        Metric(
            "rltrace_stage_tau_seconds_total",
            COUNTER,
            ("run", "stage"),
            "Time in which any process was in the stage: the union, never a sum over processes.",
        ),
        Metric("rltrace_stage_running", GAUGE, _STAGE, "1 while the process is in the stage."),
        # rollout
        Metric(
            "rltrace_generated_tokens_total",
            COUNTER,
            _PROCESS,
            "Response tokens of the trajectories that have ended.",
        ),
        Metric(
            "rltrace_trajectories_total",
            COUNTER,
            ("run", "finish"),
            "Trajectories that have ended, by how.",
        ),
        Metric("rltrace_trajectories_running", GAUGE, ("run",), "Trajectories in flight."),
        Metric(
            "rltrace_trajectories_waiting",
            GAUGE,
            ("run",),
            "Trajectories that ended since the last ten steps began and have not met the learner.",
        ),
        Metric(
            "rltrace_trajectory_oldest_seconds",
            GAUGE,
            ("run",),
            "For how long the oldest trajectory in flight has been running; 0 where none is.",
        ),
        Metric(
            "rltrace_trajectory_duration_seconds",
            HISTOGRAM,
            ("run",),
            "From a trajectory's begin to its end.",
            distribution.TRAJECTORY_S,
        ),
        Metric(
            "rltrace_response_tokens",
            HISTOGRAM,
            ("run",),
            "Response tokens of a trajectory that has ended.",
            distribution.RESPONSE_TOKENS,
        ),
        # rewards
        Metric(
            "rltrace_rewards_total", COUNTER, ("run", "outcome"), "Verdicts reached, by outcome."
        ),
        Metric(
            "rltrace_reward_duration_seconds",
            HISTOGRAM,
            ("run",),
            "Time that a verdict took, where it was timed.",
            distribution.VERDICT_S,
        ),
        # what was trained on
        Metric(
            "rltrace_samples_total",
            COUNTER,
            ("run", "fate"),
            "Samples that met the learner, by what became of them.",
        ),
        Metric("rltrace_trained_tokens_total", COUNTER, ("run",), "Response tokens trained on."),
        Metric(
            "rltrace_useful_tokens_total",
            COUNTER,
            ("run",),
            "Those of them that count as far as is known: in a group whose rewards differ, and "
            "within the lag budget.",
        ),
        Metric(
            "rltrace_lag_versions",
            HISTOGRAM,
            ("run",),
            "Policy versions between a sample's first token and its training.",
            distribution.LAG_VERSIONS,
        ),
        Metric(
            "rltrace_lag_unknown_samples_total",
            COUNTER,
            ("run",),
            "Samples trained on whose lag nobody can tell.",
        ),
        Metric(
            "rltrace_lag_budget_versions",
            GAUGE,
            ("run",),
            "The lag budget, where one was stated (--lag-budget).",
        ),
        # weights
        Metric(
            "rltrace_policy_version", GAUGE, ("run",), "The newest policy version of any process."
        ),
        Metric(
            "rltrace_sync_duration_seconds",
            HISTOGRAM,
            ("run", "part"),
            "One participant's part (source, relay, sink) in one weight update.",
            distribution.SYNC_S,
        ),
        Metric(
            "rltrace_sync_bytes_total",
            COUNTER,
            ("run", "part"),
            "Bytes of weights that participants gave or took.",
        ),
        # devices and hosts
        Metric("rltrace_gpu_busy_ratio", GAUGE, _DEVICE, "Busy share of the GPU (NVML), 0 to 1."),
        Metric("rltrace_gpu_memory_used_bytes", GAUGE, _DEVICE, "GPU memory in use."),
        Metric("rltrace_gpu_memory_total_bytes", GAUGE, _DEVICE, "GPU memory there is."),
        Metric("rltrace_gpu_power_watts", GAUGE, _DEVICE, "Power that the GPU draws."),
        Metric("rltrace_host_cpu_busy_seconds_total", COUNTER, _HOST, "Busy time of all cores."),
        Metric("rltrace_host_memory_available_bytes", GAUGE, _HOST, "Memory that can be had."),
        Metric("rltrace_host_memory_total_bytes", GAUGE, _HOST, "Memory there is."),
        # the exporter
        Metric(
            "rltrace_exporter_cpu_seconds_total",
            COUNTER,
            ("run",),
            "CPU time of the exporter itself.",
        ),
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
