"""`rltrace top` and the metrics of a run that is kept small: a step is whole, or not shown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import rltrace
from rltrace.analysis.live.snapshot import Snapshot
from rltrace.analysis.live.state import LiveState
from rltrace.analysis.meters.of_run import RunMeters
from rltrace.report import live_json
from rltrace.report.live_frame import frame
from rltrace.report.prometheus import families
from rltrace.run.capping import Cap
from rltrace.trace.clock import node_id
from rltrace.trace.dropped import Dropped
from rltrace.trace.parquet import compact, delete_segments
from rltrace.trace.run_dir import update_run_json
from tests.conftest import Record
from tests.faults.capped import segments_bytes

ALL_STEPS = 1000
STEPS, SAMPLES, TOKENS = 40, 100, 3

JOB = f"""
from rltrace.trace import segment
segment.SEGMENT_BYTES = 32 << 10
first = int(os.environ.get("FIRST_STEP", 0))
for n in range(first, first + {STEPS}):
    with rltrace.step(n):
        for i in range({SAMPLES}):
            with rltrace.trajectory(f"{{n}}/{{i}}", version=n) as sample:
                sample.finish("stop", response_tokens={TOKENS})
        for i in range({SAMPLES}):
            rltrace.use(f"{{n}}/{{i}}", "trained", step=n, version=n, tokens={TOKENS})
