"""The words and codes that every part of rltrace shares: stages, phases, fates, outcomes, roles.

A code is what a trace file stores (int8); its name is what people read. Codes are append-only:
a number that was written once keeps its meaning in every later version.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache


class Stage(IntEnum):
    """What a span of time was spent on. `STEP` is structure (one learner step), never a stage."""

    ROLLOUT = 0
    ENV = 1
    REWARD = 2
    REFERENCE = 3
    LOGPROB = 4
    VALUE = 5
    TRAIN = 6
    SYNC = 7
    SWITCH = 8
    WAIT = 9
    DATA = 10
    CHECKPOINT = 11
    EVAL = 12
    OTHER = 13
    STEP = 14


class Phase(IntEnum):
    """The phases of a weight sync, in the order in which they happen."""

    GATHER = 0
    CONVERT = 1
    TRANSFER = 2
    LOAD = 3
    VISIBLE = 4


class Finish(IntEnum):
    """Why generation of a trajectory ended."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    TIMEOUT = 3
    ERROR = 4


class Fate(IntEnum):
    """What the learner did with a sample: trained on it, or why it was dropped."""

    TRAINED = 0
    STALE = 1
    ZERO_ADVANTAGE = 2
    FILTERED = 3
    TRUNCATED = 4
    FAILED = 5


class Outcome(IntEnum):
    """How a verdict on a sample was reached."""

    OK = 0
    TIMEOUT = 1
    ERROR = 2


class SyncRole(IntEnum):
    """A participant's part in one weight update."""

    SOURCE = 0
    RELAY = 1
    SINK = 2


class Transport(IntEnum):
    """What carried the weights of one update."""

    OBJECT_STORE = 0
    SHARED_MEMORY = 1
    TCP = 2
    GLOO = 3
    NCCL = 4
    CUDA_IPC = 5
    FILE = 6
    IN_PROCESS = 7


class Part(IntEnum):
    """The part of a sample that a captured token is of."""

    PROMPT = 0
    RESPONSE = 1


STAGE_SYMBOLS: dict[Stage, str] = {
    Stage.ROLLOUT: "τ_R",
    Stage.ENV: "τ_E",
    Stage.REWARD: "τ_V",
    Stage.REFERENCE: "τ_ref",
    Stage.LOGPROB: "τ_old",
    Stage.VALUE: "τ_C",
    Stage.TRAIN: "τ_T",
    Stage.SYNC: "τ_S",
    Stage.SWITCH: "τ_X",
}
"""The symbol of a stage in formulas and reports; stages without one are shown by name."""

STEP_SPAN = "step"
"""Name of the span (stage `STEP`) that one learner step is recorded as."""


def word(member: IntEnum) -> str:
    """The name that people read and the API accepts: `Stage.ZERO_ADVANTAGE` -> `zero-advantage`."""
    return member.name.lower().replace("_", "-")


@cache
def named(kind: type[IntEnum], code: int | None) -> str:
    """The word of a code, or "unknown" (-1, or written by a later version)."""
    return word(kind(code)) if code in set(kind) else "unknown"


def stage_of(code: int) -> Stage:
    """The stage of a code; an unknown one is `OTHER`."""
    return Stage(code) if code in set(Stage) else Stage.OTHER
