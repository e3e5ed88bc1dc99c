"""Rewards of trainers that judge their samples themselves, function by function.

TRL hands a whole batch to each reward function: a verdict lasts as long as its function did. The
values are what TRL has brought to the host for its logs, all ranks' one after another; NaN stands
for None, too. Its logs are by name: functions that share one are read from the table that they
filled, once TRL has copied it to the host, too.
"""

from __future__ import annotations

from math import isnan
from time import monotonic_ns
from typing import Any

from rltrace.adapters.table.samples import verdicts
from rltrace.adapters.trl.buffer import buffer
from rltrace.adapters.trl.loop import told_apart
from rltrace.hooks.hook import Call
from rltrace.trace.vocabulary import Outcome, Stage


class _Scoring:
    functions: dict[str, list[str]] = {}  # noqa: RUF012  # TRL's label -> functions to come
    running: dict[int, tuple[str, Any, int]] = {}  # noqa: RUF012  # by context
    times_ns: dict[str, tuple[int, int]] = {}  # noqa: RUF012  # when a function ran
    table: Any = None  # a row for each sample of all ranks, a column for each function


scoring = _Scoring()


def judging(call: Call) -> None:
    trainer = call.self
    scoring.running, scoring.times_ns, scoring.functions, scoring.table = {}, {}, {}, None
    if trainer.model.training:
        kind, names = type(trainer).__name__, trainer.reward_func_names
        for name, own in zip(names, told_apart(names), strict=True):
            scoring.functions.setdefault(f"{kind}.{name}", []).append(own)


def all_asked(call: Call) -> None:
    """All functions have been asked, on all ranks; nothing is read from a device yet."""
    if call.exception is None and call.self.model.training:
        scoring.table = call.result


def function_begins(call: Call) -> None:
    """One of TRL's timed blocks begins; those of reward functions are called as they are."""
    names = scoring.functions.get(call.self.name)
    if names:
        name = names.pop(0) if len(names) > 1 else names[0]  # they are asked in order
        span = call.recorder.begin(call.recorder.name(name), Stage.REWARD)
        scoring.running[id(call.self)] = (name, span, call.start_ns)


def function_ends(call: Call) -> None:
    known = scoring.running.pop(id(call.self), None)
    if known is None:
        return
    name, span, start_ns = known
    span.end()
    times_ns = scoring.times_ns[name] = (start_ns, monotonic_ns())
    error = call.argument("exc_val")
    outcome = Outcome.TIMEOUT if isinstance(error, TimeoutError) else Outcome.ERROR
    if error is not None and buffer.made is not None:
        none = [(sample.id, None) for sample in buffer.made]
        verdicts(call, name, none, times_ns, outcome=outcome)


def judged(call: Call) -> None:
    """A batch has been generated and judged, and its rewards stand in TRL's log."""
    trainer, samples = call.self, buffer.made
    table, scoring.table = scoring.table, None
    if samples is None or call.exception is not None or not trainer.model.training:
        return
    here = int(trainer.accelerator.process_index) * len(samples)
    everywhere = int(trainer.accelerator.num_processes) * len(samples)
    columns = {
        name: values[here : here + len(samples)]
        for name, values in _columns(trainer, table, everywhere).items()
        if len(values) == everywhere
    }
    write_verdicts(call, [sample.id for sample in samples], columns, scoring.times_ns)


def _columns(trainer: Any, table: Any, everywhere: int) -> dict[str, list[float]]:
    names = trainer.reward_func_names
    if len({*names}) == len(names) or table is None:
        logs = trainer._logs["rewards"]
        return {name: list(logs[name])[-everywhere:] for name in names}
    by_function = zip(*table.tolist(), strict=True)
    return dict(zip(told_apart(names), map(list, by_function), strict=True))


def write_verdicts(
    call: Call, trajectories: list[int], columns: dict[str, list[float]], times_ns: dict[str, Any]
) -> None:
    """Samples' verdicts by function. One that no function could judge has an error of each."""
    judged = [not all(map(isnan, told)) for told in zip(*columns.values(), strict=True)]
    for name, values in columns.items():
        told = zip(trajectories, map(float, values), judged, strict=True)
        known = [(id, value if by else None) for id, value, by in told if not (by and isnan(value))]
        verdicts(call, name, known, times_ns.get(name))
