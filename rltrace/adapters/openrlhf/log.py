"""OpenRLHF's logs: how long each part of a step took."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from rltrace.adapters.log_table import LogRecord, Told, has, table_of

GENERATION, BROADCAST, STEP = "timing/generation", "timing/broadcast", "timing/step_total"

_LOGGED_SINCE_0_9_8 = "rollout/num_samples"
_ROUNDED = 3  # decimals
_SUM = 1e-6  # TensorBoard keeps 24 bits of a number


def tell(told: Told, records: list[LogRecord], settings: Mapping[str, str]) -> Told:
    """The asynchronous trainer is told by a total that is no sum of its parts: by the clock."""
    whole = [r for r in records if {STEP, *told.inside} <= r.metrics.keys()]
    version = "0.9.6 or 0.9.7" if whole else ""
    if has(records, _LOGGED_SINCE_0_9_8):
        version = "0.9.8 or later"
    if not whole:  # what was cut out proves nothing
        return replace(told, version=version)
    if all(_is_sum(record.metrics, told.inside) for record in whole):
        figures = {**told.figures, **table_of("openrlhf")["of_sum"]}
        return replace(told, trainer="PPOTrainer", version=version, figures=figures)
    figures = {**told.figures, **table_of("openrlhf")["of_clock"]}
    inside = {name: stage for name, stage in told.inside.items() if name != GENERATION}
    why = f"it takes at most {BROADCAST}, which holds waiting for the engines too"
    return replace(
        told, trainer="PPOTrainerAsync", placement="async", version=version,
        inside={**inside, BROADCAST: "wait"}, aside={GENERATION: "rollout"},
        unknown={"sync": why, **told.unknown}, figures=figures,
    )  # fmt: skip


def _is_sum(metrics: Mapping[str, float], parts: Mapping[str, str]) -> bool:
    """Whether the total is the sum of the parts, as far as they are shown: people round."""
    shown = [metrics[STEP], *(metrics[name] for name in parts)]
    decimals = max(len(repr(value).partition(".")[2]) for value in shown)
    rounded = 0.5 * len(shown) * 10.0**-decimals if decimals <= _ROUNDED else 0.0
    return math.isclose(shown[0], sum(shown[1:]), rel_tol=_SUM, abs_tol=rounded)
