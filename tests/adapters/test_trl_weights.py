"""Bytes that TRL's trainer gives to engines of its own, and sends to a server."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rltrace.testing.inside.adapters import trl_weights as weights
from rltrace.testing.inside.hooks import recorder as recording
from tests.adapters.trl_shapes import hooked, no_problems, rows


class Parameter:
    """A tensor by its size."""

    def __init__(self, elements: int, width: int = 2) -> None:
        self.elements, self.width = elements, width

    def numel(self) -> int:
        return self.elements

    def element_size(self) -> int:
        return self.width


class Model:
    """Named parameters; with an adapter that goes with its base."""

    peft_config = None
    prefix = "lora_"

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        return [
            ("layer.weight", Parameter(10)),
            ("layer.lora_A", Parameter(3)),
            ("head.original_module.weight", Parameter(7)),
        ]


def test_an_engine_of_the_trainers_own_is_given_all_but_the_adapter(
    recorder: recording.Recorder, run_path: Path
) -> None:
    recorder.version = 4
    owner = SimpleNamespace(mode="colocate", model=Model())
    sync = hooked(lambda self: None, "sync", before=weights.begins, after=weights.ends)
    sync(owner)
    sync(owner)
    assert (
        rows(run_path, "select version, bytes, buckets, transport from syncs")
        == [(4, 20, 1, "in-process")] * 2
    )


def test_a_client_that_sends_tensors_one_by_one_is_counted_once(
    recorder: recording.Recorder, run_path: Path
) -> None:
    class Old:
        """Before they were sent together."""

    class New(Old):
        def update_named_params(self) -> None:
            """They are."""

    class Generation:
        mode = "server"

        def sync(self, client: Any) -> None:
            for size in (10, 20):
                send(client, "name", Parameter(size))

    def update_named_param(self: Any, name: str, weights: Any) -> None:
        if hasattr(self, "update_named_params"):
            together(self, [(name, "torch.bfloat16", [weights.numel()])])

    def update_named_params(self: Any, metadata: Any) -> None:
        pass

    send = hooked(update_named_param, before=weights.tensor_sent)
    together = hooked(update_named_params, before=weights.described)
    sync = hooked(Generation.sync, "sync", before=weights.begins, after=weights.ends)
    for client in (Old(), New()):
        sync(Generation(), client)
    assert rows(run_path, "select bytes, buckets, transport from syncs") == [(60, 2, "nccl")] * 2
    assert no_problems(run_path)
