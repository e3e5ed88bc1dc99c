"""What is said of a run's URL that cannot be read: one sentence, with the URL in it."""

from __future__ import annotations

import shutil
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import pytest

from rltrace.testing.inside.trace import UNREADABLE, WRONG_USAGE, store, unreached
from tests.cli.conftest import invoke


def said(*words: object) -> tuple[int, str]:
    """What a command says in its one line, and its exit code."""
    result = invoke(*words)
    (line,) = result.output.splitlines()
    return result.exit_code, line


@pytest.mark.parametrize("command", ["report", "ls"])
@pytest.mark.parametrize(
    ("url", "says", "code"),
    [
        ("foo://x", "no filesystem is known for foo://", WRONG_USAGE),
        ("file://", "names no folder", WRONG_USAGE),
        ("github://x", "cannot be reached: TypeError", UNREADABLE),
        ("ftp://localhost:1/x", "cannot be reached: Connection refused", UNREADABLE),
    ],
)
def test_what_is_wrong_with_a_url_is_said_with_it(
    command: str, url: str, says: str, code: int
) -> None:
    exit_code, line = said(command, url)
    assert line.startswith(f"rltrace: {url}")
    assert says in line
    assert exit_code == code


def test_what_is_to_be_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_it(name: str) -> ModuleSpec | None:
        return None if name == "s3fs" else find_spec(name)

    monkeypatch.setattr(store, "find_spec", without_it)
    exit_code, line = said("report", "s3://bucket/run")
    assert line.startswith("rltrace: s3://bucket/run cannot be opened here: s3:// needs s3fs")
    assert line.endswith("pip install 'rltrace-toolkit[ship]' s3fs")
    assert exit_code == WRONG_USAGE


@pytest.mark.parametrize(
    ("error", "says", "lacks_credentials"),
    [
        (PermissionError("Forbidden"), "Forbidden", True),
        (OSError("NoCredentialsError: Unable to locate credentials"), "Unable to locate", True),
        (PermissionError(13, "Permission denied", "/disk/run"), "/disk/run: Permission", False),
        (OSError("no libjvm\ndlopen(a)\ndlopen(b)"), "reached: no libjvm", False),
        (OSError("no libjvm\\ndlopen(a)\\ndlopen(b)"), "reached: no libjvm", False),
        (TimeoutError(), "TimeoutError", False),
    ],
)
def test_of_what_a_filesystem_says_there_is_one_line(
    error: OSError, says: str, lacks_credentials: bool
) -> None:
    line = str(unreached("s3://bucket/run", error))
    assert line.startswith("s3://bucket/run cannot be reached: ")
    assert says in line
    assert "dlopen" not in line
    assert ("credentials are taken from" in line) == lacks_credentials


def test_compaction_of_a_url_is_of_the_copy_here(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLTRACE_CACHE", str(tmp_path / "cache"))
    url = f"file://{run}"
    exit_code, line = said("compact", "--delete-segments", url)
    assert exit_code == WRONG_USAGE
    assert f"is a copy of {url}, to which the next command adds" in line
    assert f"this is a copy, and {url} stays as it is" in said("compact", url)[1]
    assert not (run / "parquet").exists()
    assert len(list(tmp_path.glob("cache/*/*/spans/*.arrows"))) == 1


def test_a_folder_of_runs_is_no_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLTRACE_CACHE", str(tmp_path / "cache"))
    runs = tmp_path / "runs"
    runs.mkdir()
    run.rename(runs / "one")
    url = f"file://{runs}"
    assert said("report", url) == (
        UNREADABLE,
        f"rltrace: {url} is no run, but a folder that holds one: give {url}/one",
    )
    shutil.copytree(runs / "one", runs / "two")
    assert said("report", url)[1] == (
        f"rltrace: {url} is no run, but a folder that holds 2: give one of them, such as "
        f"{url}/two (`rltrace ls {url}` lists them)"
    )
    of_path = said("report", runs)[1].replace(str(runs), url)
    assert of_path == said("report", url)[1]


def test_a_folder_that_is_not_there_has_no_runs(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/nowhere"
    is_none = f"rltrace: {url} is no folder: give one that holds runs"
    assert said("ls", url) == (UNREADABLE, is_none)
    (tmp_path / "nowhere").touch()
    assert said("ls", url) == (UNREADABLE, is_none)
    (tmp_path / "empty").mkdir()
    assert said("ls", f"file://{tmp_path}/empty")[0] == said("ls", tmp_path / "empty")[0] == 0
