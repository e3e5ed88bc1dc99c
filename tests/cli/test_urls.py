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


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs at URLs are brought."""
    monkeypatch.setenv("RLTRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("command", ["report", "ls"])
@pytest.mark.parametrize(
    ("url", "says", "code"),
    [
        ("foo://x", "foo://", WRONG_USAGE),
        ("file://", "folder", WRONG_USAGE),
        ("github://x", "TypeError", UNREADABLE),
        ("ftp://localhost:1/x", "Connection refused", UNREADABLE),
    ],
)
def test_what_is_wrong_with_a_url_is_said_with_it(
    command: str, url: str, says: str, code: int
) -> None:
    exit_code, line = said(command, url)
    assert line.startswith(f"rltrace: {url}")
    assert says in line.removeprefix(f"rltrace: {url}")
    assert exit_code == code


def test_what_is_to_be_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_it(name: str) -> ModuleSpec | None:
        return None if name == "s3fs" else find_spec(name)

    monkeypatch.setattr(store, "find_spec", without_it)
    exit_code, line = said("report", "s3://bucket/run")
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
    assert "s3://bucket/run" in line
    assert says in line
    assert "dlopen" not in line
    assert ("credentials are taken from" in line) == lacks_credentials


def test_compaction_of_a_url_is_of_the_copy_here(run: Path, cached: Path) -> None:
    url = f"file://{run}"
    exit_code, line = said("compact", "--delete-segments", url)
    assert (exit_code, f"is a copy of {url}" in line) == (WRONG_USAGE, True)
    assert f"{url} stays as it is" in said("compact", url)[1]
    assert not (run / "parquet").exists()
    assert len(list(cached.glob("*/*/spans/*.arrows"))) == 1


def test_a_folder_of_runs_is_no_run(run: Path, tmp_path: Path, cached: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    run.rename(runs / "one")
    url = f"file://{runs}"
    code, one = said("report", url)
    assert (code, one.endswith(f"{url}/one")) == (UNREADABLE, True)
    shutil.copytree(runs / "one", runs / "two")
    _, two = said("report", url)
    assert "holds 2" in two
    assert f"rltrace ls {url}" in two
    assert said("report", runs)[1].replace(str(runs), url) == two


def test_a_folder_that_is_not_there_has_no_runs(tmp_path: Path) -> None:
    code, is_none = said("ls", f"file://{tmp_path}/folder")
    assert code == UNREADABLE
    (tmp_path / "folder").touch()
    assert said("ls", f"file://{tmp_path}/folder") == (UNREADABLE, is_none)
    (tmp_path / "empty").mkdir()
    assert said("ls", f"file://{tmp_path}/empty")[0] == said("ls", tmp_path / "empty")[0] == 0
