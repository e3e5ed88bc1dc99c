"""Relax, a descendant of slime: samples, timer and buckets at other places.

Its rollout and its actors are services that run on their own, so no step is told here; the timer
and the samples are. Which weights a service holds, it tells its coordinator only.
"""

from __future__ import annotations

from rltrace.adapters import slime
from rltrace.adapters.table import TableAdapter
from rltrace.adapters.table.rows import either, methods
from rltrace.adapters.table.timers import start_stop
from rltrace.adapters.table.weights import Sending
from rltrace.hooks.hook import Hook

LABELS = {**slime.LABELS, "rollout": "", "update_weights": "sync"}
"""Relax's timer -> stage; the metric is `perf/<label>_time`. Samples are seen by call."""

_SAMPLES = "relax.engine.rollout.sglang_rollout"
_UPDATE = "relax.backends.megatron.weight_update.update_weight_from_distributed"
_WEIGHTS = f"{_UPDATE}:UpdateWeightFromDistributed"
_CLIENT = "relax.distributed.checkpoint_service.client.engine:CheckpointEngineClient"
_TIMER = "relax.utils.timer:Timer"

_sending = Sending(lambda call: call.self.weight_version)


class Relax(TableAdapter):
    framework = "relax.engine"  # others are called relax too
    labels = LABELS
    calls = (
        Hook(
            f"{_SAMPLES}:generate",
            **either(lambda call: not call.argument("evaluation"), "rollout", "eval"),
        ),
        Hook(f"{_SAMPLES}:generate_and_rm", before=slime.sample_begins, after=slime.sample_ends),
        *methods("relax.engine.rewards", "async_rm batched_async_rm", "reward"),
        _sending.update_row(f"{_WEIGHTS}.update_weights"),
        _sending.bucket_row(
            f"{_WEIGHTS}._update_bucket_weights_from_distributed", "converted_named_tensors"
        ),
        Hook(f"{_CLIENT}.update_weights_for_rollout", "sync"),
    )
    timers = start_stop(
        f"{_TIMER}.start", f"{_TIMER}.end", LABELS, lambda call: str(call.argument("name"))
    )
