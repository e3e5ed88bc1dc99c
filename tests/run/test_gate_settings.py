"""What a project states of its gate: from files, under a command line, with the defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrace.run.gate_settings import GateSettings, from_table, read_settings, stated
from rltrace.testing.inside.trace import RltraceError

LIMITS = """
baseline = "ci/baseline.json"
wall = "rollout"
max-regression = { goodput = "3%", "step.p95" = "10%" }
max = { "lag.p99" = 4 }
"""


def texts(settings: GateSettings) -> list[str]:
    return sorted(condition.text for condition in settings.conditions)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rltrace.toml", f"[gate]{LIMITS}"),
        ("pyproject.toml", f"[project]\nname = 'x'\n[tool.rltrace.gate]{LIMITS}"),
        ("rltrace.toml", f"[gate]{LIMITS}".replace("max-regression", "max_regression")),
    ],
)
def test_the_nearest_file_above_holds_the_limits(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    below = tmp_path / "a/b"
    below.mkdir(parents=True)
    (below / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    found = read_settings(below)
    assert texts(found) == [
        "max lag.p99=4",
        "max-regression goodput=3%",
        "max-regression step.p95=10%",
        "wall rollout",
    ]
    assert found.baseline == tmp_path / "ci/baseline.json"


def test_a_command_line_takes_the_place_of_what_it_is_about() -> None:
    given = stated(
        {"max-regression": ["goodput=5%"], "wall": ["learner"]},
        Path("other.json"),
    )
    table = {
        "baseline": "baseline.json",
        "max-regression": {"goodput": "3%", "step": "10%"},
        "wall": "rollout",
    }
    both = given.over(from_table(table, Path("project")))
    assert texts(both) == [
        "max-regression goodput=5%",
        "max-regression step=10%",
        "wall training",
    ]
    assert both.baseline == Path("other.json")


def test_a_baseline_alone_is_held_to_goodput_and_a_bound_does_without() -> None:
    assert texts(GateSettings(baseline=Path("b.json")).completed()) == ["max-regression goodput=3%"]
    assert texts(stated({"max": ["lag.p99=4"]}, None).completed()) == ["max lag.p99=4"]


@pytest.mark.parametrize(
    ("options", "says"),
    [({}, "nothing to gate by"), ({"max-regression": ["goodput=3%"]}, "needs a baseline")],
)
def test_what_cannot_be_asked_is_wrong_usage(options: dict[str, list[str]], says: str) -> None:
    with pytest.raises(RltraceError, match=says) as error:
        stated(options, None).completed()
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    "text",
    [
        b"[gate",
        b"[gates]\nwall = 'rollout'",
        b"gate = 3",
        b"[gate]\nwalls = 'rollout'",
        b"[gate]\nbaseline = 3",
        b"[gate]\nmax-regression = { goodput = '3' }",
        b"[gate]\nmax = { nonsense = 3 }",
        b"[gate]\nmin = 3",
        b"[gate]\nwall = [3]",
        b"\xff\xfe",
    ],
)
def test_a_wrong_file_is_one_sentence_that_names_it(tmp_path: Path, text: bytes) -> None:
    """A limit that nobody reads is worse than none."""
    (tmp_path / "rltrace.toml").write_bytes(text)
    with pytest.raises(RltraceError, match=r"^.*rltrace\.toml.*$") as error:
        read_settings(tmp_path)
    assert error.value.exit_code == 2


def test_without_any_file_nothing_is_stated(tmp_path: Path) -> None:
    assert read_settings(tmp_path / "not/there") == GateSettings()
