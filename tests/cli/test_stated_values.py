"""Values of the files that users state things in: a wrong one is a sentence that names file and
key, and the exit code of docs/reference/api.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rltrace.testing.inside.analysis import (
    Constants,
    read_baseline,
    read_stages,
    read_workload,
    spec_of,
)
from rltrace.testing.inside.importers import read_names
from rltrace.testing.inside.run import FILE, read_settings
from rltrace.testing.inside.trace import UNREADABLE, WRONG_USAGE, RltraceError, packaged_toml

NEVER = ("-1", "nan", "-inf", "1e400", "true", '"many"', "[1]", "{ a = 1 }", "[]", "1979-05-27")
"""What no number is that stands in a file of ours."""
HUGE = "9" * 400


def _stages(path: Path) -> None:
    read_stages(path).workload(Constants())


def _workload(path: Path) -> None:
    spec_of(read_workload(path), str(path))


def _settings(path: Path) -> None:
    read_settings(path.parent)


def refused(read: Callable[[Path], object], path: Path, text: str) -> RltraceError:
    path.write_text(text)
    with pytest.raises(RltraceError) as error:
        read(path)
    said = str(error.value)
    assert (str(path) in said, "\n" in said) == (True, False)
    assert len(said) < len(str(path)) + 500  # whatever stands there
    return error.value


def _numbers(schema: dict[str, Any], table: str = "") -> list[tuple[str, str]]:
    """The table and the key of each number that a file may hold."""
    found = []
    for key, rule in schema.items():
        if isinstance(rule, dict):
            found += _numbers(rule, key)
        elif not isinstance(rule, str) and not isinstance(rule[0], str):
            found.append((table, key))
    return found


@pytest.mark.parametrize(
    ("read", "file", "rest"),
    [
        (_stages, "analysis/data/stages_file.toml", {"stages": "data = 1"}),
        (_workload, "analysis/plan/data/workload.toml", {}),
    ],
    ids=["stages", "workload"],
)
def test_each_number_of_a_file_is_one(
    tmp_path: Path, read: Callable[[Path], object], file: str, rest: dict[str, str]
) -> None:
    for table, key in _numbers(packaged_toml(file)):
        for value in (*NEVER, HUGE, f"-{HUGE}"):
            text = f"{f'[{table}]' if table else ''}\n{key} = {value}\n"
            text += "".join(f"[{t}]\n{kept}\n" for t, kept in rest.items() if t != table)
            error = refused(read, tmp_path / "stated.toml", text)
            named = f"{table}.{key}" if table else key
            assert error.exit_code == WRONG_USAGE
            assert named in str(error) or value in (HUGE, f"-{HUGE}")  # no TOML has such


@pytest.mark.parametrize("kind", ["min", "max", "max-regression"])
def test_a_limit_of_a_gate_is_one(tmp_path: Path, kind: str) -> None:
    unit = "%" if kind == "max-regression" else ""
    for value in (*NEVER, '"1e400"', '"nan"', f'"-3{unit}"', '"3%%"', '""', f'"{HUGE}{unit}"'):
        error = refused(_settings, tmp_path / FILE, f"[gate.{kind}]\ngoodput = {value}\n")
        assert (error.exit_code, "goodput" in str(error)) == (WRONG_USAGE, True)
    (tmp_path / FILE).write_text(f'[gate.{kind}]\nreward = "{"3%" if unit else "-3"}"\n')
    assert read_settings(tmp_path).conditions  # a reward may be negative


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("wall = true", "wall"),
        ("wall = ['rollout']", "wall"),
        ("baseline = 1", "baseline"),
        ("max = 3", "max"),
        ("min = [3]", "min"),
        ("max_regression = { goodput = '3%' }\nmax-regression = { step = '3%' }", "twice"),
    ],
)
def test_a_key_of_a_gate_is_stated_once_and_of_its_kind(
    tmp_path: Path, text: str, key: str
) -> None:
    error = refused(_settings, tmp_path / FILE, f"[gate]\n{text}\n")
    assert (error.exit_code, key in str(error)) == (WRONG_USAGE, True)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        *((f"framework = {value}", "framework") for value in ("3", "true", "[]")),
        ("placement = 1e400", "placement"),
        *((f"steps = {value}", "steps") for value in ("'step'", "[1]", "[['a']]", "[true]")),
        *((f"roles = {value}", "roles") for value in ("3", "{ a = 1 }", "{ a = ['b'] }")),
        *((f"stages.gen = {value}", "stages.gen") for value in ("3", "'thinking'", "['rollout']")),
        ("stage.gen = 'rollout'", "stage"),
        ("", "stages"),
    ],
)
def test_a_mapping_holds_texts(tmp_path: Path, text: str, key: str) -> None:
    error = refused(read_names, tmp_path / "map.toml", f"{text}\n")
    assert (error.exit_code, key in str(error)) == (WRONG_USAGE, True)


def baseline(**changed: Any) -> dict[str, Any]:
    run = {"run": "a", "start_ns": 1, "steps": [1, 2], "columns": {"length_s": [1, 2.5]}}
    facts = {key: {"devices": 2} for key in ("hardware", "framework", "settings")}
    head = {"format": "rltrace-baseline", "schema_version": 1, "created": "", "rltrace_version": ""}
    return {**head, **facts, "runs": [{**run, **changed}]}


def test_what_a_baseline_may_be_is_read_and_what_it_may_not_is_told_by_key(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps({**baseline(), "of a later version": 1}))
    assert read_baseline(path).runs[0].steps.tolist() == [1, 2]
    columns = {"length_s": [1, 2]}
    wrong: list[tuple[str, dict[str, Any]]] = [
        *(("run", baseline(run=value)) for value in (3, None, ["a"])),
        *(("start_ns", baseline(start_ns=value)) for value in ("1", True, 1.5, 1e300, 10**400)),
        *(("steps", baseline(steps=value))
          for value in ([1, 2.0], [1, True], ["1", "2"], [-1, 2], [], {}, [1, 10**30])),
        *(("columns.length_s", baseline(columns={"length_s": value}))
          for value in ("12", [1, "2"], [1, True], [1, [2]], {"1": 2}, 3)),
        *(("length_s", baseline(columns={"length_s": value}))
          for value in ([1], [1, 0], [1, None], [1, -1], [1, 1e300], [1, 10**400])),
        ("columns.length_s", baseline(columns={})),
        *((name, baseline(columns={**columns, name: [1, 2]}))
          for name in ("lag.x", "lag.²", f"lag.{HUGE}", "lag.-1", "lag.65")),
        *((key, {**baseline(), key: value}) for key, value in (
            ("created", 3), ("rltrace_version", None), ("hardware", []), ("settings", "x"),
            ("runs", {}), ("runs", [3]), ("runs", []), ("schema_version", True),
            ("schema_version", "1"),
        )),
        *((key, {k: v for k, v in baseline().items() if k != key})
          for key in ("created", "hardware", "runs")),
    ]  # fmt: skip
    for key, value in wrong:
        error = refused(read_baseline, path, json.dumps(value))
        said = str(error).replace("schema version", "schema_version")
        assert (error.exit_code, key in said) == (UNREADABLE, True), (key, said)


@pytest.mark.parametrize(
    "figures", ["[1, NaN]", "[1, Infinity]", "[1, 1e400]", '[1, 2], "length_s": [1, 2]']
)
def test_a_baseline_is_json_without_a_second_meaning(tmp_path: Path, figures: str) -> None:
    text = json.dumps(baseline()).replace("[1, 2.5]", figures)
    assert refused(read_baseline, tmp_path / "b.json", text).exit_code == UNREADABLE
