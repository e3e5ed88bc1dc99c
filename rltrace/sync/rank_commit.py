"""All ranks of an engine take a version on together, or none: all stage it before one applies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

from rltrace.sync.subscriber import PoisonedError
from rltrace.sync.version import Manifest, Version
from rltrace.trace.errors import CANNOT_TELL, RltraceError, WrongUsage
from rltrace.trace.job_exceptions import contained

_Answer = TypeVar("_Answer")


class Rank(Protocol):
    """One tensor- or pipeline-parallel worker, as its leader reaches it (an RPC, a pipe). Its calls
    are those of a `Subscriber` with the rank's own tensors."""

    def stage(self, version: Version) -> Manifest:
        """As `Subscriber.stage(tensors, version)`."""

    def commit(self) -> Manifest:
        """As `Subscriber.commit()`."""

    def abort(self) -> None:
        """As `Subscriber.abort()`."""


def commit_together(ranks: Sequence[Rank], version: Version, attempts: int = 2) -> Manifest:
    """Brings all ranks to `version`, asking all of them at the same time; returns what they have
    applied. Call it where nothing generates, or have the ranks' `commit` see to that.

    Errors: `RltraceError` where a rank could not stage, or staged something else than the others:
    then no rank has changed; where there are no ranks. `PoisonedError` that names the ranks that
    failed to apply `attempts` times: the engine must not be used before a version has been
    committed.
    """
    if not ranks:
        raise WrongUsage("there is no rank that could take a version on")
    left = dict(enumerate(ranks))
    staged, failed = _ask_all(left, lambda rank: rank.stage(version))
    found = {(m.version, m.layout_id, m.root) for m in staged.values()}
    if failed or len(found) != 1 or {m.version for m in staged.values()} != {version}:
        _ask_all(left, lambda rank: rank.abort())
        why = _said(failed) or "the ranks do not hold the same weights under that version"
        raise RltraceError(f"version {version} was not taken on by any rank: {why}", CANNOT_TELL)
    for _ in range(attempts):
        _, failed = _ask_all(left, lambda rank: rank.commit())
        left = {number: left[number] for number in failed}
        if not left:
            return staged[0]
    raise PoisonedError(
        f"version {version} was applied by {len(ranks) - len(left)} of {len(ranks)} ranks:"
        f" {_said(failed)}; none may be used before a version is applied by all"
    )


def _ask_all(
    ranks: Mapping[int, Rank], ask: Callable[[Rank], _Answer]
) -> tuple[dict[int, _Answer], dict[int, Exception]]:
    answers: dict[int, _Answer] = {}
    errors: dict[int, Exception] = {}
    with ThreadPoolExecutor(max(1, len(ranks)), thread_name_prefix="rltrace.sync") as pool:
        asked_of = {number: pool.submit(ask, rank) for number, rank in ranks.items()}
        for number, asked in asked_of.items():
            with contained(tell=partial(errors.__setitem__, number)):  # it is another process's
                answers[number] = asked.result()
    return answers, errors


def _said(failed: dict[int, Exception]) -> str:
    """An error that is not ours by its kind, too: an `EOFError` of a dead rank has no text."""
    told = []
    for number, error in sorted(failed.items()):
        kind = "" if isinstance(error, RltraceError) else f"{type(error).__name__}: "
        told.append(f"rank {number}: " + f"{kind}{error}".removesuffix(": "))
    return "; ".join(told)
