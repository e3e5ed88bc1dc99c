"""A layout says where every byte lies, the same on every side; what is received lands in the memory
that is there. Copies, shared memory, reused buffers and ties are told apart or refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rltrace.sync import Shard, layout_of
from rltrace.sync.memory.layout import ALIGNMENT_BYTES, Layout
from rltrace.testing.inside.sync import Version
from rltrace.testing.inside.sync import version_Manifest as Manifest
from rltrace.testing.inside.trace import RltraceError
from tests.sync.pairs import pair, published


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
    layout, end = layout_of(weights), 0
    for entry in layout.entries:
        assert entry.offset == end
        width = 1 if "bytes" in entry.name else 2 if "halves" in entry.name else 4
        assert entry.offset % width == 0
        end += entry.bytes
    assert end == layout.bytes
    for name in ("even", "nothing", "wide"):
        assert layout.by_name[name].offset % ALIGNMENT_BYTES == 0


@pytest.mark.parametrize("keep", ["*.router", ["*.router"]])
def test_floats_are_cast_but_for_those_to_keep_and_integers_never(keep: Any) -> None:
    weights = {name: torch.zeros(4) for name in ("a.weight", "a.router", "router")}
    layout = layout_of({**weights, "n": torch.zeros(1).long()}, dtype=torch.bfloat16, keep=keep)
    found = {name: entry.dtype for name, entry in layout.by_name.items()}
    assert found == {"a.weight": "BF16", "a.router": "F32", "router": "BF16", "n": "I64"}


@pytest.mark.parametrize(
    "dtype", ["float8_e4m3fn", torch.float8_e5m2, "int8", np.dtype("uint8"), "complex64", "bf16"]
)
def test_a_type_that_nothing_is_cast_to_is_refused(dtype: Any) -> None:
    with pytest.raises(RltraceError, match=r"cast to one of float64, .*bfloat16 .* not to \w+"):
        layout_of({"w": torch.zeros(4)}, dtype=dtype)


def test_a_pattern_keeps_a_tied_tensor_by_any_of_its_names() -> None:
    for pattern in ("embed.*", "head.*"):
        layout = layout_of(Tied(), dtype="bfloat16", keep=[pattern])
        assert layout.by_name["embed.weight"].dtype == "F32"
        assert layout.by_name["norm.weight"].dtype == "BF16"


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        (["head.*", "*.gate.weight"], r"keep='\*\.gate\.weight'"),
        ("router", "keep='router'"),
        (None, "not None"),
        ([3], "of type int"),
    ],
)
def test_a_pattern_that_keeps_nothing_is_refused(keep: Any, said: str) -> None:
    with pytest.raises(RltraceError, match=said):
        layout_of(Tied(), dtype="bfloat16", keep=keep)


def test_tensors_that_an_iterable_makes_one_by_one_are_not_taken_for_tied() -> None:
    """Each would lie where the one before it was."""
    layout = layout_of((name, torch.empty(3, device="meta")) for name in "abcdef")
    assert layout.aliases == ()
    layout = layout_of((name, np.full(1 << 20, 1.0)) for name in "abcdef")
    assert layout.aliases == ()


@pytest.mark.parametrize(
    ("shard", "said"),
    [
        (Shard((6, 0), (8, 6)), r"w has shape \[4, 6\], which at \[6, 0\] .* of \[8, 6\]"),
        (Shard((-1, 0), (8, 6)), "does not lie in its whole"),
        (Shard((0,), (8, 6)), "take 2 numbers each"),
        (Shard((0.5, 0), (8, 6)), "of whole numbers"),
        (((0, 0), (8, 6)), "of whole numbers"),
    ],
)
def test_a_part_that_its_whole_does_not_hold_is_refused(shard: Any, said: str) -> None:
    with pytest.raises(RltraceError, match=said):
        layout_of([("w", torch.zeros(4, 6), shard)])


def test_the_numbers_of_a_shard_may_be_of_any_kind_and_survive_the_layouts_text() -> None:
    shard = Shard(list(np.array([4, 0])), torch.Size([8, 6]))
    layout = layout_of([("w", torch.zeros(4, 6), shard), ("b", torch.zeros(4))])
    again = Layout.parse(layout.text)
    assert (again, again.id) == (layout, layout.id)
    assert again.by_name["w"].shard == Shard((4, 0), (8, 6))


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ("model.safetensors", "of type str"),
        (None, "not None"),
        (torch.zeros(3, 4), "of type Tensor"),
        (Tied, "of type type"),
        ({"a": 1}, "a is to be a tensor .* of type int"),
        ({1: torch.zeros(1)}, "name of a tensor is a str, .* of type int"),
        ([torch.zeros(2)], r"\(name, tensor\) .* of type Tensor"),
        ({"a": torch.zeros(4, 4).to_sparse()}, "a is a sparse"),
        ({"__metadata__": torch.zeros(1)}, "__metadata__"),
        ({"a\ud800": torch.zeros(1)}, "UTF-8"),
        ([("a", torch.zeros(1)), ("a", torch.zeros(1))], "two tensors are called a"),
        ({"a": torch.zeros(1, dtype=torch.complex128)}, "complex128 .*: .* complex64"),
    ],
)
def test_what_are_no_weights_is_refused_in_one_sentence(weights: Any, said: str) -> None:
    with pytest.raises(RltraceError, match=said):
        layout_of(weights)


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
def test_a_text_that_is_no_layout_is_refused_in_one_sentence(change) -> None:
    said = json.loads(layout_of({"a": torch.zeros(8), "b": torch.zeros(8)}).text)
    change(said)
    with pytest.raises(RltraceError, match="no layout of weights"):
        Layout.parse(json.dumps(said))


def test_versions_are_ordered_by_when_their_learner_began_also_between_runs() -> None:
    old, new, restarted = (Version("0" * 16, e, c) for e, c in ((1, 9), (1, 10), (2, 1)))
    assert old < new < restarted < Version("1" * 16, 2, 2) < Version("0" * 16, 3, 1)
    assert restarted >= new
    assert Version.parse(str(restarted)) == restarted
    for text in ("policy:1", f"{'0' * 16}:1:{1 << 63}", f"{'0' * 16}:1:²"):
        with pytest.raises(RltraceError, match="no version"):
            Version.parse(text)


def test_a_manifest_survives_its_own_text() -> None:
    manifest = Manifest(Version("ab" * 8, 1, 2), 7, "f" * 32, 12, "e" * 32)
    assert Manifest.from_json(manifest.to_json()) == manifest
    with pytest.raises(RltraceError, match="no manifest"):
        Manifest.from_json('{"version": "x"}')


PARAMETERS = {f"layers.{i}.w": torch.full((64, 64), float(i)) for i in range(4)}


class Lazy(dict[str, torch.Tensor]):
    """A mapping that gathers each parameter as it is asked for it, in one buffer."""

    def items(self) -> Any:
        """Each parameter in turn."""
        buffer = torch.empty(64, 64)
        return ((name, buffer.copy_(tensor)) for name, tensor in PARAMETERS.items())


def test_a_mapping_that_reuses_a_buffer_is_not_tied(where: str) -> None:
    weights = Lazy(dict.fromkeys(PARAMETERS))
    with pair(where, weights) as (publisher, subscriber):
        assert (len(subscriber.layout.entries), subscriber.layout.aliases) == (4, ())
        publisher.publish(weights)
        received = {name: torch.zeros(64, 64) for name in PARAMETERS}
        subscriber.pull_into(received)
        assert all(torch.equal(received[name], w) for name, w in PARAMETERS.items())


def test_an_untied_policy_comes_to_a_tied_model_where_both_are_equal(where: str) -> None:
    one, other, here = torch.ones(8, 4), torch.ones(8, 4), torch.zeros(8, 4)
    weights, tied = [("embed", one), ("head", other)], {"embed": here, "head": here}
    with pair(where, weights) as (publisher, subscriber):
        publisher.publish(weights)
        subscriber.pull_into(tied)
        assert torch.equal(here, one)
        other[0, 0] = 2
        publisher.publish(weights)
        for take in (subscriber.pull_into, subscriber.stage):
            with pytest.raises(RltraceError, match="share their memory here"):
                take(tied)
        assert torch.equal(here, one)
        assert not subscriber.poisoned


WHOLE = torch.arange(48.0).view(6, 8)


@pytest.mark.parametrize(
    ("here", "said"),
    [
        (lambda w: {"a": w[0:3], "b": w[2:5]}, "a and b overlap"),
        (lambda w: {"a": w[0:3], "b": w[3:6]}, ""),
        (lambda w: {"a": w.view(2, 3, 8)[0], "b": w.view(2, 3, 8)[1]}, ""),
        (lambda w: {"a": w[0::2], "b": w[1::2]}, ""),  # strided, and side by side
        (lambda w: {"a": w[0::2], "b": w[0::2]}, "share their memory"),
        (lambda w: [("a", w[0:3]), ("b", w[1:3], Shard((0, 0), (3, 8)))], "overlap"),
        (lambda w: {"a": w[0:3].numpy(), "b": w[2:5]}, "overlap"),
    ],
)
def test_places_that_overlap_are_refused(where: str, here: Any, said: str) -> None:
    weights = {"a": WHOLE[:3].clone(), "b": WHOLE[3:].clone()}
    target = here(torch.full((6, 8), -1.0))
    with published(where, weights) as subscriber:
        if said:
            with pytest.raises(RltraceError, match=said):
                subscriber.pull_into(target)
            return
        subscriber.pull_into(target)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in target.items())


class Viewing(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.full((8,), value))
        self.register_buffer("steps", torch.full((3,), value))
        self._register_state_dict_hook(
            lambda module, state, *_: {**state, "flat": module.flat.detach().view(2, 4)}
        )


def test_a_models_buffers_and_views_are_its_own(where: str) -> None:
    rollout = Viewing(2.0)
    with published(where, Viewing(1.0)) as subscriber:
        subscriber.pull_into(rollout)
    assert (rollout.flat == 1).all()
    assert (rollout.steps == 1).all()
