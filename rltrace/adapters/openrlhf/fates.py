"""What becomes of samples: how they carry their trajectory's id, and which are filtered out."""

from __future__ import annotations

from typing import Any, NamedTuple

from rltrace.adapters.openrlhf.rollout import TAG
from rltrace.adapters.table.stated import at
from rltrace.hooks.hook import Call
from rltrace.trace.vocabulary import Fate

ATTRIBUTE = f"_{TAG}"
"""The attribute of an experience that holds `(trajectory id, group id)`. Making a batch of samples
drops it, as it is no field of theirs."""


def tokens_of(experience: Any) -> int:
    """Tokens that the policy generated: those of the environment are between them."""
    return int(experience.action_mask.sum())


def used(
    call: Call,
    tag: tuple[int, int] | None,
    version: int,
    fate: Fate,
    tokens: int,
    **ratios: float,
) -> None:
    """A sample has been trained on, or dropped."""
    call.row(
        "uses",
        trajectory=-1 if tag is None else tag[0],
        step=call.recorder.step,
        version=version,
        fate=fate,
        tokens=tokens,
        **ratios,
    )


class _Candidate(NamedTuple):
    """A sample that is generated and may be filtered out, with its group."""

    tag: tuple[int, int]
    score: float
    tokens: int


_filtering: list[list[_Candidate]] = []  # one list while a batch is generated and filtered


def generating(call: Call) -> None:
    """A batch is generated: `_generate_vllm(dataloader_iter, num_prompts, dynamic_filtering)`."""
    _filtering[:] = [[]] if call.argument("dynamic_filtering") else []


def arrived(call: Call) -> None:
    """A response has become an experience, which carries the tag on."""
    experience = call.result
    tag = call.argument("response").get(TAG)
    if experience is None or tag is None:
        return
    setattr(experience, ATTRIBUTE, tag)
    if _filtering and experience.scores is not None:
        candidate = _Candidate(tag, float(experience.scores[0]), tokens_of(experience))
        _filtering[0].append(candidate)


def generated(call: Call) -> None:
    """The batch is there without the groups whose mean score lies outside of the range. Where all
    samples of a group have one score, its advantage would have been zero."""
    candidates = _filtering.pop() if _filtering else []
    if not candidates or call.result is None:
        return
    kept = {getattr(experience, ATTRIBUTE, None) for experience in call.result[0]}
    flags = ("algo.dynamic_filtering_range", "dynamic_filtering_reward_range")
    lowest, highest = at(call.self.args, *flags)
    groups: dict[int, list[_Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.tag[1], []).append(candidate)
    for group in groups.values():
        scores = [candidate.score for candidate in group]
        if group[0].tag in kept or lowest < sum(scores) / len(scores) < highest:
            continue  # the rest of an unfinished batch is dropped with it, by no filter
        fate = Fate.ZERO_ADVANTAGE if min(scores) == max(scores) else Fate.FILTERED
        for candidate in group:
            used(call, candidate.tag, call.recorder.version, fate, candidate.tokens)
