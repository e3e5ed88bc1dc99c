"""Wrapped functions are what they were, for everybody who looks, calls or pickles."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import pickle
import sys
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.hooks.patch.wrapping import Unwrappable, observers, wrap
from rltrace.testing.inside.hooks import Call, Hook, Observer, Recorder
from rltrace.testing.inside.hooks import recorder as recording
from tests.hooks.conftest import Rows


class Target:
    """What is patched below."""

    def method(self, n: int, *, scale: int = 2) -> int:
        """Its docstring."""
        return n * scale

    @staticmethod
    def static(n: int) -> int:
        return n

    @classmethod
    def of_class(cls) -> str:
        return cls.__name__

    @property
    def prop(self) -> str:
        return "prop"

    @functools.cached_property
    def cached(self) -> object:
        return object()

    async def coroutine(self, n: int) -> int:
        await asyncio.sleep(0)
        return n

    def generator(self, n: int) -> Iterator[int]:
        received = []
        for i in range(n):
            try:
                received.append((yield i))
            except KeyError:
                yield -1
        return received

    async def async_generator(self, n: int) -> Any:
        for i in range(n):
            try:
                yield i
            except KeyError:
                yield -1

    def fail(self) -> None:
        raise ValueError("theirs")

    unbound = len  # a builtin: it does not bind


class Child(Target):
    """Inherits everything."""


NAMES = [name for name in vars(Target) if not name.startswith("__")]


SPANS = "SELECT name, items FROM spans ORDER BY start_ns"


@pytest.mark.parametrize("owner", [Target, Child])
@pytest.mark.parametrize("name", NAMES)
def test_undo_restores_the_very_object(owner: type, name: str, patched: Any) -> None:
    before = dict(vars(owner))
    patch = patched(owner, name)
    assert vars(owner).get(name) is not before.get(name)
    patch.undo()
    assert dict(vars(owner)) == before
    assert vars(owner).get(name) is before.get(name)


@pytest.mark.parametrize("name", ["method", "coroutine", "generator", "async_generator", "fail"])
def test_a_wrapped_function_looks_as_it_did(name: str, patched: Any) -> None:
    original = vars(Target)[name]
    patched(Target, name)
    wrapped = vars(Target)[name]
    looks: list[Callable[[Any], Any]] = [
        inspect.signature, inspect.getfullargspec, inspect.iscoroutinefunction, inspect.unwrap,
        inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.isfunction,
        inspect.getsource, attrgetter("__name__", "__qualname__", "__module__", "__doc__"),
        attrgetter("__defaults__", "__kwdefaults__", "__annotations__", "__globals__"),
    ]  # fmt: skip
    for look in looks:
        assert look(wrapped) == look(original)
    assert wrapped.__wrapped__ is original


def test_results_are_untouched(patched: Any) -> None:
    plain, target = Target(), Target()
    cached = plain.cached
    for name in NAMES:
        patched(Target, name)
    assert [target.method(4), target.method(4, scale=3)] == [8, 12]
    assert Target.static(1) == target.static(1) == 1
    assert Child.of_class() == "Child"
    assert Target.prop.__get__(target) == target.prop == "prop"
    assert target.cached is target.cached
    assert plain.cached is cached
    assert target.unbound("abc") == 3
    assert asyncio.run(target.coroutine(5)) == 5
    assert list(target.generator(3)) == [0, 1, 2]
    with pytest.raises(ValueError, match="theirs"):
        target.fail()
    with pytest.raises(TypeError):
        target.method()  # type: ignore[call-arg]


@pytest.mark.parametrize("per_item", [True, False])
def test_generators_take_what_is_sent_and_thrown(patched: Any, per_item: bool) -> None:
    patched(Target, "generator", per_item=per_item)
    patched(Target, "async_generator", per_item=per_item)
    generator = Target().generator(3)
    assert inspect.isgenerator(generator)
    assert next(generator) == 0
    assert generator.send("a") == 1
    assert generator.throw(KeyError()) == -1
    assert generator.send("ignored") == 2
    with pytest.raises(StopIteration) as stop:
        generator.send("b")
    assert stop.value.value == ["a", "b"]
    closed = Target().generator(3)
    next(closed)
    closed.close()
    assert list(closed) == []

    async def use() -> list[int]:
        generator = Target().async_generator(3)
        got = [await anext(generator), await generator.athrow(KeyError())]
        got += [item async for item in generator]
        closed = Target().async_generator(3)
        await anext(closed)
        await closed.aclose()
        return got

    assert asyncio.run(use()) == [0, -1, 1, 2]


def test_each_item_of_a_generator_is_a_span(patched: Any, rows: Rows) -> None:
    patched(Target, "generator", after=lambda call: call.span.set(items=call.result))
    list(Target().generator(2))
    assert rows(SPANS) == [("generator", 0), ("generator", 1)]


def test_readers_see_the_call_and_their_errors_stay_ours(
    run_path: Path, patched: Any, rows: Rows
) -> None:
    seen: list[Any] = []

    def before(call: Call) -> None:
        call.state = (call.argument("n"), call.argument("scale"), call.argument("nope", 0))
        assert call.end_ns == -1 < call.start_ns

    def after(call: Call) -> None:
        seen.append((call.self.__class__, call.state, call.result, call.exception))
        call.span.set(items=call.result)
        raise RuntimeError("the reader's own bug")

    patched(Target, "method", before=before, after=after)
    patched(Target, "fail", after=lambda call: seen.append(type(call.exception)))
    assert [Target().method(3), Target().method(n=4, scale=5)] == [6, 20]
    with pytest.raises(ValueError, match="theirs"):
        Target().fail()
    assert seen == [(Target, (3, 2, 0), 6, None), (Target, (4, 5, 0), 20, None), ValueError]
    assert rows(SPANS) == [("method", 6), ("method", 20), ("fail", None)]
    (problem,) = rltrace.open_run(run_path).problems  # once, not per call
    assert "RuntimeError at test_wrapping.py:" in problem["detail"]


def test_a_stage_decided_per_call_and_a_step(patched: Any, rows: Rows) -> None:
    patched(Target, "method", stage=lambda call: "train" if call.argument("n") else None)
    patched(Target, "static", stage="step", step=lambda call: call.argument("n"))
    assert [Target.static(41), Target().method(1), Target().method(0)] == [41, 2, 0]
    found = rows("SELECT name, stage, step FROM spans ORDER BY start_ns")
    assert found == [("step", "step", 41), ("method", "train", 41)]


def test_rows_can_be_begun_before_a_call_and_finished_after(patched: Any, rows: Rows) -> None:
    def before(call: Call) -> None:
        call.state = call.row("trajectories", trajectory=7, prompt_tokens=call.argument("n"))

    def after(call: Call) -> None:
        call.state.set(end_ns=call.end_ns, response_tokens=call.result)
        call.row("rewards", trajectory=7, value=1.0)

    patched(Target, "method", stage=None, before=before, after=after)
    Target().method(5)
    of_samples = "SELECT prompt_tokens, response_tokens FROM trajectories WHERE end_ns > start_ns"
    assert rows(of_samples) == [(5, 10)]
    assert rows("SELECT value FROM rewards WHERE end_ns >= start_ns") == [1.0]
    assert rows(SPANS) == []


def test_many_rows_have_the_times_of_the_call_as_single_ones_have(patched: Any, rows: Rows) -> None:
    def after(call: Call) -> None:
        call.row("rewards", trajectory=7, value=1.0)
        call.rows("rewards", 2, trajectory=[8, 9], value=0.5)
        call.rows("uses", 2, trajectory=[8, 9], time_ns=call.start_ns).set(step=4)
        call.rows("uses", 2, trajectory=[8, 9, 10])

    patched(Target, "method", stage=None, after=after)
    Target().method(5)
    of_rewards = (
        "SELECT trajectory, value, count(*) OVER (PARTITION BY start_ns, end_ns) FROM rewards"
    )
    assert sorted(rows(of_rewards)) == [(7, 1.0, 3), (8, 0.5, 3), (9, 0.5, 3)]
    of_uses = "SELECT u.trajectory, step FROM uses u JOIN rewards r ON u.time_ns = r.start_ns"
    assert sorted(set(rows(of_uses))) == [(8, 4), (9, 4)]


@pytest.mark.parametrize("name", ["method", "coroutine", "generator", "async_generator"])
@pytest.mark.parametrize("per_item", [True, False])
def test_a_wrapper_that_is_sent_by_value_passes_calls_through(
    patched: Any, rows: Rows, name: str, per_item: bool
) -> None:
    """As cloudpickle sends a function of `__main__`: code and closure, into a process that need
    not know rltrace."""
    original = vars(Target)[name]
    patched(Target, name, per_item=per_item)
    wrapped = vars(Target)[name]
    cells = [cell.cell_contents for cell in wrapped.__closure__]
    there = [c if c is original else pickle.loads(pickle.dumps(c)) for c in cells]
    sent = types.FunctionType(wrapped.__code__, {}, closure=tuple(map(types.CellType, there)))
    sent.__kwdefaults__ = wrapped.__kwdefaults__

    async def items() -> list[int]:
        return [item async for item in sent(Target(), 3)]

    if name == "method":
        assert sent(Target(), 3) == 6
    elif name == "coroutine":
        assert asyncio.run(sent(Target(), 3)) == 3
    else:
        got = list(sent(Target(), 3)) if name == "generator" else asyncio.run(items())
        assert got == [0, 1, 2]
    assert rows(SPANS) == []


@pytest.mark.parametrize("value", [functools.lru_cache(len), Target, functools.partial(len), 3])
def test_what_cannot_be_replaced_faithfully_is_left_alone(value: Any) -> None:
    with pytest.raises(Unwrappable):
        wrap(value, Observer(Hook("x:y", "train")))


def test_somebody_elses_wrapper_over_ours_survives_undo(patched: Any) -> None:
    patch = patched(Target, "method")
    ours = vars(Target)["method"]
    theirs = functools.wraps(ours)(lambda self, n: ours(self, n) + 1)
    Target.method = theirs  # type: ignore[method-assign, assignment]
    try:
        patch.undo()
        assert Target().method(3) == 7
        assert [o.on for o in observers(theirs)] == [False]
    finally:
        Target.method = inspect.unwrap(ours)  # type: ignore[method-assign]


@pytest.mark.parametrize("stage", ["step", lambda call: "step"], ids=["always", "by call"])
def test_a_step_that_raised_has_no_end(patched: Any, rows: Rows, stage: Any) -> None:
    patched(Target, "fail", stage=stage)
    patched(Target, "method", stage="step")
    with pytest.raises(ValueError, match="theirs"):
        Target().fail()
    Target().method(1)
    recording.stop()
    assert rows("SELECT step, end_ns IS NULL FROM spans ORDER BY 1") == [(0, True), (1, False)]


def shapes() -> list[Any]:
    """Functions that take their arguments in every way there is; what they return is what they
    were given. Names are those that a replacement might have for itself."""

    def function(
        observer: int, call: int = 2, /, result: int = 3, *args: int, row: int = 5, **error: int
    ) -> Any:
        return observer, call, result, args, row, error

    def only(*, function: int, observer: int = 1) -> Any:
        return function, observer

    def none() -> Any:
        return ()

    def any_(*args: int, **kwargs: int) -> Any:
        return args, kwargs

    return [function, only, none, any_]


CALLS: list[tuple[tuple[int, ...], dict[str, int]]] = [
    ((), {}), ((1,), {}), ((1, 2, 3, 4), {}), ((1,), {"result": 7}), ((), {"function": 3}),
    ((1, 2), {"row": 6, "z": 1}), ((), {"observer": 2, "function": 1}), ((1,), {"observer": 2}),
    ((1, 2, 3, 4, 5), {"args": 6}),
]  # fmt: skip


TOLD = pytest.mark.parametrize("after", [None, lambda call: None], ids=["plain", "told"])


@TOLD
def test_arguments_arrive_as_they_were_given(recorder: Recorder, after: Any) -> None:
    def outcome(function: Any, args: Any, kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            return str(error)

    for plain in shapes():
        hooked = wrap(plain, Observer(Hook("x:y", "train", after=after)))
        for args, kwargs in CALLS:
            assert outcome(hooked, args, kwargs) == outcome(plain, args, kwargs)


@TOLD
def test_what_a_call_is_given_is_let_go_as_without_us(recorder: Recorder, after: Any) -> None:
    class Batch:
        pass

    def train(batch: Batch, *, more: Batch | None = None) -> list[bool]:
        seen = [weakref.ref(batch), weakref.ref(more)]
        del batch, more
        return [there() is None for there in seen]

    hooked = wrap(train, Observer(Hook("x:y", "train", before=after)))
    gone = hooked(Batch(), more=Batch())  # what `assert` looks at, it keeps
    assert gone == [True, True]


@TOLD
def test_a_traceback_and_a_warning_show_no_frame_of_ours(recorder: Recorder, after: Any) -> None:
    def fails() -> None:
        warnings.warn("theirs", stacklevel=2)
        raise ValueError("theirs")

    hooked = wrap(fails, Observer(Hook("x:y", "train", after=after)))
    with pytest.warns(match="theirs") as told, pytest.raises(ValueError, match="theirs") as raised:
        hooked()
    assert told[0].filename == __file__
    if sys.version_info >= (3, 11):  # before, an exception that is raised again keeps its frames
        assert [frame.name for frame in raised.traceback][1:] == ["fails"]


def test_recursion_reaches_as_deep_as_without_us(recorder: Recorder) -> None:
    deepest = 0

    def expand(n: int) -> None:
        nonlocal deepest
        deepest = n
        expand(n + 1)

    def depth() -> int:
        with pytest.raises(RecursionError):
            expand(0)
        return deepest

    limit, plain = sys.getrecursionlimit(), depth()
    expand = wrap(expand, Observer(Hook("x:y", "env")))
    assert depth() >= plain
    assert sys.getrecursionlimit() == limit


def test_a_process_tells_what_its_readers_cost(patched: Any, recorder: Recorder) -> None:
    """Beside the events by then. Of some calls, which count for those between them, too."""
    each_ns = 50_000

    def reads(call: Call) -> None:
        until_ns = time.thread_time_ns() + each_ns
        while time.thread_time_ns() < until_ns:
            pass

    patched(Target, "method", after=reads)
    found = {}
    for calls in range(1, 601):
        Target().method(1)
        (file,) = Path(recorder.run_dir).glob("process/*")
        told = json.loads(file.read_text())
        if "readers_events" in told:
            found.setdefault(told["readers_events"], (calls, told["readers_cpu_ns"]))
    assert len(found) > 1
    for events, (calls, cpu_ns) in found.items():
        assert events == calls
        assert cpu_ns >= calls / 2 * each_ns  # the first is not timed, and the last is amid a round
