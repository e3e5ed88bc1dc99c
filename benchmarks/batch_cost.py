"""What a row costs where an adapter has a whole batch, and what `kill -9` within one leaves.

    python -m benchmarks.batch_cost [--rounds 31] [--kills 200] [--json]

CPU time of the recording thread for one of 5,000 samples that a step trains on: as OpenRLHF's
controller books them, ids known; of that `uses` alone; row by row; and, as a floor, their numbers
packed and copied into memory. New batches and the page faults of fresh file space are in it. What
the hash of an id costs is told apart.

Then processes that do nothing else (`killed_batches`) are killed at a random moment. Every batch
that was acknowledged must be there, and every row that is there must have all of its columns.
"""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pyarrow as pa
from pyarrow import ipc

import rltrace
from benchmarks.killed_batches import ROWS, columns_of
from benchmarks.measuring import Check, Result, cpu_ns_each, spread, take_turns
from benchmarks.span_cost import LOOP, loop, recording
from rltrace.testing.inside.adapters import openrlhf_controller as controller
from rltrace.testing.inside.adapters import uses
from rltrace.testing.inside.hooks import Call, identify, recorder
from rltrace.testing.inside.trace import create_run

ADAPTER = "OpenRLHF's controller: a step's samples, ids and ratios known"
USES = "of that: uses(...)"
SINGLE = "row by row: call.row(...)"
FLOOR = "floor: packed by struct and copied into memory"
HASH = "apart: the hash of an id"

MOST_NS = 400
LONGEST_LIFE_S = 0.05


def train_step(_trainer: Any, rollout_samples: Any, global_step: int) -> None:
    """What the controller's reader is told of."""


def a_call() -> Call:
    """A call of it that has ended, with the recorder of this process."""
    active = recorder.active()
    assert active is not None
    trainer = SimpleNamespace(args=SimpleNamespace())
    call = Call(train_step, (trainer, [], 1), {}, active)
    call.end_ns = time.monotonic_ns()
    return call


def adapter(count: int) -> None:
    """One step of OpenRLHF's controller."""
    call = a_call()
    call.state = (1, COLUMNS[2])
    controller.train_ends(call)


def all_at_once(count: int) -> None:
    fates, ids, tokens, *moved = COLUMNS
    uses(a_call(), fates, ids, tokens, moved, version=1)


def row_by_row(count: int) -> None:
    call = a_call()
    row, step = call.row, call.recorder.step
    for fate, trajectory, tokens, ratio, w, w_squared in zip(*COLUMNS, strict=True):
        row(
            "uses",
            trajectory=trajectory,
            fate=fate,
            tokens=tokens,
            step=step,
            version=1,
            mean_log_ratio=ratio,
            sum_w=w,
            sum_w_squared=w_squared,
        )


MEMORY = bytearray(64 * ROWS)


def floor(count: int) -> None:
    place = 0
    for kind, column in zip("bqiddd", COLUMNS, strict=True):
        packed = struct.pack(f"{count}{kind}", *column[:count])
        MEMORY[place : place + len(packed)] = packed
        place += len(packed)


def hashed(count: int) -> None:
    for name in NAMES[:count]:
        identify(name)


COLUMNS = columns_of(0)
NAMES = [f"7d0f6e2c-{number:04x}-4b6e-9a1f-2b7c5e0a91d3_0_0" for number in range(ROWS)]


def costs(folder: Path, rounds: int) -> dict[str, list[float]]:
    """ns of CPU a row, by how it is stored."""
    controller.loop.batch = tuple((trajectory, 1) for trajectory in COLUMNS[1])
    controller.loop.ratios = COLUMNS[3:]
    controller.loop.held = []
    ways: dict[str, Callable[[int], object]] = {
        LOOP: loop, ADAPTER: adapter, USES: all_at_once, SINGLE: row_by_row, FLOOR: floor,
        HASH: hashed,
    }  # fmt: skip
    with recording(folder / "run"):
        turns = {name: cpu_ns_each(way, ROWS) for name, way in ways.items()}
        take_turns(turns, 2)  # the first batches are small
        return take_turns(turns, rounds)


