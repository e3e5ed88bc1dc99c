"""Paths of what is no file: commands that read one say so and wait for nothing; what one is written
to takes that as any program's, and is there afterwards."""

from __future__ import annotations

import ctypes
import gzip
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rltrace.testing.inside.report import whole_file
from rltrace.testing.inside.trace import UNREADABLE, open_given, text_given, written
from tests.cli.conftest import typed
from tests.hooks.conftest import untraced

READERS = [
    *(f"import {name} FILE" for name in ("verl", "trl", "openrlhf", "miles", "areal")),
    *("import torchtitan FILE", "import otlp FILE --map RUN/run.json"),
    "import chrome RUN/run.json --map FILE",
    *("plan FILE", "whatif --stages FILE", "gate RUN --baseline FILE", "query @FILE RUN"),
    "timeline RUN --torch-profile FILE",
]
"""Those that read a file of the user's."""

WRITERS = [
    *("timeline RUN -o FILE", "report RUN --html FILE", "report RUN --svg FILE"),
    "baseline RUN -o FILE",
]
"""Those that write a file where they are told to."""


def _without_rights_of_root() -> None:
    for capability in (1, 2):  # to read what its mode does not allow
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)


@pytest.mark.parametrize("folder", ["spans", "process", "names"])
def test_a_folder_that_may_not_be_read_is_not_an_empty_one(
    tmp_path: Path, small_run: Path, folder: str
) -> None:
    run = shutil.copytree(small_run, tmp_path / "run")
    (run / folder).chmod(0)
    told = subprocess.run(
        [sys.executable, "-m", "rltrace", "report", str(run)],
        capture_output=True, text=True, check=False, preexec_fn=_without_rights_of_root,
    )  # fmt: skip
    (run / folder).chmod(0o700)
    assert (told.returncode, told.stdout) == (UNREADABLE, "")
    assert str(run / folder) in told.stderr


@pytest.mark.parametrize("line", READERS)
def test_what_is_no_file_is_one_sentence_and_as_bad_as_a_file_that_is_not_there(
    tmp_path: Path, small_run: Path, line: str
) -> None:
    missing = typed(line, RUN=small_run, FILE=tmp_path / "none.sql")
    pipe, bound, device = (tmp_path / f"{kind}.sql" for kind in ("pipe", "bound", "device"))
    os.mkfifo(pipe)
    os.mknod(bound, stat.S_IFSOCK)
    device.symlink_to("/dev/zero")
    for path, kind in ((pipe, "a pipe"), (bound, "a socket"), (device, "a device")):
        done = typed(line, RUN=small_run, FILE=path)
        assert f"it is {kind}" in done.output
        assert (done.exit_code, len(done.output.splitlines())) == (missing.exit_code, 1)


@pytest.mark.parametrize("line", ["whatif --stages FILE", "plan FILE", "query @FILE RUN"])
def test_a_text_that_is_a_hole_is_not_read(tmp_path: Path, small_run: Path, line: str) -> None:
    hole = tmp_path / "hole.sql"
    hole.touch()
    os.truncate(hole, 8 << 30)
    done = typed(line, RUN=small_run, FILE=hole)
    assert "64 MiB" in done.output
    assert (done.exit_code in (2, 4), len(done.output.splitlines())) == (True, 1)


def test_a_pipe_of_the_shell_s_is_read_to_its_end() -> None:
    end, begin = os.pipe()
    os.write(begin, "[a]\nb = 'ü'\n".encode())
    os.close(begin)
    try:
        assert text_given(f"/dev/fd/{end}") == "[a]\nb = 'ü'\n"
        with pytest.raises(OSError, match="it is a pipe, not a file"):  # it is not there again
            open_given(f"/dev/fd/{end}")
    finally:
        os.close(end)


