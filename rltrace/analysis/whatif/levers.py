"""What can be changed, each change on its own, by the names of the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rltrace.analysis.whatif import lever_changes as changes
from rltrace.analysis.whatif.constants import Constants
from rltrace.analysis.whatif.lever_changes import check, number
from rltrace.analysis.whatif.workload import PLACEMENTS, Workload
from rltrace.trace.errors import WrongUsage
from rltrace.trace.vocabulary import Stage

ON = ("1",)


@dataclass(frozen=True)
class Lever:
    """`tries` are the values of the ranked table (`ON`: it is there or is not); those of order 0
    are moved before all others. The values of a lever that is `worded` are not one number. One that
    is `within` a stage shortens only that, and cannot gain more than the stage costs."""

    name: str
    change: Callable[[Workload, str, Constants], Workload]
    tries: tuple[str, ...]
    within: Stage | None = None
    order: int = 1
    worded: bool = False

    def moved(self, load: Workload, value: str, constants: Constants) -> Workload:
        """The workload with the lever moved. Errors: `NotApplicable`; `RltraceError` for a value
        that makes no sense."""
        if self.tries == ON:
            check(value == ON[0], self.name, value, "1: leave it out to keep what is")
        elif not self.worded:  # before anything is said of what the workload lacks
            number(self.name, value.removeprefix("x"))
        return self.change(load, value, constants)


_ALL = (
    Lever("placement", changes.placement, PLACEMENTS, order=0, worded=True),
    Lever("split", changes.split, (), order=0, worded=True),
    Lever("devices", changes.devices, ("x2",)),
    Lever("rollout_workers", changes.rollout_workers, ("x2",), Stage.ROLLOUT),
    Lever("learner_workers", changes.learner_workers, ("x2",), Stage.TRAIN),
    Lever("samples", changes.samples, ()),
    Lever("slots", changes.slots, ("x2",), Stage.ROLLOUT),
    Lever("chunks", changes.chunks, ("4",)),
    Lever("no_barrier", changes.no_barrier, ON),
    Lever("tail_cap", changes.tail_cap, ("p95",), Stage.ROLLOUT, worded=True),
    Lever("partial_rollout", changes.partial_rollout, ("1.5",)),
    Lever("reward_parallel", changes.reward_parallel, ("x4",), Stage.REWARD),
    Lever("reward_cache", changes.reward_cache, ("0.5",), Stage.REWARD),
    Lever("reward_async", changes.reward_async, ON, Stage.REWARD),
    Lever("reward_latency", changes.reward_latency, ("0.5",), Stage.REWARD),
    Lever("env_latency", changes.env_latency, ("0.5",), Stage.ENV),
    Lever("sync", changes.sync, ("bucketed", "relay", "delta", "direct"), Stage.SYNC, worded=True),
    Lever("sync_speed", changes.sync_speed, (), Stage.SYNC),
    Lever("train_speed", changes.train_speed, ("1.5",), Stage.TRAIN),
    Lever("drop_logprob", changes.drop_logprob, ON, Stage.LOGPROB),
    Lever("drop_reference", changes.drop_reference, ON, Stage.REFERENCE),
    Lever("reference_side", changes.reference_side, ("actor",), worded=True),
    Lever("no_switch", changes.no_switch, ON, Stage.SWITCH),
    Lever("speculative", changes.speculative, ON, Stage.ROLLOUT),
    Lever("lag_bound", changes.lag_bound, ("0", "1", "2", "4")),
)

LEVERS: Mapping[str, Lever] = {lever.name: lever for lever in _ALL}
"""All levers by the name that they have on the command line."""


def lever(name: str) -> Lever:
    """The lever of that name. Errors: `RltraceError` with the names there are."""
    if name not in LEVERS:
        raise WrongUsage(f"there is no lever {name!r}; there are {', '.join(LEVERS)}")
    return LEVERS[name]


def moves(words: Sequence[str]) -> list[tuple[str, str]]:
    """Levers and values of words like `placement=async`. Errors: `RltraceError` for a word that is
    no lever with its value, and for a lever that is there twice."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and name in LEVERS and LEVERS[name].tries != ON:
            raise WrongUsage(f"--lever {word!r} must be {name}=VALUE")
        lever(name)
        if name in found:
            raise WrongUsage(f"--lever {name} is there twice: give one value")
        found[name] = value or (ON[0] if LEVERS[name].tries == ON else "")
    return list(found.items())
