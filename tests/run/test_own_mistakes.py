"""Where rltrace itself is wrong a job runs all the same, and a command gives no wrong answer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rltrace.cli import main
from rltrace.run.asked import Asked
from rltrace.testing.inside.run import gate_settings
from rltrace.testing.inside.run import wrap as wrapping
from tests.cli.conftest import invoke

JOB = "import pathlib, sys; pathlib.Path(sys.argv[1]).touch(); raise SystemExit(7)"


def _wrong(*_: object) -> None:
    raise KeyError("a mistake")


@pytest.mark.parametrize("part", ["opening.start_agent", "_make_run", "_each_step", "_finish"])
def test_the_job_runs_and_ends_as_it_would(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"{wrapping.__name__}.{part}", _wrong)
    ran = tmp_path / "ran"
    code = wrapping.wrap([sys.executable, "-c", JOB, str(ran)], tmp_path / "run", Asked())
    assert (code, ran.exists()) == (7, True)
    said = capfd.readouterr().err
    assert "KeyError at test_own_mistakes.py" in said
    assert "Traceback" not in said


def test_a_mistake_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_settings, "read_settings", _wrong)
    found = invoke("gate", tmp_path)
    assert found.exit_code == 70
    assert found.output.startswith("rltrace: this is a mistake in rltrace ")
    assert "(KeyError at rltrace/cli/gating.py:" in found.output
    assert "RLTRACE_TRACEBACK=1" in found.output
    monkeypatch.setenv("RLTRACE_TRACEBACK", "1")
    with pytest.raises(KeyError):
        main(["gate", str(tmp_path)])
