"""Levers on the learner's passes, and on how its weights travel.

Each function is the change of the lever of its name (`levers`): a workload, a value and constants
in, a workload out. Errors: `NotApplicable` and `RltraceError`, as `lever` says.
"""

from __future__ import annotations

import math
from dataclasses import replace

from rltrace.analysis.whatif.constants import Constants
from rltrace.analysis.whatif.lever import check, needs, number
from rltrace.analysis.whatif.physics import MECHANISMS, transfer_s
from rltrace.analysis.whatif.workload import Sync, Workload
from rltrace.trace.vocabulary import Stage


def train_speed(load: Workload, value: str, constants: Constants) -> Workload:
    needs(Stage.TRAIN in load.serial_s, "the training stage was not seen")
    factor = number("train_speed", value)
    check(factor > 0, "train_speed", value, "a factor above 0")
    faster = tuple(seconds / factor for seconds in load.serial_s[Stage.TRAIN])
    serial = dict(load.serial_s)
    serial[Stage.TRAIN] = faster
    return replace(load, serial_s=serial)


def drop_logprob(load: Workload, value: str, constants: Constants) -> Workload:
    needs(load.mean_s(Stage.LOGPROB) > 0, "no log-prob pass was seen")
    left = dict(load.serial_s)
    del left[Stage.LOGPROB]
    return replace(load, serial_s=left)


def drop_reference(load: Workload, value: str, constants: Constants) -> Workload:
    seen = load.mean_s(Stage.REFERENCE) > 0 or load.reference_s > 0
    needs(seen, "no reference pass was seen")
    left = dict(load.serial_s)
    left.pop(Stage.REFERENCE, None)
    return replace(load, serial_s=left, reference_s=0.0)


def reference_side(load: Workload, value: str, constants: Constants) -> Workload:
    check(value == "actor", "reference_side", value, "actor")
    needs(load.mean_s(Stage.REFERENCE) > 0, "no reference pass was seen on the learner's side")
    needs(load.placement != "colocated", "all stages take turns")
    moved = load.mean_s(Stage.REFERENCE)
    left = dict(load.serial_s)
    left.pop(Stage.REFERENCE, None)
    return replace(load, serial_s=left, reference_s=load.reference_s + moved)


def no_switch(load: Workload, value: str, constants: Constants) -> Workload:
    needs(load.switch_s > 0, "no sleep, wake or offload was seen")
    return replace(load, switch_s=0.0)


def sync(load: Workload, value: str, constants: Constants) -> Workload:
    mechanism, _, overlap = value.partition(":")
    check(mechanism in MECHANISMS, "sync", value, "one of " + ", ".join(MECHANISMS))
    part = number("sync", overlap) if overlap else load.sync.overlap
    check(0 <= part <= 1, "sync", value, "a mechanism and the part that is hidden, 0 to 1")
    needs(load.sync.seconds > 0, "weights take no time that was seen")
    bytes = load.sync.bytes
    needs(not math.isnan(bytes), "the size of the weights is not known")
    seconds = transfer_s(mechanism, bytes, constants, load.sync.fixed_s)
    seconds = min(seconds, load.sync.seconds)
    return replace(load, sync=Sync(seconds, part, bytes, mechanism, load.sync.fixed_s))


def sync_speed(load: Workload, value: str, constants: Constants) -> Workload:
    needs(load.sync.seconds > 0, "weights take no time that was seen")
    factor = number("sync_speed", value)
    check(factor > 0, "sync_speed", value, "a factor above 0")
    return replace(load, sync=replace(load.sync, seconds=load.sync.seconds / factor))
