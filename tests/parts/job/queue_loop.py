"""An asynchronous loop of two Ray actors that meet in TransferQueue only, as AsyncFlow's do. The
actor that generates tags its samples with the version that it has; nothing is trained.

    python queue_loop.py STEPS
"""

from __future__ import annotations

import random
import sys
import time

import own_ray
import ray
import torch
import transfer_queue
from job_stamps import stamp
from tensordict import TensorDict

import rltrace

GROUP = 4
BATCH = 2 * GROUP
PARTITION = "train"


@ray.remote(num_cpus=0.5, max_concurrency=2)
class Generator:
    def __init__(self) -> None:
        transfer_queue.init()
        self.version, self.made = 0, 0
        self.lengths = random.Random(0)

    def load(self, version: int) -> None:
        self.version = version

    def run(self, groups: int) -> None:
        for _ in range(groups):
            length = self.lengths.choice([16, 16, 16, 64])
            time.sleep(0.002 * length)
            keys = [f"s{self.made + place}" for place in range(GROUP)]
            self.made += GROUP
            tokens, logprobs = torch.randint(0, 99, (GROUP, length)), torch.zeros(GROUP, length)
            fields = TensorDict({"tokens": tokens, "logprobs": logprobs}, batch_size=GROUP)
            version = self.version
            tags = [{"version": version, "length": length}] * GROUP
            size = GROUP * length * (8 + 4)
            start_ns = time.time_ns()
            where = {"keys": keys, "partition_id": PARTITION}
            transfer_queue.kv_batch_put(**where, fields=fields, tags=tags)
            stamp("put", start_ns, keys=keys, bytes=size, version=version)


@ray.remote(num_cpus=0.5)
class Trainer:
    """Takes batches, the oldest samples first."""

    def __init__(self) -> None:
        transfer_queue.init()
        self.version = 0
        with rltrace.weight_update(0):
            pass

    def step(self) -> int:
        while len(ready := self.ready()) < BATCH:
            time.sleep(0.01)
        taken = sorted(ready, key=lambda key: int(key[1:]))[:BATCH]
        with rltrace.step(self.version):
            for length in sorted({int(ready[key]["length"]) for key in taken}):
                self.take([key for key in taken if ready[key]["length"] == length], ready)
        transfer_queue.kv_clear(taken, PARTITION)
        self.version += 1
        with rltrace.weight_update(self.version):
            pass
        return self.version

    def ready(self) -> dict[str, dict[str, int]]:
        """The samples that are there, with their tags. A key is listed before its tag is there."""
        listed = transfer_queue.kv_list(PARTITION).get(PARTITION, {})
        return {key: tag for key, tag in listed.items() if "version" in tag}

    def take(self, keys: list[str], tags: dict[str, dict[str, int]]) -> None:
        """Samples of one length."""
        start_ns = time.time_ns()
        data = transfer_queue.kv_batch_get(keys, PARTITION)
        size = sum(field.numel() * field.element_size() for field in data.values())
        lags = [self.version - tags[key]["version"] for key in keys]
        stamp("get", start_ns, keys=keys, bytes=size, lags=lags)


def main() -> None:
    steps = int(sys.argv[1])
    own_ray.start()
    transfer_queue.init()
    generator, trainer = Generator.remote(), Trainer.remote()
    generating = generator.run.remote(2 * steps)
    for _ in range(steps):
        version = ray.get(trainer.step.remote())
        if version % 2 == 0:  # so that lags differ, however slow either of the two is
            generator.load.remote(version)
    ray.get(generating)
    transfer_queue.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
