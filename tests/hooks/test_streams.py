"""Iterators that a hooked function returns: their items are calls, and they stay what they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.testing.inside.hooks import Call, Hook, Observer, Patch
from rltrace.testing.inside.hooks import recorder as recording


class Engine:
    """Hands out weights as engines do."""

    closed = False

    def params(self) -> tuple[Any, dict[str, int]]:
        return self._generate(), {"rank": 8}

    def bare(self) -> Any:
        return self._generate()

    def views(self) -> tuple[Any, None]:
        return {"a": b"1234"}.items(), None

    def other(self) -> Any:
        return None

    def _generate(self) -> Iterator[tuple[str, bytes]]:
        try:
            yield "a", b"1234"
            yield "b", b"12"
            raise OSError("theirs") if self.closed is None else StopIteration
        except StopIteration:
            return
        finally:
            self.closed = True


@pytest.fixture
def patch() -> Iterator[Any]:
    """Hooks a method, and takes the hooks out again."""
    patches: list[Patch] = []

    def sized(call: Call) -> None:
        call.span.set(bytes=len(call.result[1]))

    def add(name: str, stream: int) -> None:
        hook = Hook(f"x:{name}", "sync", phase="gather", stream=stream, after=sized)
        patches.append(Patch(Engine, name, Observer(hook)))

    yield add
    while patches:
        patches.pop().undo()


def sizes(run_path: Path) -> list[int]:
    rows = rltrace.open_run(run_path).sql("select bytes from spans order by start_ns").fetchall()
    return [size for (size,) in rows]


@pytest.mark.parametrize(("name", "place"), [("params", 0), ("bare", -1)])
def test_each_item_is_a_call(
    recorder: recording.Recorder, patch: Any, run_path: Path, name: str, place: int
) -> None:
    patch(name, place)
    engine = Engine()
    result = getattr(engine, name)()
    items, rest = result if place == 0 else (result, {"rank": 8})
    assert list(items) == [("a", b"1234"), ("b", b"12")]
    assert rest == {"rank": 8}
    assert engine.closed
    assert sizes(run_path) == [4, 2]


def test_what_is_no_iterator_stays(recorder: recording.Recorder, patch: Any) -> None:
    patch("views", 0)
    patch("other", 0)
    items, _ = Engine().views()
    assert len(items) == 1
    assert Engine().other() is None


def test_closing_early_closes_the_producer(recorder: recording.Recorder, patch: Any) -> None:
    patch("bare", -1)
    engine = Engine()
    items = engine.bare()
    next(items)
    items.close()
    assert engine.closed


def test_errors_of_the_producer_arrive(
    recorder: recording.Recorder, patch: Any, run_path: Path
) -> None:
    patch("bare", -1)
    engine = Engine()
    engine.closed = None  # type: ignore[assignment]
    items = engine.bare()
    next(items), next(items)
    with pytest.raises(OSError, match="theirs"):
        next(items)
    assert len(sizes(run_path)) == 3
