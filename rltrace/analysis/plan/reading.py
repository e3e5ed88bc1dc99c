"""A workload file, or the same as flags, made into a workload: checked, every default said."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn

from rltrace.analysis.plan import shapes
from rltrace.analysis.plan.constants import check_limits
from rltrace.analysis.plan.hardware import Gpu, counted, gpu
from rltrace.analysis.plan.shapes import Shape
from rltrace.analysis.plan.spec import STALENESS, Environment, Layout, Spec
from rltrace.analysis.prices import table_price
from rltrace.analysis.whatif.constants import MECHANISMS
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.given_files import text_given
from rltrace.trace.texts import parsed_toml

STACKS = ("hf", "fsdp", "megatron", "nvidia")
Tables = dict[str, dict[str, Any]]

_SHAPE = ("layers", "hidden", "heads", "kv_heads", "head_dim", "experts", "chosen", "latent")
KEYS: dict[str, tuple[str, ...]] = {
    "": ("name", "note", "staleness"),
    "model": ("name", "parameters", "active", *_SHAPE),
    "gpus": ("kind", "usd_per_hour", "split", "rollout_kind", "rollout_usd_per_hour"),
    "gpu": tuple(figure.name for figure in fields(Gpu) if figure.name != "name"),
    "batch": ("prompts", "group", "updates", "epochs", "keep_share"),
    "lengths": ("prompt_tokens", "mean_tokens", "cap_tokens", "variation", "within_share"),
    "environment": ("calls", "latency_s", "variation", "failures", "timeout_s", "workers"),
    "reward": ("latency_s", "workers"),
    "passes": ("reference", "logprob", "critic"),
    "sync": ("mechanism",),
    "engine": ("tensor", "sequences"),
    "training": ("tensor", "pipeline", "expert"),
    "prefers": ("stack", "multimodal", "own_agent"),
}
"""What a workload file may hold."""

_TEXTS = {"name", "note", "kind", "rollout_kind", "mechanism", "stack", "split", "staleness",
          "parameters", "active"}  # fmt: skip
_FLAGS = {"reference", "logprob", "critic", "multimodal", "own_agent"}
_WHOLE = {"prompts", "group", "updates", "workers", "tensor", "pipeline", "expert", *_SHAPE}
_MAY_BE_NONE = {"experts", "chosen", "latent"}  # 0: the model has none
_WORDS = {"mechanism": MECHANISMS, "stack": STACKS}
_TIME = re.compile(r"([0-9]*\.?[0-9]+)\s*(ms|s|min|m|h)?")
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, None: 1.0}


def read_workload(path: Path) -> Tables:
    """The tables of a workload file. Errors: `RltraceError`, one sentence."""
    try:
        data = parsed_toml(text_given(path))
    except OSError as error:
        raise RltraceError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # numbers of thousands of digits, too
        raise WrongUsage(f"{path} is no TOML file: {error}") from None
    found: Tables = {"": {}}
    for key, value in data.items():
        if isinstance(value, Mapping):
            found[key] = dict(value)
        else:
            found[""][key] = value
    return found


def merged(tables: Tables, flags: Tables) -> Tables:
    """A file's tables with what flags say instead."""
    names = dict.fromkeys((*tables, *flags))
    if {"name", "parameters"} & set(flags.get("model", {})):
        tables = {**tables, "model": {}}  # another model is wholly another
    return {name: {**tables.get(name, {}), **flags.get(name, {})} for name in names}


def seconds(text: str, what: str) -> float:
    """`8s`, `250ms`, `2min` -> seconds. Errors: `RltraceError` for what is no time."""
    found = _TIME.fullmatch(text.strip())
    if not found:
        raise WrongUsage(f"{what} must be a time like 8s or 250ms, not {text!r}")
    return float(found[1]) * _SECONDS[found[2]]


