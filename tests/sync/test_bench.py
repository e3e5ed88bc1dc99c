"""`benchmarks.sync_bench`: the model that it moves, what it counts, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from benchmarks.sync_bench import __main__ as program
from benchmarks.sync_bench import measuring
from benchmarks.sync_bench.measuring import OWN, Round, measure
from benchmarks.sync_bench.measuring import BenchRow as Row
from benchmarks.sync_bench.measuring import SharedMemorySlots as Slots
from benchmarks.sync_bench.models import digest, model_of
from benchmarks.sync_bench.ways import BenchSetting as Setting
from benchmarks.sync_bench.ways import Crowd
from benchmarks.sync_peers import PEERS
from benchmarks.sync_peers.torch_and_files import GlooPerTensor, Saved
from rltrace.testing.inside.trace import RltraceError
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.slow

SMALL = model_of("qwen2.5-0.5b", 1)


def bench(*words: str) -> Any:
    return CliRunner().invoke(program.main, words, env={"COLUMNS": "200"})


def test_the_model_is_the_published_one_or_about_as_large_as_asked() -> None:
    whole = model_of("qwen2.5-0.5b")
    assert (whole.bytes, len(whole.tensors)) == (2 * 494_032_768, 290)
    assert whole.tensors["model.layers.23.mlp.down_proj.weight"] == ("BF16", (896, 4864))
    assert model_of("qwen2.5-0.5b", 494).bytes == pytest.approx(494e6, rel=0.01)
    layer = 2 * 14_912_384  # a cut keeps one at least
    assert layer < model_of("qwen2.5-0.5b", 20).bytes < layer + 20e6


def test_a_file_gives_its_tensors(tmp_path: Path) -> None:
    save_file({"w": np.zeros((3, 5), np.float32), "b": np.zeros(7, np.bool_)}, tmp_path / "m")
    model = model_of(str(tmp_path / "m"), 494)
    assert model.tensors == {"w": ("F32", (3, 5)), "b": ("BOOL", (7,))}
    one, same, other = model.made(1), model.made(1), model.made(2)
    assert {name: tuple(tensor.shape) for name, tensor in one.items()} == {"w": (3, 5), "b": (7,)}
    assert digest(one) == digest(same) != digest(other)


@pytest.mark.parametrize("text", ["", "no", "\0" * 8])
def test_what_is_no_model_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m"
    with pytest.raises(RltraceError, match="no model that is known"):
        model_of(str(path))
    path.write_text(text)
    with pytest.raises(RltraceError, match="no safetensors file"):
        model_of(str(path))


def test_every_way_brings_the_weights(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests are compared by `measure` itself: it raises where they differ."""
    monkeypatch.setattr(measuring, "shared_memory", lambda: memory / "ours")  # others bench, too
    rows = measure(SMALL, (*OWN, *PEERS), [1], 2)
    for row in rows:
        assert row.missing or len(row.rounds) == 2, row.way
        # A receiver may have them before the sender goes on.
        assert all(r.stall_s > 0 < r.end_s for r in row.rounds), row.way
    assert {row.way for row in rows if row.missing} <= {"verl, buckets"}
    assert not list(memory.iterdir())


class Silent(Slots):
    """Publishes what it was given first, again and again."""

    def sender(self, setting: Setting) -> Any:
        sender = super().sender(setting)
        first: list[Any] = []

        def send(number: int, weights: Any) -> None:
            first.append(weights)
            sender.send(number, first[0])

        return SimpleNamespace(send=send, close=sender.close)


def test_weights_that_did_not_arrive_are_no_result() -> None:
    with pytest.raises(RltraceError, match="does not hold what was sent"):
        measure(SMALL, [Silent()], [1], 2)


class Broken(GlooPerTensor):
    """Has a receiver that fails."""

    def receiver(self, setting: Setting, number: int, weights: Any) -> Any:
        raise OSError("no such device")

    def sender(self, setting: Setting) -> Any:
        return Slots().sender(setting)  # no group is waited for


