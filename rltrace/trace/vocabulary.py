"""The shared words and codes: stages, phases, fates, outcomes, roles.

A trace file stores the code (int8), people read the name. Codes are append-only: a number that was
written once keeps its meaning in every later version.
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


_SYMBOLS = "τ_R τ_E τ_V τ_ref τ_old τ_C τ_T τ_S τ_X"  # in the order of the stages
STAGE_SYMBOLS: dict[Stage, str] = dict(zip(Stage, _SYMBOLS.split(), strict=False))
"""Symbols in formulas and reports; stages without one are shown by name."""

STEP_SPAN = "step"  # name of the span of one learner step


def word(member: IntEnum) -> str:
    """The name that people read and the API takes: `Stage.ZERO_ADVANTAGE` -> `zero-advantage`."""
    return member.name.lower().replace("_", "-")


@cache
def named(kind: type[IntEnum], code: int | None) -> str:
    """The word of a code; "unknown" for -1 and what a later version wrote."""
    return word(kind(code)) if code in set(kind) else "unknown"


def stage_of(code: int) -> Stage:
    """The stage of a code; an unknown one is `OTHER`."""
    return Stage(code) if code in set(Stage) else Stage.OTHER


PLANNED, SLEPT, WORKED, LONGEST = "planned", "slept", "worked", "longest"
"""What the counters of a probe say of a stage: its dose, and seconds."""
