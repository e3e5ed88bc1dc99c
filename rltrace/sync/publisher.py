"""The learner's side: its weights, published whole, for one copy of them."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from operator import index
from time import monotonic_ns
from typing import Any

from rltrace.hooks.span_api import Phases, span
from rltrace.sync.memory.arena import Arena
from rltrace.sync.memory.copying import Workers
from rltrace.sync.memory.layout import Layout
from rltrace.sync.memory.locks import Closing, or_else
from rltrace.sync.memory.tensors import now_on_device
from rltrace.sync.recording import moved, transport_of
from rltrace.sync.slot_filling import Filler
from rltrace.sync.version import RUN, Version
from rltrace.trace.errors import WrongUsage
from rltrace.trace.segment import Row

_MOST_STEP = (1 << 63) - 1  # it is stored in 8 bytes


class Publisher(Closing):
    """Publishes one policy; there is one publisher of it at a time. Never waits for a subscriber
    longer than `patience_s`. Not for several threads at once."""

    def __init__(
        self, arena: Arena, where: str, hashing: bool, threads: int | None, patience_s: float
    ) -> None:
        self.arena, self.layout, self.patience_s = arena, arena.layout, patience_s
        self._transport = transport_of(where)
        self.skipped = 0
        """Versions that were left out because subscribers held every slot."""
        self.writes_rows = True
        """Whether a publication is a row of `syncs`; not so where an adapter writes one of it."""
        self._inline = Workers(threads)
        # One core is the learner's, which goes on meanwhile.
        self._behind = Workers(max(1, self._inline.threads - 1))
        self._filler = Filler(arena.layout, hashing)
        self._thread: ThreadPoolExecutor | None = None
        self._behind_learner: Future[tuple[Version | None, Row | None]] | None = None

    @staticmethod
    def open(
        layout: Layout,
        where: str = "shm://policy",
        slots: int = 2,
        spare: int = 1,
        run: str | None = None,
        hashing: bool = True,
        threads: int | None = None,
        patience_s: float = 0.05,
    ) -> Publisher:
        """Takes the memory of `slots` copies of the weights, now; up to `spare` more where
        subscribers are slow. One that was killed is taken over from: see `Arena.create`, also for
        `run`. Without `hashing` nobody can check what they receive. `threads` copy at a time; None:
        as many as there are cores, at most four. `patience_s` is how long a publication may wait
        for a slot.

        Errors: `RltraceError` where there is a live publisher or too little memory, and for an
        argument that is none.
        """
        _check_opening(layout, run)
        slots, spare = _whole_number("slots", slots), _whole_number("spare", spare)
        threads = None if threads is None else _whole_number("threads", threads)
        arena = Arena.create(where, layout, slots, spare, run)
        return Publisher(arena, where, hashing, threads, patience_s)

    def publish(self, weights: Any, step: int = -1) -> Version | None:
        """Copies the weights and makes them the latest version; they may change as soon as this
        returns. `weights` is what `layout_of` takes, with the tensors of the layout; floats are
        cast to its types on the way. `step` is the learner's.

        None where every slot but the latest was held by subscribers for `patience_s` and there is
        no room for another: this version is left out, and counted in `skipped`.

        Errors: `RltraceError` that names a tensor that does not fit the layout; what an iterable
        raises. Then the version before stays the latest.
        """
        step = _learner_step(step)
        self.gate()
        return self._publish(weights, step, True)[0]

    def publish_async(self, weights: Any, step: int = -1) -> None:
        """As `publish`, in a thread, behind what the learner does next. The weights must not change
        before `gate()` has returned: call it right before the next optimizer step, or let
        `gate_before(optimizer)` do that. One that is still under way is waited for first."""
        step = _learner_step(step)
        self.gate()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="rltrace.sync")
        after = now_on_device()  # of this thread's stream, which is not that of the other one
        self._behind_learner = self._thread.submit(self._publish, weights, step, False, *after)

    def gate(self) -> Version | None:
        """Waits until nothing is being published: from here on the weights may change. Returns what
        `publish` would have, where `publish_async` was called since the last gate.

        Errors: those of `publish`.
        """
        future, began_ns = self._behind_learner, monotonic_ns()
        if future is None:
            return None
        try:
            with nullcontext() if future.done() else span("wait", "weights being published"):
                version, row = future.result()
        finally:
            if future.done():  # else something of the job's has ended the wait
                self._behind_learner = None
        if row is not None:
            row.set(stall_ns=monotonic_ns() - began_ns)
        return version

    def gate_before(self, optimizer: Any) -> None:
        """Has a torch optimizer pass the gate before each of its steps."""

        def pass_it(*_: object) -> None:  # what a hook returns would be taken for arguments
            self.gate()

        optimizer.register_step_pre_hook(pass_it)

    def close(self) -> None:
        """Waits for what is being published, then lets go of the policy. Subscribers keep the
        latest version; where there are none, its memory is free again."""
        try:
            self.gate()
        finally:
            if self._thread is not None:
                self._thread.shutdown()
            self._filler.close()
            self._inline.close()
            self._behind.close()
            self.arena.close()

    def _publish(
        self, weights: Any, step: int, inline: bool, *after: Any
    ) -> tuple[Version | None, Row | None]:
        started_ns, size = monotonic_ns(), self.layout.bytes
        number = step if step >= 0 else self.arena.control.counter + 1
        workers = self._inline if inline else self._behind
        with span("sync", "publish", version=number) as whole, Phases(whole.start_ns) as phases:
            phases.begin("wait", "a free slot", version=number)
            slot = self.arena.write(self.patience_s)
            if slot is None:
                self.skipped += 1
                return None, None
            whole.set(bytes=size)
            with or_else(slot.abort):
                phases.begin("sync", "fill a slot", "transfer", version=number, bytes=size)
                self._filler.fill(weights, slot.data, slot.digests, workers, *after)
                phases.begin("sync", "flip", "visible", version=number)
                version = slot.commit(step, hashed=self._filler.hashing)
        if not self.writes_rows:
            return version, None
        manifest = self.arena.control.manifest(slot.slot)[0]
        stall_ns = monotonic_ns() - started_ns if inline else None
        return version, moved("source", manifest, started_ns, stall_ns, self._transport)


def _whole_number(name: str, value: Any) -> int:
    """As Python's own; NumPy's and torch's integers are taken, too. Errors: `RltraceError`."""
    try:
        return index(value)
    except TypeError as error:
        raise WrongUsage(f"{name} takes a whole number, not {value!r:.80}") from error


def _learner_step(value: Any) -> int:
    """What a learner calls its step; -1: not told. Errors: `RltraceError`."""
    step = _whole_number("step", value)
    if not -1 <= step <= _MOST_STEP:
        said = f"step takes a number from 0 to {_MOST_STEP}, or -1 for none, not {step}"
        raise WrongUsage(said)
    return step


def _check_opening(layout: Any, run: Any) -> None:
    """Errors: `RltraceError` for what is no layout, or no name of a run."""
    if not isinstance(layout, Layout):
        given = type(layout).__name__
        said = f"a publisher takes layout_of(weights), not an object of type {given}"
        raise WrongUsage(said)
    if run is not None and not (isinstance(run, str) and RUN.fullmatch(run)):
        said = f"run takes 16 hexadecimal digits in lower case, not {run!r:.80}"
        raise WrongUsage(f"{said}: secrets.token_hex(8) makes such")
