"""Rewards of the trainers that judge their samples themselves, function by function.

TRL times each reward function with a context of its own, and hands a whole batch to it: a verdict
lasts as long as its function did. The values are taken from what TRL has brought to the host for
its own logs, all ranks' one after another; what no function applies to is NaN there, whether the
function said None or NaN.
"""

from __future__ import annotations

import math
from time import monotonic_ns
from typing import Any

from rltrace.adapters.trl.buffer import buffer
from rltrace.hooks.hook import Call
from rltrace.trace.vocabulary import Outcome, Stage


class _Scoring:
    """The batch that is being judged."""

    functions: dict[str, str] = {}  # noqa: RUF012  # TRL's label -> name of a reward function
    running: dict[int, tuple[str, Any, int]] = {}  # noqa: RUF012  # by context
    times_ns: dict[str, tuple[int, int]] = {}  # noqa: RUF012  # when a function ran


scoring = _Scoring()


def judging(call: Call) -> None:
    """All functions are about to be asked about a batch."""
    trainer = call.self
    scoring.running, scoring.times_ns, scoring.functions = {}, {}, {}
    if trainer.model.training:
        kind = type(trainer).__name__
        scoring.functions = {f"{kind}.{name}": name for name in trainer.reward_func_names}


def function_begins(call: Call) -> None:
    """One of TRL's timed blocks begins; those of reward functions are called as they are."""
    name = scoring.functions.get(call.self.name)
    if name is not None:
        span = call.recorder.begin(call.recorder.name(name), Stage.REWARD)
        scoring.running[id(call.self)] = (name, span, call.start_ns)


def function_ends(call: Call) -> None:
    """It is over."""
    known = scoring.running.pop(id(call.self), None)
    if known is None:
        return
    name, span, start_ns = known
    span.end()
    end_ns = monotonic_ns()
    scoring.times_ns[name] = (start_ns, end_ns)
    error = call.argument("exc_val")
    if error is not None:
        _failed(call, name, start_ns, end_ns, error)


def _failed(call: Call, name: str, start_ns: int, end_ns: int, error: BaseException) -> None:
    outcome = Outcome.TIMEOUT if isinstance(error, TimeoutError) else Outcome.ERROR
    for sample in buffer.made or ():
        verdict(call, sample.id, name, (start_ns, end_ns), math.nan, outcome)


def judged(call: Call) -> None:
    """A batch has been generated and judged, and its rewards stand in TRL's log."""
    trainer, samples = call.self, buffer.made
    if samples is None or call.exception is not None or not trainer.model.training:
        return
    logs, here = trainer._logs["rewards"], int(trainer.accelerator.process_index) * len(samples)
    everywhere = int(trainer.accelerator.num_processes) * len(samples)
    columns: dict[str, list[float]] = {}
    for name in trainer.reward_func_names:
        values = list(logs[name])[-everywhere:]
        if len(values) == everywhere:
            columns[name] = values[here : here + len(samples)]
    for place, sample in enumerate(samples):
        told = {name: float(values[place]) for name, values in columns.items()}
        write_verdicts(call, sample.id, told, scoring.times_ns)


def write_verdicts(
    call: Call,
    trajectory: int,
    values: dict[str, float],
    times_ns: dict[str, tuple[int, int]],
) -> None:
    """A sample's verdicts by function. One that no function could judge has an error of each."""
    nobody = all(math.isnan(value) for value in values.values())
    for name, value in values.items():
        if nobody or not math.isnan(value):
            outcome = Outcome.ERROR if nobody else Outcome.OK
            verdict(call, trajectory, name, times_ns.get(name), value, outcome)


def verdict(
    call: Call,
    trajectory: int,
    component: str,
    times_ns: tuple[int, int] | None,
    value: float,
    outcome: Outcome,
) -> None:
    """A row; of a function whose time is not known it is an event at the end of the call."""
    start_ns, end_ns = times_ns or (call.end_ns, call.end_ns)
    call.recorder.append(
        "rewards",
        start_ns=start_ns,
        end_ns=end_ns,
        trajectory=trajectory,
        component=call.recorder.name(component),
        value=value,
        outcome=outcome,
    )
