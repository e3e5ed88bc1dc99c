"""A decorator that looks at its caller is hooked beneath: it sees the caller, not the hook."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.testing.inside.hooks import Call, Hook, Observer, Patch, observers
from rltrace.testing.inside.hooks import recorder as recording


def auto_await(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a caller that can await gets is the coroutine; any other one gets the result."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        coroutine = function(*args, **kwargs)
        caller = inspect.currentframe().f_back  # type: ignore[union-attr]
        assert caller is not None
        if caller.f_code.co_flags & inspect.CO_COROUTINE:
            return coroutine
        return asyncio.run(coroutine)

    wrapper.mark = "theirs"  # type: ignore[attr-defined]
    return wrapper


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that only passes on, with defaults of its own."""

    @functools.wraps(function)
    def wrapper(*args: Any, extra: int = 0, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Manager:
    """Has what frameworks have."""

    @auto_await
    async def update(self, version: int) -> int:
        """Its docstring."""
        await asyncio.sleep(0.002)
        return version

    @plain
    @auto_await
    async def twice(self, version: int) -> int:
        return version

    @auto_await
    async def fail(self) -> None:
        raise ValueError("theirs")

    @classmethod
    @auto_await
    async def create(cls) -> str:
        return cls.__name__

    async def through(self, version: int) -> int:
        """Awaits what it calls, as frameworks do."""
        result: int = await self.update(version)
        return result


@pytest.fixture
def hooked() -> Iterator[None]:
    """All of `Manager` is hooked, and restored afterwards."""

    def version(call: Call) -> None:
        call.span.set(version=call.result)

    before = dict(vars(Manager))
    patches = [
        Patch(Manager, name, Observer(Hook(f"x:{name}", "sync", after=reader)))
        for name, reader in (("update", version), ("twice", None), ("fail", None), ("create", None))
    ]
    yield
    while patches:
        patches.pop().undo()
    assert dict(vars(Manager)) == before


def test_callers_get_what_they_got(recorder: recording.Recorder, hooked: None) -> None:
    manager = Manager()
    assert manager.update(3) == 3
    assert asyncio.run(manager.through(4)) == 4
    assert manager.twice(5) == 5
    assert Manager.create() == "Manager"
    with pytest.raises(ValueError, match="theirs"):
        manager.fail()


def test_the_call_is_recorded_as_long_as_it_takes(
    recorder: recording.Recorder, hooked: None, run_path: Path
) -> None:
    Manager().update(3)
    asyncio.run(Manager().through(4))
    Manager().twice(5)
    rows = rltrace.open_run(run_path).sql(
        "select name, version, end_ns - start_ns >= 2000000 from spans order by start_ns"
    )
    assert rows.fetchall() == [("update", 3, True), ("update", 4, True), ("twice", None, False)]


def test_the_function_looks_as_it_did(hooked: None) -> None:
    update: Any = vars(Manager)["update"]
    assert update.__doc__ == "Its docstring."
    assert update.__name__ == "update"
    assert update.mark == "theirs"
    assert str(inspect.signature(update)) == "(self, version: 'int') -> 'int'"
    assert not inspect.iscoroutinefunction(update)
    assert len(observers(update)) == 1
    assert len(observers(vars(Manager)["twice"])) == 1
