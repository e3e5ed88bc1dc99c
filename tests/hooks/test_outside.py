"""Exceptions that strike while our code runs are the job's: each arrives, once."""

from __future__ import annotations

import ast
import ctypes
import functools
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

import rltrace
from rltrace.testing.inside.trace import from_outside
from tests.hooks.conftest import RunJob

PY = sys.executable
ROUNDS = 10_000 if os.environ.get("RLTRACE_TEST_ALL_FAULTS") else 1_000
PACKAGE = Path(rltrace.__file__).parent


class TooLong(Exception):
    """What a time limit raises."""


class Late(TooLong):
    """One that says something by itself."""

    def __init__(self, said: str = "late") -> None:
        super().__init__(said)


def raises(*_: Any) -> None:
    raise TooLong("too long")


def raises_below(number: int, frame: Any) -> None:
    raises()


def takes_itself_out(number: int, frame: Any) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    raise TimeoutError("too long")


def forgets_the_frame(number: int, frame: Any) -> None:
    del frame
    raise ValueError("too long")


class Limit:
    """A handler that is an object."""

    def __call__(self, number: int, frame: Any) -> None:
        raise TypeError("too long")

    def method(self, number: int, frame: Any) -> None:
        raise KeyError("too long")


HANDLERS: list[Any] = [
    raises, raises_below, takes_itself_out, forgets_the_frame, Limit(), Limit().method,
    functools.partial(lambda _, number, frame: raises(), 1),
]  # fmt: skip


def works() -> Exception | None:
    """What strikes while it works, as an `except Exception` of ours sees it; None: what was raised
    where Python can raise nothing (in a finalizer of somebody's)."""
    found: dict[int, Any] = {}
    until = time.monotonic() + 5
    try:
        while time.monotonic() < until:
            found[len(found) % 5] = [str(n) for n in range(3)]
            int("3")
            len(found)
    except Exception as error:
        return error
    return None


def struck_by(strike: Callable[[], None]) -> Iterator[Exception]:
    for _ in range(200):
        try:
            strike()
            error = works()
        except Exception:  # before the work began, or behind it
            continue
        if error is not None:
            yield error


@pytest.fixture
def alarm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("handler", HANDLERS)
def test_what_a_signal_handler_raises_comes_from_outside(alarm: None, handler: Any) -> None:
    drawn = random.Random(1)

    def strike() -> None:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, drawn.uniform(3e-5, 3e-4))

    errors = list(struck_by(strike))
    assert errors
    assert [error for error in errors if not from_outside(error)] == []


@pytest.mark.parametrize("kind", [TooLong, Late, TimeoutError, ValueError])
def test_what_another_thread_raises_here_comes_from_outside(kind: type[Exception]) -> None:
    here = ctypes.c_ulong(threading.get_ident())

    def later() -> None:
        time.sleep(0.0003)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(here, ctypes.py_object(kind))

    threads: list[threading.Thread] = []

    def strike() -> None:
        for thread in threads:
            thread.join()
        threads[:] = [threading.Thread(target=later)]
        threads[0].start()

    errors = list(struck_by(strike))
    assert errors
    assert [error for error in errors if not from_outside(error)] == []


class Odd:
    """A value that cannot be asked anything."""

    def __index__(self) -> int:
        raise ValueError("no number")

    @property
    def field(self) -> int:
        raise KeyError("no field")


column = memoryview(bytearray(8)).cast("q")


@pytest.mark.parametrize(
    "statement",
    [
        "{}['x']", "column[0] = 'x'", "column[0] = Odd()", "int('x')", "Odd().field", "None.x",
        "open('/no/such/file')", "next(iter([]))", "(lambda f: f(f))(lambda f: f(f))",
        "__import__('json').loads('{')", "bytes(1 << 62)", "raises()", "column[1 << 40]",
    ],
)  # fmt: skip
def test_what_a_statement_raises_is_its_own(statement: str) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever it is
        exec(statement, {**globals()})
    assert not from_outside(raised.value)


def test_it_is_told_while_what_tells_it_is_half_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler that records may interrupt that import, and fail in there itself."""
    monkeypatch.setitem(sys.modules, "opcode", ModuleType("opcode"))
    with pytest.raises(AttributeError) as raised:
        sys.modules["opcode"].opname  # noqa: B018
    assert not from_outside(raised.value)


def test_every_except_clause_of_ours_asks_whose_it_is() -> None:
    """Where a call or a loop may have been struck: in what runs in a job's processes."""
    folders = ("hooks", "adapters", "sync", "plugins")
    places = [place for folder in folders for place in PACKAGE.glob(f"{folder}/**/*.py")]
    places += [
        PACKAGE / "trace" / f"{name}.py"
        for name in ("segment", "run_dir", "clock", "opened", "redacted")
    ]
    found = []
    for place in places:
        if "site" in place.parts:  # it runs before any code of the job
            continue
        if "bench" in place.parts or place.stem in ("serving", "sourcing", "following", "fetching"):
            continue  # no thread of a job's runs it
        for block in ast.walk(ast.parse(place.read_text())):
            if isinstance(block, ast.Try) and _can_be_struck(block.body):
                found += [
                    f"{place.relative_to(PACKAGE)}:{handler.lineno}"
                    for handler in block.handlers
                    if not _passes_on(handler)
                ]
    assert found == []


