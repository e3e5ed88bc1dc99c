"""The parts of benchmarks/gpu/sync.py that are about versions: see there."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.gpu import floors, models, peers
from benchmarks.gpu.changes import changes_by_block
from benchmarks.gpu.children import Child, synchronise
from benchmarks.gpu.report import Report, median, timed
from rltrace.sync import Publisher, Subscriber, layout_of
from rltrace.testing.inside.sync import device_memory as device_kernels
from rltrace.testing.inside.sync import device_memory_block_digests as block_digests

_HOST_THREADS = 8
_WAIT_S = 60.0
SECONDS_OF_PULLS = 4.0


class Parts:
    """This process is the learner; `worker` receives, and `other` is a learner that is killed."""

    def __init__(self, report: Report, gib: float, cpu: bool, reps: int, limit_s: int) -> None:
        self.report, self.gib, self.cpu, self.reps = report, gib, cpu, reps
        self.device = "cpu" if cpu else "cuda:0"
        self._limit_s = limit_s
        self.name = f"bench-{os.getpid()}"
        # They load torch while the floors are measured.
        self.worker, self.other = (Child(self.device, limit_s) for _ in range(2))
        self.floors = floors.Floors(report, self.device, gib, reps)
        self.weights = models.Weights()

    def listed(self) -> list[tuple[str, Callable[[], None]]]:
        """In the order of what is to be known first."""
        return [
            ("floors", self.part_floors),
            ("dense", self.part_dense),
            ("peers", self.part_peers),
            ("experts", self.part_experts),
            ("expert peers", self.part_expert_peers),
            ("digests", self.part_digests),
            ("compare", self.part_compare),
            ("host", self.part_host),
            ("torn", self.part_torn),
            ("files", self.part_files),
            ("group", self.part_group),
            ("kills", self.part_kills),
        ]

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *_: object) -> None:
        for child in (self.worker, self.other):
            child.kill()

    def part_floors(self) -> None:
        """Copies on the device and over the link, and reading."""
        if not self.cpu:
            properties = torch.cuda.get_device_properties(0)
            self.report.about |= {
                "device": properties.name,
                "memory": properties.total_memory,
                "cuda": torch.version.cuda,
            }
        self.report.about |= {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "cores": len(os.sched_getaffinity(0)),
        }
        self.floors.measure()
        for child in (self.worker, self.other):
            child.ask("ready", patience_s=_WAIT_S)

    def part_dense(self) -> None:
        """A 7B model's tensors through `cuda://`, between two processes."""
        self._make("dense", self.gib)
        self._through_device("7B", goal=0.8)

    def part_experts(self) -> None:
        """Many small tensors through `cuda://`."""
        sizes = (4, 4) if self.cpu else (48, 128)
        self._make("experts", self.gib, *sizes)
        self._through_device("experts", goal=0.0)

    def part_peers(self) -> None:
        """The same by a handle for each tensor, and by verl's buckets."""
        self._peers("7B", self.reps)

    def part_expert_peers(self) -> None:
        """The same of the small ones, which takes long."""
        self._peers("experts", min(3, self.reps))

    def part_digests(self) -> None:
        """The digests of all blocks of a slot."""
        self._make("", 0)
        size = int(self.gib / 2 * (1 << 30)) // 8 * 8
        data = torch.randint(0, 127, (size // 8,), device=self.device).view(torch.uint8)
        found = torch.zeros(-(-size // device_kernels.BLOCK_BYTES), dtype=torch.int64)
        found = found.to(self.device)

        by_triton = device_kernels.kernels_run_on(data)
        self.report.about["kernels"] = "Triton" if by_triton else "torch"

        def take() -> None:
            block_digests(data, found)
            synchronise(self.device)

        seconds = timed(take, self.reps)
        floor = self.floors.read_s(size)
        self.report.add("digests of blocks", seconds=seconds, bytes=size, floor_s=floor)
        first = data[: 3 * device_kernels.BLOCK_BYTES].cpu()
        again = torch.zeros(-(-len(first) // device_kernels.BLOCK_BYTES), dtype=torch.int64)
        block_digests(first, again)
        same = torch.equal(again, found[: len(again)].cpu())
        self.report.add("digests are those of the host", value=str(same), holds=same)

    def part_compare(self) -> None:
        """How many of the elements of two versions differ by block, one in a hundred."""
        find = changes_by_block
        count = int(self.gib / 3 * (1 << 30)) // 8 * 4
        old = torch.randint(-30000, 30000, (count,), dtype=torch.int16, device=self.device)
        new = old.clone()
        new[::101] += 1
        words = old.view(torch.int64), new.view(torch.int64)
        found: list[Any] = [None]

        def compare() -> None:
            found[0] = find(*words)
            synchronise(self.device)

        seconds = timed(compare, self.reps)
        floor = self.floors.read_s(4 * count)
        row = self.report.add("compare 1 %", seconds=seconds, bytes=4 * count, floor_s=floor)
        row.goal = 0.0 if self.cpu else 0.6
        total = int(found[0].sum())
        right = total == len(range(0, count, 101))
        self.report.add("changes found", value=f"{total:,}", holds=right)
        cut = [each[: 1 << 22] for each in words]
        same = torch.equal(find(*cut).cpu(), find(*(each.cpu() for each in cut)))
        self.report.add("changes are those of torch", value=str(same), holds=same)

    def part_host(self) -> None:
        """Publishing to the host's memory, pulling from there, and what a GEMM loop sees of it."""
        gib = min(self.gib / 4, floors.shared_memory_gib() / 3)
        self._make("dense", self.gib, alone=True)
        weights = models.part_of(self.weights, gib)
        size, where = models.bytes_of(weights), f"shm://{self.name}-host"
        layout = layout_of(weights)
        goal = 0.0 if self.cpu else 0.9
        with Publisher.open(layout, where, threads=_HOST_THREADS) as publisher:
            began = time.perf_counter()
            publisher.publish(weights, 0)
            first_s = time.perf_counter() - began
            floor = self.floors.down_s(size)
            seconds = timed(lambda: _only(publisher.publish(weights, 1)), self.reps)
            note = f"first one {first_s:.1f} s"
            told = {"bytes": size, "floor_s": floor, "goal": goal}
            self.report.add("publish to the host", seconds=seconds, note=note, **told)
            self._beside_gemm(publisher, weights)
            there = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
            with Subscriber.connect(where, threads=_HOST_THREADS) as subscriber:
                for verify, what in ((None, "pull from the host"), (False, "  unchecked")):
                    seconds = timed(
                        lambda v=verify: _only(subscriber.pull_into(there, verify=v)), self.reps
                    )
                    floor = self.floors.up_s(size)
                    self.report.add(what, seconds=seconds, bytes=size, floor_s=floor)
                same = models.sum_of(there) == models.sum_of(weights)
                self.report.add("what was pulled is what was published", holds=same)
            publisher._filler.hashing = False
            seconds = timed(lambda: _only(publisher.publish(weights, 2)), self.reps)
            self.report.add("publish to the host, no digests", seconds=seconds, **told)
        masters = {
            name: tensor.float() for name, tensor in models.part_of(weights, gib / 2).items()
        }
        layout = layout_of(masters, dtype="bfloat16")
        with Publisher.open(layout, f"{where}-cast", threads=_HOST_THREADS) as publisher:
            seconds = timed(lambda: _only(publisher.publish(masters, 1)), self.reps)
            floor = self.floors.down_s(layout.bytes)
            told = {"bytes": layout.bytes, "floor_s": floor, "seconds": seconds}
            self.report.add("publish fp32 as bf16 to the host", **told)

    def _beside_gemm(self, publisher: Publisher, weights: models.Weights) -> None:
        """How much longer a loop of matrix products takes while a version is published."""
        side = 256 if self.cpu else 8192
        kind = torch.float32 if self.cpu else torch.bfloat16
        one, other = (torch.ones(side, side, dtype=kind, device=self.device) for _ in range(2))
        out = torch.empty_like(one)

        def loop(count: int) -> None:
            for _ in range(count):
                torch.mm(one, other, out=out)
            synchronise(self.device)

        each = median(timed(lambda: loop(5), 5)) / 5
        publish = median(timed(lambda: _only(publisher.publish(weights, 3)), 3, warm=0))
        count = max(1, round(publish / each))
        alone = timed(lambda: loop(count), self.reps)

        def beside() -> float:
            publisher.publish_async(weights, 4)
            began = time.perf_counter()
            loop(count)
            took = time.perf_counter() - began
            publisher.gate()
            return took

        seconds = timed(beside, self.reps)
        extra = (median(seconds) - median(alone)) / publish
        holds = None if self.cpu else extra <= 0.03
        note = f"{count} GEMMs take {extra:+.1%} of a publication more (goal 3 %)"
        row = self.report.add("GEMM loop beside a publication", seconds=seconds, note=note)
        row.holds = holds
        self.report.add("GEMM loop alone", seconds=alone)

    def part_torn(self) -> None:
        """Publishing without a pause, and pulling without one: what is pulled is whole."""
        for scheme in ("cuda", "shm"):
            gib, where = min(self.gib / 14, 1.0), f"{scheme}://{self.name}-torn"
            self._make("dense", gib)
            step, until = 0, time.monotonic() + (0.5 if self.cpu else SECONDS_OF_PULLS / 2)
            with Publisher.open(layout_of(self.weights), where, threads=2) as publisher:
                self._publish_step(publisher, 1)
                self.worker.ask("connect", where)
                self.worker.tell("pull_for", until - time.monotonic())
                while time.monotonic() < until:
                    step += 1
                    self._publish_step(publisher, 1 + step)
                pulls, torn, back = self.worker.answer(_WAIT_S)
                self.worker.ask("close")
            value = f"{torn} torn, {back} back of {pulls}"
            said, holds = f"{step} published", not torn and not back and pulls > 0
            self.report.add(f"pulls by {scheme}://", value=value, holds=holds, note=said)

    def part_files(self) -> None:
        """torch.save and safetensors in shared memory."""
        self._make("dense", self.gib, alone=True)
        gib = min(self.gib / 28, 0.5, floors.shared_memory_gib() / 3)
        peers.files(
            self.report,
            models.part_of(self.weights, gib),
            self.device,
            self.name,
            min(5, self.reps),
        )

    def part_group(self) -> None:
        """The broadcasts of a group, with nobody to hear them: NCCL refuses two ranks on a GPU."""
        peers.group_of_one(self.report, self.cpu, self.name)

    def part_kills(self) -> None:
        """SIGKILL in the middle of copies, of a reader and of a publisher."""
        gib, where = min(self.gib / 7, 2.0), f"cuda://{self.name}-kills"
        self._make("", 0)
        self.other.ask("publish_for_ever", where, gib, patience_s=_WAIT_S)
        here = models.dense(gib, self.device)
        with Subscriber.connect(where) as subscriber:
            self._pulls_whole("beside a learner", subscriber, here)
            self.worker.ask("make", "dense", gib)
            self.worker.ask("connect", where)
            self.worker.tell("pull_for", 30.0)
            time.sleep(0.5)
            self.worker.kill()
            before = subscriber.latest()
            began = time.perf_counter()
            subscriber.wait(newer=True, at_least=(before.counter if before else 0) + 3)
            took = time.perf_counter() - began
            self.report.add("3 versions after a reader was killed", seconds=[took])
            self._pulls_whole("after a reader was killed", subscriber, here)
            self.other.kill()
            self._pulls_whole("after the publisher was killed", subscriber, here, newer=False)
            self.weights = models.dense(gib, self.device)
            began = time.perf_counter()
            with Publisher.open(layout_of(self.weights), where) as publisher:
                self._publish_step(publisher, 77)
                subscriber.pull_into(here, newer=True)
                took = time.perf_counter() - began
                self.report.add("its successor's first version pulled", seconds=[took])
                self._pulls_whole("of the successor", subscriber, here, step=77)

    def _pulls_whole(
        self,
        when: str,
        subscriber: Subscriber,
        here: models.Weights,
        newer: bool = True,
        step: int | None = None,
    ) -> None:
        whole = 0
        for _ in range(5):
            subscriber.pull_into(here, newer=newer and step is None, timeout_s=10)
            found = torch.stack([end for t in here.values() for end in (t.amin(), t.amax())])
            assert subscriber.applied is not None
            applied = subscriber.applied.step
            wanted = float(applied % 128)
            whole += found.unique().tolist() == [wanted] and step in (None, applied)
        self.report.add(f"whole pulls {when}", value=f"{whole} of 5", holds=whole == 5)

    def _publish_step(self, publisher: Publisher, step: int) -> None:
        for tensor in self.weights.values():
            tensor.fill_(step % 128)
        publisher.publish(self.weights, step)

    def _make(self, kind: str, gib: float, *sizes: int, alone: bool = False) -> None:
        """Weights on both sides, or here `alone`, in place of those that were there."""
        self.weights = models.Weights()
        if not self.cpu:
            torch.cuda.empty_cache()
        if not self.worker.process.is_alive():  # it did not answer a part before
            self.worker = Child(self.device, self._limit_s)
            self.worker.ask("ready", patience_s=_WAIT_S)
        self.worker.ask("close")
        if kind:
            made = models.dense if kind == "dense" else models.experts
            self.weights = made(gib, self.device, *sizes)
            models.redraw(self.weights, 1)
            if not alone:
                self.worker.ask("make", kind, gib, *sizes)
        self._made = kind, gib, sizes

    _made: tuple[str, float, tuple[int, ...]] = "", 0.0, ()

    def _through_device(self, what: str, goal: float) -> None:
        size, where = models.bytes_of(self.weights), f"cuda://{self.name}"
        goal = 0.0 if self.cpu else goal
        for hashing in (False, True):
            with Publisher.open(layout_of(self.weights), where, hashing=hashing) as publisher:
                packs: list[float] = []
                unpacks: list[float] = []
                publisher.publish(self.weights, 0)
                self.worker.ask("connect", where)
                both = timed(partial(self._update, publisher, packs, unpacks), self.reps)
                floor, said = self.floors.copy_s(size), " with digests" if hashing else ""
                told = {"bytes": size, "floor_s": 2 * floor, "goal": 0.0 if hashing else goal}
                self.report.add(f"{what}: pack and unpack{said}", seconds=both, **told)
                for name, times in (("pack", packs[2:]), ("unpack", unpacks[2:])):
                    told = {"seconds": times, "bytes": size, "floor_s": floor}
                    self.report.add(f"  {name}{said}", **told)
                models.redraw(self.weights, 2 + hashing)
                publisher.publish(self.weights, 2)
                self.worker.ask("pull", None)
                same = self.worker.ask("sum") == models.sum_of(self.weights)
                self.report.add(f"{what}: what came is what was sent", holds=same)
                self.worker.ask("close")
                kind, gib, sizes = self._made
                self.worker.ask("make", kind, gib, *sizes)

    def _update(self, publisher: Publisher, packs: list[float], unpacks: list[float]) -> None:
        began = time.perf_counter()
        publisher.publish(self.weights, 1)
        packs.append(time.perf_counter() - began)
        unpacks.append(self.worker.ask("pull", None))

    def _peers(self, what: str, reps: int) -> None:
        if not self.weights:
            raise RuntimeError("the part before has made no weights")
        size = models.bytes_of(self.weights)
        floor = 2 * self.floors.copy_s(size)
        for name, way in (
            ("a handle for each tensor", peers.Handles(self.worker, self.weights)),
            ("verl's buckets", peers.Buckets(self.worker, self.weights, self.device)),
        ):
            models.redraw(self.weights, 5)
            seconds = timed(way.update, reps, warm=1)
            told = {"seconds": seconds, "bytes": size, "floor_s": floor}
            self.report.add(f"{what}: {name}", **told)
            same = self.worker.ask("sum") == models.sum_of(self.weights)
            self.report.add(f"{what}: what came is what was sent", holds=same)
            way.close()


def _only(_: object) -> None:
    """Nothing: what is timed is the call."""
