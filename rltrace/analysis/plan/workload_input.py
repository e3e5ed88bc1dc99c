"""A workload from a file, from flags or from a run, checked."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rltrace.analysis.figures.goodput import table_price
from rltrace.analysis.plan import data_sheets as sheets
from rltrace.analysis.plan.planned_workload import STALENESS, EnvironmentModel, Spec
from rltrace.analysis.plan.stage_costs import learner, rollout
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.confidence_interval import variation
from rltrace.analysis.whatif.replay import replay
from rltrace.analysis.whatif.stated_workload import Tables, by_table
from rltrace.analysis.whatif.workload import Constants, PlanConstants, number_of, packaged
from rltrace.analysis.whatif.workload_of_run import workload_of
from rltrace.trace.errors import CANNOT_TELL, RltraceError
from rltrace.trace.read.stated_tables import checked, refuse
from rltrace.trace.untrusted_files import toml_given
from rltrace.trace.vocabulary import Stage, word

_MOST_LAG = 1e6


def read_workload(path: Path) -> Tables:
    """The tables of a workload file. Errors: `RltraceError`, one sentence."""
    return by_table(toml_given(path))


def merged(tables: Tables, flags: Tables) -> Tables:
    """A file's tables with what flags say instead."""
    if {"name", "parameters"} & set(flags.get("model", {})):
        tables = {**tables, "model": {}}  # another model is wholly another
    return {name: {**tables.get(name, {}), **flags.get(name, {})} for name in {**tables, **flags}}


def spec_of(tables: Tables, where: str) -> Spec:
    """The workload that tables state; `where` names them in errors. Errors: `RltraceError`."""
    known: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    said = {**tables, **tables.get("", {})}
    said.pop("", None)
    known |= by_table(checked(packaged("workload"), said, where))
    names = ("", "gpus", "batch", "lengths", "environment")
    top, gpus, batch, lengths, env = (known[table] for table in names)
    assumed: list[str] = []
    model = _model(known["model"], where)
    if "kind" not in gpus:
        refuse(where, "how many GPUs of which kind? Give --gpus, like 32xH100")
    count, kind = sheets.counted(gpus["kind"])
    if "mean_tokens" not in lengths:
        refuse(where, "how long are responses? Give --mean-tokens (lengths.mean_tokens)")
    mean, cap = lengths["mean_tokens"], lengths.setdefault("cap_tokens", math.nan)
    if math.isnan(cap):
        cap = lengths["cap_tokens"] = 4 * mean
        assumed.append(f"responses are cut at {cap:,.0f} tokens, four times their mean")
    if not cap > mean:
        refuse(where, f"the cap of {cap:,.0f} tokens is not above the mean of {mean:,.0f}")
    for one in packaged("inputs")["default"]:
        if one["key"] not in known[one["table"]]:
            known[one["table"]][one["key"]] = one["value"]
            assumed += [one["says"]] if "says" in one else []
    samples = batch["prompts"] * batch["group"]
    if batch["updates"] > samples:
        refuse(where, f"{batch['updates']} optimizer updates cannot share {samples} samples")
    price, priced = _price(gpus.get("usd_per_hour"), kind)
    engine, training = known["engine"], known["training"]
    copy = max(1, training["tensor"]) * training["pipeline"]
    for ways in (engine["tensor"], copy, training["expert"]):
        if ways > count:
            refuse(where, f"an engine, or a copy of the weights, over {ways} GPUs cannot be on "
                    f"{count}")  # fmt: skip
    return Spec(
        name=top.get("name", model.name), model=model,
        gpu=replace(kind, **known["gpu"]), gpus=count,
        **batch, **lengths, **known["passes"], **known["prefers"], **training,
        lag_bound=_lag(top["staleness"], where),
        sync=known["sync"]["mechanism"],
        split=_split(gpus.get("split"), count, where),
        slots=engine["sequences"], rollout_ways=engine["tensor"],
        environment=EnvironmentModel(
            **{**env, "calls": env.get("calls", 1) if env.get("latency_s") else 0},
            reward_s=known["reward"]["latency_s"],
            judges=known["reward"]["workers"],
        ),
        usd_per_hour=price, priced=priced, assumed=tuple(assumed),
    )  # fmt: skip


def _model(values: Mapping[str, Any], where: str) -> sheets.Shape:
    name, size, active = (values.get(key, "") for key in ("name", "parameters", "active"))
    if not name and not size:
        refuse(where, "which model? Give --model, or --params like 70B")
    if name and not size:
        found = sheets.by_name(name)
    else:
        total = sheets.parameters(size)
        some = sheets.parameters(active, "--active") if active else total
        if some > total:
            refuse(where, f"{active} active parameters are more than all {size}")
        found = sheets.by_size(total, some)
        found = replace(found, name=name or found.name)
    if own := {key: values[key] for key in values.keys() - {"name", "parameters", "active"}}:
        found = replace(found, **own, source=f"{found.source}; some by hand")
    if found.chosen > found.experts:
        refuse(where, f"a token cannot pass {found.chosen} of {found.experts} experts")
    return found


def _split(value: str | None, count: int, where: str) -> float:
    if value is None:
        return math.nan
    left, colon, right = value.partition(":")
    part = number_of(left) / (count if colon else 1)
    if not 0 < part < 1 or (colon and number_of(left) + number_of(right) != count):
        refuse(where, f"the split {value!r} must be a part like 0.75, or counts that add up to "
                f"{count} like {count - count // 4}:{count // 4}")  # fmt: skip
    return part