OURS = ("StopIteration", "StopAsyncIteration", "Unwrappable", "PackageNotFoundError",
        "RunExistsError", "RecursionError", "BufferError", "RltraceError", "ReplacedError",
        "LinkError", "LostError", "BadBlock", "FileNotFoundError", "FileExistsError",
        "BlockingIOError", "PermissionError", "TooHardError", "ImportError")  # fmt: skip
"""What a protocol raises, or we do: no exception of a job's is one."""


def _can_be_struck(body: list[ast.stmt]) -> bool:
    inside = [node for statement in body for node in ast.walk(statement)]
    return any(isinstance(node, (ast.Call, ast.For, ast.While)) for node in inside)


def _passes_on(handler: ast.ExceptHandler) -> bool:
    inside = list(ast.walk(handler))
    names = {node.id for node in inside if isinstance(node, ast.Name)}
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    if all(kind is not None and ast.unparse(kind).split(".")[-1] in OURS for kind in kinds):
        return True
    return "from_outside" in names or any(isinstance(n, ast.Raise) for n in handler.body)


LIMITS = """
    import json, os, random, signal, sys, time, rltrace
    class TooLong(Exception): pass
    def on_alarm(*_): raise TooLong()
    signal.signal(signal.SIGALRM, on_alarm)
    done = {"tool": 0, "items": 0, "marked": 0, "block": 0, "rows": 0}
    def tool(): pass
    def items(): yield 1
    @rltrace.span("env", name="marked")
    def marked(): pass
    def verify(way, work_s):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if way == "tool":
                tool()
            elif way == "items":
                [*items()]
            elif way == "marked":
                marked()
            elif way == "block":
                with rltrace.span("env", name="block"):
                    pass
            else:
                with rltrace.trajectory(done["rows"]) as sample:
                    sample.finish("stop", response_tokens=1)
                rltrace.reward(done["rows"], 1.0)
                rltrace.use(done["rows"], tokens=1)
            done[way] += 1
            until = time.perf_counter() + work_s
            while time.perf_counter() < until:
                pass
    random.seed(int(sys.argv[1]))
    struck = lost = twice = 0
    for round in range(int(sys.argv[2])):
        way, work_s = random.choice([*done]), random.choice([0, 2e-5])
        with rltrace.span("other", name="round"):
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0005, 0.002))
                verify(way, work_s)
                lost += 1
            except TooLong as error:
                struck += 1
                twice += isinstance(error.__context__, TooLong)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    print(json.dumps({"struck": struck, "lost": lost, "twice": twice, **done}))
"""

HOOKS = ("__main__:tool=env", "__main__:items=rollout")
SEEN = """
    SELECT count(*) FILTER (end_ns IS NULL), count(*) FILTER (end_ns < start_ns),
           count(*) FILTER (name = 'tool'), count(*) FILTER (name = 'items'),
           count(*) FILTER (name = 'marked'), count(*) FILTER (name = 'block') FROM spans
"""


@pytest.mark.parametrize(("jobs", "rounds"), [(6, 3), (1, ROUNDS)], ids=["cold", "warm"])
def test_a_time_limit_is_never_lost(job: RunJob, jobs: int, rounds: int) -> None:
    """Each of them reaches the job, once; and each call that the job made is a row, once."""
    for seed in range(jobs):
        words = (str(seed), str(rounds))
        ended = job(PY, "script.py", *words, program=dedent(LIMITS), hooks=HOOKS)
        assert ended.code == 0, ended.err
        told = json.loads(ended.out)
        assert (told["struck"], told["lost"], told["twice"]) == (rounds, 0, 0)
        run = rltrace.open_run(ended.run_path)
        (unended, backwards, *spans), *_ = run.sql(SEEN).fetchall()
        assert (unended, backwards) == (0, 0)
        (samples,), *_ = run.sql("SELECT count(*) FROM trajectories").fetchall()
        (uses,), *_ = run.sql("SELECT count(*) FROM uses").fetchall()
        ways = ("tool", "items", "marked", "block", "rows", "rows")
        for way, rows in zip(ways, [*spans, samples, uses], strict=True):
            assert told[way] <= rows <= told[way] + rounds
        assert ended.problems == []
        assert [p for p in run.problems if p["what"] != "no-gpu"] == []
        shutil.rmtree(ended.run_path)
