"""Ends spans when the GPU is done, where that is later.

A forward or backward pass of torch's only queues its kernels, and the device works on. By the
host's clock that work belongs to whatever comes next. So where a span of such a pass ends, a CUDA
event is queued behind its work. Once that has come to pass, which nobody waits for, its time is the
row's end, and what came next on the lane begins there. Until then the host's end stands.

The event's time on the host's clock is that of an anchor (an event on a stream of our own with
nothing else in it) and the milliseconds between the two, times how fast the device's clock is seen
to run between anchors. Where the device has nothing left to do there is no event.
"""

from __future__ import annotations

import os
import sys
from _thread import allocate_lock, get_ident
from collections import deque
from time import monotonic_ns

from rltrace.hooks import spans
from rltrace.trace.job_exceptions import contained, from_outside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rltrace.hooks.spans import Span

MOST_PENDING = 1024  # events at a time: behind a device that hangs they do not pile up
ANCHOR_NS = 1_000_000_000
"""To the next anchor (clocks drift, the ms are a float32); to the second a quarter of it."""

_given_up: list[bool] = []  # no exception: with its frames the job's objects would live on

_ANCHOR_WAIT_NS = 200_000
_ANCHOR_TRIES = 3
_RELAXED, _NON_BLOCKING = 2, 1  # cudaStreamCaptureModeRelaxed, cudaStreamNonBlocking


class DeviceEnds:
    """Told of each ended span, by any thread. `events` makes them: `CudaEvents` outside tests."""

    def __init__(self, events: CudaEvents) -> None:
        from rltrace.trace.vocabulary import Stage

        self._events = events
        # What ends with its values on the host needs no event, but begins when the device is free.
        # Rewards, tools and data work beside the device.
        self._queued = {Stage.REFERENCE, Stage.LOGPROB, Stage.VALUE, Stage.TRAIN, Stage.STEP}
        self._follow = self._queued | {Stage.ROLLOUT, Stage.SYNC, Stage.SWITCH}
        self._pending: deque[tuple[Span, int, Any]] = deque()
        self._settling = allocate_lock()
        self._late: dict[int, deque[tuple[int, int]]] = {}  # of a lane: ends of host and device

    def __call__(self, span: Span) -> None:
        """A device's failures are the job's to hear of, from torch; here nobody looks any more."""
        try:
            self._ended(span)
        except Exception as error:
            if from_outside(error):
                raise
            _given_up.append(True)
            _forget()

    def _ended(self, span: Span) -> None:
        places = span._batch.places
        stage = span._batch.columns[places["stage"]][span._slot] if "stage" in places else None
        # Of the other tables only a weight update's row is work of the device.
        if not (stage in self._follow or "role" in places) or len(self._pending) >= MOST_PENDING:
            return
        mode = self._events.relax()
        try:
            event = self._events.record() if stage in self._queued else None
            if event is not None or self._pending or self._late:
                named = places.get("lane")
                lane = get_ident() if named is None else span._batch.columns[named][span._slot]
                self._pending.append((span, lane, event))
            self.settle()
        finally:
            self._events.restore(mode)

    def settle(self) -> None:
        """Completes the rows whose events have come to pass."""
        if not self._settling.acquire(False):
            return  # another thread is at it
        try:
            while self._pending:
                span, lane, event = self._pending[0]
                reached_ns = 0 if event is None else self._events.reached_ns(event)
                if reached_ns is None:
                    break
                self._pending.popleft()
                self._complete(span, lane, reached_ns)
        finally:
            self._settling.release()

    def _complete(self, span: Span, lane: int, reached_ns: int) -> None:
        starts, ends = span._batch.columns[:2]
        slot = span._slot
        start, end = starts[slot], ends[slot]
        if start <= 0 or end < start:
            return  # it was taken back
        late = self._late.get(lane)
        if late is not None:
            for host_end, device_end in reversed(late):
                if host_end <= start:  # what contains this span began before that
                    if device_end > start:
                        starts[slot] = min(device_end, max(end, reached_ns))
                    break
        if reached_ns > end:
            ends[slot] = reached_ns
            if late is None:
                late = self._late[lane] = deque(maxlen=64)
            late.append((end, reached_ns))


