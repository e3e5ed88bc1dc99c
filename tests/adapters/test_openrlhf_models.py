"""What the OpenRLHF adapter reads of weights at both ends, and of the models' own work."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rltrace.testing.inside.adapters import training
from rltrace.testing.inside.hooks import recorder as recording
from tests.adapters.openrlhf_shapes import Engine, Tensor, hooked, problems, rows

pytestmark = pytest.mark.usefixtures("fresh_openrlhf")


def test_an_update_is_one_span_and_one_row_with_its_tensors(
    recorder: recording.Recorder, run_path: Path
) -> None:
    async def update() -> None:
        actor = Engine()
        recorder.version = 0
        for names in (("a", "b", "c"), ("a", "b", "c")):
            for name in names:
                await actor.update_weight(name, empty_cache=name == "c")

    asyncio.run(update())
    assert rows(
        run_path, "select version, role, bytes, wire_bytes, buckets from syncs order by version"
    ) == [(1, "sink", 36, 36, 3), (2, "sink", 36, 36, 3)]
    assert rows(
        run_path,
        "select p.version, p.items, p.start_ns >= y.start_ns, p.end_ns - y.end_ns, phase "
        "from spans p join syncs y using (version) order by 1",
    ) == [(1, 3, True, 0, "load"), (2, 3, True, 0, "load")]
    counted = rows(run_path, "select counter, value from samples order by value")
    assert [name for name, _ in counted] == ["weights/rpc_seconds"] * 2
    assert 0 < counted[0][1] <= counted[1][1]


def test_an_update_that_was_broken_off_is_no_version(
    recorder: recording.Recorder, run_path: Path
) -> None:
    async def update() -> None:
        actor = Engine()
        recorder.version = 0
        await actor.update_weight("a")
        with pytest.raises(OSError, match="broken"):
            await actor.update_weight("broken")
        for name in ("a", "b"):
            await actor.update_weight(name, empty_cache=name == "b")

    asyncio.run(update())
    assert rows(run_path, "select version, bytes, buckets from syncs") == [(1, 24, 2)]


class Parameter(Tensor):
    """A parameter of a model; under ZeRO-3 with a part of its elements only."""

    requires_grad = True

    def __init__(self, elements: int, whole: int | None = None) -> None:
        super().__init__(*[0.0] * elements)
        if whole is not None:
            self.ds_numel = whole

    def numel(self) -> int:
        return len(self)

    def element_size(self) -> int:
        return 2


class NcclLike:
    """Stands for vLLM's PyNcclCommunicator."""


def policy(first_rank: bool, group: Any, *parameters: Parameter) -> Any:
    module = SimpleNamespace(parameters=lambda: iter(parameters))
    args = SimpleNamespace(vllm=SimpleNamespace(sync_backend="gloo"))
    strategy = SimpleNamespace(is_rank_0=lambda: first_rank, args=args)
    actor = SimpleNamespace(model=SimpleNamespace(module=module))
    return SimpleNamespace(
        actor=actor, strategy=strategy, use_cuda_ipc=False, _model_update_group=group
    )


@pytest.mark.parametrize(
    ("group", "transport"), [(NcclLike(), "nccl"), ("openrlhf", "gloo"), (object(), None)]
)
def test_the_first_rank_sends_the_whole_model(
    recorder: recording.Recorder, run_path: Path, group: Any, transport: str | None
) -> None:
    send = hooked(lambda self: None, "sync", after=training.sent)
    parameters = Parameter(5), Parameter(2, whole=7)
    for first_rank in (True, False):
        recorder.version = 0
        send(policy(first_rank, group, *parameters))
    assert rows(run_path, "select version, role, bytes, buckets, transport from syncs") == [
        (1, "source", 24, 2, transport)
    ]
    assert rows(run_path, "select version from spans") == [(1,), (1,)]


def test_forwards_and_training_say_how_much_they_did(
    recorder: recording.Recorder, run_path: Path
) -> None:
    def execute_batch(
        self: Any, method_name: str, all_data: Any, start_idx: int, end_idx: int
    ) -> None:
        pass

    forward = hooked(execute_batch, training.forward("reference"), before=training.batch_given)
    masks = [Batch(Tensor(1, 1), Tensor(1, 0)), Batch(Tensor(1, 1))]
    forward(None, "forward", {"attention_mask": masks}, 0, 2)
    forward(None, "forward", {"attention_mask": masks}, 1, 2)
    forward(None, "append", {"experience": masks}, 0, 2)
    train = hooked(lambda self, kl_ctl: None, "train", before=training.training)
    items = [SimpleNamespace(attention_mask=Tensor(1, 1, 1)) for _ in range(5)]
    for size in (5, 2):  # of two in a batch, the fifth is left out
        buffer = SimpleNamespace(items=items, sample_batch_size=size, dynamic_batch=False)
        train(SimpleNamespace(replay_buffer=buffer), 0.0)
    assert rows(run_path, "select stage, items, tokens from spans order by start_ns") == [
        ("reference", 3, 5),
        ("reference", 1, 2),
        ("train", 5, 15),
        ("train", 4, None),
    ]
    assert not problems(run_path)


class Batch(Tensor):
    """A tensor of rows."""

    def __init__(self, *mask: Tensor) -> None:
        super().__init__(*mask)  # type: ignore[arg-type]

    def sum(self) -> float:
        return sum(row.sum() for row in self.values)  # type: ignore[attr-defined]