@dataclass(frozen=True)
class KilledBatches:
    """What a process that was killed left behind."""

    rows: int
    lost: int  # rows of calls that had returned
    torn: int  # rows without some column, or with another row's
    within: bool  # columns stood in space that had no row yet, or a call's rows were there in part


def kill_once(folder: Path, chance: random.Random) -> KilledBatches:
    """Starts a process that records, kills it once a batch is there, and looks at what it left."""
    run, counter = folder / "run", folder / "acknowledged"
    create_run(str(run), [], {}, rltrace.__version__)
    counter.write_bytes(bytes(8))
    command = [sys.executable, "-m", "benchmarks.killed_batches", str(run), str(counter)]
    child = subprocess.Popen(command)
    while not any(counter.read_bytes()):
        if child.poll() is not None:
            raise RuntimeError("the recording process ended by itself")
    time.sleep(chance.random() * LONGEST_LIFE_S)
    child.kill()
    child.wait()
    (acknowledged,) = struct.unpack("q", counter.read_bytes())
    return look_through(run, acknowledged)


def look_through(run: Path, acknowledged: int) -> KilledBatches:
    """The rows that a killed process left in a run, after so many calls that returned."""
    parts = []
    for path in (run / "uses").glob("*.arrows"):
        with pa.memory_map(str(path)) as source:
            parts.append(ipc.open_stream(source).read_all())
    table = {
        name: np.concatenate([p[name].to_numpy() for p in parts]) for name in parts[0].column_names
    }
    there = table["time_ns"] != 0
    numbers = table["trajectory"][there]
    whole = np.ones(len(numbers), bool)
    for name, divisor in {"tokens": 1, "mean_log_ratio": 2, "sum_w": 4, "sum_w_squared": 8}.items():
        whole &= table[name][there] == numbers / divisor
    whole &= (table["fate"][there] == 0) & (table["version"][there] == numbers // ROWS)
    stored = np.unique(numbers[whole])
    lost = acknowledged * ROWS - int((stored < acknowledged * ROWS).sum())
    begun = bool((table["trajectory"][~there] != -1).any())
    return KilledBatches(
        len(numbers), lost, int((~whole).sum()) + len(numbers) - len(np.unique(numbers)),
        begun or len(numbers) % ROWS > 0,
    )  # fmt: skip


@click.command()
@click.option("--rounds", default=31, show_default=True)
@click.option("--kills", default=200, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(rounds: int, kills: int, seed: int, as_json: bool) -> None:
    """Cost of a row of a batch, and what kills leave; exits 1 when a limit is missed."""
    result = Result(f"A row of {ROWS:,} that are stored at once", "ns of CPU")
    with tempfile.TemporaryDirectory() as folder:
        taken = costs(Path(folder), rounds)
    result.rows = {name: spread(values) for name, values in taken.items()}
    chance, trials = random.Random(seed), []
    for _ in range(kills):
        with tempfile.TemporaryDirectory() as folder:
            trials.append(kill_once(Path(folder), chance))
    median = {name: row.median for name, row in result.rows.items()}
    result.notes["rows that the killed processes stored"] = f"{sum(t.rows for t in trials):,}"
    result.notes["kills that struck while columns were stored"] = str(sum(t.within for t in trials))
    result.notes["uses / its floor"] = f"{median[USES] / median[FLOOR]:.2f}"
    to_single = [one / other for one, other in zip(taken[USES], taken[SINGLE], strict=True)]
    result.checks = [
        Check.median("a row of a batch, through the adapter", taken[ADAPTER], MOST_NS, "ns"),
        Check.median("a row of a batch / one by itself", to_single, 0.25),
        Check("rows of calls that had returned, lost", sum(t.lost for t in trials), 0, "rows"),
        Check("rows that are not whole", sum(t.torn for t in trials), 0, "rows"),
    ]
    sys.exit(result.finish(as_json))


if __name__ == "__main__":
    main()
