"""What a way of moving weights offers to be measured, and its receivers."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks.sync_bench.models import Model, Weights, digest
from rltrace.testing.inside.trace import CANNOT_TELL, RltraceError

_PATIENCE_S = 300.0
_GRACE_S = 2.0
OTHER_BITS = 99  # the seed of what receivers hold at first
Receive = Callable[[Any], object]  # brings what was told of into a receiver's own tensors


@dataclass(frozen=True)
class BenchSetting:
    """One learner and its receivers, with `threads` each. `folder` is in shared memory."""

    model: Model
    receivers: int
    folder: str
    threads: int


@dataclass(frozen=True)
class Sender:
    send: Callable[[int, Weights], Any]  # makes version n, from 1 on; returns what to tell
    close: Callable[[], None] = lambda: None


class Way:
    """A way to move weights. It is sent to the receivers' processes, so it holds no state."""

    told_first = True  # whether receivers wait for the version; else they are told after
    in_crowd = True  # whether its receivers are of the crowd; else processes of their own

    @property
    def name(self) -> str:
        raise NotImplementedError

    def missing(self, receivers: int) -> str:
        """Why it cannot be had here; "" where it can."""
        return ""

    def between_bytes(self, size_bytes: int, receivers: int) -> int:
        """Bytes of a version between both sides' tensors: copied in memory, or sent."""
        return size_bytes

    def copies(self, receivers: int) -> int:
        """Copies of the weights that it keeps, beside those that all ways need."""
        return 0

    def session(self, model: Model, folder: Path) -> AbstractContextManager[None]:
        """What all its settings share. `folder` has a short path; it is removed after."""
        return nullcontext()

    def receivers(self, setting: BenchSetting, crowd: Crowd) -> Crowd:
        return crowd

    def sender(self, setting: BenchSetting) -> Sender:
        """Called while the receivers begin."""
        raise NotImplementedError

    def receiver(self, setting: BenchSetting, number: int, weights: Weights) -> Receive:
        """In the receiver's process, where that is of the crowd; `number` counts from 0."""
        raise NotImplementedError


class Crowd:
    """Receivers that are processes, which all ways use in turn unless they have their own."""

    def __init__(self, model: Model, count: int, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._turn = 0
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for number in range(count):
            ours, theirs = context.Pipe()
            told = (theirs, model, number, threads)
            process = context.Process(target=_receive, args=told, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._answers()

    def begin(self, way: Way, setting: BenchSetting) -> None:
        """Has each make ready, which may take the sender's side."""
        self._ask("begin", setting.folder, (way, setting))

    def wait_until_ready(self) -> None:
        """Errors: `RltraceError` where one of them has failed."""
        self._answers()

    def turn(self) -> int:
        """0 or 1, in turn: which of two states they are to have next, so that it is another one."""
        self._turn = 1 - self._turn
        return self._turn

    def tell(self, setting: BenchSetting, what: Any) -> None:
        """Has each begin to receive; returns when all do."""
        self._ask("receive", setting.folder, what)
        self._answers()

    def ends(self) -> list[float]:
        """When each had its weights, by the monotonic clock."""
        return [float(end) for end in self._answers()]

    def digests(self) -> list[str]:
        self._ask("digest", "", None)
        return [str(found) for found in self._answers()]

    def close(self) -> None:
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(("end", "", None))
            pipe.close()
        for process in self._processes:
            process.join(_GRACE_S)
            process.kill()  # it may wait for a version that will not come
            process.join()

    def _ask(self, *asked: Any) -> None:
        try:
            for pipe in self._pipes:
                pipe.send(asked)
        except OSError as error:
            raise RltraceError("a receiver has ended", CANNOT_TELL) from error

    def _answers(self) -> list[Any]:
        """One answer of each process. Errors: `RltraceError` where one has failed."""
        found = []
        for pipe in self._pipes:
            try:
                if not pipe.poll(_PATIENCE_S):
                    raise RltraceError("a receiver does not answer", CANNOT_TELL)
                found.append(pipe.recv())
            except (EOFError, OSError) as error:
                raise RltraceError("a receiver has ended", CANNOT_TELL) from error
        for answer in found:
            if isinstance(answer, Exception):
                raise RltraceError(f"a receiver failed: {answer}", CANNOT_TELL) from answer
        return found


def _receive(pipe: Connection, model: Model, number: int, threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    weights = model.made(OTHER_BITS)
    receives: dict[str, Receive] = {}
    with suppress(EOFError, BrokenPipeError):
        pipe.send("here")
        while True:
            asked, which, what = pipe.recv()
            if asked == "end":
                return
            try:
                if asked == "digest":
                    pipe.send(digest(weights))
                elif asked == "begin":
                    way, setting = what
                    receives[which] = way.receiver(setting, number, weights)
                    pipe.send("ready")
                else:
                    pipe.send("waiting")
                    receives[which](what)
                    pipe.send(time.monotonic())
            except Exception as error:
                pipe.send(RuntimeError(repr(error)))
