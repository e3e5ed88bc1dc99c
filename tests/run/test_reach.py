"""A run that goes on, read from its URL or where it is recorded: it is told as of a moment."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.clocks import UP_FOR_DAYS, up_for_days
from rltrace.testing.inside.analysis import Summary, summarize
from rltrace.testing.inside.hooks import Recorder
from rltrace.testing.inside.report import warnings
from rltrace.testing.inside.run import Courier
from rltrace.testing.inside.trace import (
    ALL_LOOKED,
    LOOKED,
    NODES,
    RUN_FILE,
    SHIPPED,
    Liveness,
    Stage,
    Store,
    fetch,
    fetched,
    liveness,
    monotonic_ns,
    node_id,
    read_run_json,
    update_run_json,
    write_json,
)
from tests.run.shipped import opened, recorded, shipper, spans

pytestmark = pytest.mark.usefixtures("cache")

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


def node_says(store: Store, node: str, **said: object) -> None:
    """Puts what an agent says of its node there."""
    told = {"node": node, "host": "here", "directory": "/runs/run", **said}
    store.put(f"{NODES}/{node}.json", json.dumps(told).encode())


def long_ago(run: Path, recorder: Recorder, ago_s: int) -> int:
    """Has a run begin so long ago, on `UP_FOR_DAYS`; when that was, by the clock of that node."""
    real_ns = int(read_run_json(str(run))["start_real_ns"]) - ago_s * SECOND
    update_run_json(str(run), node=UP_FOR_DAYS, start_real_ns=real_ns)
    return up_for_days(recorder) - ago_s * SECOND


def summary_of(run: Path) -> Summary:
    return summarize(rltrace.open_run(run))


def kinds(found: Summary) -> list[str]:
    return [alarm.kind for alarm in found.health.alarms]


def test_what_is_not_shipped_yet_makes_nobody_late(tmp_path: Path, url: str) -> None:
    run = tmp_path / "run"
    recorder = recorded(run)
    began_ns = long_ago(run, recorder, 100)
    steps(recorder, began_ns, 8)
    store = opened(run, url)
    shipper(run, url).ship(store)
    said = {"shipped": False, "again_s": 60.0}
    looked_ns = began_ns + int(8.5 * SECOND)
    node_says(store, UP_FOR_DAYS, looked_ns=looked_ns, all_looked_ns=looked_ns, **said)
    found = summary_of(fetch(url))
    assert kinds(found) == []
    assert found.steps.in_progress == ((8, pytest.approx(0.5)),)
    assert [one.for_s for one in found.coverage.in_progress] == [pytest.approx(0.5)] * 2
    assert found.run.as_of is not None
    assert found.run.as_of.ago_s == pytest.approx(91.5, abs=30)
    assert any("what its nodes have shipped reaches until" in line for line in warnings(found))

    # What has been looked at all the while and did not end is late.
    looked_ns = began_ns + 60 * SECOND
    node_says(store, UP_FOR_DAYS, looked_ns=looked_ns, all_looked_ns=looked_ns, **said)
    found = summary_of(fetch(url))
    assert kinds(found) == ["hang"]
    assert found.steps.in_progress == ((8, pytest.approx(52)),)


def test_a_node_that_ships_later_than_another_has_lost_no_process(tmp_path: Path, url: str) -> None:
    run = tmp_path / "run"
    learner = recorded(run)
    began_ns = long_ago(run, learner, 100)
    steps(learner, began_ns, 60)
    rollout = Recorder(str(run), role="rollout")
    rollout.describe(node="far-1")
    store_span(rollout, "generate", Stage.ROLLOUT, began_ns + SECOND, -1)
    store = opened(run, url)
    shipper(run, url).ship(store)
    near_ns, far_ns = began_ns + 60 * SECOND, began_ns + 2 * SECOND
    said = {"shipped": False, "again_s": 1.0}
    node_says(store, UP_FOR_DAYS, looked_ns=near_ns, all_looked_ns=near_ns, **said)
    pair = {"kind": "pair", "monotonic_ns": began_ns, "real_ns": 0, "bracket_ns": 1}
    exchange = {"kind": "exchange", "peer": UP_FOR_DAYS, "at_ns": began_ns}
    exchange |= {"offset_ns": 0, "rtt_ns": 2}
    here = fetch(url)
    lines = "".join(json.dumps(line) + "\n" for line in (pair, exchange))
    (here / "clocks" / "far-1.jsonl").write_text(lines)
    node_says(store, "far-1", looked_ns=far_ns, all_looked_ns=far_ns, **said)
    assert kinds(summary_of(fetch(url))) == []
    node_says(store, "far-1", looked_ns=near_ns, all_looked_ns=near_ns, **said)
    assert kinds(summary_of(fetch(url))) == ["lost process"]


def test_a_node_of_which_nothing_comes_any_more_is_told(tmp_path: Path, url: str) -> None:
    run = tmp_path / "run"
    recorder = recorded(run)
    began_ns = long_ago(run, recorder, 1000)
    steps(recorder, began_ns, 8)
    store = opened(run, url)
    shipper(run, url).ship(store)
    looked_ns = began_ns + 9 * SECOND
    told = {"shipped": False, "looked_ns": looked_ns, "all_looked_ns": looked_ns, "again_s": 5.0}
    node_says(store, UP_FOR_DAYS, **told)
    said = list(warnings(summary_of(fetch(url))))
    assert any(line.startswith("nothing has come from here since ") for line in said)


def test_whether_a_run_at_a_url_goes_on_nobody_here_can_tell(tmp_path: Path, url: str) -> None:
    """Its description there is older than the end of the job that has just ended here."""
    run = tmp_path / "run"
    recorder = recorded(run)
    steps(recorder, monotonic_ns() - 10 * SECOND, 8)
    ended = subprocess.Popen(["true"])
    ended.wait()
    update_run_json(str(run), wrap_pid=ended.pid, command_pid=ended.pid)
    shipper(run, url).ship(opened(run, url))
    assert kinds(summary_of(run)) == ["crash"]  # here it can be seen that it is gone
    assert kinds(summary_of(fetch(url))) == []


def ending(run: Path, url: str) -> Callable[[], None]:
    """A run that has just ended and of which a part is at a URL; what ships the rest."""
    recorder = recorded(run)
    spans(recorder, 10)
    store, ships = opened(run, url), shipper(run, url)
    ships.ship(store)
    node_says(store, node_id(), shipped=False, looked_ns=monotonic_ns())
    spans(recorder, 5)
    update_run_json(str(run), end_real_ns=time.time_ns(), exit_code=0)
    store.put(RUN_FILE, (run / RUN_FILE).read_bytes())

    def ship() -> None:
        ships.ship(store)
        node_says(store, node_id(), shipped=True)

    return ship


def test_what_comes_just_after_the_end_is_waited_for(tmp_path: Path, url: str) -> None:
    coming = threading.Timer(0.3, ending(tmp_path / "run", url))
    coming.start()
    run = rltrace.open_run(fetch(url))
    coming.join()
    assert run.sql("SELECT count(*) FROM spans").fetchall() == [(15,)]
    assert run.problems == []


def test_what_does_not_come_is_not_waited_for_long(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending(tmp_path / "run", url)
    monkeypatch.setattr(fetched, "_WAIT_S", 0.0)
    (lacking,) = rltrace.open_run(fetch(url)).problems
    assert lacking["what"] == "node-not-whole"
    assert "the job has just ended: ask again in a minute" in lacking["detail"]


def test_a_courier_says_until_when_all_is_there(tmp_path: Path) -> None:
    url, run = f"file://{tmp_path}/there/run", tmp_path / "run"
    recorder = recorded(run)
    write_json(f"{run}/{NODES}/{node_id()}.json", {"node": node_id(), "host": "here"})
    store = opened(run, url)
    courier = Courier(run, node_id(), node_id(), url, is_first=True, apart=False)
    spans(recorder, 10)
    recorded_ns = monotonic_ns()
    courier.start()
    told: dict[str, int] = {}
    while told.get(LOOKED, 0) <= recorded_ns:
        time.sleep(0.05)
        told = store.get_json(f"{NODES}/{node_id()}.json") or {}
    assert recorded_ns < told[ALL_LOOKED] <= told[LOOKED]
    assert rltrace.open_run(fetch(url)).rows("spans") == 10  # as soon as it is said
    courier.finish(60)
    told = store.get_json(f"{NODES}/{node_id()}.json") or {}
    assert told[SHIPPED] is True
    assert LOOKED not in told


def test_a_run_that_goes_on_is_told_as_of_when_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "run"
    recorder = recorded(path)
    began_ns = monotonic_ns() - 10 * SECOND
    steps(recorder, began_ns, 8)
    rollout = Recorder(str(path), role="rollout")
    store_span(rollout, "generate", Stage.ROLLOUT, began_ns + 7 * SECOND, -1)
    run = rltrace.open_run(path)
    later_ns = monotonic_ns() + 100 * SECOND  # the report takes long
    store_span(recorder, "train", Stage.TRAIN, began_ns + 9 * SECOND, later_ns)
    store_span(recorder, "train", Stage.TRAIN, later_ns, later_ns + SECOND)
    store_span(Recorder(str(path), role="new"), "reward", Stage.REWARD, later_ns, -1)
    found = summarize(run)
    assert kinds(found) == []
    assert run.problems == []
    assert found.run.as_of is not None
    assert (found.run.as_of.at_ns, found.run.as_of.ago_s) == (run.opened_ns, 0)
    assert "lost process" in kinds(summarize(rltrace.open_run(later(path))))


def later(path: Path) -> Path:
    """The run, of which it was told when it ended: long after it was opened above."""
    told = read_run_json(str(path))
    update_run_json(str(path), end_real_ns=int(told["start_real_ns"]) + 120 * SECOND, exit_code=0)
    return path


def test_a_job_that_ends_while_it_is_reported_was_not_seen_to_die(tmp_path: Path) -> None:
    path = tmp_path / "run"
    recorder = recorded(path)
    steps(recorder, monotonic_ns() - 10 * SECOND, 8)
    with subprocess.Popen(["sleep", "600"]) as job:
        update_run_json(str(path), wrap_pid=job.pid, command_pid=job.pid)
        run = rltrace.open_run(path)
        job.kill()
    assert kinds(summarize(run)) == []
    assert kinds(summary_of(path)) == ["crash"]  # opened since, and nobody has written how it ended


def test_a_job_that_ends_while_it_is_opened_ended_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    recorded(path)

    def ends(self: Liveness, meta: dict[str, object]) -> bool:
        update_run_json(str(path), end_real_ns=time.time_ns(), exit_code=0)
        return False

    monkeypatch.setattr(liveness.Liveness, "of_command", ends)
    assert rltrace.open_run(path).meta["exit_code"] == 0


def test_nothing_that_is_stored_before_a_run_is_opened_is_missing(tmp_path: Path) -> None:
    """However far the clock pair of the run is off that by which the rows of its node are told."""
    path = tmp_path / "run"
    recorder = recorded(path)
    told = read_run_json(str(path))
    update_run_json(str(path), start_real_ns=int(told["start_real_ns"]) - SECOND)
    assert told["wrap_pid"] == os.getpid()
    spans(recorder, 3)
    run = rltrace.open_run(path)
    assert run.goes_on
    assert run.sql("SELECT count(*) FROM spans").fetchall() == [(3,)]
