"""What the devices could do: decoding against memory bandwidth, training against their FLOP/s."""

from __future__ import annotations

import math

from rltrace.analysis.devices import held_devices
from rltrace.analysis.walls.wall import Seen
from rltrace.analysis.whatif.physics import MEMORY_TB_PER_S, PEAK_TFLOPS, train_mfu
from rltrace.trace.vocabulary import Stage

_BYTES_EACH = 2.0  # of a parameter, as bf16


def decode_roofline(seen: Seen, token_s: float) -> tuple[float, str]:
    """`(roofline time of a token over the measured one, "")`, or NaN and what is missing. A token
    of a sequence cannot come faster than an engine reads its weights once."""
    bandwidth = _peak(seen, MEMORY_TB_PER_S)
    if math.isnan(token_s) or not token_s > 0:
        return math.nan, "the time of each sample's first token"
    if math.isnan(bandwidth):
        return math.nan, "a GPU whose memory bandwidth is known"
    weights = parameters(seen)
    if math.isnan(weights):
        return math.nan, "the number of parameters"
    engines = seen.run.sql("select distinct process from raw_trajectories where start_ns > 0")
    held = held_devices(seen.run)
    sizes = [len(held.get(process, ())) for (process,) in engines.fetchall()]
    if not sizes or not all(sizes):
        return math.nan, "the devices of each engine"
    devices = sum(sizes) / len(sizes)
    return _BYTES_EACH * weights / (bandwidth * 1e12 * devices) / token_s, ""


def learner_mfu(seen: Seen) -> tuple[float, str]:
    """`(part of the learner's peak that training takes, "")`, or NaN and what is missing."""
    peak = _peak(seen, PEAK_TFLOPS)
    if math.isnan(peak):
        return math.nan, "a GPU whose peak is known"
    weights = parameters(seen)
    if math.isnan(weights):
        return math.nan, "the number of parameters"
    found = seen.goodput
    train_s = float(seen.breakdown.tau_s[seen.steady, Stage.TRAIN].sum()) if seen.steady else 0.0
    if found is None or not found.trained.tokens or not train_s:
        return math.nan, "the tokens that were trained on"
    rows = seen.run.ask(f"select process from span_stages where stage = {int(Stage.TRAIN)}")
    held = held_devices(seen.run)
    devices = {device for (process,) in rows for device in held.get(process, ())}
    if not devices:
        return math.nan, "the devices of the learner"
    return train_mfu(weights, found.trained.tokens, train_s, len(devices), peak), ""


def parameters(seen: Seen) -> float:
    """Parameters of the policy as its processes state them; NaN: unknown."""
    stated = [process.facts.get("parameters") for process in seen.run.processes]
    known = [float(n) for n in stated if isinstance(n, int | float) and n > 0]
    return max(known, default=math.nan)


def _peak(seen: Seen, table: dict[str, float]) -> float:
    if seen.devices.kind != "GPU":
        return math.nan
    name = seen.devices.name.upper()
    return next((peak for device, peak in table.items() if device in name), math.nan)
