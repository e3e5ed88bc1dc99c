"""verl's logs: how long each timer of its trainer loop ran in a step, and some hundred means.

What runs elsewhere than in that loop they do not tell, and what verl measures wrong stays unknown
(read in its sources, 0.6.1 to 0.9.1).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rltrace.adapters.verl.tables import LABELS
from rltrace.importers.fitting import first_of, is_time
from rltrace.importers.frameworks import check_framework
from rltrace.importers.log import Log, Record, impossible, impossible_said, out_of_order_said
from rltrace.importers.reading import read_log
from rltrace.importers.run_writer import NEVER_LOGGED, ImportedRun, ImportedStep, step_end
from rltrace.trace.errors import RltraceError
from rltrace.trace.vocabulary import Stage

# --- which of verl's trainers wrote a log: told by the metrics there are, as few logs say it

TIMING = "timing_s/"

LEGACY, V1, ONE_STEP_OFF, FULLY_ASYNC, UNKNOWN = (
    "RayPPOTrainer",
    "V1",
    "one-step-off",
    "fully async",
    "unknown trainer",
)


_LAGS = (
    "training/off_policy/trajectory_staleness/max",
    "training/off_policy/trajectory_staleness_worst/max",
)
_PLACEMENTS = {"sync": "colocated", "colocate_async": "colocated", "separate_async": "async"}


@dataclass(frozen=True)
class Trainer:
    """Which of verl's trainers wrote the log. `mode` is V1's, empty where it is not known;
    `generates_aside`: `gen` is how long the loop waited for what other processes generate."""

    name: str
    mode: str
    version: str
    placement: str
    generates_aside: bool
    checkpoint_after: bool

    @property
    def words(self) -> str:
        return f"{self.name} {self.mode}".strip()


def trainer_of(log: Log) -> Trainer:
    """Told by which metrics there are, and by the configuration where the log shows it."""
    names = {name for record in log.records for name in record.metrics}
    lag = [v for r in log.records for name, v in r.metrics.items() if name in _LAGS]
    mode = log.settings.get("trainer_mode", "")
    if f"{TIMING}timing_s/param_sync" in names or any(n.startswith("fully_async/") for n in names):
        return Trainer(FULLY_ASYNC, "", "", "async", True, True)
    if names & {f"{TIMING}sync_rollout_weights", f"{TIMING}generate_async"}:
        return Trainer(ONE_STEP_OFF, "", "", "one-step-off", True, True)
    if lag or (mode and log.settings.get("use_v1") == "True"):
        if not mode and f"{TIMING}switch_to_trainer" in names:
            mode = "separate_async"  # the only one with engines that change sides
        aside = mode == "separate_async" or (not mode and max(lag, default=0) > 0)
        placement = _PLACEMENTS.get(mode, "")
        return Trainer(V1, mode, "0.9 or later", placement, aside, False)
    if any(n.startswith((f"{TIMING}agent_loop/", f"{TIMING}generation_timing/")) for n in names):
        if f"{TIMING}update_weights" not in names:
            return Trainer(LEGACY, "", "0.6 or older", "colocated", False, True)
        newer = f"{TIMING}agent_loop/compute_score/mean" in names
        version = "0.8 or later" if newer else "0.7 or later"
        return Trainer(LEGACY, "", version, "colocated", False, False)
    return Trainer(UNKNOWN, "", "", "", False, False)


STEP = f"{TIMING}step"
_STEP_TOO = "perf/time_per_step"  # the same number

POLL_S = 2.0
"""The V1 trainer looks for finished samples every 2 s (`ReplayBuffer.poll_interval`); 0.8's every
second, at a state that another thread renews every second."""

_POLL_IS_SMALL = 10  # `gen` is taken for generation where it is this many polls long
_NO_SCORING_S = 1e-3  # `reward` below this only collects what was scored elsewhere

INSIDE = (
    "switch_wait",
    "wait_for_enough_samples",
    "switch_to_trainer",
    "gen",
    "gen_max",
    "sync_rollout_weights",
    "reward",
    "old_log_prob",
    "ref",
    "values",
    "adv",
    "update_critic",
    "update_actor",
    "dump_rollout_generations",
    "save_checkpoint",
    "switch_to_rollout",
    "update_weights",
    "timing_s/param_sync",
)
"""The timers of the trainer loop within `step`, in the order in which it runs them."""

AFTER = ("testing", "stop_profile", "start_profile")
"""Those between two steps."""

_ELSEWHERE = re.compile(
    r"agent_loop/|generation_timing/|generate_|reshard$|rollouter/|fully_async/"
)
"""Timers of other processes or within another timer: counters, as their times must not be added."""

SETTINGS = {
    "trainer_mode": re.compile(r"'trainer_mode': '(\w+)'"),
    "use_v1": re.compile(r"'use_v1': (True|False)"),
}
"""What verl prints of its configuration when it starts."""


def read(path: Path) -> ImportedRun:
    """Reads a log of verl. Errors: `RltraceError` when there is nothing of verl's in it."""
    return lay_out(read_log(path, SETTINGS))