def spec_of(tables: Tables, where: str) -> Spec:
    """The workload that tables state. `where` names them in errors. Errors: `RltraceError`, one
    sentence, for what makes no sense."""
    for table, values in tables.items():
        _check(table, values, where)
    assumed: list[str] = []

    def number(table: str, key: str, otherwise: float, says: str = "") -> float:
        value = tables.get(table, {}).get(key)
        if value is None and says:
            assumed.append(says)
        return otherwise if value is None else float(value)

    model = _model(tables.get("model", {}), where)
    count, kind = _gpus(tables, where)
    gpus = tables["gpus"]
    mean = number("lengths", "mean_tokens", math.nan)
    if math.isnan(mean):
        _refuse(where, "how long are responses? Give --mean-tokens (lengths.mean_tokens)")
    says = f"responses are cut at {4 * mean:,.0f} tokens, four times their mean"
    cap = number("lengths", "cap_tokens", 4 * mean, says)
    if not cap > mean:
        _refuse(where, f"the cap of {cap:,.0f} tokens is not above the mean of {mean:,.0f}")
    prompts = int(number("batch", "prompts", 128, "128 prompts a step"))
    group = int(number("batch", "group", 8, "8 samples of each prompt"))
    updates = int(number("batch", "updates", 1, "one optimizer update a step"))
    lag = _lag(tables.get("", {}).get("staleness"), where, assumed)
    price, priced = _price(gpus, kind, "usd_per_hour")
    rollout_gpu, rollout_usd = None, math.nan
    if gpus.get("rollout_kind"):
        rollout_gpu = gpu(str(gpus["rollout_kind"]))
        rollout_usd, more = _price(gpus, rollout_gpu, "rollout_usd_per_hour")
        priced = f"{priced}; {more}"
    if updates > prompts * group:
        _refuse(where, f"{updates} optimizer updates cannot share {prompts * group} samples")
    layout = Layout(**{key: int(ways) for key, ways in tables.get("training", {}).items()})
    engine_ways = int(number("engine", "tensor", 0))
    for what, ways in (
        ("an engine", engine_ways),
        ("training.tensor x pipeline", max(1, layout.tensor) * layout.pipeline),
        ("training.expert", layout.expert),
    ):
        if ways > count:
            _refuse(where, f"{what} over {ways} GPUs cannot be on {count}")
    return Spec(
        name=str(tables.get("", {}).get("name", model.name)),
        model=model,
        gpu=kind,
        gpus=count,
        prompts=prompts,
        group=group,
        mean_tokens=mean,
        cap_tokens=cap,
        prompt_tokens=number("lengths", "prompt_tokens", 512, "prompts of 512 tokens"),
        variation=number("lengths", "variation", math.nan),
        within_share=number("lengths", "within_share", math.nan),
        updates=updates,
        epochs=number("batch", "epochs", 1),
        **tables.get("passes", {}),
        lag_bound=lag,
        sync=str(tables.get("sync", {}).get("mechanism", "")),
        split=_split(gpus.get("split"), count, where),
        slots=number("engine", "sequences", math.nan),
        rollout_ways=engine_ways,
        layout=layout,
        environment=_environment(tables),
        usd_per_hour=price,
        priced=priced,
        rollout_gpu=rollout_gpu,
        rollout_usd_per_hour=rollout_usd,
        **tables.get("prefers", {}),
        keep_share=number("batch", "keep_share", 1),
        assumed=tuple(assumed),
    )


def _model(values: Mapping[str, Any], where: str) -> Shape:
    if not values.get("name") and not values.get("parameters"):
        _refuse(where, "which model? Give --model, or --params like 70B")
    size = str(values.get("parameters", ""))
    active = str(values.get("active", ""))
    name = str(values.get("name", ""))
    if name and not size:
        found = shapes.by_name(name)
    else:
        total = shapes.parameters(size)
        some = shapes.parameters(active, "--active") if active else math.nan
        if some > total:
            _refuse(where, f"{active} active parameters are more than all {size}")
        found = shapes.by_size(total, some)
        found = replace(found, name=name) if name else found
    own: dict[str, Any] = {key: int(values[key]) for key in _SHAPE if key in values}
    if own:
        found = replace(found, **own, source=f"{found.source}; some by hand")
    if found.chosen > found.experts:
        _refuse(where, f"a token cannot pass {found.chosen} of {found.experts} experts")
    return found


