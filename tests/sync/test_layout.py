"""A layout says where every byte lies, the same on every side."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from rltrace.sync.layout import ALIGNMENT_BYTES, Layout, Shard, layout_of
from rltrace.sync.version import Manifest, Version
from rltrace.trace.errors import RltraceError


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(32, 16)
        self.norm = torch.nn.LayerNorm(5)
        self.head = torch.nn.Linear(16, 32, bias=False)
        self.head.weight = self.embed.weight


def test_a_tied_tensor_is_stored_once_and_found_under_both_names() -> None:
    layout = layout_of(Tied())
    assert layout.aliases == (("head.weight", "embed.weight"),)
    assert layout.by_name["head.weight"] is layout.by_name["embed.weight"]
    assert [e.name for e in layout.entries] == ["embed.weight", "norm.weight", "norm.bias"]
    assert layout.bytes == 4 * (32 * 16 + 5 + 5)


def test_tensors_lie_without_gaps_and_aligned_to_their_elements() -> None:
    weights = {
        "odd bytes": torch.zeros(3, dtype=torch.uint8),
        "even": torch.zeros(64, 2),
        "odd floats": torch.zeros(3, 5),
        "nothing": torch.zeros(0, 4),
        "odd halves": torch.zeros(7, dtype=torch.bfloat16),
        "wide": np.zeros(256, dtype=np.int64),
    }
    layout = layout_of(weights)
    end = 0
    for entry in layout.entries:
        assert entry.offset == end
        assert (
            entry.offset % (1 if "bytes" in entry.name else 2 if "halves" in entry.name else 4) == 0
        )
        end += entry.bytes
    assert end == layout.bytes
    for name in ("even", "nothing", "wide"):
        assert layout.by_name[name].offset % ALIGNMENT_BYTES == 0


def test_floats_are_cast_but_for_those_to_keep_and_integers_never() -> None:
    weights = {
        "a.weight": torch.zeros(4),
        "a.router": torch.zeros(4),
        "steps": torch.zeros(1).long(),
    }
    layout = layout_of(weights, dtype=torch.bfloat16, keep=["*.router"])
    assert {e.name: e.dtype for e in layout.entries} == {
        "a.weight": "BF16",
        "a.router": "F32",
        "steps": "I64",
    }


def test_every_source_of_the_same_tensors_has_the_same_id() -> None:
    model = Tied()
    stream = ((name, tensor) for name, tensor in model.state_dict().items())
    ids = {layout_of(w).id for w in (model, model.state_dict(), stream)}
    assert len(ids) == 1
    assert layout_of(model, dtype="bfloat16").id not in ids


def test_a_layout_survives_its_own_text() -> None:
    shard = Shard(offset=(8, 0), global_shape=(16, 4))
    layout = layout_of([("w", torch.zeros(8, 4), shard), ("b", torch.zeros(4))])
    again = Layout.from_json(layout.to_json())
    assert again == layout
    assert again.id == layout.id
    assert again.by_name["w"].shard == shard


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said.update(format=2),
        lambda said: said.pop("tensors"),
        lambda said: said["tensors"][1].__setitem__(3, 4),  # lies over the first
        lambda said: said["tensors"][0].__setitem__(1, "Q4"),
        lambda said: said["tensors"][1].__setitem__(0, "a"),
        lambda said: said["aliases"].append(["c", "nobody"]),
        lambda said: said["tensors"][0].__setitem__(2, [-8]),
        lambda said: said["tensors"][0].__setitem__(2, None),
    ],
)
def test_a_text_that_is_no_layout_is_refused_in_one_sentence(change) -> None:  # type: ignore[no-untyped-def]
    said = json.loads(layout_of({"a": torch.zeros(8), "b": torch.zeros(8)}).to_json())
    change(said)
    with pytest.raises(RltraceError, match="no layout of weights"):
        Layout.from_json(json.dumps(said))


def test_names_that_stand_twice_and_types_that_cannot_travel_are_refused() -> None:
    with pytest.raises(RltraceError, match="two tensors are called a"):
        layout_of([("a", torch.zeros(1)), ("a", torch.zeros(1))])
    with pytest.raises(RltraceError, match="complex128 cannot be published"):
        layout_of({"a": torch.zeros(1, dtype=torch.complex128)})


def test_versions_are_ordered_in_a_run_and_not_between_runs() -> None:
    old, new, restarted = (Version("0" * 16, e, c) for e, c in ((1, 9), (1, 10), (2, 10)))
    assert old < new < restarted
    assert restarted >= new
    assert Version.parse(str(restarted)) == restarted
    with pytest.raises(ValueError, match="have no order"):
        assert Version("1" * 16, 1, 1) < old
    with pytest.raises(RltraceError, match="no version"):
        Version.parse("policy:1")


def test_a_manifest_survives_its_own_text() -> None:
    manifest = Manifest(Version("ab" * 8, 1, 2), 7, "f" * 32, 12, "e" * 32)
    assert Manifest.from_json(manifest.to_json()) == manifest
    with pytest.raises(RltraceError, match="no manifest"):
        Manifest.from_json('{"version": "x"}')
