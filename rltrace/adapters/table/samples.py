"""What all frameworks' samples have: an end, versions, verdicts, uses."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Sequence
from time import monotonic_ns
from typing import Any

from rltrace.hooks.hook import Call
from rltrace.trace.segment import UNKNOWN
from rltrace.trace.vocabulary import Finish, Outcome

_WORDS = {
    Finish.STOP: ("stop", "tool_calls", "completed"),
    Finish.LENGTH: ("length", "truncated"),
    Finish.ABORT: ("abort", "aborted"),
    Finish.ERROR: ("error", "failed"),
}
_FINISHES = {word: finish for finish, words in _WORDS.items() for word in words}
"""What engines and frameworks call the end of a generation."""


def finish(word: object) -> dict[str, int]:
    """The column of a sample that ended so; none for a word that does not say how."""
    known = _FINISHES.get(str(word))
    return {} if known is None else {"finish": known}


def versions_of(tokens: Sequence[int]) -> dict[str, int]:
    """The columns of a sample, from the versions of its tokens."""
    return {"first_version": tokens[0], "last_version": tokens[-1]} if tokens else {}


def keep(known: dict[Any, Any], key: object, value: object, most: int) -> None:
    """Adds to a mapping of at most so many: what came first goes out."""
    known[key] = value
    if len(known) > most:
        del known[next(iter(known))]


_RATIOS = ("mean_log_ratio", "sum_w", "sum_w_squared")
NO_RATIOS = (UNKNOWN,) * len(_RATIOS)  # of a sample among others that have some


def uses(
    call: Call, fate: Any, samples: Sequence[int], tokens: Any = -1, moved: Any = (), **known: Any
) -> Any:
    """Trajectories (-1: nobody knows which) have been trained on, or dropped; their rows. A fate,
    and what else is known, is one for all, or one of each; `moved` is what `ratios` gives. Unless
    `known` has others, step and version are the process's."""
    columns = {"step": call.recorder.step, "version": call.recorder.version} | known
    columns |= {"trajectory": samples, "fate": fate, "tokens": tokens}
    # In the learner's order: by that the samples of its first update are told from later ones.
    now_ns = monotonic_ns()
    columns["time_ns"] = range(now_ns - len(samples) + 1, now_ns + 1)
    columns |= zip(_RATIOS, moved, strict=False)
    return call.rows("uses", len(samples), **columns)


def ratios(now: Any, then: Any, mask: Any) -> list[list[float]]:
    """Columns of `uses`, of w = exp(now - when generated), with a value a sample: of log-probs
    `[samples, tokens]` where `mask` is not 0. None unless all are there, on the CPU and not the
    same tensor, which stands for both where a framework computes none of its own."""
    if now is None or then is None or mask is None or now.device.type != "cpu":
        return []
    if now.data_ptr() == then.data_ptr():
        return []
    log_w = (now.float() - then.float()).masked_fill(mask == 0, 0.0)
    w = log_w.exp() * mask
    sums = (log_w.sum(-1) / mask.sum(-1), w.sum(-1), (w * w).sum(-1))
    return [one.tolist() for one in sums]


def cut_short(error: BaseException) -> dict[str, int]:
    """The column of a sample that raised: by an error, or since nobody wants it any more."""
    return {"finish": Finish.ABORT if isinstance(error, CancelledError) else Finish.ERROR}


def score(value: float | None) -> dict[str, Any]:
    """The columns of a verdict. NaN is one, and an alarm; none at all is the function's error."""
    return {"outcome": Outcome.ERROR} if value is None else {"value": value, "outcome": Outcome.OK}


_Times = tuple[int, int] | None


def verdict(
    call: Call, trajectory: int, component: object, value: float | None, times_ns: _Times = None
) -> None:
    """A verdict on a sample; one whose time is not known is an event at the end of the call."""
    known = {**_judged(call, component, times_ns), **score(value)}
    call.recorder.append("rewards", trajectory=trajectory, **known)


def verdicts(
    call: Call, component: object, told: Sequence[tuple[int, Any]], times_ns: _Times, **more: int
) -> None:
    """As `verdict`, of a batch: `told` are a trajectory and its value each."""
    if not told:
        return
    columns: dict[str, Any] = _judged(call, component, times_ns)
    columns["trajectory"] = [trajectory for trajectory, _ in told]
    columns["value"] = [UNKNOWN if value is None else value for _, value in told]
    columns["outcome"] = [Outcome.ERROR if value is None else Outcome.OK for _, value in told]
    call.recorder.rows("rewards", len(told), columns | more)


def _judged(call: Call, component: object, times_ns: _Times) -> dict[str, Any]:
    start_ns, end_ns = times_ns or (call.end_ns, call.end_ns)
    name = call.recorder.name(str(component))
    return {"start_ns": start_ns, "end_ns": end_ns, "component": name}
