"""Exceptions that strike while our code runs are the job's: each arrives, once. What is told of one
is where it was raised, and no word of what the job works on."""

from __future__ import annotations

import ast
import ctypes
import functools
import importlib
import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import rltrace
from rltrace.hooks.patch.safe_repr import describe, quoted
from rltrace.testing.inside.trace import from_outside
from tests.faults.drawn import texts
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


def assert_from_outside(strike: Callable[[], None]) -> None:
    """What strikes while it works is told from what the work raises."""
    errors = []
    for _ in range(200):
        try:
            strike()
            errors.append(works())
        except Exception:  # before the work began, or behind it
            continue
    errors = [error for error in errors if error is not None]
    assert errors
    assert [error for error in errors if not from_outside(error)] == []


@pytest.mark.parametrize("handler", HANDLERS)
def test_what_a_signal_handler_raises_comes_from_outside(handler: Any) -> None:
    before, drawn = signal.getsignal(signal.SIGALRM), random.Random(1)

    def strike() -> None:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, drawn.uniform(3e-5, 3e-4))

    try:
        assert_from_outside(strike)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", [TooLong, Late, TimeoutError, ValueError])
def test_what_another_thread_raises_here_comes_from_outside(kind: type[Exception]) -> None:
    here = ctypes.c_ulong(threading.get_ident())
    threads: list[threading.Thread] = []

    def later() -> None:
        time.sleep(0.0003)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(here, ctypes.py_object(kind))

    def strike() -> None:
        for thread in threads:
            thread.join()
        threads[:] = [threading.Thread(target=later)]
        threads[0].start()

    assert_from_outside(strike)


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
        for name in ("segment", "run_dir", "clock", "safe_open", "safe_text")
    ]
    found = []
    for place in places:
        if "site" in place.parts:  # it runs before any code of the job
            continue
        if place.stem in ("version_server", "relay", "version_follower", "version_fetcher"):
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
    def tool(): pass
    def items(): yield 1
    @rltrace.span("env", name="marked")
    def marked(): pass
    def block():
        with rltrace.span("env", name="block"): pass
    def rows():
        with rltrace.trajectory(done["rows"]) as sample:
            sample.finish("stop", response_tokens=1)
        rltrace.reward(done["rows"], 1.0)
        rltrace.use(done["rows"], tokens=1)
    calls = {"tool": tool, "items": lambda: [*items()], "marked": marked}
    calls |= {"block": block, "rows": rows}
    done = dict.fromkeys(calls, 0)
    def verify(way, work_s):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            calls[way]()
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
    SELECT name, count(*) FROM spans GROUP BY 1
    UNION ALL SELECT 'samples', count(*) FROM trajectories
    UNION ALL SELECT 'uses', count(*) FROM uses
