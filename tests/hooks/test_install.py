"""Hooks are put where their targets are, whatever the version, and told when they have none. A
decorator that looks at its caller is hooked beneath: it sees the caller, not the hook."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rltrace
from rltrace.hooks.launch_info import Program, program, shown
from rltrace.hooks.patch.install import Installation
from rltrace.testing.inside.hooks import Adapter, Call, Hook, Observer, Patch, Recorder, observers
from rltrace.testing.inside.hooks import ImportFinder as Finder
from rltrace.testing.inside.trace import satisfies
from tests.hooks.conftest import Rows, found_in

FRAMEWORK = {
    "__init__.py": "__version__ = '0.7.2rc1'",
    "loop.py": """
def step(n):
    return n
class Learner:
    def train(self, batch):
        return len(batch)
class Child(Learner):
    pass
""",
    "old_home.py": "",
    "new_home.py": "def generate(n):\n    return n",
}


class Ours(Adapter):
    """An adapter of the framework above."""

    framework = "rlt_fw"
    versions = ">=0.7,<0.8"
    hooks = (
        Hook("rlt_fw.loop:Learner.train", "train"),
        Hook("rlt_fw.old_home:generate", "rollout", alternates=("rlt_fw.new_home:generate",)),
        Hook("rlt_fw.loop:step", "step", versions=">=0.9"),
    )

    def describe(self, module: ModuleType) -> dict[str, Any]:
        return {"parameters": 12}


class Hooks(Installation):
    """Hooks of this process, and what the run into which it records has of them."""

    def __init__(self, finder: Finder, recorder: Recorder) -> None:
        super().__init__(finder, Program("", ""))
        self.run_path = Path(recorder.run_dir)

    def of_adapter(self, *hooks: Hook, **more: Any) -> None:
        """Adds an adapter like the one above, with these hooks if there are any."""
        more |= {"hooks": hooks} if hooks else {}
        self.add_adapter(type("Like", (Ours,), more)())

    def spans(self) -> list[str]:
        return found_in(self.run_path, "SELECT name FROM spans ORDER BY start_ns")

    def problems(self) -> list[tuple[str, str]]:
        return [(p["what"], p["target"]) for p in rltrace.open_run(self.run_path).problems]

    def described(self) -> dict[str, Any]:
        (process,) = rltrace.open_run(self.run_path).processes
        return process.facts


@pytest.fixture
def hooks(recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hooks]:
    """Hooks of this process; `rlt_fw` can be imported."""
    for name, text in FRAMEWORK.items():
        path = tmp_path / "rlt_fw" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    finder = Finder(lambda name, error: recorder.problem("hook-failed", target=name))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    yield (made := Hooks(finder, recorder))
    made.undo()
    for name in [name for name in sys.modules if name.startswith("rlt_fw")]:
        del sys.modules[name]


def test_an_adapters_hooks_are_in_place_before_names_are_copied(hooks: Hooks) -> None:
    hooks.of_adapter()
    from rlt_fw.new_home import generate  # type: ignore[import-not-found]

    loop = importlib.import_module("rlt_fw.loop")
    assert loop.Learner().train([1, 2]) == loop.Child().train([1, 2]) == 2
    assert generate(3) == loop.step(3) == 3
    assert hooks.spans() == ["Learner.train", "Learner.train", "generate"]
    described = hooks.described()
    assert described["adapter"] == "rlt_fw"
    assert described["versions"] == {"rlt_fw": "0.7.2rc1"}
    assert described["parameters"] == 12
    assert hooks.problems() == []


def test_a_target_in_another_home_or_under_another_name_is_found(hooks: Hooks) -> None:
    hooks.of_adapter(
        Hook("rlt_fw.loop:New.train", "train", alternates=("rlt_fw.loop:Learner.train",)),
        Ours.hooks[1],
    )
    importlib.import_module("rlt_fw.old_home")  # lacks it; the alternate may still come
    assert hooks.problems() == []
    importlib.import_module("rlt_fw.new_home").generate(1)
    importlib.import_module("rlt_fw.loop").Learner().train([1])
    assert hooks.spans() == ["generate", "New.train"]
    assert hooks.problems() == []


def test_a_framework_that_states_no_version_has_that_of_its_distribution(
    hooks: Hooks, tmp_path: Path
) -> None:
    (tmp_path / "rlt_fw/__init__.py").write_text("")
    folder = tmp_path / "rlt_fw-0.7.3.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: rlt_fw\nVersion: 0.7.3\n")
    hooks.of_adapter()  # one of its hooks is for 0.9 and later
    importlib.import_module("rlt_fw.loop").step(1)
    assert hooks.spans() == []
    assert hooks.described()["versions"] == {"rlt_fw": "0.7.3"}
    assert hooks.problems() == []


@pytest.mark.parametrize(
    ("target", "imported"),
    [
        ("rlt_fw.loop:Learner.gone", "rlt_fw.loop"),
        ("rlt_fw.loop:Gone.train", "rlt_fw.loop"),
        ("rlt_fw.no_such_module:train", "rlt_fw"),  # never imported, so told with the framework
    ],
)
def test_a_missing_target_is_told_once_and_stops_nothing(
    hooks: Hooks, target: str, imported: str
) -> None:
    hooks.of_adapter(
        Hook(target, "train"), Ours.hooks[0], Hook("rlt_fw.loop:gone", "train", optional=True)
    )
    importlib.import_module(imported)
    importlib.import_module("rlt_fw.loop").Learner().train([])
    assert hooks.problems() == [("hook-missing", target)]
    assert hooks.spans() == ["Learner.train"]


def test_another_package_is_waited_for_if_it_is_installed(hooks: Hooks, tmp_path: Path) -> None:
    (tmp_path / "rlt_fw_engine.py").write_text("def generate(): pass")
    hooks.of_adapter(
        Hook("rlt_fw_engine:generate", "rollout"), Hook("rlt_fw_not_installed:generate", "rollout")
    )
    importlib.import_module("rlt_fw")
    assert hooks.problems() == [("hook-missing", "rlt_fw_not_installed:generate")]
    importlib.import_module("rlt_fw_engine").generate()
    assert hooks.spans() == ["generate"]


def test_an_untested_version_and_an_adapter_that_cannot_be_loaded_are_told(hooks: Hooks) -> None:
    hooks.of_adapter(versions=">=0.8")
    importlib.import_module("rlt_fw")
    assert hooks.problems() == [("version-untested", "rlt_fw")]
    hooks.load_adapter("rlt_fw", "no_such_package.adapters:Theirs")
    assert hooks.problems()[1:] == [("adapter-failed", "no_such_package.adapters:Theirs")]


def test_two_hooks_on_one_function_and_reload(hooks: Hooks) -> None:
    for name in ("outer", "inner"):
        hooks.add(Hook("rlt_fw.loop:step", "train", name=name))
    loop = importlib.import_module("rlt_fw.loop")
    loop.step(1)
    importlib.reload(loop).step(2)
    assert sorted(hooks.spans()) == ["inner", "inner", "outer", "outer"]


def test_undo_takes_everything_out(hooks: Hooks) -> None:
    loop = importlib.import_module("rlt_fw.loop")
    before = (loop.step, vars(loop.Learner)["train"])
    for name in ("step", "Learner.train"):
        hooks.add(Hook(f"rlt_fw.loop:{name}", "train"))
    hooks.undo()
    assert (loop.step, vars(loop.Learner)["train"]) == before
    loop.step(1)
    assert hooks.spans() == []


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ("rlt_fw.loop:step=nonsense", "hook-failed"),
        ("rlt_fw.loop:Learner=train", "hook-failed"),  # a class
        ("rlt_fw.loop:nope=train", "hook-missing"),
    ],
)
def test_a_bad_hook_of_the_users_is_told(hooks: Hooks, entry: str, what: str) -> None:
    hooks.add_user_hooks([entry])
    importlib.import_module("rlt_fw.loop").step(1)
    assert hooks.problems() == [(what, entry.partition("=")[0])]


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("0.7.2rc1", ">=0.7,<0.8", True), ("0.10", ">=0.9", True), ("1.0", "<1", False),
        ("2.13.0+cpu", "==2.13", True), ("1.2.3", "!=1.2.3", False), ("", ">=9", True),
        ("unknown", ">=9", True),
    ],
)  # fmt: skip
def test_version_ranges(version: str, wanted: str, fits: bool) -> None:
    assert satisfies(version, wanted) is fits


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("python train.py -m x", ("script", "train.py")),
        ("python -u -X dev train.py", ("script", "train.py")),
        ("python -Xdev -m pkg.mod a", ("module", "pkg.mod")),
        ("python -um pkg.mod", ("module", "pkg.mod")),
        ("python -Ic pass", ("code", "pass")),
        ("python -W ignore -cpass", ("code", "pass")),
        ("python --check-hash-based-pycs always s.py", ("script", "s.py")),
        ("python -", ("", "")),
        ("python", ("", "")),
    ],
)
def test_what_a_command_line_runs(words: str, expected: tuple[str, str]) -> None:
    running = program(words.split())
    assert (running.kind, running.name) == expected


def test_of_a_process_the_program_is_shown_and_never_its_code() -> None:
    spawned = "from multiprocessing.spawn import spawn_main; spawn_main("
    child = ["python", "-c", f"{spawned}tracker_fd=5, pipe_handle=7)", "--n"]
    assert shown(child) == ["python", "-c", f"{spawned}[code]", "--n"]
    assert shown(["python", "-c"]) == ["python", "-c"]
    assert shown(["python", "-W", "x", "-c", "x", "--x"])[3:] == ["-c", "[code]", "--x"]
    assert shown(["python", "-Icx=1"]) == ["python", "-Ic[code]"]
    assert shown(["python", "gone/a.py", "-m", "x"]) == ["python", "gone/a.py", "-m", "[redacted]"]
    assert shown(["python", "-m", "a.b", "x"]) == ["python", "-m", "a.b", "[redacted]"]


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
def hooked(recorder: Recorder) -> Iterator[None]:
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


@pytest.mark.usefixtures("hooked")
def test_callers_get_what_they_got_and_the_call_is_recorded_as_long_as_it_takes(rows: Rows) -> None:
    manager = Manager()
    assert manager.update(3) == 3
    assert asyncio.run(manager.through(4)) == 4
    assert manager.twice(5) == 5
    assert Manager.create() == "Manager"
    with pytest.raises(ValueError, match="theirs"):
        manager.fail()
    assert rows(
        "SELECT name, version, end_ns - start_ns >= 2000000 FROM spans ORDER BY start_ns LIMIT 3"
    ) == [("update", 3, True), ("update", 4, True), ("twice", None, False)]
    assert rows("SELECT name FROM spans ORDER BY start_ns OFFSET 3") == ["create", "fail"]


@pytest.mark.usefixtures("hooked")
def test_the_function_looks_as_it_did() -> None:
    update: Any = vars(Manager)["update"]
    assert update.__doc__ == "Its docstring."
    assert update.__name__ == "update"
    assert update.mark == "theirs"
    assert str(inspect.signature(update)) == "(self, version: 'int') -> 'int'"
    assert not inspect.iscoroutinefunction(update)
    assert len(observers(update)) == 1
    assert len(observers(vars(Manager)["twice"])) == 1
