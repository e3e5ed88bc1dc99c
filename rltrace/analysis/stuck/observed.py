"""What was seen of the processes of a job that stands still, and what follows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


class StackLine(NamedTuple):
    """A line of a stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class ThreadSeen:
    """A thread at the last of two looks: `wait` is the kernel's name of what it waits for (""
    where it runs), `frames` its stack, the innermost first (none: not asked, or no Python), and
    `moved` whether that differs from the one before. `cpu_s` is CPU seconds."""

    tid: int
    name: str
    state: str
    wait: str
    cpu_s: float
    switches: int
    frames: tuple[StackLine, ...] = ()
    moved: bool = False


@dataclass(frozen=True)
class ProcessSeen:
    """Its threads, the main one first; `state` is the kernel's letter."""

    pid: int
    alive: bool
    state: str
    threads: tuple[ThreadSeen, ...]


@dataclass(frozen=True)
class Culprit:
    """What is waited for in the end. `kind` is one of `rltrace.analysis.stuck.first_cause`'s,
    `place` a line of code ("": not known); rank and pid are -1 where there is none."""

    kind: str
    who: str
    role: str
    rank: int
    host: str
    pid: int
    says: str
    place: str = ""


@dataclass(frozen=True)
class Stuck:
    """Nothing began or ended since `since_ns`, as was seen at `seen_ns` (Unix ns). `usual_s` is a
    usual step (0: unknown), `certainty` the place of the culprit's kind in the order in which
    kinds are believed, `waiting` who waits for what, `gpus` which work."""

    step: int
    since_ns: int
    seen_ns: int
    usual_s: float
    certainty: int
    culprit: Culprit
    waiting: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    moves: bool = False  # it is not stuck: somebody asked

    def told(self) -> dict[str, Any]:
        """As it stands in the run's problems."""
        return asdict(self)

    def lines(self) -> Iterator[tuple[str, str]]:
        """A label and what stands behind it, line by line."""
        usual = f" (a step takes {_span(self.usual_s)})" if self.usual_s > 0 else ""
        step = f"step {self.step}, " if self.step >= 0 else ""
        silent = _span((self.seen_ns - self.since_ns) / 1e9)
        since = f"a row {silent} ago" if self.moves else f"nothing moved for {silent}"
        yield "moves" if self.moves else "stuck", f"{step}{since}{usual}"
        yield "now" if self.moves else "cause", self.culprit.says
        if self.culprit.place:
            yield "", self.culprit.place
        yield from (("", one) for one in self.also)
        if self.waiting:
            yield "waiting", " · ".join(self.waiting)
        if self.gpus:
            yield "GPUs", " · ".join(self.gpus)

    @property
    def sentence(self) -> str:
        """The same in one sentence."""
        place = f" ({self.culprit.place})" if self.culprit.place else ""
        return f"stuck: {next(self.lines())[1]}: {self.culprit.says}{place}"


def _span(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def newest(told: Iterable[object], last_event_ns: int) -> Stuck | None:
    """What holds now, of what agents told: nothing has begun or ended since (Unix ns). Of several
    nodes what is believed first."""
    seen = [one for one in map(stuck_of, told) if one and one.seen_ns >= last_event_ns]
    since_ns = max((one.since_ns for one in seen), default=0)
    last = (one for one in seen if one.since_ns == since_ns)
    return min(last, key=lambda one: one.certainty, default=None)


def stuck_of(told: object) -> Stuck | None:
    """What a problem of a run states; None where it is something else."""
    try:
        if not isinstance(told, Mapping):
            return None
        fields: dict[str, Any] = {name: kind(told[name]) for name, kind in _FIELDS.items()}
        culprit = Culprit(**{name: kind(told["culprit"][name]) for name, kind in _CULPRIT.items()})
        texts: dict[str, Any] = {name: tuple(map(str, told.get(name, ()))) for name in _TEXTS}
        return Stuck(**fields, culprit=culprit, **texts)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("step", "since_ns", "seen_ns", "certainty"), int),
    "usual_s": float,
}
_TEXTS = ("waiting", "gpus", "also")
_CULPRIT: dict[str, Any] = {
    **dict.fromkeys(("kind", "who", "role", "host", "says", "place"), str),
    **dict.fromkeys(("rank", "pid"), int),
}
