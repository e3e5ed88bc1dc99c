"""What verl's trainer and its training workers say: timers, batches, weights, figures."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rltrace.testing.inside.adapters import learner
from rltrace.testing.inside.adapters import verl_controller as controller
from rltrace.testing.inside.adapters import verl_weights as weights
from rltrace.testing.inside.hooks import recorder as recording
from tests.adapters.verl_shapes import Batch, hooked, rows


@pytest.mark.parametrize(
    ("label", "stage"),
    [
        ("step", "step"),
        ("gen", "wait"),
        ("update_actor", "wait"),
        ("testing", "eval"),
        ("adv", "other"),
        ("theirs", "other"),
        ("compute_score", None),
    ],
)
def test_a_timer_of_the_trainer_is_a_wait_for_those_who_work(
    recorder: recording.Recorder, run_path: Path, label: str, stage: str | None
) -> None:
    def timer(name: str, timing_raw: dict[str, float]) -> Iterator[None]:
        yield

    watched = hooked(timer, controller.timer_stage, before=controller.timer_named, per_item=False)
    list(watched(label, {}))
    found = rows(run_path, "select name, stage from spans")
    assert found == ([] if stage is None else [(label, stage)])


TAGS = [{"seq_len": 9}, {"seq_len": 4}, {"seq_len": 2, "is_padding": True}]


class Rows:
    """A `TensorDict` of two rows, which are nine and four tokens long, each as long as it is."""

    def __init__(self, is_nested: bool) -> None:
        values = SimpleNamespace(shape=(13,))
        self.ids = SimpleNamespace(is_nested=is_nested, values=lambda: values)

    def __len__(self) -> int:
        return 2

    def get(self, name: str) -> Any:
        return {"input_ids": self.ids}.get(name)


@pytest.mark.parametrize(
    ("batch", "items", "tokens"),
    [
        (SimpleNamespace(tags=TAGS), 2, 13),
        (SimpleNamespace(custom_meta=TAGS), 2, 13),
        (SimpleNamespace(custom_meta=[{}, {"is_padding": True}]), 1, None),
        (Rows(is_nested=True), 2, 13),
        (Rows(is_nested=False), 2, None),
        (Batch(["u", "v"]), 2, None),
    ],
)
def test_a_worker_says_what_its_share_of_a_batch_holds(
    recorder: recording.Recorder, run_path: Path, batch: Any, items: int, tokens: int | None
) -> None:
    update = hooked(lambda self, data: None, "train", before=learner.batch_given)
    update(None, batch)
    assert rows(run_path, "select items, tokens from spans") == [(items, tokens)]


class Rank:
    """A training worker that sends two tensors."""

    def __init__(self, rank: int, backend: str) -> None:
        engine = SimpleNamespace(backend=backend)
        self.rank = rank
        self.config = SimpleNamespace(
            rollout=SimpleNamespace(checkpoint_engine=engine, name="vllm")
        )


@pytest.mark.parametrize(
    ("rank", "backend", "bytes_sent", "transport"),
    [
        (0, "naive", 6, "cuda-ipc"),
        (1, "naive", 6, "cuda-ipc"),
        (0, "nccl", 6, "nccl"),
        (1, "nccl", None, "nccl"),
        (0, "nixl", 6, None),
    ],
)
def test_a_rank_says_what_it_has_sent(
    recorder: recording.Recorder,
    run_path: Path,
    rank: int,
    backend: str,
    bytes_sent: int | None,
    transport: str | None,
) -> None:
    tensors = [("a", SimpleNamespace(nbytes=4)), ("b", SimpleNamespace(nbytes=2))]
    params = hooked(
        lambda: (iter(tensors), None), "sync", phase="gather", stream=0,
        after=weights.weight_streamed,
    )  # fmt: skip

    async def update_weights(
        self: Any, global_steps: int | None = None, mode: str = "auto"
    ) -> dict[str, Any]:
        list(params()[0])
        return {}

    update = hooked(
        update_weights, "sync", before=weights.weights_begin, after=weights.weights_sent
    )
    asyncio.run(update(Rank(rank, backend), global_steps=3))
    found = rows(run_path, "select version, role, bytes, wire_bytes, transport from syncs")
    assert found == [(3, "source", bytes_sent, bytes_sent, transport)]
    assert recorder.version == 3


def test_what_verl_logs_becomes_counters_where_it_is_a_number(
    recorder: recording.Recorder, run_path: Path
) -> None:
    device_like = type("Tensor", (), {"__float__": lambda self: 1 / 0})  # not to be waited for
    numbers = {"loss": 0.5, "tokens": 7, "kl": np.float32(0.25), "n": np.int64(3)}
    others = {
        "text": "1.0",
        "flag": True,
        "list": [1.0],
        "none": None,
        "array": np.ones(2),
        "word": np.str_("1.0"),
        "flags": np.True_,
        "loss/t": device_like(),
    }

    def log(self: Any, data: Any, step: int, backend: Any = None) -> None: ...

    hooked_log = hooked(log, before=controller.logged)
    hooked_log(None, others | numbers, 3)
    hooked_log(None, data={"val/score": 1.0, "actor/pg_loss": float("nan")}, step=3)
    hooked_log(None, data=None, step=4)
    found = dict(rows(run_path, "select counter, value from samples"))
    assert found == numbers | {"val/score": 1, "actor/pg_loss": None}