def test_another_way_that_fails_is_told_and_leaves_the_others() -> None:
    failed, done = measure(SMALL, [Broken(), Saved("torch")], [1], 1)
    assert "no such device" in failed.missing
    assert (failed.rounds, len(done.rounds)) == ([], 1)


def test_a_receiver_that_is_killed_is_an_error_whoever_notices() -> None:
    with closing(Crowd(SMALL, 1, 1)) as crowd:
        crowd._processes[0].kill()
        crowd._processes[0].join()
        setting = Setting(SMALL, 1, "", 1)
        for ask in (lambda: crowd.tell(setting, 1), crowd.digests, crowd.ends):
            with pytest.raises(RltraceError, match="a receiver has ended"):
                ask()


def of_run(mark: str) -> list[str]:
    """The command lines of processes that have this in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_text())
    return found


BENCH = """
import sys
from pathlib import Path
from benchmarks.sync_bench import measuring
from benchmarks.sync_bench.measuring import OWN, measure
from benchmarks.sync_bench.models import model_of
from benchmarks.sync_peers import PEERS
ours = Path(sys.argv.pop(1))
measuring.shared_memory = lambda: ours
measure(model_of("qwen2.5-0.5b", 1), (*OWN, *PEERS), [1], 100000)
"""


@pytest.mark.parametrize(
    ("number", "after_s"),
    [(signal.SIGTERM, -1), (signal.SIGTERM, 2.5), (signal.SIGHUP, 5.0), (signal.SIGINT, 9.0)],
)
def test_what_is_ended_leaves_nothing(memory: Path, number: signal.Signals, after_s: float) -> None:
    """Wherever it is then: as it starts, as receivers or Ray start, between rounds."""
    mark = f"RLTRACE_TEST_MARK={memory}"
    ended = subprocess.Popen(
        [sys.executable, "-c", BENCH, str(memory / "ours")],
        env={**os.environ, "RLTRACE_TEST_MARK": str(memory)},
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: any(memory.iterdir()) or after_s < 0, "its folder")
        time.sleep(abs(after_s))
        assert ended.poll() is None
        ended.send_signal(number)
        assert ended.wait(PATIENCE_S)
    finally:
        ended.kill()
    until(lambda: not of_run(mark), "all of its processes to end")
    assert not list(memory.iterdir())


def test_too_little_memory_is_told_before_anything_starts() -> None:
    with pytest.raises(RltraceError, match="take a smaller model or fewer receivers"):
        measure(SMALL, OWN, [10**9], 1)


def ending(*ends_s: float, receivers: int = 1) -> list[Round]:
    return [Round(receivers, 0.5, 0.25, 0.6, end_s) for end_s in ends_s]


def test_the_command_prints_a_table_or_json(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        Row("ours", 1, 494, rounds=ending(1.0, 2.0, 4.0)),
        Row("other", 1, 494, rounds=ending(2.0, 5.0, 4.0)),
        Row("ours", 3, 494, rounds=ending(2.0, receivers=3)),
        Row("theirs", 1, 988, missing="it is not installed"),
    ]
    monkeypatch.setattr(program, "measure", lambda *_: rows)
    said = json.loads(bench("--json").stdout)
    ours, other, three, theirs = said["rows"]
    assert said["tensors"] == 12 * 12 + 2
    assert ours["floor_share"] == {"median": 0.25, "best": 0.5}
    assert ours["stall_memcpys"] == {"median": 1.2, "best": 1.2}
    assert (ours["times"], other["times"]) == (1, 2)  # round by round
    assert three["floor_share"]["best"] == 0.5  # every copy counts
    assert theirs == {"way": "theirs", "receivers": 1, "missing": "it is not installed"}
    shown = bench().output
    assert "25 (50)" in shown
    assert "theirs: it is not installed" in shown


@pytest.mark.parametrize("counts", ["", "0", "1,x", "-1", "1,,2"])
def test_a_list_of_receivers_that_is_none_is_refused(counts: str) -> None:
    result = bench(f"--receivers={counts}")
    assert (result.exit_code, "no list" in result.output) == (2, True)