def _gpus(tables: Tables, where: str) -> tuple[int, Gpu]:
    values = tables.get("gpus", {})
    if "kind" not in values:
        _refuse(where, "how many GPUs of which kind? Give --gpus, like 32xH100")
    count, kind = counted(str(values["kind"]))
    figures = tables.get("gpu", {})
    node = figures.get("node", 1)
    if node != round(node):
        raise WrongUsage(f"[gpu] node must be a whole number, not {node!r}")
    return count, replace(kind, **figures)


def _split(value: object, count: int, where: str) -> float:
    if value is None:
        return math.nan
    left, colon, right = str(value).partition(":")
    try:
        part = float(left) / count if colon else float(left)
        adds_up = not colon or float(left) + float(right) == count
    except ValueError:
        part, adds_up = math.nan, False
    if not adds_up or not 0 < part < 1:
        _refuse(where, f"the split {value!r} must be a part like 0.75, or counts that add up to "
                f"{count} like {count - count // 4}:{count // 4}")  # fmt: skip
    return part


def _lag(value: object, where: str, assumed: list[str]) -> float:
    if value is None:
        assumed.append("strictly on policy is not asked for: a lag of up to 2 versions is allowed")
        return STALENESS["bounded"]
    if str(value) in STALENESS:
        return STALENESS[str(value)]
    try:
        bound = float(str(value))
    except ValueError:
        bound = math.nan
    if not (bound >= 0 and math.isfinite(bound)):
        words = ", ".join(STALENESS)
        _refuse(where, f"staleness must be {words} or a number of versions, not {value!r}")
    check_limits("staleness", bound, where=where)
    return bound


def _price(values: Mapping[str, Any], kind: Gpu, key: str) -> tuple[float, str]:
    if key in values:
        return float(values[key]), f"{kind.name} at US$ {float(values[key]):g} an hour, as stated"
    found = table_price(kind.name)
    if found is None:
        return math.nan, f"{kind.name} has no price in the table"
    says = f"{kind.name} at US$ {found.usd_per_hour:g} an hour ({found.low_usd_per_hour:g} to "
    return found.usd_per_hour, f"{says}{found.high_usd_per_hour:g}, {found.date}; {found.source})"


def _environment(tables: Tables) -> Environment:
    env, reward = tables.get("environment", {}), tables.get("reward", {})
    return Environment(
        **{**env, "calls": env.get("calls", 1) if env.get("latency_s") else 0},
        reward_s=float(reward.get("latency_s", 0)),
        judges=int(reward.get("workers", 64)),
    )


def _check(table: str, values: Mapping[str, Any], where: str) -> None:
    if table not in KEYS:
        _refuse(where, f"there is no table [{table}]; known are {', '.join(filter(None, KEYS))}")
    for key, value in values.items():
        name = f"{table}.{key}" if table else key
        if key not in KEYS[table]:
            _refuse(where, f"there is no {name}; known are {', '.join(KEYS[table])}")
        if key in _WORDS and value not in _WORDS[key]:
            _refuse(where, f"{name} must be one of {', '.join(_WORDS[key])}, not {value!r}")
        if key in _FLAGS and not isinstance(value, bool):
            _refuse(where, f"{name} must be true or false, not {value!r}")
        if key in _TEXTS or key in _FLAGS:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            _refuse(where, f"{name} must be a number, not {value!r}")
        if not 0 <= value <= sys.float_info.max:
            _refuse(where, f"{name} must not be negative or infinite, and is {value}")
        least = 0 if key in _MAY_BE_NONE else 1
        if key in _WHOLE and (value < least or value != round(value)):
            _refuse(where, f"{name} must be a whole number, {least} or more, not {value:g}")
        check_limits(name, value, where=where)


def _refuse(where: str, why: str) -> NoReturn:
    raise WrongUsage(f"{where}: {why}" if where else why)
