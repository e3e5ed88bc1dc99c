"""Whose log it is, told by the names of its metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rltrace.importers.log import Log, start_of
from rltrace.importers.reading import read_log
from rltrace.trace.errors import RltraceError, WrongUsage

NAMES: Mapping[str, str] = {
    "openrlhf": "OpenRLHF",
    "trl": "TRL",
    "nemo-rl": "NeMo-RL",
    "areal": "AReaL",
    "roll": "ROLL",
    "rlinf": "RLinf",
    "mindspeed-rl": "MindSpeed-RL",
}
"""Framework -> its name in prose, where that is another."""

_MARKS: Mapping[str, re.Pattern[str]] = {
    "verl": re.compile(r"timing_s/"),
    "openrlhf": re.compile(
        r"(train/)?(timing/(generation|make_experience|ppo_train|broadcast|step_total)"
        r"|(actor|critic)_lr)$"
    ),
    "trl": re.compile(
        r"(train/)?(completions/mean_length|val/contain_eos_token|step_time"
        r"|perf/(fwd_bwd|rollout_wait|weight_sync)_s|weight_sync_time_s)$"
    ),
    "slime": re.compile(r"perf/(actor_train|train_wait|rollout|update_weights|log_probs)_time$"),
    "nemo-rl": re.compile(r"timing/train/"),
    "areal": re.compile(r"timeperf/"),
    "roll": re.compile(r"time/step_\w+$"),
    "rlinf": re.compile(r"time/(generate_rollouts|sync_weights|actor/|cal_adv_and_returns)"),
    "prime-rl": re.compile(r"time/(forward_backward|wait_for_batch|wait_for_policy)$"),
    "torchforge": re.compile(r"main_perf/continuous_"),
    "mindspeed-rl": re.compile(r"timing/(all|update|resharding_to_infer|rule_reward|old_log_p)$"),
}
"""Framework -> what one of its metrics, and none of another's, begins with."""

_LOGS_AS = {"miles": "slime", "relax": "slime"}
"""Framework -> the one whose names it has kept."""


def whose(log: Log, own: str = "") -> str | None:
    """The framework whose log it is: `own` rather than any other."""
    names = {name for record in log.records for name in record.metrics}
    first = {own: _MARKS[own]} if own else {}
    for framework, mark in {**first, **_MARKS}.items():
        if any(mark.match(name) for name in names):
            return framework
    return None


def check_framework(log: Log, framework: str) -> None:
    """Errors: `RltraceError` where the log is another framework's."""
    own = _LOGS_AS.get(framework, framework)
    other = whose(log, own) or own
    if other != own:
        looks, asked = NAMES.get(other, other), NAMES.get(framework, framework)
        said = f"{log.path} looks like a log of {looks}, not of {asked}"
        raise WrongUsage(f"{said}: rltrace import {other}")


# --- what a log looks like that is none of what it was said to be

_FORMS = (
    ("otlp", "spans of OpenTelemetry", (b'"resourceSpans"',)),
    ("torchtitan", "torchtitan's structured log", (b'"log_type_name"',)),
    ("areal", "AReaL's session traces", (b'"submit_ts"',)),
    ("miles", "miles' phases", (b'"t0"', b'"t1"')),
    ("trl", "transformers' trainer_state.json", (b'"log_history"', b'"global_step"')),
    ("trl", "what TRL prints", (b"{'loss': ", b"'completions/mean_length': ")),
    ("chrome", "a trace in Chrome's format", (b'"ph"', b'"ts"')),
)
"""Importers of logs whose form is their own, and what is in the first lines of such a log."""

_TIMED = ("chrome", "otlp", "torchtitan")
"""Those that read no figures of steps, and so cannot tell whose they are."""


def looks_like(path: Path, framework: str) -> str:
    """What a file looks like, and who reads it, for the end of a sentence; empty where it looks
    like nothing else than what `framework` reads."""
    try:
        start = start_of(path)
    except OSError:
        return ""
    for name, what, marks in _FORMS:
        if all(mark in start for mark in marks):
            return "" if name == framework else f"it looks like {what}: rltrace import {name}"
    if framework not in _TIMED:
        return ""
    try:
        other = whose(read_log(path))
    except RltraceError:
        return ""
    looks = f"it looks like a log of {NAMES.get(str(other), other)}"
    return f"{looks}: rltrace import {other}" if other else ""