"""
"""The file of its steps is dropped last: there is a step of each of which samples are gone."""


def cap(run: Path, share: float) -> None:
    """Drops the oldest of a run, down to a share of it."""
    Cap(str(run), node_id(), int(share * segments_bytes(run))).keep()


def of_steps(shown: Snapshot) -> dict[int, tuple[int, int, int, float]]:
    """By step that is shown: tokens generated, trained on, samples trained on, their mean lag."""
    assert shown.window is not None
    return {
        step.step: (
            step.generated_tokens,
            step.trained_tokens,
            step.trained_samples,
            step.mean_lag,
        )
        for step in shown.window.recent
    }


def whole(steps: range) -> dict[int, tuple[int, int, int, float]]:
    return dict.fromkeys(steps, (SAMPLES * TOKENS, SAMPLES * TOKENS, SAMPLES, 0.0))


def in_report(run: Path) -> tuple[range, Dropped]:
    """The steps that the report shows, and what it knows of the others."""
    opened = rltrace.open_run(run)
    found = [step for (step,) in opened.sql("SELECT step FROM steps ORDER BY 1").fetchall()]
    assert opened.dropped is not None
    steps = range(found[0], found[-1] + 1)
    assert found == [*steps]
    return steps, opened.dropped


def test_who_looks_afterwards_sees_the_steps_that_the_report_shows(
    run_path: Path, record: Record
) -> None:
    record(JOB)
    cap(run_path, 0.5)
    steps, dropped = in_report(run_path)
    assert 0 < steps.start < STEPS - 1
    shown = LiveState(run_path, last=ALL_STEPS).snapshot()
    assert of_steps(shown) == whole(steps)
    assert shown.window is not None
    assert shown.window.lags is not None
    assert [lag for lag, _ in shown.window.lags.by_lag] == [0]
    assert shown.totals.steps == len(steps)
    assert shown.dropped is not None
    assert shown.dropped.until_ns == dropped.until_ns
    assert (shown.dropped.first_step, shown.dropped.last_step) == dropped.step_numbers
    assert (shown.dropped.rows, shown.dropped.bytes) == (sum(dropped.rows.values()), dropped.bytes)
    screen = " ".join(" ".join(line.plain for line in frame(shown, 80, 40)).split())
    assert f"! the oldest details of steps 0 to {steps.start - 1} were dropped" in screen
    assert "figures are of what began later" in screen
    assert f"{len(steps)} whole steps, " in screen
    assert live_json.render(shown)["dropped"]["last_step"] == steps.start - 1


def test_who_read_all_before_it_was_dropped_goes_on_with_it(run_path: Path, record: Record) -> None:
    record(JOB)
    state = LiveState(run_path, last=ALL_STEPS)
    before = state.snapshot()
    assert of_steps(before) == whole(range(STEPS))
    cap(run_path, 0.5)
    state.poll()
    after = state.snapshot()
    assert of_steps(after) == whole(range(STEPS))
    assert after.totals == before.totals
    assert after.dropped is not None
    assert after.dropped.until_ns is None
    assert "were dropped" in " ".join(line.plain for line in frame(after, 80, 40))
    record(JOB, FIRST_STEP=str(STEPS))  # and with what comes then
    state.poll()
    state.poll()
    assert of_steps(state.snapshot()) == whole(range(2 * STEPS))
    assert state.snapshot().totals.generated_tokens == 2 * before.totals.generated_tokens


def test_what_was_dropped_before_it_was_read_takes_its_steps_with_it(
    run_path: Path, record: Record
) -> None:
    """Steps of the time before go, too, as a row that is missing may be of any of them; what was
    counted stays counted."""
    record(JOB)
    state = LiveState(run_path, last=ALL_STEPS)
    before = state.snapshot().totals
    record(JOB, FIRST_STEP=str(STEPS))
    cap(run_path, 0.3)
    steps, _ = in_report(run_path)
    assert STEPS < steps.start < 2 * STEPS - 1
    for _ in range(2):
        state.poll()
        shown = state.snapshot()
    assert of_steps(shown) == whole(steps)
    assert shown.dropped is not None
    assert shown.dropped.until_ns is not None
    assert shown.totals.steps == before.steps + len(steps)
    assert shown.totals.generated_tokens >= before.generated_tokens


def test_where_all_whole_steps_were_dropped_no_figure_is_shown(
    run_path: Path, record: Record
) -> None:
    """As where the newest step is longer than the run may be large."""
    record(JOB)
    agent = Cap(str(run_path), node_id(), 0)
    for file in agent._files():
        agent._drop(file)
    shown = LiveState(run_path).snapshot()
    assert shown.window is None
    assert shown.totals.steps == 0
    assert shown.job.state != "starting"
    assert f"of steps 0 to {STEPS - 1} were dropped" in " ".join(
        line.plain for line in frame(shown, 120, 40)
    )


def test_of_a_run_that_was_compacted_the_same_is_shown(run_path: Path, record: Record) -> None:
    record(JOB)
    update_run_json(str(run_path), settings={"max_bytes": 1})  # so rows say their segment
    compact(rltrace.open_run(run_path))
    cap(run_path, 0.5)  # what Parquet files hold of that is not shown either
    before = LiveState(run_path, last=ALL_STEPS).snapshot()
    delete_segments(run_path)
    after = LiveState(run_path, last=ALL_STEPS).snapshot()
    steps, _ = in_report(run_path)
    assert of_steps(before) == of_steps(after) == whole(steps)
    assert after.dropped == before.dropped


def test_metrics_count_what_is_whole_and_say_since_when(run_path: Path, record: Record) -> None:
    record(JOB)
    watching = RunMeters(run_path)
    counted = families(watching)["rltrace_generated_tokens_total"]
    cap(run_path, 0.5)
    steps, dropped = in_report(run_path)
    watching.look()
    found = families(watching)
    assert found["rltrace_generated_tokens_total"] == counted
    assert found["rltrace_run_dropped_bytes"] == {("run",): dropped.bytes}
    assert "rltrace_run_counted_since_time_seconds" not in found
    found = families(RunMeters(run_path))
    assert found["rltrace_steps_total"] == {("run",): len(steps)}
    assert found["rltrace_run_counted_since_time_seconds"] == {("run",): dropped.until_ns / 1e9}


def test_a_file_whose_agent_was_killed_before_it_was_deleted_is_not_read(
    run_path: Path, record: Record
) -> None:
    record(JOB)
    before = run_path.with_name("before")
    shutil.copytree(run_path, before)
    cap(run_path, 0.5)
    steps, dropped = in_report(run_path)
    newest = max(dropped.files, key=lambda file: (before / file).stat().st_mtime_ns)
    shutil.copy(before / newest, run_path / newest)
    assert of_steps(LiveState(run_path, last=ALL_STEPS).snapshot()) == whole(steps)
    shutil.copytree(before, run_path, dirs_exist_ok=True)
    assert of_steps(LiveState(run_path, last=ALL_STEPS).snapshot()) == whole(steps)


def test_a_line_that_cannot_be_read_costs_itself_only(run_path: Path, record: Record) -> None:
    record(JOB)
    cap(run_path, 0.5)
    (told,) = (run_path / "dropped").iterdir()
    told.write_text("{}\nno line\n" + told.read_text() + json.dumps({"table": "spans"}) + "\n")
    steps, _ = in_report(run_path)
    assert of_steps(LiveState(run_path, last=ALL_STEPS).snapshot()) == whole(steps)
