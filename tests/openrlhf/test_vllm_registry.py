"""vLLM's own registries, base classes and layerwise reloading, with rltrace's engines behind them:
trainer and worker in one process, around a model that takes weights as vLLM's models do."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rltrace.sync import DamagedError
from rltrace.testing.inside.trace import RltraceError

TRANSFER = pytest.importorskip("vllm.distributed.weight_transfer", reason="make test-openrlhf")
SIZES = (8, 6, 3)


class Model(torch.nn.Module):
    """As vLLM's: parameters have loaders."""

    def __init__(self) -> None:
        super().__init__()
        pairs = pairwise(SIZES)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in pairs)

    def load_weights(self, weights: Any) -> set[str]:
        from vllm.model_executor.model_loader.weight_utils import default_weight_loader

        loaded = set()
        for name, tensor in weights:
            parameter = dict(self.named_parameters())[name]
            getattr(parameter, "weight_loader", default_weight_loader)(parameter, tensor)
            loaded.add(name)
        return loaded


class Worker:
    """vLLM's worker, as far as engines go, and the client that calls it."""

    def __init__(self) -> None:
        from vllm.config import WeightTransferConfig
        from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
        from vllm.plugins import load_general_plugins

        load_general_plugins()
        self.model = Model()
        record_metadata_for_reloading(self.model)
        self.engine = TRANSFER.WeightTransferEngineFactory.create_engine(
            WeightTransferConfig(backend="rltrace"),
            SimpleNamespace(parallel_config=None, model_config=None),
            torch.device("cpu"),
            self.model,
        )
        self.calls: list[str] = []

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.engine.init_transfer_engine(self.engine.parse_init_info(init_info))

    def start_weight_update(self) -> None:
        self.calls.append("start")
        self.engine.start_weight_update()

    def update_weights(self, update_info: Any) -> None:
        self.calls.append("update")
        self.engine.update_weights(update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.calls.append("finish")
        self.engine.finish_weight_update()


def trainer(worker: Worker, policy: torch.nn.Module, rank: int = 0) -> Any:
    from rltrace.plugins.vllm_trainer import RltraceTrainerInitInfo

    return TRANSFER.WeightTransferTrainerFactory.trainer_init(
        RltraceTrainerInitInfo(rank=rank), client=worker, source=TRANSFER.ModuleSource(policy)
    )


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(one.named_parameters(), other.named_parameters(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def test_each_update_is_one_call_and_loads_the_model_bit_for_bit() -> None:
    worker, policy = Worker(), Model()
    engine = trainer(worker, policy)
    kept = [parameter.data_ptr() for parameter in worker.model.parameters()]
    for update in (1, 2, 3):
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(torch.randn_like(parameter))
        engine.send_weights()
        assert same(worker.model, policy)
        assert worker.calls == ["start", "update", "finish"] * update
    assert kept == [parameter.data_ptr() for parameter in worker.model.parameters()]
    engine.shutdown()
    worker.engine.shutdown()


def test_other_ranks_only_take_part_in_the_gathering() -> None:
    worker = Worker()
    engine = trainer(worker, Model(), rank=1)
    engine.send_weights()
    assert worker.calls == []


def test_an_update_before_the_handshake_is_refused() -> None:
    worker = Worker()
    worker.engine.start_weight_update()
    with pytest.raises(RltraceError, match="init_weight_transfer_engine has to be called"):
        worker.engine.update_weights({"version": "0123456789abcdef:1:1"})


def test_a_damaged_version_begins_no_update() -> None:
    worker, policy = Worker(), Model()
    engine = trainer(worker, policy)
    engine.send_weights()
    publish = engine._publisher.publish

    def damaging(weights: Any) -> Any:
        version = publish(weights)
        for slot in range(2):
            engine._publisher.arena.control.digests(slot)[:] += 1
        return version

    engine._publisher.publish = damaging
    with pytest.raises(DamagedError):
        engine.send_weights()
    assert worker.calls == ["start", "update", "finish"]
    engine.shutdown()
    worker.engine.shutdown()
