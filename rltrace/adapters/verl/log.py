"""verl's logs: which trainer wrote them, and what its timers mean.

Which trainer wrote a log is told by its metrics; what verl measures wrong stays unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from rltrace.adapters.log_table import LogRecord, Told, has, times_of
from rltrace.trace.read.framework_figure import ANY_VERSION, may_satisfy

V1, UNKNOWN = "V1", "unknown trainer"

_TIMING = "timing_s/"
_GEN, _REWARD, _STEP = (f"{_TIMING}{name}" for name in ("gen", "reward", "step"))
_UPDATE, _SYNC = f"{_TIMING}update_weights", f"{_TIMING}sync_rollout_weights"
_SWITCH, _SAVE = f"{_TIMING}switch_to_trainer", f"{_TIMING}save_checkpoint"
_WAITED = f"{_TIMING}wait_prev_gen"
_LAG = "training/off_policy/trajectory_staleness"
_APART = ("one-step-off", "async")  # placements in which other processes generate
_PLACEMENTS = {"sync": "colocated", "colocate_async": "colocated", "separate_async": "async"}
_POLL_S = 2.0
"""The V1 trainer looks for finished samples every 2 s (`ReplayBuffer.poll_interval`); 0.8's every
second, at a state that another thread renews every second."""

_POLL_IS_SMALL = 10  # `gen` is taken for generation where it is this many polls long
_ABOUT = 0.2
_NO_SCORING_S = 1e-3  # `reward` below this only collects what was scored elsewhere


def tell(told: Told, records: list[LogRecord], settings: Mapping[str, str]) -> Told:
    saves_after = told.placement in _APART or told.version in ("0.7.0", "0.6.1 or older")
    trainer, is_aside = _trainer(told, records, settings)
    inside, unknown = dict(told.inside), dict(told.unknown)
    figures, after = dict(told.figures), dict(told.after)
    is_v1, version = trainer.trainer.startswith(V1), settings.get("verl_version", ANY_VERSION)
    may_be_v1 = is_v1 or (trainer.trainer == UNKNOWN and may_satisfy(version, ">=0.8"))
    gens, rewards = times_of(records, _GEN), times_of(records, _REWARD)
    is_polled = may_be_v1 and not is_aside and bool(gens)
    if is_aside:
        waited = (_WAITED if has(records, _WAITED) else _GEN).removeprefix(_TIMING)
        unknown["rollout"] = f"{waited} is how long the trainer waited for samples"
    elif is_polled and median(gens) < _POLL_IS_SMALL * _POLL_S:
        unknown["rollout"] = f"gen is short beside the {_POLL_S:g} s poll that ends it"
    if "rollout" in unknown:
        inside[_GEN] = "wait"
    if is_polled:
        known = "" if is_v1 else "if the V1 trainer or 0.8's main_ppo_sync wrote it, "
        figures[_GEN] = f"{known}ended by a poll, so up to {_POLL_S:g} s too long each time"
    if rewards and max(rewards) < _NO_SCORING_S:
        del inside[_REWARD]
        aside = "" if is_v1 else " (or within adv, where launch_reward_fn_async is on)"
        most = f"at most {1e6 * max(rewards):.0f} µs"
        figures[_REWARD] = f"{most}: only the collecting of scores{aside}"
    if times_of(records, _SYNC):
        del inside[_UPDATE]  # the one runs within the other
    if may_be_v1:
        figures[_STEP] = "the first step holds the start of the agent loops: no timer shows it"
    if saves_after and not is_v1:
        after = {_SAVE: inside.pop(_SAVE), **after}
    inside |= {name: after.pop(name) for name in [*after] if _is_within(records, inside, name)}
    return replace(trainer, inside=inside, after=after, unknown=unknown, figures=figures)


def _trainer(told: Told, records: list[LogRecord], said: Mapping[str, str]) -> tuple[Told, bool]:
    """The same with V1's mode, and whether `gen` is how long the loop waited for what other
    processes generate."""
    if told.placement in _APART:
        return told, True
    mode = said.get("trainer_mode", "")
    if told.trainer == V1 or (mode and said.get("use_v1") == "True"):
        if not mode and has(records, _SWITCH):
            mode = "separate_async"  # the only one with engines that change sides
        read = (reading for record in records for reading in record.metrics.items())
        lags = any(value > 0 for name, value in read if name.startswith(_LAG))
        name, placement = f"{V1} {mode}".strip(), _PLACEMENTS.get(mode, "")
        found = replace(told, trainer=name, placement=placement, version="0.9 or later")
        return found, mode == "separate_async" or (not mode and lags)
    if told.trainer == UNKNOWN and "program" in said:
        told = replace(told, placement="colocated")
    return told, False


def _is_within(records: list[LogRecord], inside: Mapping[str, str], timer: str) -> bool:
    """Whether the step's length holds a timer, as 0.4's does its validation: such steps have more
    left beside their other timers than those without, by about as much."""
    steps = [record.metrics for record in records if _STEP in record.metrics]
    left = [(timer in one, one[_STEP] - sum(one.get(n, 0.0) for n in inside)) for one in steps]
    usual_s, with_s = (
        median([s for has_it, s in left if has_it is x] or [0.0]) for x in (False, True)
    )
    took_s = median(times_of(records, timer) or [0.0])
    return took_s > 0 and abs(with_s - usual_s - took_s) <= _ABOUT * took_s
