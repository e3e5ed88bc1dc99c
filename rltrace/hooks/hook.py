"""What an adapter is made of: `Hook`s and an `Adapter`.

An adapter is data and a few small functions (docs/reference/adapters.md has one);
`rltrace.hooks.patch` does the rest. What a target is (function, method, class or static method,
property, coroutine function, generator, Ray actor class) is found out when it is patched. A reader
may raise: that is caught, written to the run's problems once per hook, and the job goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rltrace.trace.read.framework_figure import OwnFigure  # adapters state them
from rltrace.trace.schema import TABLES
from rltrace.trace.vocabulary import Phase, Stage

if TYPE_CHECKING:
    from types import ModuleType

    from rltrace.hooks.recorder import Recorder


class Call:
    """One call of a hooked function, as readers see it.

    `args` and `kwargs` are the caller's own objects: read them, never change them. In `before` the
    call has not begun; in `after` either `result` or `exception` is set (of a generator: one `Call`
    an item, `result` the item). `start_ns` and `end_ns` are the node's monotonic nanoseconds, -1
    while unknown. `span` is the open span (`None` when the hook's stage is `None`); `state` is
    whatever `before` wants `after` to have.
    """

    __slots__ = (
        *("args", "end_ns", "exception", "function", "kwargs", "recorder"),
        *("result", "span", "stage", "start_ns", "state"),
    )

    stage: int  # its code, -1 for none; there once the call has begun

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        recorder: Recorder,
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.recorder = recorder
        self.result: Any = None
        self.exception: BaseException | None = None
        self.span: Any = None
        self.start_ns = -1
        self.end_ns = -1
        self.state: Any = None

    @property
    def self(self) -> Any:
        """The receiver of a method (the class of a class method); the first argument otherwise."""
        return self.args[0] if self.args else None

    def argument(self, name: str, default: Any = None) -> Any:
        """An argument by its name in the function's signature, however the caller passed it."""
        if name in self.kwargs:
            return self.kwargs[name]
        signature = _signatures.get(self.function)
        if signature is None:
            signature = _signatures[self.function] = _Signature(self.function)
        position = signature.positions.get(name, len(self.args))
        if position < len(self.args):
            return self.args[position]
        return signature.defaults.get(name, default)

    def row(self, table: str, **columns: Any) -> Any:
        """Append a row to `trajectories`, `rewards`, `uses`, `syncs` or `samples`; return it.

        The times that are not given are the call's: `start_ns`, `end_ns` (once known) and, for
        tables with a single time, now. The row's `.set(**columns)` completes it later. `None` when
        it could not be stored (a full disk).
        """
        return self.recorder.append(table, **self._timed(table, columns))

    def rows(self, table: str, count: int, **columns: Any) -> Any:
        """As `row`, of `count` rows at once: a column is one value for all, or a list, tuple or
        range of one a row (-1 or `UNKNOWN`: not known). `.set(**columns)` completes all alike."""
        return self.recorder.rows(table, count, self._timed(table, columns))

    def _timed(self, table: str, columns: dict[str, Any]) -> dict[str, Any]:
        marker, ends = _TIMES[table]
        if marker not in columns:
            known = marker == "start_ns" and self.start_ns > 0
            columns[marker] = self.start_ns if known else time.monotonic_ns()
        if ends and self.end_ns > 0 and "end_ns" not in columns:
            columns["end_ns"] = self.end_ns
        return columns


_TIMES = {name: (t.columns[0].name, t.find("end_ns") > 0) for name, t in TABLES.items()}

Reader = Callable[[Call], object]  # reads a call; what it raises is reported once
StageOf = Callable[[Call], "Stage | str | None"]
"""Decides the stage of a call before it begins; `None`: this call is no span."""


@dataclass(frozen=True)
class Hook:
    """One function of a framework and what is known about a call of it.

    - `target`: `"package.module:Class.method"`; `"__main__:function"` is the script itself.
    - `stage`: a word of the vocabulary (or `Stage`); a function that decides per call; `"step"` for
      the function that is one learner step; `None` when only the readers matter (no span).
    - `stages`: where a function decides, or a reader begins spans of its own, the words that it may
      give: `rltrace doctor` lists them.
    - `phase`: a phase of a sync. `name`: the span's name, by default `Class.method`.
    - `before`, `after`: readers. `step`: for `stage="step"`, the step's number; the process's step
      is set to it for as long as the next one has not begun. Without it steps count from 0.
    - `alternates`: where other versions of the framework keep the same function; all that exist
      are hooked, one is enough. `versions`: such as `">=0.6,<0.10"`; outside of it the hook is not
      looked for.
    - `per_item`: of a generator, one span an item (the time inside the producer); otherwise one
      span from the first item to the last.
    - `stream`: of a function that returns an iterator, or a tuple with one at this place (-1: the
      result itself): its items are the calls, as those of a generator, and the call itself is none.
    - `dose`: where a probe (`rltrace wrap --probe`) delays a stage: at the end of this function's
      calls. By default that is the hook's own stage; a stage here is that of a hook without one
      (it is only put in place where a run is probed), and `""` is for a function whose end
      nobody waits for, or that somebody watches for its being over.
    - `optional`: absence is no problem worth telling.
    """

    target: str
    stage: Stage | str | StageOf | None = None
    name: str = ""
    phase: Phase | str | None = None
    before: Reader | None = None
    after: Reader | None = None
    step: Callable[[Call], int] | None = None
    alternates: tuple[str, ...] = ()
    versions: str = ""
    per_item: bool = True
    stream: int | None = None
    stages: tuple[str, ...] = ()
    dose: str | None = None
    optional: bool = False

    @property
    def targets(self) -> tuple[tuple[str, str], ...]:
        return tuple(split_target(target) for target in (self.target, *self.alternates))

    @property
    def is_for_probes(self) -> bool:
        """Whether nothing of its calls is recorded: it is a place of doses and no more."""
        return bool(self.dose) and self.stage is None and not (self.before or self.after)

    @property
    def stage_word(self) -> str:
        """The stage for people: a word, `"by call"`, or `""` when no span is recorded."""
        if callable(self.stage) or (self.stage is None and self.stages):
            return ", ".join(self.stages) or "by call"
        if isinstance(self.stage, Stage):
            return self.stage.name.lower()
        return self.stage or ""


class Adapter:
    """What rltrace knows about one framework. Subclass it and set the class attributes.

    `framework` is the import name whose first import brings the adapter in (`"verl"`,
    `"rltrace.trainer"`); `labels` maps the framework's own timer or metric names to stages; `roles`
    maps Ray actor classes (`"module:Class"`) to the role of the process that runs one; `figures`
    are those of the framework's own metrics that are not what they seem. `is_part` says that other
    frameworks and loops are built with it (a queue, a layer of actors): a process that imports it
    is none of a framework by that.
    """

    framework: ClassVar[str]
    versions: ClassVar[str] = ""
    hooks: ClassVar[Sequence[Hook]] = ()
    labels: ClassVar[Mapping[str, str]] = {}
    roles: ClassVar[Mapping[str, str]] = {}
    figures: ClassVar[Sequence[OwnFigure]] = ()
    is_part: ClassVar[bool] = False

    def describe(self, module: ModuleType) -> dict[str, Any]:
        """Facts about this process, for its process file; called once the framework is imported."""
        del module
        return {}


class _Signature:
    """Where a function's arguments stand, found once: `co_varnames` makes a tuple a time."""

    __slots__ = ("defaults", "positions")

    def __init__(self, function: Any) -> None:
        while hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        code = getattr(function, "__code__", None)
        names = () if code is None else code.co_varnames[: code.co_argcount]
        self.positions: dict[str, int] = {name: place for place, name in enumerate(names)}
        positional = getattr(function, "__defaults__", None) or ()
        self.defaults: dict[str, Any] = dict(zip(names[::-1], positional[::-1], strict=False))
        self.defaults |= getattr(function, "__kwdefaults__", None) or {}


_signatures: dict[Any, _Signature] = {}


def split_target(target: str) -> tuple[str, str]:
    """`"pkg.mod:Class.method"` -> `("pkg.mod", "Class.method")`. Errors: `ValueError`."""
    module, _, qualname = target.partition(":")
    parts = [*module.split("."), *qualname.split(".")]
    if not all(part.isidentifier() for part in parts):
        raise ValueError(f"{target!r} is not of the form module:function or module:Class.method")
    return module, qualname


def stage_code(stage: Stage | str | None) -> int:
    """The code of a stage given as a word or a member; -1 for `None`. Errors: `ValueError`."""
    return -1 if stage is None else int(_member(Stage, stage))


def phase_code(phase: Phase | str | None) -> int:
    """The code of a sync phase given as a word or a member; -1 for `None`. Errors: `ValueError`."""
    return -1 if phase is None else int(_member(Phase, phase))


def _member(kind: Any, word: Any) -> Any:
    if isinstance(word, kind):
        return word
    try:
        return kind[word.upper().replace("-", "_")]
    except KeyError:
        there = ", ".join(member.name.lower() for member in kind)
        raise ValueError(f"{word!r} is no {kind.__name__.lower()}; there are {there}") from None
