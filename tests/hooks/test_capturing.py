"""Storing token ids: what is stored, by whom, and what is not."""

from __future__ import annotations

import mmap
import os
import threading
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rltrace
from rltrace.testing.inside.hooks import Recorder, identify


def captured(run_path: Path) -> dict[int, Any]:
    """What is read back, by sample."""
    rows = "SELECT trajectory, prompt_token_ids, response_token_ids FROM captured"
    return {one[0]: one[1:] for one in rltrace.open_run(run_path).sql(rows).fetchall()}


def odd(run_path: Path) -> dict[str, str]:
    """What could not be recorded."""
    problems = rltrace.open_run(run_path).problems
    return {p["target"]: p["detail"] for p in problems if p["what"] == "not-recorded"}


@pytest.mark.parametrize(
    "kind",
    [list, tuple, np.array, torch.tensor, lambda ids: array("q", ids), lambda ids: range(3)],
    ids=["list", "tuple", "numpy", "torch", "array", "range"],
)
def test_ids_come_in_what_holds_whole_numbers(
    capturing: Recorder, run_path: Path, kind: Any
) -> None:
    with rltrace.trajectory("x", prompt_token_ids=kind([0, 1, 2])) as t:
        t.finish(response_token_ids=kind([0, 1, 2]))
    assert captured(run_path) == {identify("x"): ([0, 1, 2], [0, 1, 2])}


class Hostile:
    """Raises wherever it is touched."""

    def __len__(self) -> int:
        raise SystemError


@pytest.mark.parametrize(
    "wrong",
    [
        *("text", b"bytes", bytearray(b"bytes"), memoryview(b"bytes"), 5, 1.5, object(), Hostile()),
        *([1.5], ["a"], [[1]], {"a": 1}, [2**31], np.zeros((2, 2), int), torch.tensor(3)),
        iter([1, 2]),
    ],
    ids=lambda wrong: type(wrong).__name__,
)
def test_what_holds_no_token_ids_is_left_out_and_said(
    capturing: Recorder, run_path: Path, wrong: Any
) -> None:
    with rltrace.trajectory("x", prompt_token_ids=wrong) as t:
        t.finish("stop", response_token_ids=[4])
    assert captured(run_path) == {identify("x"): (None, [4])}
    assert list(odd(run_path)) == ["prompt_token_ids"]
    if hasattr(wrong, "__next__"):
        assert list(wrong) == [1, 2]  # it is the job's to go through


def test_threads_do_not_mix_what_they_store(capturing: Recorder, run_path: Path) -> None:
    def generate(thread: int) -> None:
        for number in range(60):
            ids = [thread] * (40 * number + 1)
            with rltrace.trajectory(f"{thread}/{number}", prompt_token_ids=[number]) as t:
                t.finish(response_token_ids=ids)

    threads = [threading.Thread(target=generate, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert captured(run_path) == {
        identify(f"{thread}/{number}"): ([number], [thread] * (40 * number + 1))
        for thread in range(4)
        for number in range(60)
    }


def test_where_a_file_cannot_be_mapped_they_are_written(
    capturing: Recorder, run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unmapped(*_: Any, **__: Any) -> Any:
        raise OSError("no maps here")

    monkeypatch.setattr(mmap, "mmap", unmapped)
    with rltrace.trajectory("x", prompt_token_ids=range(100)) as t:
        t.finish(response_token_ids=[7])
    assert captured(run_path) == {identify("x"): (list(range(100)), [7])}


def test_a_forked_child_has_none_of_its_parents_sample(capturing: Recorder, run_path: Path) -> None:
    t = rltrace.trajectory("parent's", prompt_token_ids=[1])
    pid = os.fork()
    if pid == 0:
        t.finish(response_token_ids=[2])
        with rltrace.trajectory("own") as own:
            own.finish(response_token_ids=[3])
        os._exit(0)
    os.waitpid(pid, 0)
    t.finish(response_token_ids=[4])
    assert captured(run_path) == {identify("parent's"): ([1], [4]), identify("own"): (None, [3])}
    assert odd(run_path) == {}


def test_the_same_id_again_is_another_sample(capturing: Recorder, run_path: Path) -> None:
    for ids in ([1, 2], [3]):
        with rltrace.trajectory("x") as t:
            t.finish(response_token_ids=ids)
    rows = rltrace.open_run(run_path).sql(
        "SELECT response_token_ids FROM captured ORDER BY start_ns"
    )
    assert rows.fetchall() == [([1, 2],), ([3],)]


def test_nothing_is_stored_where_nobody_asked(recorder: Recorder, run_path: Path) -> None:
    with rltrace.trajectory("x", prompt_token_ids="text") as t:  # type: ignore[arg-type]
        t.finish(response_token_ids=[1])
    assert captured(run_path) == {}
    assert odd(run_path) == {}
    assert list((run_path / "captured_tokens").iterdir()) == []


def test_without_a_run_ids_are_taken_and_nothing_happens() -> None:
    with rltrace.trajectory("x", prompt_token_ids=[1]) as t:
        t.finish(response_token_ids=[1])
