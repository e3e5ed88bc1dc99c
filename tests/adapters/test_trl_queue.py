"""Samples that come through the queue of TRL's asynchronous trainer keep their ids."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rltrace.testing.inside.adapters import Ids, lengths, queued
from rltrace.testing.inside.adapters import loop_loop as loop
from rltrace.testing.inside.hooks import recorder as recording
from tests.adapters.trl_shapes import Array, Taken, hooked, no_problems, rows


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing is left of the test before."""
    loop.micro = None
    queued._Queue.buffer = queued._Queue.last = None
    queued._Queue.given.clear()
    queued._Queue.batches.clear()


def test_lists_and_arrays_are_the_same_sample() -> None:
    as_lists, as_arrays = Taken([5, 6, 7], [0, 1, 1]), Taken(Array([5, 6, 7]), Array([0, 1, 1]))
    assert lengths(as_lists) == lengths(as_arrays) == (1, 2)
    assert lengths(Taken([5], [0])) == lengths(Taken(Array([5]), Array([0]))) == (1, 0)
    one, other = Ids(), Ids()
    assert one.of(as_lists) == other.of(as_arrays)


def test_equal_samples_are_told_apart_by_their_order() -> None:
    made, taken = Ids(), Ids()
    samples = [Taken([5, 6], [0, 1]), Taken([5, 7], [0, 1]), Taken([5, 6], [0, 1])]
    ids = [made.of(sample) for sample in samples]
    assert len(set(ids)) == 3
    assert [taken.of(sample) for sample in samples] == ids
    assert made.of(Taken([5, 6], [0, 1], version=2)) not in ids


class Dataset:
    """TRL's end of the queue, which drops what is too old."""

    def __init__(self, samples: list[Taken]) -> None:
        self.queue = Buffer(samples)

    def __iter__(self) -> Any:
        while self.queue.samples:
            sample = self.queue.get()
            if sample.model_version >= 2:
                yield {"input_ids": sample.input_ids}


class Buffer:
    def __init__(self, samples: list[Taken]) -> None:
        self.samples = samples

    def get(self) -> Taken:
        return self.samples.pop(0)


Buffer.get = hooked(Buffer.get, after=queued.taken)  # type: ignore[method-assign]
Dataset.__init__ = hooked(Dataset.__init__, after=queued.queue_known)  # type: ignore[method-assign]
Dataset.__iter__ = hooked(Dataset.__iter__, "wait", after=queued.given)  # type: ignore[method-assign]


def test_samples_keep_their_ids_through_the_queue_and_stale_ones_are_told(
    recorder: recording.Recorder, run_path: Path
) -> None:
    recorder.step, recorder.version = 7, 3
    samples = [Taken([5, n], [0, 1], version) for n, version in enumerate((2, 1, 1, 2, 2))]
    known = Ids()
    ids = [known.of(sample) for sample in samples]
    mappings = list(Dataset(list(samples)))
    collate = hooked(lambda self, examples: None, after=queued.collated)
    trainer = SimpleNamespace(model_version=3)
    collate(trainer, [[SimpleNamespace(samples=mappings[:2])]])
    collate(trainer, [mappings[2:]])
    for expected in ([ids[0], ids[3]], [ids[4]]):
        queued.micro_begins(SimpleNamespace(self=trainer))  # type: ignore[arg-type]
        assert [sample.id for sample in loop.micro or ()] == expected
    queued.micro_begins(SimpleNamespace(self=trainer))  # type: ignore[arg-type]
    assert loop.micro is None
    assert rows(run_path, "select trajectory, fate, step, version, tokens from uses") == [
        (ids[1], "stale", 7, 3, 1),
        (ids[2], "stale", 7, 3, 1),
    ]
    assert no_problems(run_path)