class CudaEvents:
    """Events on the current stream of the current device."""

    def __init__(self, torch: Any) -> None:
        """Errors: `OSError` where the CUDA runtime that torch uses is not found."""
        import ctypes

        self._cuda = torch.cuda
        self._ctypes = ctypes
        self._runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.partition('.')[0]}")
        self._free: dict[int, list[Any]] = {}
        self._streams: dict[int, Any] = {}
        self._anchors: dict[int, _Anchor] = {}

    def relax(self) -> Any:
        """From now on this thread's CUDA calls break no graph being captured; see `restore`."""
        mode = self._ctypes.c_int(_RELAXED)
        self._runtime.cudaThreadExchangeStreamCaptureMode(self._ctypes.byref(mode))
        return mode

    def restore(self, mode: Any) -> None:
        self._runtime.cudaThreadExchangeStreamCaptureMode(self._ctypes.byref(mode))

    def record(self) -> Any:
        """An event behind all that is queued; None where nothing is, while a graph is captured (it
        would become part of that), and where there is no anchor."""
        cuda = self._cuda
        if cuda.is_current_stream_capturing() or cuda.current_stream().query():
            return None
        device = cuda.current_device()
        anchor = self._anchors.get(device)
        if anchor is None or monotonic_ns() > anchor.until_ns:
            anchor = self._anchors[device] = self._anchor(device, anchor)
        if anchor.event is None:
            return None
        free = self._free.setdefault(device, [])
        event = free.pop() if free else cuda.Event(enable_timing=True)
        event.record()
        return device, event, anchor

    def reached_ns(self, recorded: Any) -> int | None:
        """When the event came to pass (monotonic clock); None: not yet."""
        device, event, anchor = recorded
        if not event.query():
            return None
        reached: int = anchor.host_ns + int(anchor.event.elapsed_time(event) * 1e6 * anchor.rate)
        self._free[device].append(event)
        return min(reached, monotonic_ns())

    def _anchor(self, device: int, before: _Anchor | None) -> _Anchor:
        """Of a few events the best timed one, between its recording and being found done."""
        stream = self._streams.get(device)
        if stream is None:  # not one of torch's own, which hands them out in turn
            pointer = self._ctypes.c_void_p()
            flags = self._ctypes.c_uint(_NON_BLOCKING)
            code = self._runtime.cudaStreamCreateWithFlags(self._ctypes.byref(pointer), flags)
            if code:
                raise OSError(code, "no CUDA stream")
            stream = self._streams[device] = self._cuda.ExternalStream(pointer.value, device=device)
        best, width = _Anchor(None, 0), _ANCHOR_WAIT_NS
        for _ in range(_ANCHOR_TRIES):
            event = self._cuda.Event(enable_timing=True)
            for _ in range(2):  # the first recording makes the event, which takes long
                begun = monotonic_ns()
                event.record(stream)
                while not (done := event.query()) and monotonic_ns() - begun < _ANCHOR_WAIT_NS:
                    pass
                ended = monotonic_ns()
            if done and ended - begun < width:
                best, width = _Anchor(event, (begun + ended) // 2), ended - begun
        best.until_ns = monotonic_ns() + (ANCHOR_NS if before else ANCHOR_NS // 4)
        if before is not None and None not in (before.event, best.event):
            passed = before.event.elapsed_time(best.event) * 1e6
            best.rate = (best.host_ns - before.host_ns) / passed
        return best


class _Anchor:
    """An event, its time (host's clock), until when it measures others, host ns for a device ns."""

    __slots__ = ("event", "host_ns", "rate", "until_ns")

    def __init__(self, event: Any, host_ns: int) -> None:
        self.event = event
        self.host_ns = host_ns
        self.rate = 1.0
        self.until_ns = 0


def watch() -> None:
    """Called where something new is recorded: once the process uses a GPU, ends are followed."""
    torch: Any = sys.modules.get("torch")
    with contained():  # torch is just being imported, or has no CUDA
        if torch.cuda.is_initialized() and torch.version.cuda and not _given_up:
            spans.on_end = DeviceEnds(CudaEvents(torch))
            os.register_at_fork(after_in_child=_forget)  # a device is not used across a fork


def _forget() -> None:
    spans.on_end = None
