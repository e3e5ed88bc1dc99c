"""Paths that output goes to: what is no file takes it as any program's, and is there afterwards."""

from __future__ import annotations

import gzip
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rltrace.testing.inside.report import whole_file
from rltrace.testing.inside.trace import RltraceError, written
from tests.cli.conftest import invoke


def commands(run: Path, path: Path) -> list[list[object]]:
    """Those that write a file where they are told to."""
    return [
        ["timeline", run, "-o", path],
        ["export", "otlp", run, "-o", path],
        ["report", run, "--html", path],
        ["report", run, "--svg", path],
        ["baseline", run, "-o", path],
    ]


def test_a_pipe_that_nobody_reads_is_a_sentence_and_stays_a_pipe(tmp_path: Path, run: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for words in commands(run, pipe):
        done = invoke(*words)
        assert done.exit_code == 4, (words, done.output)
        assert "nobody reads the pipe" in done.output, words
        assert len(done.output.splitlines()) == 1, words
        assert stat.S_ISFIFO(pipe.stat().st_mode), words


def test_what_reads_a_pipe_gets_all_of_it(tmp_path: Path, run: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for words in commands(run, pipe):
        got: list[bytes] = []
        reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # it is there before the writer
        os.set_blocking(reading, True)
        reader = threading.Thread(target=_read_all, args=(reading, got))
        writer_of_none = os.open(pipe, os.O_WRONLY)  # until the command's, it would be at its end
        reader.start()
        done = invoke(*words)
        os.close(writer_of_none)
        reader.join(30)
        assert done.exit_code == 0, (words, done.output)
        assert sum(map(len, got)) > 200, words
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
            with whole_file(path, "it") if opened == "whole" else written(path) as file:
                file.write(b"text")
            assert os.read(here, 100) == b"text"
        assert stat.S_ISCHR(device.stat().st_mode)
        assert link.is_symlink()
    finally:
        os.close(here)
        os.close(there)


def test_a_device_that_takes_nothing_is_a_sentence_and_stays_a_device(
    tmp_path: Path, run: Path
) -> None:
    for path in (Path("/dev/full"), tmp_path / "link"):
        if path.parent == tmp_path:
            path.symlink_to("/dev/full")
        for words in commands(run, path):
            done = invoke(*words)
            assert done.exit_code == 4, (words, done.output)
            assert "No space left on device" in done.output, words
            assert len(done.output.splitlines()) == 1, words
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    assert not Path("/dev/full.part").exists()
    assert [x.name for x in tmp_path.iterdir() if x.name.startswith("link")] == ["link"]


@pytest.mark.parametrize("suffix", ["", ".part"])
def test_a_link_that_a_run_came_with_is_not_written_through(
    tmp_path: Path, run: Path, suffix: str
) -> None:
    """Without -o the file goes into the run, which somebody else may have made."""
    outside = tmp_path / "outside"
    outside.write_text("mine")
    for words, name in (
        (["timeline", run], "timeline.pftrace.gz"),
        (["export", "otlp", run], "spans.otlp.jsonl"),
    ):
        (run / f"{name}{suffix}").symlink_to(outside)
        done = invoke(*words)
        assert outside.read_text() == "mine", words
        assert done.exit_code == (0 if suffix else 4), done.output
        assert len(done.output.splitlines()) == 1, done.output
        assert not (run / f"{name}.part").exists()


def test_a_socket_and_a_folder_are_refused(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path has a hundred bytes
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind("bound")
        for name, said in (("bound", "it is a socket, not a file"), ("folder", "a directory")):
            for words in commands(run, tmp_path / name):
                done = invoke(*words)
                # A run is a folder: a baseline in the place of one is a mistake in the words.
                wrong_words = words[0] == "baseline" and name == "folder"
                assert done.exit_code == (2 if wrong_words else 4), words
                assert said in done.output, words
                assert len(done.output.splitlines()) == 1, words
        assert stat.S_ISSOCK(os.stat("bound").st_mode)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_goes_on_leading_to_what_is_written(tmp_path: Path, there: bool) -> None:
    (tmp_path / "apart").mkdir()
    target, link = tmp_path / "apart" / "target", tmp_path / "link.gz"
    link.symlink_to(target)
    if there:
        target.write_bytes(b"old")
    with whole_file(link, "it") as file:
        file.write(b"new")
    assert link.is_symlink()
    assert gzip.decompress(target.read_bytes()) == b"new"
    assert [x.name for x in target.parent.iterdir()] == ["target"]


def _stopped_within(path: Path) -> None:
    with whole_file(path, "it") as file:
        file.write(b"new")
        raise OSError("the disk is full")


def test_what_fails_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"old")
    with pytest.raises(RltraceError, match="cannot write it"):
        _stopped_within(target)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_the_shell_s_output_goes_on_after_it(tmp_path: Path, run: Path) -> None:
    """`>> FILE` and /dev/stdout are one file: what stood in it, the page, what is said of it."""
    said = tmp_path / "said"
    said.write_text("before\n", "utf-8")
    command = [sys.executable, "-m", "rltrace", "report", str(run), "--html", "/dev/stdout"]
    with said.open("ab") as output:
        subprocess.run(command, stdout=output, check=True, timeout=300)
    text = said.read_text("utf-8")
    assert text.startswith("before\n")
    assert "<html" in text
    assert "open it in a browser" in text.splitlines()[-1]
