"""What a way of moving weights has to offer to be measured, and the receivers that it is given."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from rltrace.sync.bench.models import Model, Weights, digest
from rltrace.trace.errors import CANNOT_TELL, RltraceError

_PATIENCE_S = 300.0
_GRACE_S = 2.0
OTHER_BITS = 99
"""The seed of what receivers hold at first."""

Receive = Callable[[Any], None]
"""Brings what was told of (see `Sender.send`) into a receiver's own tensors."""


@dataclass(frozen=True)
class Setting:
    """One learner and so many receivers. `folder` is in shared memory, and empty at first.
    `threads` is how many a receiver may use; the learner has `learner_threads`."""

    model: Model
    receivers: int
    folder: str
    learner_threads: int
    threads: int


class Sender(Protocol):
    """The learner's side."""

    def send(self, number: int, weights: Weights) -> Any:
        """Makes the weights version `number`, which counts from 1. They may change as soon as this
        returns. What it returns is told to the receivers, where they are told after."""

    def close(self) -> None:
        """Frees everything."""


class Receivers(Protocol):
    """The receivers of one setting."""

    def wait_until_ready(self) -> None:
        """Errors: `RltraceError` where one of them has ended."""

    def tell(self, what: Any) -> None:
        """Has each begin to receive; returns when all do."""

    def ends(self) -> list[float]:
        """When each had its weights, by the monotonic clock."""

    def digests(self) -> list[str]:
        """Of what each holds."""

    def close(self) -> None:
        """Ends them."""


class Way(Protocol):
    """A way to move weights. It is sent to the receivers' processes, so it holds no state."""

    @property
    def name(self) -> str:
        """What it is called in tables."""

    @property
    def told_first(self) -> bool:
        """Whether receivers wait for the version, or take part in it; else they are told after."""

    def missing(self, receivers: int) -> str:
        """Why it cannot be had here; "" where it can."""

    def between_bytes(self, size_bytes: int, receivers: int) -> int:
        """Bytes that a version takes between the learner's tensors and the receivers' own: copies
        in shared memory, or what went over connections."""

    def session(self, model: Model) -> AbstractContextManager[None]:
        """What all its settings share."""

    def receivers(self, setting: Setting) -> Receivers:
        """Starts them; they need not be ready."""

    def sender(self, setting: Setting) -> Sender:
        """Called while the receivers start."""


class ByProcess(Protocol):
    """A way whose receivers are processes that are told through pipes."""

    def receiver(self, setting: Setting, number: int, weights: Weights) -> Receive:
        """In the receiver's process; `number` counts from 0."""


class Alone:
    """What ways have in common that need nothing but processes."""

    def session(self, model: Model) -> AbstractContextManager[None]:
        """As `Way.session`: there is nothing to share."""
        return nullcontext()

    def receivers(self: ByProcess, setting: Setting) -> Receivers:
        """As `Way.receivers`."""
        return Processes(self, setting)


class Processes:
    """Receivers that are processes of their own."""

    def __init__(self, way: ByProcess, setting: Setting) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for number in range(setting.receivers):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_receive, args=(theirs, way, setting, number), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def wait_until_ready(self) -> None:
        """As `Receivers.wait_until_ready`."""
        self._answers()

    def tell(self, what: Any) -> None:
        """As `Receivers.tell`."""
        self._ask("receive", what)
        self._answers()

    def ends(self) -> list[float]:
        """As `Receivers.ends`."""
        return [float(end) for end in self._answers()]

    def digests(self) -> list[str]:
        """As `Receivers.digests`."""
        self._ask("digest")
        return [str(found) for found in self._answers()]

    def close(self) -> None:
        """As `Receivers.close`."""
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(("end", None))
            pipe.close()
        for process in self._processes:
            process.join(_GRACE_S)
            process.kill()  # it may wait for a version that will not come
            process.join()

    def _ask(self, asked: str, what: Any = None) -> None:
        try:
            for pipe in self._pipes:
                pipe.send((asked, what))
        except OSError as error:
            raise RltraceError("a receiver has ended", CANNOT_TELL) from error

    def _answers(self) -> list[Any]:
        found = []
        for pipe in self._pipes:
            try:
                if not pipe.poll(_PATIENCE_S):
                    raise RltraceError("a receiver does not answer", CANNOT_TELL)
                answer = pipe.recv()
            except (EOFError, OSError) as error:
                raise RltraceError("a receiver has ended", CANNOT_TELL) from error
            if isinstance(answer, Exception):
                raise RltraceError(f"a receiver failed: {answer}", CANNOT_TELL) from answer
            found.append(answer)
        return found


def _receive(pipe: Connection, way: ByProcess, setting: Setting, number: int) -> None:
    """A receiver: does what it is told until the pipe ends."""
    import torch

    torch.set_num_threads(setting.threads)
    try:
        weights = setting.model.made(OTHER_BITS)
        receive = way.receiver(setting, number, weights)
        pipe.send("ready")
        while True:
            asked, what = pipe.recv()
            if asked == "end":
                return
            if asked == "digest":
                pipe.send(digest(weights))
                continue
            pipe.send("waiting")
            receive(what)
            pipe.send(time.monotonic())
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:
        with suppress(OSError):
            pipe.send(RuntimeError(repr(error)))
