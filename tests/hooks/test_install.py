"""Hooks are put where their targets are, whatever the version, and told when they have none."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rltrace
from rltrace.hooks.argv import Program, program, shown
from rltrace.hooks.install import Installation
from rltrace.testing.inside.hooks import Adapter, Finder, Hook, satisfies
from rltrace.testing.inside.hooks import recorder as recording

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


@pytest.fixture
def installation(
    tmp_path: Path, run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Installation]:
    """Hooks of this process, which records into `run_path`; `rlt_fw` can be imported."""
    for name, text in FRAMEWORK.items():
        path = tmp_path / "rlt_fw" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    recorder = recording.start(str(run_path))
    assert recorder is not None
    finder = Finder(lambda name, error: recorder.problem("hook-failed", target=name))
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    yield (made := Installation(finder, Program("", "")))
    made.undo()
    recording.stop()
    sys.meta_path.remove(finder)  # type: ignore[arg-type]
    for name in [name for name in sys.modules if name.startswith("rlt_fw")]:
        del sys.modules[name]


def problems(run_path: Path) -> list[tuple[str, str]]:
    lines = [line for p in (run_path / "problems").iterdir() for line in p.read_text().splitlines()]
    return [(entry["what"], entry["target"]) for entry in map(json.loads, lines)]


def spans(run_path: Path) -> list[Any]:
    run = rltrace.open_run(run_path)
    return [row[0] for row in run.sql("SELECT name FROM spans ORDER BY start_ns").fetchall()]


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


def test_an_adapters_hooks_are_in_place_before_names_are_copied(
    installation: Installation, run_path: Path
) -> None:
    installation.add_adapter(Ours())
    from rlt_fw.new_home import generate  # type: ignore[import-not-found]

    loop = importlib.import_module("rlt_fw.loop")
    assert loop.Learner().train([1, 2]) == loop.Child().train([1, 2]) == 2
    assert generate(3) == loop.step(3) == 3
    assert spans(run_path) == ["Learner.train", "Learner.train", "generate"]
    (file,) = (run_path / "process").iterdir()
    described = json.loads(file.read_text())
    assert described["adapter"] == "rlt_fw"
    assert described["versions"] == {"rlt_fw": "0.7.2rc1"}
    assert described["parameters"] == 12
    assert problems(run_path) == []


def test_a_target_in_another_home_is_waited_for(installation: Installation, run_path: Path) -> None:
    installation.add_adapter(Ours())
    importlib.import_module("rlt_fw.old_home")  # lacks it; the alternate may still come
    assert problems(run_path) == []
    importlib.import_module("rlt_fw.new_home").generate(1)
    assert spans(run_path) == ["generate"]
    assert problems(run_path) == []


def test_a_target_under_another_name_in_its_home_is_found(
    installation: Installation, run_path: Path
) -> None:
    renamed = Hook("rlt_fw.loop:New.train", "train", alternates=("rlt_fw.loop:Learner.train",))
    installation.add_adapter(type("Renamed", (Ours,), {"hooks": (renamed,)})())
    importlib.import_module("rlt_fw.loop").Learner().train([1])
    assert spans(run_path) == ["New.train"]
    assert problems(run_path) == []


def test_a_framework_that_states_no_version_has_that_of_its_distribution(
    installation: Installation, run_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "rlt_fw/__init__.py").write_text("")
    folder = tmp_path / "rlt_fw-0.7.3.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: rlt_fw\nVersion: 0.7.3\n")
    installation.add_adapter(Ours())  # one of its hooks is for 0.9 and later
    importlib.import_module("rlt_fw.loop").step(1)
    assert spans(run_path) == []
    (file,) = (run_path / "process").iterdir()
    assert json.loads(file.read_text())["versions"] == {"rlt_fw": "0.7.3"}
    assert problems(run_path) == []


@pytest.mark.parametrize(
    ("target", "imported"),
    [
        ("rlt_fw.loop:Learner.gone", "rlt_fw.loop"),
        ("rlt_fw.loop:Gone.train", "rlt_fw.loop"),
        ("rlt_fw.no_such_module:train", "rlt_fw"),  # never imported, so told with the framework
    ],
)
def test_a_missing_target_is_told_once_and_stops_nothing(
    installation: Installation, run_path: Path, target: str, imported: str
) -> None:
    adapter = type("Lacking", (Ours,), {"hooks": (Hook(target, "train"), Ours.hooks[0])})()
    installation.add_adapter(adapter)
    importlib.import_module(imported)
    importlib.import_module("rlt_fw.loop").Learner().train([])
    assert problems(run_path) == [("hook-missing", target)]
    assert spans(run_path) == ["Learner.train"]


def test_another_package_is_waited_for_if_it_is_installed(
    installation: Installation, run_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "rlt_fw_engine.py").write_text("def generate(): pass")
    hooks = (
        Hook("rlt_fw_engine:generate", "rollout"),
        Hook("rlt_fw_not_installed:generate", "rollout"),
    )
    installation.add_adapter(type("Two", (Ours,), {"hooks": hooks})())
    importlib.import_module("rlt_fw")
    assert problems(run_path) == [("hook-missing", "rlt_fw_not_installed:generate")]
    importlib.import_module("rlt_fw_engine").generate()
    assert spans(run_path) == ["generate"]


def test_optional_hooks_are_not_missed(installation: Installation, run_path: Path) -> None:
    installation.add(Hook("rlt_fw.loop:gone", "train", optional=True))
    importlib.import_module("rlt_fw.loop")
    assert problems(run_path) == []


def test_an_untested_version_is_told(installation: Installation, run_path: Path) -> None:
    installation.add_adapter(type("Newer", (Ours,), {"versions": ">=0.8"})())
    importlib.import_module("rlt_fw")
    assert problems(run_path) == [("version-untested", "rlt_fw")]


def test_an_adapter_that_cannot_be_loaded_is_told(
    installation: Installation, run_path: Path
) -> None:
    installation.load_adapter("rlt_fw", "no_such_package.adapters:Theirs")
    assert problems(run_path) == [("adapter-failed", "no_such_package.adapters:Theirs")]


def test_two_hooks_on_one_function_and_reload(installation: Installation, run_path: Path) -> None:
    installation.add(Hook("rlt_fw.loop:step", "train", name="outer"))
    installation.add(Hook("rlt_fw.loop:step", "train", name="inner"))
    loop = importlib.import_module("rlt_fw.loop")
    loop.step(1)
    importlib.reload(loop).step(2)
    assert sorted(spans(run_path)) == ["inner", "inner", "outer", "outer"]


def test_undo_takes_everything_out(installation: Installation, run_path: Path) -> None:
    loop = importlib.import_module("rlt_fw.loop")
    before = (loop.step, vars(loop.Learner)["train"])
    installation.add(Hook("rlt_fw.loop:step", "train"))
    installation.add(Hook("rlt_fw.loop:Learner.train", "train"))
    installation.undo()
    assert (loop.step, vars(loop.Learner)["train"]) == before
    loop.step(1)
    assert spans(run_path) == []


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ("rlt_fw.loop:step=nonsense", "hook-failed"),
        ("rlt_fw.loop:Learner=train", "hook-failed"),  # a class
        ("rlt_fw.loop:nope=train", "hook-missing"),
    ],
)
def test_a_bad_hook_of_the_users_is_told(
    installation: Installation, run_path: Path, entry: str, what: str
) -> None:
    installation.add_user_hooks([entry])
    importlib.import_module("rlt_fw.loop").step(1)
    assert problems(run_path) == [(what, entry.partition("=")[0])]


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("0.7.2rc1", ">=0.7,<0.8", True),
        ("0.10", ">=0.9", True),
        ("1.0", "<1", False),
        ("2.13.0+cpu", "==2.13", True),
        ("1.2.3", "!=1.2.3", False),
        ("", ">=9", True),
        ("unknown", ">=9", True),
    ],
)
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
    assert program(words.split()) == expected


def test_of_a_process_the_program_is_shown_and_never_its_code() -> None:
    spawned = "from multiprocessing.spawn import spawn_main; spawn_main("
    child = ["python", "-c", f"{spawned}tracker_fd=5, pipe_handle=7)", "--n"]
    assert shown(child) == ["python", "-c", f"{spawned}[code]", "--n"]
    assert shown(["python", "-c"]) == ["python", "-c"]
    assert shown(["python", "-W", "x", "-c", "x", "--x"])[3:] == ["-c", "[code]", "--x"]
    assert shown(["python", "-Icx=1"]) == ["python", "-Ic[code]"]
    assert shown(["python", "gone/a.py", "-m", "x"]) == ["python", "gone/a.py", "-m", "[redacted]"]
    assert shown(["python", "-m", "a.b", "x"]) == ["python", "-m", "a.b", "[redacted]"]
