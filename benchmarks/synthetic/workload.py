"""What a synthetic run is made of: every knob of the generator."""

from __future__ import annotations

from dataclasses import dataclass

PLACEMENTS = ("colocated", "disaggregated", "one-step-off", "async")


@dataclass(frozen=True)
class Workload:
    """A synthetic RL job. Two equal workloads give byte-identical traces."""

    seed: int = 0
    placement: str = "colocated"

    # The machines and processes (one driver, one agent a node, and these).
    nodes: int = 1
    gpus: int = 8  # 0: a job on CPU
    cores_per_node: int = 16
    runnable_threads: int = -1  # that want a core of a node, at each reading; -1: nobody reads it
    gpu_name: str = "NVIDIA H100 80GB HBM3"
    rollout_workers: int = 4
    reward_workers: int = 2
    learners: int = 2

    # The loop.
    steps: int = 20
    warmup_steps: int = 2
    warmup_factor: float = 2.5  # warm-up stages take this many times as long
    jitter: float = 0.02  # log-sd of every stage's length from step to step
    prompts: int = 16
    group: int = 8

    # Generation: lognormal response lengths with a cap, one slot for each sample.
    prompt_tokens: int = 256
    median_tokens: float = 400.0
    sigma: float = 0.8
    max_tokens: int = 4096
    first_token_s: float = 0.05
    seconds_per_token: float = 0.002
    env_s: float = 0.0  # median tool time inside a trajectory; 0: none

    # The other stages, seconds a step.
    reward_s: float = 0.5  # median latency of one verdict, lognormal
    reward_sigma: float = 0.3
    reward_streamed: bool = False  # verdicts start as samples finish, not after the batch
    reward_timeouts: float = 0.0  # share of verdicts
    reference_s: float = 0.6
    logprob_s: float = 0.5
    train_s: float = 2.5
    train_overlap: float = 0.5  # disaggregated: share of the learner's chain under generation
    switch_s: float = 0.3  # colocated: engine sleep and wake
    gap_s: float = 0.1  # time of a step that no span covers

    # Freshness and selection.
    lags: tuple[float, ...] = (0.3, 0.5, 0.2)  # async: P(lag in steps = 0, 1, 2, ...)
    mixed: float = 0.0  # async: share of trajectories that saw a version change
    unknown_versions: float = 0.0  # share of trajectories without a version
    zero_groups: float = 0.1  # share of groups whose samples all got the same reward
    zero_groups_dropped: bool = False
    dropped: tuple[tuple[str, float], ...] = (("stale", 0.02), ("truncated", 0.03))

    # Weight sync.
    sync_s: float = 0.4
    sync_bytes: int = 15_231_233_024
    stall_s: float = 0.1

    # Failures.
    kill_step: int = -1  # rollout worker 0 dies in this step; -1: nobody dies
    torn: bool = False  # a file cut in its first batch and a file that is no Arrow

    # Size: inner spans are added to the rollout workers until the run has about this many.
    spans: int = 0

    def __post_init__(self) -> None:
        if self.placement not in PLACEMENTS:
            raise ValueError(f"placement {self.placement!r} is none of {', '.join(PLACEMENTS)}")
        if self.kill_step >= 0 and self.rollout_workers < 2:
            raise ValueError("kill_step needs a second rollout worker to carry on")
