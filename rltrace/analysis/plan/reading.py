"""A workload file, or the same as flags, made into a workload: checked, every default said."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from rltrace.analysis.goodput import table_price
from rltrace.analysis.plan import shapes
from rltrace.analysis.plan.constants import packaged
from rltrace.analysis.plan.hardware import Gpu, counted
from rltrace.analysis.plan.shapes import Shape
from rltrace.analysis.plan.spec import STALENESS, Environment, Layout, Spec
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.given_files import text_given
from rltrace.trace.texts import parsed_toml

Tables = dict[str, dict[str, Any]]

_MOST_LAG = 1e6
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
    tables = {key: dict(value) for key, value in data.items() if isinstance(value, Mapping)}
    return {"": {key: data[key] for key in data if key not in tables}, **tables}


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
    gpus = tables.get("gpus", {})
    if "kind" not in gpus:
        _refuse(where, "how many GPUs of which kind? Give --gpus, like 32xH100")
    count, kind = counted(str(gpus["kind"]))
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
    if updates > prompts * group:
        _refuse(where, f"{updates} optimizer updates cannot share {prompts * group} samples")
    lag = _lag(tables.get("", {}).get("staleness"), where, assumed)
    price, priced = _price(gpus.get("usd_per_hour"), kind)
    layout = Layout(**{key: int(ways) for key, ways in tables.get("training", {}).items()})
    engine_ways = int(number("engine", "tensor", 0))
    for ways in (engine_ways, max(1, layout.tensor) * layout.pipeline, layout.expert):
        if ways > count:
            _refuse(where, f"an engine, or a copy of the weights, over {ways} GPUs cannot be on "
                    f"{count}")  # fmt: skip
    env, reward = tables.get("environment", {}), tables.get("reward", {})
    return Spec(
        name=str(tables.get("", {}).get("name", model.name)),
        model=model,
        gpu=replace(kind, **tables.get("gpu", {})),
        gpus=count,
        prompts=prompts,
        group=group,
        mean_tokens=mean,
        cap_tokens=cap,
        prompt_tokens=number("lengths", "prompt_tokens", 512, "prompts of 512 tokens"),
        variation=number("lengths", "variation", math.nan),
        updates=updates,
        **tables.get("passes", {}),
        lag_bound=lag,
        sync=str(tables.get("sync", {}).get("mechanism", "bucketed")),
        split=_split(gpus.get("split"), count, where),
        slots=number("engine", "sequences", math.nan),
        rollout_ways=engine_ways,
        layout=layout,
        environment=Environment(
            **{**env, "calls": env.get("calls", 1) if env.get("latency_s") else 0},
            reward_s=float(reward.get("latency_s", 0)),
            judges=int(reward.get("workers", 64)),
        ),
        usd_per_hour=price,
        priced=priced,
        **tables.get("prefers", {}),
        assumed=tuple(assumed),
    )


def _model(values: Mapping[str, Any], where: str) -> Shape:
    name, size, active = (str(values.get(key, "")) for key in ("name", "parameters", "active"))
    if not name and not size:
        _refuse(where, "which model? Give --model, or --params like 70B")
    if name and not size:
        found = shapes.by_name(name)
    else:
        total = shapes.parameters(size)
        some = shapes.parameters(active, "--active") if active else total
        if some > total:
            _refuse(where, f"{active} active parameters are more than all {size}")
        found = shapes.by_size(total, some)
        found = replace(found, name=name or found.name)
    own: dict[str, Any] = {
        key: int(value)
        for key, value in values.items()
        if key not in ("name", "parameters", "active")
    }
    if own:
        found = replace(found, **own, source=f"{found.source}; some by hand")
    if found.chosen > found.experts:
        _refuse(where, f"a token cannot pass {found.chosen} of {found.experts} experts")
    return found


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
    if not 0 <= bound <= _MOST_LAG:
        words = ", ".join(STALENESS)
        _refuse(where, f"staleness must be {words} or from 0 to {_MOST_LAG:,.0f}, not {value!r}")
    return bound


def _price(stated: float | None, kind: Gpu) -> tuple[float, str]:
    if stated is not None:
        return float(stated), f"{kind.name} at US$ {float(stated):g} an hour, as stated"
    found = table_price(kind.name)
    if found is None:
        return math.nan, f"{kind.name} has no price in the table"
    says = f"{kind.name} at US$ {found.usd_per_hour:g} an hour ({found.low_usd_per_hour:g} to "
    return found.usd_per_hour, f"{says}{found.high_usd_per_hour:g}, {found.date}; {found.source})"


def is_whole(table: str, key: str) -> bool:
    """Whether a figure of a workload file is a whole number."""
    return isinstance(packaged("workload")[table][key][0], int) if table else False


def _check(table: str, values: Mapping[str, Any], where: str) -> None:
    schema = packaged("workload")
    tables = {name: known for name, known in schema.items() if isinstance(known, dict)}
    tables[""] = {key: known for key, known in schema.items() if key not in tables}
    if table not in tables:
        _refuse(where, f"there is no table [{table}]; known are {', '.join(filter(None, tables))}")
    for key, value in values.items():
        name = f"{table}.{key}" if table else key
        known = tables[table].get(key)
        if known is None:
            _refuse(where, f"there is no {name}; known are {', '.join(tables[table])}")
        if known == "text":
            continue
        if known == "flag":
            if not isinstance(value, bool):
                _refuse(where, f"{name} must be true or false, not {value!r}")
        elif isinstance(known[0], str):
            if value not in known:
                _refuse(where, f"{name} must be one of {', '.join(known)}, not {value!r}")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            _refuse(where, f"{name} must be a number, not {value!r}")
        elif not known[0] <= value <= known[1]:
            _refuse(where, f"{name} must be from {known[0]:,} to {known[1]:,}, and is {value}")
        elif is_whole(table, key) and value != round(value):
            _refuse(where, f"{name} must be a whole number, not {value:g}")


def _refuse(where: str, why: str) -> NoReturn:
    raise WrongUsage(f"{where}: {why}" if where else why)