def lay_out(log: Log) -> ImportedRun:
    """The run that a log tells of. Errors: `RltraceError` when it is no log of verl's trainer."""
    _check(log)
    trainer = trainer_of(log)
    timings = [_timings(record) for record in log.records]
    names = {name for timing in timings for name in timing}
    odd = impossible(log.records, lambda name: name.startswith(TIMING))
    unusable = {n.removeprefix(TIMING) for n in (*odd, *log.not_finite)} - names
    polled = trainer.name in (V1, UNKNOWN) and not trainer.generates_aside
    gens = [timing["gen"] for timing in timings if "gen" in timing]
    gen_is_wait = trainer.generates_aside or (
        polled and bool(gens) and median(gens) < _POLL_IS_SMALL * POLL_S
    )
    rewards = [timing["reward"] for timing in timings if "reward" in timing]
    reward_unknown = max(rewards) < _NO_SCORING_S if rewards else "reward" not in unusable
    stages = {name: Stage[LABELS[name].upper()] for name in (*INSIDE, *AFTER)}
    if gen_is_wait:
        stages["gen"] = Stage.WAIT
    if reward_unknown:
        stages.pop("reward", None)
    if "sync_rollout_weights" in names:
        stages.pop("update_weights", None)  # one-step-off: the one runs within the other
    steps = tuple(
        _step(record, timing, stages, trainer)
        for record, timing in zip(log.records, timings, strict=True)
    )
    return ImportedRun(
        log=log,
        framework="verl",
        version=trainer.version,
        trainer=trainer.words,
        placement=trainer.placement,
        steps=steps,
        not_logged=(
            *_unusable(unusable, stages),
            *_not_logged(trainer, names | unusable, gen_is_wait, reward_unknown),
        ),
        notes=tuple(_figures(trainer, polled and bool(gens), rewards if reward_unknown else [])),
        oddities=tuple(_oddities(log, steps, names, odd)),
    )


def _check(log: Log) -> None:
    if not log.records:
        expected = {
            "JSON lines": '{"step": 1, "data": {...}}, as its file logger writes',
            "console log": "“step:1 - ...”, as its console logger writes",
        }.get(log.kind, "numbers")
        missing = f"{log.path} holds no metrics of verl: no {expected}"
        raise RltraceError(missing + log.what_was_skipped())
    check_framework(log, "verl")
    names = {name for record in log.records for name in record.metrics}
    if not any(name.startswith(TIMING) for name in names):
        kinds = sorted({name.split("/")[0] for name in names})
        raise RltraceError(
            f"{log.path} is no log of verl's trainer: it has no {TIMING}* (what it has begins with "
            f"{', '.join(kinds[:6]) or 'nothing'})"
        )
    if not names & {STEP, _STEP_TOO}:
        raise RltraceError(
            f"{log.path} has timers of verl but no {STEP}: how long a step took is not known"
        )


