"""What a call returns may hold an iterator, each item of which is a call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rltrace.testing.inside.hooks import Call
from tests.hooks.conftest import Rows

SPANS = "SELECT name, items FROM spans ORDER BY start_ns"


class Engine:
    """Hands out weights as engines do: what it returns may hold an iterator, of calls then."""

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


def streams(patched: Any, name: str, place: int) -> Any:
    """An engine of which what one of its methods returns is hooked, in that place."""

    def sized(call: Call) -> None:
        call.span.set(items=len(call.result[1]))

    patched(Engine, name, phase="gather", stream=place, after=sized)
    return Engine()


@pytest.mark.parametrize(("name", "place"), [("params", 0), ("bare", -1)])
def test_each_item_of_a_stream_is_a_call(patched: Any, rows: Rows, name: str, place: int) -> None:
    engine = streams(patched, name, place)
    result = getattr(engine, name)()
    items, rest = result if place == 0 else (result, {"rank": 8})
    assert list(items) == [("a", b"1234"), ("b", b"12")]
    assert rest == {"rank": 8}
    assert engine.closed
    assert rows(SPANS) == [(name, 4), (name, 2)]


def test_what_is_no_iterator_stays(patched: Any) -> None:
    items, _ = streams(patched, "views", 0).views()
    assert len(items) == 1
    assert streams(patched, "other", 0).other() is None


def test_a_stream_that_is_closed_or_fails_is_its_producers(patched: Any, rows: Rows) -> None:
    engine = streams(patched, "bare", -1)
    items = engine.bare()
    next(items)
    items.close()
    assert engine.closed
    engine.closed = None
    items = engine.bare()
    assert [next(items), next(items)] == [("a", b"1234"), ("b", b"12")]
    with pytest.raises(OSError, match="theirs"):
        next(items)
    assert len(rows(SPANS)) == 4