def _lag(value: str, where: str) -> float:
    if value in STALENESS:
        return STALENESS[value]
    bound = number_of(value)
    if not 0 <= bound <= _MOST_LAG:
        known = f"{', '.join(STALENESS)} or from 0 to {_MOST_LAG:,.0f}"
        refuse(where, f"staleness must be {known}, not {value!r}")
    return bound


def _price(stated: float | None, kind: sheets.Gpu) -> tuple[float, str]:
    if stated is not None:
        return stated, f"{kind.name} at US$ {stated:g} an hour, as stated"
    found = table_price(kind.name)
    if found is None:
        return math.nan, f"{kind.name} has no price in the table"
    says = f"{kind.name} at US$ {found.usd_per_hour:g} an hour ({found.low_usd_per_hour:g} to "
    return found.usd_per_hour, f"{says}{found.high_usd_per_hour:g}, {found.date}; {found.source})"


def is_whole(table: str, key: str) -> bool:
    """Whether a figure of a workload file is a whole number."""
    return isinstance(packaged("workload")[table][key][0], int) if table else False


_ABOVE = 1.001  # the longest response of a run is no cap: one just above it is taken


@dataclass(frozen=True)
class Measured:
    """What a run tells: tables of a workload file, seconds a step of generation and the learner's
    stages, placement, devices by pool, and the GPU (None: it ran on none that is known)."""

    tables: Tables
    stages_s: Mapping[Stage, float]
    placement: str
    devices: Mapping[str, float]
    gpu: sheets.Gpu | None
    steps: int


def measure(analysis: RunAnalysis) -> Measured:
    """Errors: `RltraceError` where the run has no steps, or no trajectory with a length."""
    load = workload_of(analysis)(Constants())
    columns = [(batch.tokens, batch.verdict_s, batch.env_s) for batch in load.batches]
    tokens, verdicts, env = (np.concatenate(one) for one in zip(*columns, strict=True))
    if not load.steps or float(tokens.max()) <= 1.5:
        how = "state them, and the run's stage seconds with `rltrace whatif`"
        raise RltraceError(f"no lengths of responses were recorded: {how}", CANNOT_TELL)
    per_step = len(load.batches[0].tokens) * load.engine.stands_for
    in_group = len(tokens) / sum(len(set(batch.group)) for batch in load.batches)
    learns = {stage: load.mean_s(stage) for stage in load.serial_s}
    prompts, group = max(1, round(per_step / in_group)), max(1, round(in_group))
    tables: Tables = {
        "batch": {"prompts": prompts, "group": group},
        "lengths": {
            "mean_tokens": float(tokens.mean()),
            "cap_tokens": _ABOVE * float(tokens.max()),
            "variation": variation(float(np.log(tokens[tokens > 0]).std())),
        },
        "passes": {
            "reference": Stage.REFERENCE in learns or load.reference_s > 0,
            "logprob": Stage.LOGPROB in learns,
            "critic": Stage.VALUE in learns,
        },
    }
    if env.mean() > 0:
        tables["environment"] = {"latency_s": float(env.mean()), "calls": 1}
    if (verdict_s := float(verdicts.mean())) > 0:
        tables["reward"] = {"latency_s": verdict_s, "workers": load.reward_workers}
    gpu = sheets.of_driver(analysis.devices.name)
    if gpu is not None and load.devices:
        tables["gpus"] = {"kind": f"{round(sum(load.devices.values()))}x{gpu.name}"}
    return Measured(
        tables=tables,
        stages_s={Stage.ROLLOUT: replay(load).stages_s.get(Stage.ROLLOUT, math.nan), **learns},
        placement=load.placement, devices=dict(load.devices), gpu=gpu, steps=load.steps,
    )  # fmt: skip


def calibrated(spec: Spec, found: Measured) -> Spec:
    """The workload with the cost models scaled by what the run took over what they say of its
    devices. Where those are no known GPUs, only its lengths and latencies count, which is said."""
    steps = f"{found.steps} measured step{'s' * (found.steps != 1)}"
    if found.gpu is None or not found.devices:
        note = f"lengths and latencies are those of {steps}; its devices are no known GPUs, so the "
        return replace(spec, assumed=(*spec.assumed, f"{note}pace of stages is not calibrated"))
    own = replace(spec, gpu=found.gpu, **found.tables["batch"], **found.tables["lengths"])
    shared = found.devices.get("shared", 1.0)
    generating, training = (found.devices.get(pool, shared) for pool in ("rollout", "train"))
    constants = PlanConstants()
    made = rollout(own, max(1, round(generating)), constants, found.placement == "async")
    rollout_s = made.throughput_s if found.placement == "async" else made.barrier_s
    said = {Stage.ROLLOUT: rollout_s, **learner(own, training, constants).serial_s}
    scales = {
        word(stage): found.stages_s[stage] / said[stage]
        for stage in (Stage.ROLLOUT, Stage.TRAIN, Stage.LOGPROB)
        if stage in said and found.stages_s.get(stage, 0.0) > 0
    }
    says = ", ".join(f"{name} × {scale:.2f}" for name, scale in scales.items())
    note = f"calibrated with {steps} on {found.gpu.name}: {says} of what the cost models say"
    return replace(spec, calibrated=scales, assumed=(*spec.assumed, note))