@pytest.mark.parametrize(
    "kind", ["nobody reads the pipe", "No space left on device", "a socket", "a directory"]
)
@pytest.mark.parametrize("line", WRITERS)
def test_what_takes_nothing_is_a_sentence_and_stays_what_it_is(
    tmp_path: Path, small_run: Path, line: str, kind: str
) -> None:
    path = tmp_path / "file"
    if "pipe" in kind:
        os.mkfifo(path)
    elif "device" in kind:
        path.symlink_to("/dev/full")
    elif "directory" in kind:
        path.mkdir()
    else:
        os.mknod(path, stat.S_IFSOCK)
    mode = path.stat().st_mode
    done = typed(line, RUN=small_run, FILE=path)
    # A run is a folder: a baseline in the place of one is a mistake in the words.
    wrong_words = line.startswith("baseline") and path.is_dir()
    assert done.exit_code == (2 if wrong_words else 4), done.output
    assert kind in done.output
    assert len(done.output.splitlines()) == 1
    assert (path.stat().st_mode, path.is_symlink()) == (mode, "device" in kind)
    assert [*tmp_path.iterdir(), Path("/dev/full.part").exists()] == [path, False]


def test_what_reads_a_pipe_gets_all_of_it(tmp_path: Path, small_run: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for line in WRITERS:
        got: list[bytes] = []
        reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # it is there before the writer
        os.set_blocking(reading, True)
        reader = threading.Thread(target=_read_all, args=(reading, got))
        writer_of_none = os.open(pipe, os.O_WRONLY)  # until the command's, it would be at its end
        reader.start()
        done = typed(line, RUN=small_run, FILE=pipe)
        os.close(writer_of_none)
        reader.join(30)
        assert done.exit_code == 0, (line, done.output)
        assert sum(map(len, got)) > 200, line
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert not list(tmp_path.glob("*.part"))


def _read_all(file: int, got: list[bytes]) -> None:
    while piece := os.read(file, 1 << 16):
        got.append(piece)
    os.close(file)


@pytest.mark.parametrize("opened", ["whole", "plain"])
def test_a_device_takes_it_and_is_a_device_afterwards(tmp_path: Path, opened: str) -> None:
    here, there = os.openpty()  # a device that needs no rights
    try:
        device = Path(os.ttyname(there))
        link = tmp_path / "link"
        link.symlink_to(device)
        for path in (device, link):
            with whole_file(path) if opened == "whole" else written(path) as file:
                file.write(b"text")
            assert os.read(here, 100) == b"text"
        assert stat.S_ISCHR(device.stat().st_mode)
        assert link.is_symlink()
    finally:
        os.close(here)
        os.close(there)


@pytest.mark.parametrize("suffix", ["", ".part"])
def test_a_link_that_a_run_came_with_is_not_written_through(
    tmp_path: Path, run: Path, suffix: str
) -> None:
    """Without -o the file goes into the run, which somebody else may have made."""
    name = "timeline.pftrace.gz"
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (run / f"{name}{suffix}").symlink_to(outside)
    done = typed("timeline RUN", RUN=run)
    assert outside.read_text() == "mine"
    assert done.exit_code == (0 if suffix else 4), done.output
    assert len(done.output.splitlines()) == 1, done.output
    assert not (run / f"{name}.part").exists()


@pytest.mark.parametrize("there", [True, False])
def test_a_link_goes_on_leading_to_what_is_written(tmp_path: Path, there: bool) -> None:
    (tmp_path / "apart").mkdir()
    target, link = tmp_path / "apart" / "target", tmp_path / "link.gz"
    link.symlink_to(target)
    if there:
        target.write_bytes(b"old")
    with whole_file(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert gzip.decompress(target.read_bytes()) == b"new"
    assert [x.name for x in target.parent.iterdir()] == ["target"]


def test_the_shell_s_output_goes_on_after_it(tmp_path: Path, run: Path) -> None:
    """`>> FILE` and /dev/stdout are one file: what stood in it, the page, what is said of it."""
    said = tmp_path / "said"
    said.write_text("before\n", "utf-8")
    command = f"{sys.executable} -m rltrace report {run} --html /dev/stdout >> {said}"
    assert untraced("sh", "-c", command).returncode == 0
    text = said.read_text("utf-8")
    assert text.startswith("before\n")
    assert "<html" in text
    assert text.splitlines()[-1].startswith("/dev/stdout: ")