def _timings(record: Record) -> dict[str, float]:
    """The timers of a record in seconds, without those that no clock can have shown."""
    return {
        name.removeprefix(TIMING): value
        for name, value in record.metrics.items()
        if name.startswith(TIMING) and is_time(value)
    }


def _step(
    record: Record, timing: dict[str, float], stages: dict[str, Stage], trainer: Trainer
) -> ImportedStep:
    seconds = timing.get("step")
    if seconds is None and is_time(record.metrics.get(_STEP_TOO, -1.0)):
        seconds = record.metrics[_STEP_TOO]
    after = ("save_checkpoint", *AFTER) if trainer.checkpoint_after else AFTER
    inside = [name for name in INSIDE if name not in after]
    return ImportedStep.of(record, seconds, stages, timing, inside=inside, after=after)


def _unusable(names: set[str], stages: dict[str, Stage]) -> Iterator[tuple[Stage | None, str]]:
    """The stages of timers that are in the log, but never as a time."""
    for name in sorted(names & stages.keys()):
        yield stages[name], f"what the log has as {TIMING}{name} is never a usable time"


def _not_logged(
    trainer: Trainer, names: set[str], gen_is_wait: bool, reward_unknown: bool
) -> Iterator[tuple[Stage | None, str]]:
    if gen_is_wait and trainer.generates_aside:
        yield Stage.ROLLOUT, "gen is how long the trainer waited for samples"
    elif gen_is_wait:
        yield Stage.ROLLOUT, f"gen is short beside the {POLL_S:g} s poll that ends it"
    if reward_unknown:
        yield Stage.REWARD, "verl scores while it generates"
    yield Stage.ENV, "tools run while verl generates"
    if not names & {"update_weights", "sync_rollout_weights", "timing_s/param_sync"}:
        yield Stage.SYNC, "weights move within gen (verl 0.6)"
    if "switch_to_trainer" not in names:
        yield Stage.SWITCH, "engines wake and sleep within other timers"
    yield None, "lag and length of each trajectory (counters: means and extremes of a step)"
    yield from ((None, what) for what in NEVER_LOGGED)


def _figures(trainer: Trainer, polled: bool, unscored: list[float]) -> Iterator[tuple[str, str]]:
    """What verl itself gets wrong."""
    if polled:
        known = "" if trainer.name == V1 else "if the V1 trainer or 0.8's main_ppo_sync wrote it, "
        detail = f"{known}ended by a poll, so up to {POLL_S:g} s too long each time it sampled"
        yield f"{TIMING}gen", detail
    if unscored:
        aside = "" if trainer.name == V1 else " (or within adv, where launch_reward_fn_async is on)"
        detail = f"at most {1e6 * max(unscored):.0f} µs: only the collecting of scores{aside}"
        yield f"{TIMING}reward", detail
    if trainer.name in (V1, UNKNOWN):
        yield STEP, "the first step holds the start of the agent loops, which no timer shows"


def _oddities(
    log: Log, steps: tuple[ImportedStep, ...], names: set[str], odd_times: Counter[str]
) -> Iterator[str]:
    end = step_end(steps)
    yield f"times are laid out from durations: the order in a step is verl's, its end is {end}"
    yield from impossible_said(odd_times)
    untimed = [
        step.number
        for step in steps
        if step.seconds is None and any(name.startswith(TIMING) for name in step.counters)
    ]
    if untimed:
        yield f"{_steps(untimed)} without {STEP}: only counters are kept"
    if more := [step.number for step in steps if step.is_overfull]:
        yield f"{_steps(more)} with timers that add up to more than the step: they overlap"
    known = {"step", *INSIDE, *AFTER}
    other = sorted(name for name in names - known if not _ELSEWHERE.match(name))
    if other:
        yield f"timers that rltrace does not know are counters only: {', '.join(other[:8])}"
    yield from out_of_order_said(log.records)


def _steps(numbers: list[int]) -> str:
    return f"step{'s' * (len(numbers) > 1)} {first_of(numbers)}"
