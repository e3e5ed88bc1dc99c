"""The doctor tells what will be seen, from sources alone, and what went wrong in a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rltrace.run import doctor
from rltrace.run.doctor import NO, UNKNOWN, YES, module_file, resolves, source_version
from rltrace.testing.handmade_runs import at, process, run_of, stating, turns
from rltrace.testing.inside.hooks import Adapter, Hook
from rltrace.testing.inside.trace import RltraceError, Stage

SOURCES = {
    "rlt_src/__init__.py": "__version__ = '1.4'\nraise RuntimeError('never imported')",
    "rlt_src/engine.py": """
from . import other
from .other import Base, helper as renamed
try:
    def optional(): pass
except Exception:
    pass
constant = 3
alias = renamed
@decorator
class Engine(Base["T"]):
    def generate(self): pass
    if True:
        async def stream(self): pass
    class Inner:
        def deep(self): pass
class Unknown(other.Base): pass
""",
    "rlt_src/other.py": "class Root:\n    def root(self): pass\nclass Base(Root):\n"
    "    def inherited(self): pass\ndef helper(): pass",
    "rlt_src/lazy.py": "def __getattr__(name): ...",
    "rlt_src/broken.py": "def (:",
    "rlt_src/sub/__init__.py": "from ..engine import Engine",
}


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that can be found but would fail to be imported."""
    for name, text in SOURCES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("rlt_src.engine:Engine.generate", YES),
        ("rlt_src.engine:Engine.stream", YES),
        ("rlt_src.engine:Engine.Inner.deep", YES),
        ("rlt_src.engine:Engine.inherited", YES),
        ("rlt_src.engine:Engine.root", YES),
        ("rlt_src.sub:Engine.generate", YES),
        ("rlt_src.engine:optional", YES),
        ("rlt_src.engine:renamed", YES),
        ("rlt_src.engine:alias", YES),
        ("rlt_src.engine:Engine.gone", NO),
        ("rlt_src.engine:gone", NO),
        ("rlt_src.engine:optional.deeper", NO),
        ("rlt_src.no_module:gone", NO),
        ("no_such_package:gone", NO),
        ("rlt_src.engine:Unknown.perhaps", UNKNOWN),
        ("rlt_src.engine:constant.perhaps", UNKNOWN),
        ("rlt_src.lazy:perhaps", UNKNOWN),
        ("rlt_src.broken:perhaps", UNKNOWN),
    ],
)
def test_targets_are_looked_up_without_an_import(sources: Path, target: str, found: str) -> None:
    module, _, name = target.partition(":")
    assert resolves(module, name) == found
    assert not [name for name in sys.modules if name.startswith("rlt_src")]


def test_files_and_versions(sources: Path) -> None:
    assert source_version("rlt_src.engine") == "1.4"
    assert module_file("rlt_src.sub") == sources / "rlt_src" / "sub" / "__init__.py"
    assert module_file("rlt_src.nothing") is None


class Complete(Adapter):
    """Every hook has a target."""

    framework = "rlt_src"
    versions = ">=1,<2"
    hooks = (
        Hook("rlt_src.engine:Engine.generate", "rollout"),
        Hook("rlt_src.gone:train", "train", alternates=("rlt_src.engine:optional",)),
        Hook("rlt_src.gone:old", "train", versions="<1"),
        Hook("rlt_src.gone:nice", "eval", optional=True),
    )


class Lacking(Complete):
    """One has none."""

    hooks = (*Complete.hooks, Hook("rlt_src.engine:Engine.gone", "reference"))


@pytest.mark.parametrize(("adapter", "healthy"), [("Complete", True), ("Lacking", False)])
def test_it_tells_what_will_be_seen(
    sources: Path, monkeypatch: pytest.MonkeyPatch, adapter: str, healthy: bool
) -> None:
    monkeypatch.chdir(sources)
    target = f"{__name__}:{adapter}"
    monkeypatch.setattr(doctor, "find_adapters", lambda: {"rlt_src": target})
    findings = doctor.examine()
    (checked,) = findings.adapters
    assert checked.installed == "1.4"
    assert checked.fits
    assert checked.stages[:2] == ("rollout", "train")
    assert [hook.stage for hook in checked.lacking] == ([] if healthy else ["reference"])
    wrong, _ = doctor.sections(findings)
    assert any("reference" in line for line in wrong.lines) is not healthy
    as_json = doctor.to_json(findings)
    assert json.loads(json.dumps(as_json))["healthy"] is findings.healthy
    good = all(check.ok is not False for check in findings.checks)
    assert findings.healthy is (healthy and good)


def recording_is_refused() -> str:
    """Why nothing can be recorded here."""
    findings = doctor.examine()
    (check,) = [check for check in findings.checks if check.name == "recording"]
    assert check.ok is False
    assert not findings.healthy
    return check.detail


def test_that_nothing_can_be_recorded_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.chdir("/proc")
        assert "/proc" in recording_is_refused()
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr("os.posix_fallocate")
    assert "Linux" in recording_is_refused()


def test_it_tells_what_is_wrong_with_a_run(run_path: Path, tmp_path: Path) -> None:
    line = {"what": "hook-missing", "target": "a:b", "stage": "reference", "detail": "no b in a"}
    harmless = {"what": "no-gpu", "detail": "none"}
    for who in ("one", "two"):
        lines = f"{json.dumps(line)}\n{json.dumps(harmless)}\n"
        (run_path / "problems" / f"{who}.jsonl").write_text(lines)
    findings = doctor.examine(run_path)
    assert findings.problems == ("hook missing: a:b reference no b in a",)
    assert not findings.healthy
    with pytest.raises(RltraceError):
        doctor.examine(tmp_path / "no-run")


@pytest.mark.parametrize("missed", [[], [{"what": "hook-missing", "target": "job:gone"}]])
def test_a_hook_that_is_not_in_place_is_wrong_for_whatever_reason(
    tmp_path: Path, missed: list[dict[str, Any]]
) -> None:
    driver = process("driver", *turns(*[4] * 12))
    run = run_of(tmp_path, driver, settings={"hooks": ["job:gone=rollout", "job:fit=train"]})
    run = stating(run, {"hooks": ["job:fit"]})
    (run.path / "problems" / "one.jsonl").write_text("".join(map(json.dumps, missed)))
    findings = doctor.examine(run.path)
    (problem,) = findings.problems
    assert "job:gone" in problem
    assert not findings.healthy


def test_it_tells_what_went_wrong_with_the_job(tmp_path: Path) -> None:
    worker = process("reward", (Stage.REWARD, 0, 5), (Stage.REWARD, 20, -1))
    run = run_of(tmp_path, process("driver", *turns(*[4] * 12)), worker)
    findings = doctor.examine(run.path)
    (problem,) = findings.problems
    assert "reward" in problem
    assert not findings.healthy


@pytest.mark.parametrize(("exit_code", "healthy"), [(0, True), (None, False)])
def test_of_a_run_that_ended_it_notes_how(
    tmp_path: Path, exit_code: int | None, healthy: bool
) -> None:
    """It is well, or was killed and nobody saw how."""
    driver = process("driver", *turns(*[4] * 12))
    ended: dict[str, Any] = {"end_real_ns": at(50), "exit_code": exit_code, "command_pid": 1}
    findings = doctor.examine(run_of(tmp_path, driver, **ended).path)
    assert findings.problems == ()
    said = "nothing is wrong" if healthy else "how was not recorded"
    assert any(said in note for note in findings.notes)
