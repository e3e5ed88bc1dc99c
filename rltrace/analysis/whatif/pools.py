"""More or fewer devices for a chain, a pool split in two, and shared cores (docs/whatif.md)."""

from __future__ import annotations

from dataclasses import replace

from rltrace.analysis.whatif.constants import Constants, transfer_s
from rltrace.analysis.whatif.replay import Replay, replay
from rltrace.analysis.whatif.workload import Sync, Workload
from rltrace.trace.vocabulary import Stage

_SCALING = (Stage.TRAIN, Stage.LOGPROB, Stage.REFERENCE, Stage.VALUE)


def scaled_rollout(load: Workload, factor: float, constants: Constants) -> Workload:
    """`factor` times the devices for generation. On a part of one device, which an engine shares
    with somebody, a token takes as much longer as the part is smaller."""
    engine, known = load.engine, not load.engine.pooled
    workers = engine.workers * (factor if known else factor ** constants["rollout_exponent"])
    engine = replace(engine, workers=workers, pooled=not known or not workers.is_integer())
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
    return replace(_scaling(load, factor ** -constants["train_exponent"]), devices=devices)


def grown(load: Workload, factor: float, constants: Constants) -> Workload:
    """`factor` times all devices, in the same parts."""
    devices = {pool: count * factor for pool, count in load.devices.items()}
    load = scaled_learner(scaled_rollout(load, factor, constants), factor, constants)
    return replace(load, devices=devices)


def resplit(load: Workload, rollout: float, train: float, constants: Constants) -> Workload:
    """So many devices for generation and for training, at the same total."""
    if not load.shared:
        return _resized(load, rollout, train, constants)
    whole = dict.fromkeys(("rollout", "train"), load.total_devices)
    load = _resized(replace(load, devices=whole), rollout, train, constants)
    if load.device_kind == "GPU":
        load = _scaling(load, constants["own_devices"])
        if load.rest_s:
            load = replace(load, rest_s=load.rest_s * constants["rest_kept"])
    sync = load.sync
    if not sync.seconds and sync.bytes > 0:
        sync = Sync(transfer_s("bucketed", sync.bytes, constants), bytes=sync.bytes)
    elif not sync.seconds:
        load = load.noted("weights are taken to reach the other devices in no time")
    return replace(load, switch_s=0.0, sync=sync)


def merged(load: Workload, constants: Constants) -> Workload:
    """Generation and training on the same GPUs, in turn."""
    total = load.total_devices
    load = _resized(load, total, total, constants)
    load = _scaling(load, 1 / constants["own_devices"])
    step_s = sum(load.mean_s(stage) for stage in load.serial_s)
    switch_s = load.switch_s + constants["switch_share"] * step_s
    return replace(load, devices={"shared": total}, switch_s=switch_s)


def _resized(load: Workload, rollout: float, train: float, constants: Constants) -> Workload:
    load = scaled_rollout(load, rollout / load.devices["rollout"], constants)
    return scaled_learner(load, train / load.devices["train"], constants)


def _scaling(load: Workload, factor: float) -> Workload:
    return load.paced(lambda stage: factor if stage in _SCALING else 1.0)


# --- stages without a GPU that come to share the cores with each other
#
# A stage takes longer while another one works beside it. What a run measured has that already, so a
# change slows a stage only by what more of its time it then spends in company.

_ROUNDS = 2  # slower stages overlap in another way, by so little that more rounds tell nothing


def crowded(before: Workload, base: Replay, after: Workload, constants: Constants) -> Workload:
    """`after`, with its stages as slow as their company then makes them; `base` is the replay of
    `before`. Where nothing runs at another time than before, it stays as it is."""

    def when(load: Workload) -> tuple[object, ...]:
        return load.placement, load.keeps_unfinished, load.chunks, *sorted(load.serial_s)

    if not before.shares_cores or when(before) == when(after):
        return after
    more, made = constants["shared_cores"] - 1, after

    def factor(stage: Stage) -> float:
        return (1 + more * now.get(stage, 0.0)) / (1 + more * base.beside.get(stage, 0.0))

    for _ in range(_ROUNDS):
        now = replay(made).beside
        made = replace(
            after.paced(factor),
            engine=after.engine.paced(factor(Stage.ROLLOUT)),
            reference_s=after.reference_s * factor(Stage.REFERENCE),
        )
    return made
