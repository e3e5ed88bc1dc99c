"""The figures of steps in rows that a job logs, without wandb itself: what the patch does and does
not do. `tests/system/test_wandb.py` has the real one."""

from __future__ import annotations

import inspect
import json
import types
from pathlib import Path
from typing import Any

import pytest

from rltrace.hooks.patch import wandb_rows

NEW = {"rltrace/step_seconds": 2.0, "rltrace/step": 7}


class Run:
    """A stand-in for a run of wandb's."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> str:
        """Takes a row."""
        if data == {"bad": 1}:
            raise ValueError("a bad row")
        self.rows.append((data, step, commit))
        return "logged"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose class is patched."""
    monkeypatch.setattr(wandb_rows, "_EVERY_S", 0.0)
    patched = type("Run", (Run,), {"log": Run.log})
    monkeypatch.setenv("RLTRACE_RUN", str(tmp_path))
    wandb_rows.patch(types.SimpleNamespace(Run=patched))
    return patched()


def told(folder: Path, figures: object = NEW) -> None:
    """A step's figures are written."""
    (folder / wandb_rows.FILE).write_text(json.dumps(figures))


def test_figures_go_into_the_next_row_once(run: Run, tmp_path: Path) -> None:
    own = {"loss": 0.5}
    assert run.log(own, step=1) == "logged"
    told(tmp_path)
    run.log(own, 2, commit=False)
    run.log(own)
    told(tmp_path)
    run.log(step=3, data={"loss": 1.0})
    told(tmp_path)
    run.log({"rltrace/step": "mine"})  # a name that the job gave wins
    assert run.rows == [
        (own, 1, None),
        ({**NEW, **own}, 2, False),
        (own, None, None),
        ({**NEW, "loss": 1.0}, 3, None),
        ({**NEW, "rltrace/step": "mine"}, None, None),
    ]
    assert own == {"loss": 0.5}
    assert str(inspect.signature(run.log)).startswith("(data: ")


def test_what_the_job_does_wrong_is_still_its_own(run: Run, tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        run.log()  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="a bad row"):
        run.log({"bad": 1})
    odd: Any = [("loss", 1)]
    told(tmp_path)
    run.log(odd)
    assert run.rows == [(odd, None, None)]  # and the figures wait for a row that is one
    run.log({})
    assert run.rows[1][0] == NEW


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff"])
def test_a_file_that_is_none_leaves_the_row_alone(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / wandb_rows.FILE).write_text(text, "latin-1")
    run.log({"loss": 1.0})
    assert run.rows == [({"loss": 1.0}, None, None)]


def test_the_file_is_looked_at_once_a_second(tmp_path: Path) -> None:
    figures = wandb_rows.NewFigures(str(tmp_path))
    assert figures.take() == {}
    told(tmp_path)
    assert figures.take() == {}
