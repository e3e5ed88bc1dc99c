"""Parsers under inputs that are nearly good: each refuses in a sentence, or takes them.

`make fuzz` does the same for as long as one likes, guided by coverage; findings/ is what was found.
"""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rltrace.testing.inside.importers import chrome_read as read_chrome
from rltrace.testing.inside.report import torch_profile
from rltrace.testing.inside.trace import SPANS, GrowingSegment, RltraceError, bounds, segments_in
from rltrace.testing.inside.trace import untrusted_files as texts
from tests.fuzz.mutations import mutated
from tests.fuzz.of_logs import MAPPING
from tests.fuzz.of_traces import batch, schema_message
from tests.fuzz.target import folder_in_memory, put
from tests.fuzz.targets import TARGETS

FINDINGS = sorted((Path(__file__).parent / "findings").glob("*/*"))
_EXAMPLES = {"names": 15, "process": 15, "manifest": 15, "query": 40}

_few = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", TARGETS)
def test_good_inputs_are_taken(name: str) -> None:
    target = TARGETS[name]
    refused = 0
    with folder_in_memory() as folder:
        seeds = target.seeds()
        for seed in seeds:
            try:
                target.parse(seed, folder)
            except RltraceError:
                refused += 1
    assert refused < len(seeds)


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_nearly_good_is_taken_or_refused(name: str) -> None:
    target = TARGETS[name]
    seeds = st.sampled_from(target.seeds())

    with folder_in_memory() as folder:

        @settings(_few, max_examples=_EXAMPLES.get(name, 60))
        @given(seeds, seeds, st.integers(0, 2**64))
        def tried(seed: bytes, other: bytes, number: int) -> None:
            target(mutated(seed, other, random.Random(number)), folder)

        tried()


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_was_found_once(path: Path) -> None:
    with folder_in_memory() as folder:
        TARGETS[path.parent.name](path.read_bytes(), folder)


_COLUMNS = st.tuples(
    *(st.integers(1, 2**62) if i == 0 else st.integers(-1, 100) for i in range(len(SPANS.columns)))
)
_BATCHES = st.lists(st.lists(_COLUMNS, min_size=1, max_size=6), max_size=4)


@settings(_few, max_examples=60)
@given(_BATCHES, st.floats(0, 1))
def test_a_segment_that_is_cut_holds_the_whole_batches_before(
    batches: list[list[tuple[int, ...]]], part: float
) -> None:
    messages = [schema_message(SPANS), *(batch(SPANS, [list(r) for r in b]) for b in batches)]
    whole = b"".join(messages)
    kept = whole[: round(part * len(whole))]
    ends = [sum(map(len, messages[: n + 1])) for n in range(len(messages))]
    expected = [
        row for end, b in zip(ends[1:], batches, strict=True) if end <= len(kept) for row in b
    ]
    with folder_in_memory() as folder:
        path = put(folder / "who.0.arrows", kept)
        (found,) = segments_in(folder, SPANS)
        assert list(zip(*(c.tolist() for c in found.rest()), strict=True)) == expected
        assert (found.problem is None) == (len(kept) in ends)
        follower = GrowingSegment(path, SPANS)
        followed = len(follower.poll(final=True)[0]) + len(follower.unfinished[0])
        assert followed == len(expected)


@pytest.mark.parametrize("promised", [2**31, 2**40, 2**60, 2**63 - 1])
def test_rows_that_are_promised_and_not_there_take_no_memory(promised: int, tmp_path: Path) -> None:
    whole = schema_message(SPANS) + batch(SPANS, [[5, 6, *[1] * 9]])
    rows = (1).to_bytes(8, "little")
    for at in range(len(whole) - 7):
        if whole[at : at + 8] == rows:
            data = whole[:at] + promised.to_bytes(8, "little") + whole[at + 8 :]
            put(tmp_path / "who.0.arrows", data)
            (found,) = segments_in(tmp_path, SPANS)
            assert len(found.rest()[0]) <= 1


def test_what_unpacks_to_far_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MOST_UNPACKED_BYTES", 1 << 20)
    path = put(tmp_path / "bomb.json.gz", gzip.compress(b" " * (1 << 24)))
    mapping = put(tmp_path / "map.toml", MAPPING)
    with pytest.raises(RltraceError, match="too large: unpack it first"):
        read_chrome(path, mapping)
    with pytest.raises(RltraceError, match="too large: unpack it first"):
        torch_profile.read(path)


def test_several_members_are_one_text() -> None:
    assert texts.unpacked(gzip.compress(b"a") + gzip.compress(b"b") + b"\0\0") == b"ab"
    with pytest.raises(ValueError, match="too early"):
        texts.unpacked(gzip.compress(b"a" * 1000)[:-9])
