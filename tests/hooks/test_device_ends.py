"""Ends of spans on a device. There is no GPU here, so the device's events are stand-ins: each comes
to pass at a moment that the test gives. `benchmarks/gpu` has the real ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from time import monotonic_ns

import pyarrow
import pyarrow.ipc
import pytest

import rltrace
from rltrace.testing.inside.hooks import DeviceEnds, recorder, spans, watch
from rltrace.testing.inside.hooks import device_completion as device_ends
from tests.hooks.conftest import found_in

FAR_NS = 10**12
"""Between what the device does: so far apart that the host's own time does not count."""


class Device:
    """A device that has done what is queued at `free_ns`, and is looked at once it `is_done`."""

    def __init__(self) -> None:
        self.begun_ns = monotonic_ns()
        self.free_ns = 1
        self.is_done = False
        self.fails = False
        self.relaxed = 0

    def run(self, pieces: int = 1) -> None:
        """Queues work, as a forward pass does, and returns."""
        self.free_ns = max(self.free_ns, self.begun_ns) + pieces * FAR_NS

    def relax(self) -> int:
        self.relaxed += 1
        return self.relaxed

    def restore(self, mode: int) -> None:
        assert mode == self.relaxed
        self.relaxed -= 1

    def record(self) -> int:
        if self.fails:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return self.free_ns

    def reached_ns(self, event: int) -> int | None:
        return event if self.is_done else None


@pytest.fixture
def device(run_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A device, whose events follow the spans of this process."""
    device = Device()
    assert recorder.start(str(run_path))
    monkeypatch.setattr(device_ends, "_given_up", [])
    monkeypatch.setattr(spans, "on_end", DeviceEnds(device))  # type: ignore[arg-type]
    yield device
    recorder.stop()
    assert device.relaxed == 0


def all_done(device: Device) -> None:
    """The device has done everything, and the next span that ends finds it so."""
    device.is_done = True
    with rltrace.span("rollout", "look"):
        pass


def stored(run_path: Path) -> list[tuple[str, int, int]]:
    """Name, begin and end of each span as they are stored: to a run that goes on, an end in the
    future is none yet."""
    names = dict(
        json.loads(line)
        for path in (run_path / "names").glob("*.jsonl")
        for line in path.read_text().splitlines()
    )
    rows = [
        row
        for path in (run_path / "spans").glob("*.arrows")
        for row in pyarrow.ipc.open_stream(path).read_all().to_pylist()
    ]
    found = [
        (names[row["name"]], row["start_ns"], row["end_ns"]) for row in rows if row["start_ns"]
    ]
    return sorted(found, key=lambda row: row[1])


def pieces(run_path: Path) -> dict[str, tuple[int, int]]:
    """When each span began and ended, in pieces of work of the device from the first one's begin;
    what took the host's time only counts as none."""
    rows = stored(run_path)
    first = rows[0][1]
    return {n: (round((a - first) / FAR_NS), round((b - first) / FAR_NS)) for n, a, b in rows}


def test_a_pass_that_only_queues_its_work_lasts_until_the_device_has_done_it(
    run_path: Path, device: Device
) -> None:
    with rltrace.step(0):
        with rltrace.span("reference"):
            device.run(4)
        with rltrace.span("train"):
            device.run(2)
    with rltrace.step(1):
        rollout = rltrace.span("rollout")
        rollout.end()
        rollout.set(end_ns=device.free_ns + FAR_NS)  # its tokens are on the host: it ends there
        all_done(device)
    found = pieces(run_path)
    assert found["reference"] == (0, 4)
    assert found["train"] == (4, 6)
    [first, second] = [row for row in stored(run_path) if row[0] == "step"]
    assert first[2] == second[1]  # the second begins when the device is free
    assert found["rollout"] == (6, 7)


def test_what_contains_a_late_span_keeps_its_begin_and_what_follows_begins_after_it(
    run_path: Path, device: Device
) -> None:
    with rltrace.span("reference"):
        device.run(3)
    with rltrace.span("train"):
        with rltrace.span("train", "forward"):
            device.run(1)
        with rltrace.span("train", "backward"):
            device.run(2)
    all_done(device)
    found = pieces(run_path)
    assert found["reference"] == (0, 3)
    assert found["train"] == (3, 6)
    assert found["forward"] == (3, 4)
    assert found["backward"] == (4, 6)


def test_work_beside_the_device_keeps_the_hosts_times(run_path: Path, device: Device) -> None:
    with rltrace.span("reference"):
        device.run(5)
    with rltrace.span("reward"):
        pass
    all_done(device)
    found = pieces(run_path)
    assert found["reference"] == (0, 5)
    assert found["reward"] == (0, 0)


def test_an_event_that_is_never_seen_to_come_leaves_the_hosts_end(
    run_path: Path, device: Device
) -> None:
    for _ in range(2 * device_ends.MOST_PENDING):
        with rltrace.span("reference"):
            device.run(1)
    assert pieces(run_path)["reference"] == (0, 0)


def test_a_device_that_fails_is_left_alone(run_path: Path, device: Device) -> None:
    """The job hears of it from torch; its spans are recorded by the host's clock."""
    device.fails = True
    for stage in ("rollout", "train", "train"):
        with rltrace.span(stage):
            pass
    assert spans.on_end is None
    watch()
    assert spans.on_end is None
    assert [row[2] >= row[1] for row in stored(run_path)] == [True] * 3


def test_rows_that_are_no_spans_are_none_of_its_business(run_path: Path, device: Device) -> None:
    with rltrace.span("reference"):
        device.run(1)
    rltrace.trajectory("a").finish("stop")
    with rltrace.weight_update(1):
        pass
    all_done(device)
    for table in ("trajectories", "syncs"):
        [lasted] = found_in(run_path, f"SELECT end_ns - start_ns FROM {table}")
        assert 0 <= lasted < FAR_NS


def test_without_a_gpu_nothing_is_followed() -> None:
    import torch

    assert not torch.cuda.is_available()
    watch()
    assert spans.on_end is None
