"""More or fewer devices for a chain, and a pool split in two at the same number of devices.

If every stage scaled perfectly, splitting could gain nothing: with a part x of the devices
generation takes g / x and training t / (1 - x), and the longer of the two is never below g + t.
What is gained comes from what does not scale: the tail of a batch, training at its exponent, passes
and switches that fall away.
"""

from __future__ import annotations

from dataclasses import replace

from rltrace.analysis.whatif.constants import Constants
from rltrace.analysis.whatif.physics import transfer_s
from rltrace.analysis.whatif.workload import Sync, Workload
from rltrace.trace.vocabulary import Stage

_SCALING = (Stage.TRAIN, Stage.LOGPROB, Stage.REFERENCE, Stage.VALUE)


def scaled_rollout(load: Workload, factor: float, constants: Constants) -> Workload:
    """`factor` times the devices for generation. On a part of one device, which an engine shares
    with somebody, a token takes as much longer as the part is smaller."""
    engine, known = load.engine, not load.engine.pooled
    workers = engine.workers * factor
    if engine.pooled:
        workers = engine.workers * factor ** constants["rollout_exponent"]
    pooled = engine.pooled or not workers.is_integer()
    engine = replace(engine, workers=workers, pooled=pooled)
    devices = {**load.devices}
    if "rollout" in devices:
        before, devices["rollout"] = devices["rollout"], devices["rollout"] * factor
        if known:  # else a device may stand for a pool of them
            slower = min(before, 1.0) / min(devices["rollout"], 1.0)
            engine = replace(engine, token_s=engine.token_s * slower)
    return replace(load, engine=engine, devices=devices)


def scaled_learner(load: Workload, factor: float, constants: Constants) -> Workload:
    """`factor` times the devices for training."""
    devices = {**load.devices}
    if "train" in devices:
        devices["train"] *= factor
    time = factor ** -constants["train_exponent"]
    return replace(_learner_times(load, time), devices=devices)


def grown(load: Workload, factor: float, constants: Constants) -> Workload:
    """`factor` times all devices, in the same parts."""
    devices = {pool: count * factor for pool, count in load.devices.items()}
    load = scaled_learner(scaled_rollout(load, factor, constants), factor, constants)
    return replace(load, devices=devices)


def resplit(load: Workload, rollout: float, train: float, constants: Constants) -> Workload:
    """So many devices for generation and for training, at the same total."""
    if not load.shared:
        load = scaled_rollout(load, rollout / load.devices["rollout"], constants)
        return scaled_learner(load, train / load.devices["train"], constants)
    total = load.devices["shared"]
    load = replace(load, devices={"rollout": total, "train": total})
    load = scaled_rollout(load, rollout / total, constants)
    load = scaled_learner(load, train / total, constants)
    alone = constants["own_devices"] if load.device_kind == "GPU" else 1.0
    load = _learner_times(load, alone)
    rest_s = load.rest_s
    if rest_s and load.device_kind == "GPU":
        rest_s *= constants["rest_kept"]
    sync, rests = load.sync, load.rests_on
    if not sync.seconds and sync.bytes > 0:
        sync = Sync(transfer_s("bucketed", sync.bytes, constants), 0.0, sync.bytes, "bucketed")
    elif not sync.seconds:
        rests = (*rests, "weights are taken to reach the other devices in no time")
    return replace(load, rest_s=rest_s, switch_s=0.0, sync=sync, rests_on=rests)


def merged(load: Workload, constants: Constants) -> Workload:
    """Generation and training on the same devices, in turn."""
    total = load.total_devices
    load = scaled_rollout(load, total / load.devices["rollout"], constants)
    load = scaled_learner(load, total / load.devices["train"], constants)
    alone = constants["own_devices"] if load.device_kind == "GPU" else 1.0
    load = _learner_times(load, 1 / alone)
    step_s = sum(load.mean_s(stage) for stage in load.serial_s)
    switch_s = constants["switch_share"] * step_s if load.device_kind == "GPU" else 0.0
    return replace(load, devices={"shared": total}, switch_s=load.switch_s + switch_s)


def _learner_times(load: Workload, factor: float) -> Workload:
    serial = {
        stage: tuple(seconds * (factor if stage in _SCALING else 1.0) for seconds in series)
        for stage, series in load.serial_s.items()
    }
    return replace(load, serial_s=serial)
