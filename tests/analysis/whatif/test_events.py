"""The parts of a replay that have a simpler twin."""

from __future__ import annotations

import random
from operator import attrgetter

import pytest

from rltrace.analysis.whatif.events import Clock, LeastBusy, Meter, Worker
from rltrace.testing.inside.analysis import Engine


@pytest.mark.parametrize("count", [1, 3, 200])
@pytest.mark.parametrize("tools", [False, True])
def test_the_worker_with_the_least_to_do_is_the_first_of_those(count: int, tools: bool) -> None:
    """Whatever has begun and ended, as looking at all of them says."""
    draw = random.Random(count + tools)
    clock = Clock()
    engine = Engine(count, slots=2, token_s=0.01, shared_token_s=0.001)
    workers = [Worker(clock, engine, 1.0, Meter(clock)) for _ in range(count)]
    least = LeastBusy(workers)
    found = []

    def begin(left: int) -> None:
        worker = least.find()
        assert worker is min(workers, key=attrgetter("known"))
        found.append(worker)
        for _ in range(draw.randint(1, 3)):
            tokens, then = draw.uniform(1, 40), draw.uniform(0, 1)
            if tools and draw.random() < 0.5:

                def answered(worker: Worker = worker, tokens: float = tokens) -> None:
                    worker.go_on(tokens, lambda: None)

                def called(then: float = then, answered: object = answered) -> None:
                    clock.after(then, answered)  # type: ignore[arg-type]

                worker.submit(tokens, lambda: None, called, calls=True)
            else:
                worker.submit(tokens, lambda: None, lambda: None)
        if left:
            clock.after(draw.uniform(0, 0.5 / count), lambda: begin(left - 1))

    begin(2000)
    clock.run()
    assert len(found) == 2001
    assert len({id(worker) for worker in found}) == count
    assert all(worker.known == 0 for worker in workers)
    assert least.find() is workers[0]
