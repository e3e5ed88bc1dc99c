"""A run that goes on, read from its URL or where it is recorded: it is told as of a moment."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.clocks import UP_FOR_DAYS, up_for_days
from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.hooks import Recorder
from rltrace.testing.inside.report import warnings
from rltrace.testing.inside.run import Courier
from rltrace.testing.inside.trace import (
    ALL_LOOKED,
    LOOKED,
    NODES,
    SHIPPED,
    Liveness,
    Stage,
    fetch,
    liveness,
    monotonic_ns,
    node_id,
    read_run_json,
    update_run_json,
    write_json,
)
from rltrace.testing.inside.trace import remote_runs as fetched
from tests.run.shipped import Shipping, spans

SECOND = 10**9


def store_span(
    recorder: Recorder, name: str, stage: Stage, start_ns: int, end_ns: int, step: int = -1
) -> None:
    """Stores a span with times of its own."""
    recorder.append(
        "spans", start_ns=start_ns, end_ns=end_ns, name=recorder.name(name), stage=stage, step=step
    )


def steps(recorder: Recorder, since_ns: int, number: int, open_one: bool = True) -> None:
    """So many steps of 1 s from a moment on, and one that did not end, all of them training."""
    for n in range(number + open_one):
        start_ns = since_ns + n * SECOND
        end_ns = start_ns + SECOND if n < number else -1
        store_span(recorder, "step", Stage.STEP, start_ns, end_ns, n)
        store_span(recorder, "train", Stage.TRAIN, start_ns, end_ns)


def node_says(shipping: Shipping, node: str, looked_ns: int = 0, **said: object) -> None:
    """Puts what an agent says of its node there: that it has not shipped all, and when it looked;
    or what is given."""
    said = said or {"shipped": False, "looked_ns": looked_ns, "all_looked_ns": looked_ns}
    told = {"node": node, "host": "here", "directory": "/runs/run", "again_s": 60.0, **said}
    shipping.store.put(f"{NODES}/{node}.json", json.dumps(told).encode())


def going_on(shipping: Shipping, ago_s: int, number: int) -> int:
    """Has a run begin so long ago, on `UP_FOR_DAYS`, with so many steps, and ships it; when that
    was, by the clock of that node."""
    began_ns = int(read_run_json(str(shipping.run))["start_real_ns"]) - ago_s * SECOND
    shipping.describe(node=UP_FOR_DAYS, start_real_ns=began_ns)
    began_ns = up_for_days(shipping.recorder) - ago_s * SECOND
    steps(shipping.recorder, began_ns, number)
    shipping.ships.ship(shipping.store)
    return began_ns


def kinds(run: Path) -> list[str]:
    """The alarms of a run as it is now."""
    return [alarm.kind for alarm in summarize(rltrace.open_run(run)).health.alarms]


def test_what_is_not_shipped_yet_makes_nobody_late(shipping: Shipping) -> None:
    began_ns = going_on(shipping, 100, 8)
    node_says(shipping, UP_FOR_DAYS, began_ns + int(8.5 * SECOND))
    found = summarize(rltrace.open_run(fetch(shipping.url)))
    assert found.health.alarms == ()
    assert found.steps.in_progress == ((8, pytest.approx(0.5)),)
    assert [one.open_s for one in found.coverage.in_progress] == [pytest.approx(0.5)] * 2
    assert found.run.as_of is not None
    assert found.run.as_of.ago_s == pytest.approx(91.5, abs=30)
    assert any("shipped" in line for line in warnings(found))

    # What has been looked at all the while and did not end is late.
    node_says(shipping, UP_FOR_DAYS, began_ns + 60 * SECOND)
    found = summarize(rltrace.open_run(fetch(shipping.url)))
    assert [alarm.kind for alarm in found.health.alarms] == ["hang"]
    assert found.steps.in_progress == ((8, pytest.approx(52)),)


def test_a_node_that_ships_later_than_another_has_lost_no_process(shipping: Shipping) -> None:
    began_ns = going_on(shipping, 100, 60)
    rollout = Recorder(str(shipping.run), role="rollout")
    rollout.describe(node="far-1")
    store_span(rollout, "generate", Stage.ROLLOUT, began_ns + SECOND, -1)
    shipping.ships.ship(shipping.store)
    near_ns, far_ns = began_ns + 60 * SECOND, began_ns + 2 * SECOND
    node_says(shipping, UP_FOR_DAYS, near_ns)
    pair = {"kind": "pair", "monotonic_ns": began_ns, "real_ns": 0, "bracket_ns": 1}
    exchange = {"kind": "exchange", "peer": UP_FOR_DAYS, "at_ns": began_ns}
    exchange |= {"offset_ns": 0, "rtt_ns": 2}
    lines = "".join(json.dumps(line) + "\n" for line in (pair, exchange))
    (fetch(shipping.url) / "clocks" / "far-1.jsonl").write_text(lines)
    for looked_ns, lost in ((far_ns, []), (near_ns, ["lost process"])):
        node_says(shipping, "far-1", looked_ns)
        assert kinds(fetch(shipping.url)) == lost


def test_a_node_of_which_nothing_comes_any_more_is_told(shipping: Shipping) -> None:
    node_says(shipping, UP_FOR_DAYS, going_on(shipping, 1000, 8) + 9 * SECOND)
    said = [*warnings(summarize(rltrace.open_run(fetch(shipping.url))))]
    assert any(line.startswith("step 8 ") for line in said)
    assert any(line.startswith("nothing has come from here since ") for line in said)


def test_whether_a_run_at_a_url_goes_on_nobody_here_can_tell(shipping: Shipping) -> None:
    """Its description there is older than the end of the job that has just ended here."""
    steps(shipping.recorder, monotonic_ns() - 10 * SECOND, 8)
    ended = subprocess.Popen(["true"])
    ended.wait()
    shipping.describe(wrap_pid=ended.pid, command_pid=ended.pid)
    shipping.ships.ship(shipping.store)
    assert kinds(shipping.run) == ["crash"]  # here it can be seen that it is gone
    assert kinds(fetch(shipping.url)) == []


@pytest.fixture
def ending(shipping: Shipping) -> Shipping:
    """A run that has just ended and of which a part is at its URL."""
    shipping.ship(10)
    node_says(shipping, node_id(), shipped=False, looked_ns=monotonic_ns())
    spans(shipping.recorder, 5)
    shipping.describe(end_real_ns=time.time_ns(), exit_code=0)
    return shipping


def test_what_comes_just_after_the_end_is_waited_for(ending: Shipping) -> None:
    def ship() -> None:
        ending.ships.ship(ending.store)
        node_says(ending, node_id(), shipped=True)

    coming = threading.Timer(0.3, ship)
    coming.start()
    run = rltrace.open_run(fetch(ending.url))
    coming.join()
    assert run.sql("SELECT count(*) FROM spans").fetchall() == [(15,)]
    assert run.problems == []


def test_what_does_not_come_is_not_waited_for_long(
    ending: Shipping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetched, "_WAIT_S", 0.0)
    (lacking,) = rltrace.open_run(fetch(ending.url)).problems
    assert lacking["what"] == "node-not-whole"
    assert "ask again" in lacking["detail"]


def test_a_courier_says_until_when_all_is_there(to_disk: Shipping) -> None:
    run, url, node = to_disk.run, to_disk.url, node_id()
    write_json(f"{run}/{NODES}/{node}.json", {"node": node, "host": "here"})
    courier = Courier(run, node, node, url, is_first=True, apart=False)
    spans(to_disk.recorder, 10)
    recorded_ns = monotonic_ns()
    courier.start()
    told: dict[str, int] = {}
    while told.get(LOOKED, 0) <= recorded_ns:
        time.sleep(0.05)
        told = to_disk.store.get_json(f"{NODES}/{node}.json") or {}
    assert recorded_ns < told[ALL_LOOKED] <= told[LOOKED]
    assert rltrace.open_run(fetch(url)).rows("spans") == 10  # as soon as it is said
    courier.finish(60)
    told = to_disk.store.get_json(f"{NODES}/{node}.json") or {}
    assert told[SHIPPED] is True
    assert LOOKED not in told


@pytest.fixture
def here(run_path: Path) -> Recorder:
    """A process that records here."""
    return Recorder(str(run_path), role="learner")


def test_a_run_that_goes_on_is_told_as_of_when_it_was_opened(
    run_path: Path, here: Recorder
) -> None:
    began_ns = monotonic_ns() - 10 * SECOND
    steps(here, began_ns, 8)
    rollout = Recorder(str(run_path), role="rollout")
    store_span(rollout, "generate", Stage.ROLLOUT, began_ns + 7 * SECOND, -1)
    run = rltrace.open_run(run_path)
    later_ns = monotonic_ns() + 100 * SECOND  # the report takes long
    store_span(here, "train", Stage.TRAIN, began_ns + 9 * SECOND, later_ns)
    store_span(here, "train", Stage.TRAIN, later_ns, later_ns + SECOND)
    store_span(Recorder(str(run_path), role="new"), "reward", Stage.REWARD, later_ns, -1)
    found = summarize(run)
    assert found.health.alarms == ()
    assert run.problems == []
    assert found.run.as_of is not None
    assert (found.run.as_of.at_ns, found.run.as_of.ago_s) == (run.opened_ns, 0)
    ended_ns = int(read_run_json(str(run_path))["start_real_ns"]) + 120 * SECOND
    update_run_json(str(run_path), end_real_ns=ended_ns, exit_code=0)  # long after that
    assert "lost process" in kinds(run_path)


def test_a_job_that_ends_while_it_is_reported_was_not_seen_to_die(
    run_path: Path, here: Recorder
) -> None:
    steps(here, monotonic_ns() - 10 * SECOND, 8)
    with subprocess.Popen(["sleep", "600"]) as job:
        update_run_json(str(run_path), wrap_pid=job.pid, command_pid=job.pid)
        run = rltrace.open_run(run_path)
        job.kill()
    assert summarize(run).health.alarms == ()
    assert kinds(run_path) == ["crash"]  # opened since, and nobody has written how it ended


def test_a_job_that_ends_while_it_is_opened_ended_as_it_says(
    run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(self: Liveness, meta: dict[str, object]) -> bool:
        update_run_json(str(run_path), end_real_ns=time.time_ns(), exit_code=0)
        return False

    monkeypatch.setattr(liveness.Liveness, "of_command", ends)
    assert rltrace.open_run(run_path).meta["exit_code"] == 0


def test_nothing_that_is_stored_before_a_run_is_opened_is_missing(
    run_path: Path, here: Recorder
) -> None:
    """However far the clock pair of the run is off that by which the rows of its node are told."""
    told = read_run_json(str(run_path))
    update_run_json(str(run_path), start_real_ns=int(told["start_real_ns"]) - SECOND)
    assert told["wrap_pid"] == os.getpid()
    spans(here, 3)
    run = rltrace.open_run(run_path)
    assert run.goes_on
    assert run.sql("SELECT count(*) FROM spans").fetchall() == [(3,)]
