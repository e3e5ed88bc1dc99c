"""What becomes of OpenRLHF's logs: an ordinary run that knows nothing which the log did not say."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rltrace.adapters.openrlhf.log import BROADCAST, GENERATION, STEP
from rltrace.testing.inside.adapters import LogRecord as Record
from rltrace.testing.inside.importers import ImportedRun, Log, read_durations, read_run
from rltrace.testing.inside.report import sentences
from rltrace.testing.inside.trace import RltraceError, Stage
from tests.importers.logs import FIXTURES, imported, lines, reasons, tau

PARTS = (GENERATION, "timing/make_experience", "timing/ppo_train", BROADCAST)
LINE = "(PPOTrainer pid=7) INFO 11-21 13:00:00 ppo_trainer.py:549] ✨ Global step "


def timing(*parts_s: float, total_s: float | None = None) -> dict[str, float]:
    """What is logged of a step; its total is the sum unless given."""
    named = dict(zip(PARTS, parts_s, strict=True))
    return {**named, STEP: sum(parts_s) if total_s is None else total_s, "actor_lr": 1e-6}


def run_of(*steps: dict[str, float]) -> ImportedRun:
    records = tuple(Record(n, metrics) for n, metrics in enumerate(steps, 1))
    return read_durations(Log("log", "TensorBoard events", records, changed_ns=10**18), "openrlhf")


def test_a_synchronous_run_of_wandb_gives_the_stage_table(tmp_path: Path) -> None:
    done, run, summary = imported("openrlhf", FIXTURES / "openrlhf.wandb", tmp_path)
    assert (done.trainer, done.framework_version) == ("PPOTrainer", "0.9.8 or later")
    assert (done.steps, done.first_step, done.last_step) == (4, 1, 4)
    second = summary.steps.times[1]
    assert second.step_s == pytest.approx(0.638)
    expected = {"rollout": 0.310, "other": 0.084, "train": 0.138, "sync": 0.106}
    assert {stage: second.tau_s[stage] for stage in expected} == pytest.approx(expected)
    assert summary.composition is not None
    assert summary.composition.placement == "disaggregated"  # wandb keeps colocate_all=False
    # Counters have OpenRLHF's own names, whatever the log.
    names = {name for (name,) in run.sql("select distinct counter from samples").fetchall()}
    assert {"kl", STEP, "rollout/reward_mean", "eval/eval_default_pass1"} <= names
    assert not {"global_step", "train/kl", "eval/global_step"} & names


def test_no_wall_is_named_that_the_log_has_in_one_figure_with_another(tmp_path: Path) -> None:
    """Scoring is within timing/generation, which leads: either may be what is slow."""
    log = tmp_path / "metrics.jsonl"
    log.write_text(lines(*({"step": n, **timing(0.9, 0.1, 0.1, 0.1)} for n in range(1, 7))))
    _, _, summary = imported("openrlhf", log, tmp_path)
    assert (summary.verdict.first, summary.verdict.fixes) == (None, ())
    assert "generation or scoring" in next(sentences(summary))


def test_an_asynchronous_run_has_its_generation_beside_the_trainer(tmp_path: Path) -> None:
    done, run, summary = imported("openrlhf", FIXTURES / "openrlhf_async", tmp_path)
    assert done.trainer == "PPOTrainerAsync"
    assert summary.composition is not None
    assert summary.composition.placement == "async"
    assert done.spans == summary.run.spans
    rows = run.sql(
        "select step, (end_ns - start_ns) / 1e9 s from spans where stage = 'rollout' order by 1"
    ).fetchall()
    # None is cut short, though some took longer than the step that trained on them.
    assert [s for _, s in rows] == pytest.approx([3.9, 1.1, 1.2, 1.0, 1.1], abs=1e-6)
    ends = (
        "select distinct g.end_ns - e.start_ns from spans g join spans e using (step)"
        f" where g.stage = 'rollout' and e.name = '{PARTS[1]}'"
    )
    assert run.sql(ends).fetchall() == [(0,)]
    # The broadcast waits for generation: how long weights took to move is unknown.
    assert "sync" not in tau(summary)
    assert tau(summary)["wait"] == pytest.approx(0.935)
    assert f"at most {BROADCAST}" in reasons(summary)["sync"]
    assert any(note.startswith(f"{BROADCAST}: ") for note in done.notes)
    # An evaluation that was logged late is no step.
    assert (done.steps, summary.steps.repeated, len(done.log_notes)) == (5, 0, 1)


def test_the_console_gives_what_it_shows() -> None:
    found = read_run(FIXTURES / "openrlhf_console.log", "openrlhf")
    assert (found.trainer, found.version) == ("PPOTrainer", "0.9.6 or 0.9.7")
    assert [step.inside[0].seconds for step in found.steps if step.seconds] == [4.246, 0.31, 0.328]
    assert any(
        note.startswith("steps whose length the log does not have") for note in found.log_notes
    )


def test_what_an_asynchronous_run_really_printed_is_read(tmp_path: Path) -> None:
    """Lines of 0.11.2, on a CPU."""
    log = FIXTURES / "openrlhf_async_console.log"
    done, _, summary = imported("openrlhf", log, tmp_path)
    assert (done.trainer, done.steps) == ("PPOTrainerAsync", 4)
    assert (done.readings, len(done.log_notes)) == (4 * 28, 1)
    lengths = [step.step_s for step in summary.steps.times]
    assert lengths == pytest.approx([12.260235, 0.785384, 0.925141, 0.523261], abs=1e-6)
    # It waited for its first batch before that was being generated, which no timer shows.
    assert summary.steps.times[0].untraced_s == pytest.approx(12.260 - 5.918 - 1.192, abs=1e-3)


def test_a_last_line_without_its_end_of_line_is_whole_if_its_dict_is(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"{LINE}1: {timing(1.0, 2.0, 3.0, 4.5)}", "utf-8")
    assert read_run(log, "openrlhf").steps[0].seconds == 10.5
    log.write_text(f"{LINE}1: {{'timing/generation': 1", "utf-8")
    with pytest.raises(RltraceError):
        read_run(log, "openrlhf")


def test_a_sum_of_numbers_as_tensorboard_keeps_them_is_a_sum() -> None:
    def kept(value: float) -> float:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])

    logged = timing(31.4159, 2.71828, 17.3205, 1.41421)
    run = run_of({f"train/{name}": kept(value) for name, value in logged.items()})
    # Without its configuration a synchronous run tells no placement.
    assert (run.trainer, run.placement) == ("PPOTrainer", "")
    assert [t.name for t in run.steps[0].inside] == list(PARTS)


def test_a_total_that_is_no_sum_is_wall_clock() -> None:
    run = run_of(timing(1.0, 2.0, 3.0, 4.0, total_s=12.5), timing(1.0, 2.0, 3.0, 4.0))
    assert (run.trainer, run.placement) == ("PPOTrainerAsync", "async")
    assert [(t.name, t.stage) for t in run.steps[0].before] == [(GENERATION, Stage.ROLLOUT)]


def test_a_timer_that_no_clock_can_have_shown_is_said() -> None:
    run = run_of(timing(-1.0, 2.0, 3.0, 4.0, total_s=9.0))
    assert any(f"{GENERATION} (1)" in note for note in run.log_notes)
    assert GENERATION in dict(run.not_logged)[Stage.ROLLOUT]


def test_a_step_that_a_restart_did_again_counts_once(tmp_path: Path) -> None:
    shown = [f"{LINE}{n}: {timing(n, 1.0, 1.0, k)}\n" for k, n in ((1, 1), (1, 2), (2, 2), (2, 3))]
    (tmp_path / "log").write_text("".join(shown), "utf-8")
    assert [step.number for step in read_run(tmp_path / "log", "openrlhf").steps] == [1, 2, 3]
