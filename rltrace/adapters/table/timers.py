"""A framework's own timer: each label is a span of a stage.

Three kinds: `timed_block`, a function that gives a context manager; `start_stop`, two methods; and
`laps`, where a call names what has been done since the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import Any

from rltrace.adapters.table.steps import step_begins, step_ends
from rltrace.hooks.hook import Call, Hook, Reader, stage_code
from rltrace.trace.vocabulary import STEP_SPAN

Labels = Mapping[str, str]
"""Timer label -> stage; `"step"` for the one that times a learner step, `""` for no span. A label
that ends in `/` stands for all that begin with it. Any other label is `other`."""

LabelOf = Callable[[Call], str]


def labelled(no_span: str = "", **stages: str) -> Labels:
    """Such a table, told by stage: its labels, with spaces between them."""
    every = {**stages, "": no_span}
    return {label: stage for stage, labels in every.items() for label in labels.split()}


def stage_of(labels: Labels, label: str) -> str:
    """The stage of a label, `""` for no span."""
    part, slash, _ = label.partition("/")
    return labels.get(label, labels.get(part + slash, "other") if slash else "other")


def stages_of(labels: Labels) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*filter(None, labels.values()), "other"]))


def timed_block(target: str, labels: Labels, argument: str, *, first: Reader | None = None) -> Hook:
    """The hook for a function that gives a context manager and takes the label as `argument`.
    `first` reads the call before its span begins."""

    def stage(call: Call) -> str | None:
        if first is not None:
            first(call)
        return stage_of(labels, call.argument(argument)) or None

    def named(call: Call) -> None:
        label = call.argument(argument)
        if stage_of(labels, label) == "step":
            call.recorder.open_step = call.span  # its number may be known only within
        elif call.span is not None:
            call.span.set(name=call.recorder.name(label))

    def over(call: Call) -> None:
        if call.span is not None and call.recorder.open_step is call.span:
            call.recorder.open_step = None

    return Hook(target, stage, name=STEP_SPAN, before=named, after=over, stages=stages_of(labels))


def start_stop(
    start: str,
    stop: str,
    labels: Labels,
    label: LabelOf,
    *,
    resolve: Callable[[Labels, str], str] = stage_of,
) -> tuple[Hook, Hook]:
    """The hooks for a timer with two methods, of which each call has a `label`. `resolve` decides
    where the label alone does not say the stage."""
    opened: dict[tuple[int, str], Any] = {}

    def starts(call: Call) -> None:
        name = label(call)
        stage = resolve(labels, name)
        if stage == "step":
            opened[id(call.self), name] = step_begins(call.recorder.step + 1)
        elif stage:
            recorder = call.recorder
            opened[id(call.self), name] = recorder.begin(recorder.name(name), stage_code(stage))

    def stops(call: Call) -> None:
        name = label(call)
        span = opened.pop((id(call.self), name), None)
        if span is not None and resolve(labels, name) == "step":
            step_ends(call.recorder)
        elif span is not None:
            span.end()

    return Hook(start, before=starts, stages=stages_of(labels)), Hook(stop, before=stops)


def laps(
    start: str, lap: str, stop: str, labels: Labels, prefix: LabelOf, name: LabelOf
) -> tuple[Hook, Hook, Hook]:
    """The hooks for a timer whose `lap` call names what has been done since the one before (since
    `start`, for the first). A label is `prefix/name`; where a prefix alone is a label `"step"`,
    the time from `start` to `stop` is one. Until it is named a span is called as its prefix."""
    opened: dict[int, Any] = {}

    def begin(call: Call) -> None:
        name_id = call.recorder.name(prefix(call))
        opened[id(call.self)] = call.recorder.begin(name_id, stage_code("other"))

    def starts(call: Call) -> None:
        if labels.get(prefix(call)) == "step":
            step_begins(call.recorder.step + 1)
        begin(call)

    def laps_(call: Call) -> None:
        label = f"{prefix(call)}/{name(call)}"
        stage = stage_of(labels, label)
        span = opened.pop(id(call.self), None)
        if span is not None and stage:
            code, text = stage_code(stage), call.recorder.name(label)
            span.set(name=text, stage=code, end_ns=monotonic_ns())
        elif span is not None:
            span.discard()
        begin(call)

    def stops(call: Call) -> None:
        span = opened.pop(id(call.self), None)
        if span is not None:
            span.discard()  # what follows the last lap has no name
        if labels.get(prefix(call)) == "step":
            step_ends(call.recorder)

    return (
        Hook(start, before=starts),
        Hook(lap, before=laps_, stages=stages_of(labels)),
        Hook(stop, before=stops),
    )
