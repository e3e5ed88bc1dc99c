"""Processes beside the benchmark's own, which do what they are asked over a pipe, in time or not at
all: one that does not answer is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.gpu import models
from rltrace.sync import Publisher, Subscriber, layout_of

_LATE_S = 20.0
_SPAWN = multiprocessing.get_context("spawn")  # a forked one could not use the GPU


class Child:
    """A process. `ask` has it call one of `COMMANDS` and returns the answer."""

    def __init__(self, device: str, lives_s: float) -> None:
        self._pipe, there = _SPAWN.Pipe()
        self._owes = 0
        self.process = _SPAWN.Process(target=_serve, args=(there, device, lives_s), daemon=True)
        self.process.start()
        there.close()

    def tell(self, command: str, *arguments: Any) -> None:
        """Asks; `answer` has to follow. What nobody waited for is dropped."""
        while self._owes:
            try:
                self.answer(_LATE_S)
            except RuntimeError:
                if not self.process.is_alive():
                    raise
        self._pipe.send((command, arguments))
        self._owes += 1

    def answer(self, patience_s: float) -> Any:
        """Errors: `RuntimeError` where it fails, has ended, or does not answer in time: then it is
        killed."""
        self._owes -= 1
        if not self._pipe.poll(patience_s):
            self.kill()
            raise RuntimeError(f"the other process did not answer for {patience_s:g} s")
        try:
            is_well, said = self._pipe.recv()
        except EOFError as error:
            raise RuntimeError("the other process has ended") from error
        if not is_well:
            raise RuntimeError(f"in the other process: {said}")
        return said

    def ask(self, command: str, *arguments: Any, patience_s: float = 30.0) -> Any:
        """Errors: those of `answer`."""
        self.tell(command, *arguments)
        return self.answer(patience_s)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(10)


def _serve(pipe: Connection, device: str, lives_s: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.alarm(int(lives_s) + 1)  # whatever it is in then: its end
    worker = _Worker(device, pipe)
    while True:
        try:
            command, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, COMMANDS[command](worker, *arguments)))
        except Exception:
            pipe.send((False, traceback.format_exc()))


class _Worker:
    """What one process keeps between commands."""

    def __init__(self, device: str, pipe: Connection) -> None:
        self.device, self.pipe = device, pipe
        self.weights = models.Weights()
        self.names: list[str] = []
        self.subscriber: Subscriber | None = None
        self.bucket: Any = None

    def ready(self) -> str:
        """Its device can be used."""
        torch.zeros(1, device=self.device)
        return torch.__version__

    def make(self, kind: str, gib: float, *sizes: int) -> int:
        """Weights of its own, of the same shapes as the other side's."""
        self.close()
        made = models.dense if kind == "dense" else models.experts
        self.weights = made(gib, self.device, *sizes)
        self.names = list(self.weights)
        return len(self.weights)

    def connect(self, where: str) -> None:
        self.subscriber = Subscriber.connect(where, timeout_s=20)

    def pull(self, verify: bool | None) -> float:
        """Seconds of one pull of the latest version."""
        assert self.subscriber is not None
        began = time.perf_counter()
        self.subscriber.pull_into(self.weights, verify=verify)
        return time.perf_counter() - began

    def sum(self) -> int:
        return models.sum_of(self.weights)

    def pull_for(self, seconds: float) -> tuple[int, int, int]:
        """Pulls all the time: pulls, torn ones, and such that went back. Every element of a version
        is its step modulo 128."""
        assert self.subscriber is not None
        pulls = torn = back = before = 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.subscriber.pull_into(self.weights)
            pulls += 1
            assert self.subscriber.applied is not None
            step = self.subscriber.applied.step
            tensors = self.weights.values()
            ends = torch.stack([end for t in tensors for end in (t.amin(), t.amax())]).unique()
            torn += ends.tolist() != [float(step % 128)]
            back += step < before
            before = step
        return pulls, torn, back

    def publish_for_ever(self, where: str, gib: float) -> None:
        """Publishes versions of which every element is the step modulo 128, until it is killed."""
        self.weights = models.dense(gib, self.device)
        publisher = Publisher.open(layout_of(self.weights), where)
        step = 0
        while True:
            step += 1
            for tensor in self.weights.values():
                tensor.fill_(step % 128)
            publisher.publish(self.weights, step)
            if step == 3:
                self.pipe.send((True, step))

    def take_handles(self, handles: list[tuple[Callable[..., Any], tuple[Any, ...]]]) -> None:
        """What is sent as one handle a tensor, copied to its own."""
        for name, (rebuild, arguments) in zip(self.names, handles, strict=True):
            self.weights[name].copy_(rebuild(*arguments))
        synchronise(self.device)

    def open_bucket(self, handle: tuple[Callable[..., Any], tuple[Any, ...]]) -> None:
        rebuild, arguments = handle
        self.bucket = rebuild(*arguments)

    def take_bucket(self, parts: list[tuple[str, int, int]]) -> None:
        """A bucket's tensors, (name, begin, end), copied to its own; as verl's receiver does."""
        for name, begin, end in parts:
            target = self.weights[name]
            target.copy_(self.bucket[begin:end].view(target.dtype).view(target.shape))
        synchronise(self.device)

    def close(self) -> None:
        if self.subscriber is not None:
            self.subscriber.close()
        self.subscriber = self.bucket = None
        self.weights = models.Weights()
        if self.device != "cpu":
            torch.cuda.empty_cache()


def synchronise(device: str) -> None:
    """Waits for the device."""
    if device != "cpu":
        torch.cuda.synchronize()


COMMANDS: dict[str, Callable[..., Any]] = {
    name: getattr(_Worker, name)
    for name in (
        *("ready", "make", "connect", "pull", "sum", "pull_for", "publish_for_ever"),
        *("take_handles", "open_bucket", "take_bucket", "close"),
    )
}