"""
COUNTED = {way: way for way in ("tool", "items", "marked", "block")} | {
    "samples": "rows",
    "uses": "rows",
}


@pytest.mark.parametrize(("jobs", "rounds"), [(6, 3), (1, ROUNDS)], ids=["cold", "warm"])
def test_a_time_limit_is_never_lost(job: RunJob, tmp_path: Path, jobs: int, rounds: int) -> None:
    """Each of them reaches the job, once; and each call that the job made is a row, once."""
    for seed in range(jobs):
        words = (str(seed), str(rounds))
        ended = job(PY, "script.py", *words, program=LIMITS, hooks=HOOKS)
        assert ended.code == 0, ended.err
        told = json.loads(ended.out)
        assert (told["struck"], told["lost"], told["twice"]) == (rounds, 0, 0)
        seen = dict(ended.rows(SEEN))
        for what, way in COUNTED.items():
            assert told[way] <= seen.get(what, 0) <= told[way] + rounds
        unended = "SELECT count(*) FROM spans WHERE end_ns IS NULL OR end_ns < start_ns"
        assert ended.rows(unended) == [0]
        assert ended.problems == []
        assert [p for p in rltrace.open_run(ended.run_path).problems if p["what"] != "no-gpu"] == []
        ended.run_path.rename(tmp_path / f"run-{seed}")  # its agent may write for a second yet


def raised(function: Callable[[], object]) -> BaseException:
    """What the call raises."""
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def run(code: str, file: str = "<completion>") -> None:
    exec(compile(code, file, "exec"), {"__name__": "generated"})


def word(text: str) -> str:
    """What a name may be of a text."""
    return "w" + "".join(filter(str.isalnum, text))


def refuse(error: type[Exception], text: str) -> None:
    raise error(f"cannot score {text!r}")


WAYS: list[tuple[str, Callable[[str], object]]] = [
    ("TypeError", lambda text: run(f"raise TypeError({text!r})")),
    ("NameError", lambda text: run(word(text) + " + 1", text)),
    ("TypeError", lambda text: run("def f():\n\n len(5)\nf()", text)),
    ("TypeError", lambda text: run("len(5)", f"<frozen {text}>")),
    ("TypeError", lambda text: run(f"max({word(text)}=1)")),
    ("AttributeError", lambda text: run(f"None.{word(text)}")),
    ("ModuleNotFoundError", lambda text: run(f"import {word(text)}")),
    ("ValueError", lambda text: run(f"class {word(text)}(ValueError): pass\nraise {word(text)}()")),
    ("AttributeError", lambda text: getattr(run, text)),
    ("KeyError", lambda text: {}[text]),
    ("TypeError", lambda text: refuse(TypeError, text)),
    ("OSError", lambda text: refuse(OSError, text)),
    ("ModuleNotFoundError", lambda text: importlib.import_module(word(text))),
    ("FileNotFoundError", lambda text: Path("/", text).read_text()),
]


@pytest.mark.parametrize(("kind", "raises"), WAYS)
def test_no_text_that_is_raised_is_told(kind: str, raises: Callable[[str], object]) -> None:
    """A job that learns to program runs what it generated: its messages are about that."""
    seed = random.randrange(1 << 32)
    for text in texts(random.Random(seed), 30):
        said = describe(raised(lambda text=text: raises(text)))
        assert text not in said, seed
        assert word(text) not in said, seed
        assert re.split(r" at | in |: ", said)[0] == kind


def test_of_a_completion_that_was_run_only_the_place_is_told() -> None:
    said = describe(raised(lambda: run("my_diagnosis", "<diagnosis>")))
    assert re.fullmatch(r"NameError in generated code at test_outside.py:\d+", said)


def test_of_the_job_s_own_code_the_kind_and_the_place_are_told() -> None:
    class Refused(Exception):
        pass

    def refuse() -> None:
        raise Refused("diagnosis")

    for function, kind in ((lambda: len(5), "TypeError"), (refuse, "Refused")):  # type: ignore
        assert re.fullmatch(rf"{kind} at test_outside.py:\d+", describe(raised(function)))
    import_module = raised(lambda: importlib.import_module("diagnosis"))
    assert describe(import_module).startswith("ModuleNotFoundError at <frozen importlib")
    assert describe(raised(lambda: os.listdir("/diagnosis"))) == (
        "FileNotFoundError: No such file or directory"
    )
    assert describe(raised(lambda: torch.ones(2) @ torch.ones(3))).startswith("RuntimeError at ")
    assert describe(torch.OutOfMemoryError("diagnosis")) == "OutOfMemoryError"


def test_a_class_that_was_made_of_a_text_is_called_after_its_nearest_base(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "Diag" + "nosis"  # which does not stand in this file
    made: dict[str, Any] = {"__name__": __name__}
    exec(f"class {name}(KeyError): pass", made)
    kinds = [made[name], type(f"my {name}", (KeyError,), {})]
    kinds += [type(name, (KeyError,), {"__module__": m}) for m in ("os", "none", "builtins", name)]
    kinds += [type(type)("M", (type,), {"__name__": name})("x", (KeyError,), {"__module__": "os"})]
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert {describe(kind("x")) for kind in kinds} == {"KeyError"}


def test_a_number_is_quoted_whatever_its_class_says() -> None:
    class Odd(int):
        def __repr__(self) -> str:
            return "diagnosis"

    assert quoted(Odd(7)) == "7 (Odd)"
    assert quoted(True) == "True (bool)"
    assert quoted("diagnosis") == "a str of length 9"
    assert quoted(10**5000) == "a int"
