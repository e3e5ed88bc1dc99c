"""RLinf's scheduler on a CPU: its cluster, groups of workers, a channel between them, and the timer
of its runners. What the workers do is this file's; they tell rltrace of samples as any loop may.

    python rlinf_loop.py STEPS
"""

from __future__ import annotations

import sys

import own_ray
import ray

ray.init = own_ray.start  # RLinf joins any Ray that it finds on the machine

import rlinf_workers  # noqa: E402
from job_stamps import stamp  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy  # noqa: E402
from rlinf.utils.distributed import ScopedTimer  # noqa: E402
from rlinf.utils.metric_logger import MetricLogger  # noqa: E402

RANKS = 2
CONFIG = {
    "runner": {"logger": {"logger_backends": []}, "seq_length": 2048},
    "actor": {"training_backend": "megatron", "megatron": {"use_hf_ckpt": None}},
    "algorithm": {"group_size": 8, "sampling_params": {"max_new_tokens": "${runner.seq_length}"}},
}


def main(steps: int) -> None:
    """A step: all ranks generate, one trains, all get its version."""
    MetricLogger(OmegaConf.create(CONFIG))
    cluster = Cluster(num_nodes=1)
    rollout = rlinf_workers.Rollout.create_group().launch(
        cluster=cluster, placement_strategy=NodePlacementStrategy([0] * RANKS), name="RolloutGroup"
    )
    actor = rlinf_workers.Actor.create_group().launch(
        cluster=cluster, placement_strategy=NodePlacementStrategy([0]), name="ActorGroup"
    )
    channel = Channel.create(name="samples")
    timer = ScopedTimer()
    for step in range(steps):
        with timer("step"):
            with timer("generate_rollouts"):
                generating = rollout.rollout(channel)
            with timer("actor_training"):
                actor.run_training(channel, step, RANKS).wait()
            generating.wait()
            with timer("sync_weights"):
                rollout.load(step + 1).wait()
        stamp("timed", step=step, labels=sorted(timer.consume_durations()))


if __name__ == "__main__":
    main(int(sys.argv[1]))
