"""What one process writes down: rows, names, problems.

There is one recorder a process. It never raises into the job: when it cannot write (a full disk,
say) it says so once on stderr and turns itself off. Standard library only.
"""

from __future__ import annotations

import atexit
import errno
import itertools
import os
import sys
from _functools import partial  # type: ignore[import-not-found]
from _thread import RLock
from time import monotonic_ns, time_ns

from rltrace.hooks import spans
from rltrace.hooks.launch_info import shown
from rltrace.hooks.null_api import INSIDE
from rltrace.hooks.spans import Span, codes_of, watch_asyncio
from rltrace.trace import clock, segment
from rltrace.trace.job_exceptions import contained, from_outside
from rltrace.trace.run_dir import (
    COUNTED,
    ENDS,
    NAMES,
    PROBLEMS,
    PROCESS,
    PROCESS_FAILED,
    RECORDING_STOPPED,
    STEP_FAILED,
    append_line,
    write_json,
)
from rltrace.trace.safe_text import redacted_facts
from rltrace.trace.schema import TABLES
from rltrace.trace.segment import Row, RowBlock, TableWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MOST_NAMES = 20_000
"""A job with numbers in span names would fill the disk: later names are `MANY_NAMES`."""

MANY_NAMES = "(more names)"

_COMPILED = "torch.compile compiled it, and nothing is recorded in there: hook what calls it"
MOST_PROBLEMS = 20
_LONGEST_WORD = 60  # characters of a word that is none of the vocabulary's
_LONGEST_SAID = 500  # characters of a line on stderr
_PASSING = {errno.EMFILE, errno.ENFILE, errno.EINTR, errno.EAGAIN, errno.ENOMEM}


class Recorder:
    """The recorder of this process. `step` and `version` are for rows that state none."""

    def __init__(self, run_dir: str, stacks: int = -1, **facts: Any) -> None:
        self.run_dir = run_dir
        self._stacks = stacks
        self.step = -1
        self.version = -1
        self.takes_weights = True  # and does not send them
        self._parent: str | None = None
        self._become()
        self._described.update(facts)
        self._write_process_file()

    def _become(self) -> None:
        """Takes on the identity of this process. Nothing is written yet."""
        self._started_ns = monotonic_ns()
        self._ppid = os.getppid()  # another one once the parent has ended
        host = os.uname().nodename
        host = "".join(c if (c.isalnum() and c.isascii()) or c in "._" else "_" for c in host)[:60]
        self.who = f"{host}-{os.getpid()}-{self._started_ns}-{os.urandom(3).hex()}"
        self._described: dict[str, Any] = {}
        self._introduced = False
        self.tables = {
            name: TableWriter(table, f"{self.run_dir}/{name}", self.who, self._introduce)
            for name, table in TABLES.items()
        }
        self.span_writer = self.tables["spans"]
        self.captures_tokens = capture_tokens is not None
        self._names: dict[str, int] = {}
        self._next_name = itertools.count().__next__
        self._naming = RLock()
        self.open_step: Span | None = None
        self.labels: dict[object, tuple[int, int]] = {}
        self._said: set[tuple[str, str]] = set()
        self._failures: set[type[BaseException]] = set()
        self._odd: dict[str, tuple[int, str]] = {}

    def name(self, text: str) -> int:
        """The id of a name; a new one is in the names file before it is returned."""
        known = self._names.get(text)
        if known is not None:
            return known
        with self._naming:
            text = as_word(text)
            if text in self._names:
                return self._names[text]
            if len(self._names) >= MOST_NAMES and text != MANY_NAMES:
                said = f"more than {MOST_NAMES} different names, for instance {text!r}"
                self.problem("too-many-names", detail=said)
                return self.name(MANY_NAMES)
            # Not `len(self._names)`: a signal handler may name something while the line is written.
            number = self._next_name()
            self._write(NAMES, [number, text])
            self._names[text] = number
        if spans.on_end is None and "torch" in sys.modules:
            from rltrace.hooks.watch.device_completion import watch

            watch()
        return number

    def text(self, name_id: int) -> str:
        """The name behind an id. Errors: KeyError for an unknown one."""
        for text, number in self._names.items():
            if number == name_id:
                return text
        raise KeyError(name_id)

    def label(self, stage: str, name: str | None) -> tuple[int, int]:
        """Name id and stage code of a span. An unknown stage records `other` and is said once."""
        codes = codes_of("Stage")
        code = codes.get(stage)
        if code is None:
            code = codes["other"]
            known = ", ".join(word for word in codes if word != "step")
            self.problem(
                "unknown-stage",
                target=as_word(stage)[:_LONGEST_WORD],
                detail=f"recorded as 'other'; the stages are {known}",
                say=True,
            )
        label = (self.name(name or stage), code)
        if len(self.labels) < MOST_NAMES:
            self.labels[stage if name is None else (stage, name)] = label
        return label

    begin = spans.begin

    def append(self, table: str, **values: float) -> Row | None:
        """Stores a row of any table; None when it could not be, which is said once."""
        try:
            return self.tables[table].store(values)
        except Exception as error:
            if from_outside(error):
                raise
            self.failed(error)
            return None

    def rows(self, table: str, count: int, columns: dict[str, Any]) -> RowBlock | None:
        """Stores rows at once (`TableWriter.extend`); None when they could not be, as `append`."""
        with contained(tell=self.failed):
            return self.tables[table].extend(count, columns)
        return None

    def capture(self, row: Row | None, prompt: Any = None, response: Any = None) -> None:
        """Stores the token ids of the sample of a trajectory `row`, where they were asked for
        (`captures_tokens`). `response` is all that follows the prompt. Never raises."""
        if capture_tokens is not None and row is not None:
            capture_tokens(self, row, prompt, response)

    def describe(self, **fields: Any) -> None:
        """Adds facts to the process's file: role, rank, devices, adapter, versions, parameters."""
        self._described.update(redacted_facts(fields))
        self._write_process_file()

    def training_begins(self, **fields: Any) -> None:
        """Adds the facts of a training that begins, in place of those of the one before it in this
        process. `trainings` has those of each, with since when they hold."""
        trainings = self._described.setdefault("trainings", [])
        for name in trainings[-1] if trainings else ():
            self._described.pop(name, None)
        trainings.append({**redacted_facts(fields), "since_ns": monotonic_ns()})
        del trainings[:-MOST_PROBLEMS]
        self.describe(**fields)

    def problem(self, what: str, say: bool = False, **fields: Any) -> bool:
        """Writes down, once each, what was not recorded or hooked, at most `MOST_PROBLEMS` times of
        a kind; `say`: on stderr too. False: there was no room."""
        key = (what, str(fields.get("target", "")))
        said = tuple(self._said)  # a signal handler may add to it while it is counted
        if key in said or sum(kind == what for kind, _ in said) >= MOST_PROBLEMS:
            return True
        self._said.add(key)
        if say:
            to_stderr(" ".join(str(v) for v in (what.replace("-", " "), *fields.values())))
        return self._noted(what=what, **fields)

    def odd_value(self, target: str, value: object, said: str) -> None:
        """Writes down what an odd value was given for, and how often: the first times each, then
        whenever that doubled. Of the first its kind is named, and a number itself."""
        times, detail = self._odd.get(target, (0, ""))
        if not detail:
            from rltrace.hooks.patch.safe_repr import quoted  # few processes ever tell anything

            detail = f"{quoted(value)} {said}"
        times += 1
        self._odd[target] = times, detail
        if times > COUNTED and times & (times - 1):
            return
        self._noted(what="not-recorded", target=target, detail=detail, times=times)

    def _noted(self, **line: Any) -> bool:
        with contained(OSError):  # the disk is full: the recorder is about to say so
            self._write(PROBLEMS, {"real_ns": time_ns(), **line})
            return True
        return False

    def failed(self, error: BaseException) -> None:
        """Called with whatever recording raised; raises nothing. A full disk ends recording; a want
        that passes (no descriptor free, say) costs the row only."""
        kind = type(error)
        if kind in self._failures and not isinstance(error, OSError):
            return  # a handler of signals that come often may be here again and again
        self._failures.add(kind)
        with contained():  # in a signal handler, amid the import below: that one tells
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        if isinstance(error, OSError) and error.errno not in _PASSING:
            if _active is self:
                stop()
                to_stderr(f"recording stopped in process {os.getpid()}: {error}; the job goes on")
                from rltrace.hooks.patch.safe_repr import describe

                at, why, pid = monotonic_ns(), describe(error), str(os.getpid())
                told = {"monotonic_ns": at, "detail": why}
                if not self.problem(RECORDING_STOPPED, target=pid, monotonic_ns=at, detail=why):
                    self.describe(**{RECORDING_STOPPED: told})  # over what its file holds already
            return
        from rltrace.hooks.patch.safe_repr import describe, kind_of

        self.problem("not-recorded", target=kind_of(error), detail=describe(error))

    def cut_short(self, what: str, which: object, error: object) -> None:
        """An exception ended a step (`STEP_FAILED`), this process (`PROCESS_FAILED`, by its pid) or
        a thread. One that only ends the program says nothing of the job."""
        if isinstance(error, Exception) and self._introduced:
            with contained():  # the job has one to deal with already
                from rltrace.hooks.patch.safe_repr import describe

                self.problem(what, target=str(which), detail=describe(error))

    def ended(self, **facts: Any) -> None:
        """Writes down how a process ended. Errors: OSError."""
        self._write(ENDS, {**facts, "monotonic_ns": monotonic_ns()})

    def ended_with_threads(self) -> None:
        """The process ends well, though daemon threads leave spans open: it was not lost."""
        threading = sys.modules.get("threading")
        if threading is not None and threading.active_count() >= 2 and self._introduced:
            with contained(OSError):
                self.ended(pid=os.getpid(), signal=0, asked=True)

    def _write(self, folder: str, line: object) -> None:
        append_line(f"{self.run_dir}/{folder}/{self.who}.jsonl", line)

    def _introduce(self) -> None:
        """Before the first row: a forked child that records nothing leaves no file."""
        if not self._introduced:
            self._write_process_file()

    def _write_process_file(self) -> None:
        self._introduced = True
        monotonic, real, bracket = clock.pair()
        facts = {
            "who": self.who,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "ppid": self._ppid,
            "forked_from": self._parent,
            "node": clock.node_id(),
            "boot_id": clock.boot_id(),
            "time_ns": clock.time_namespace(),
            "argv": _command_line(),
            "python": ".".join(map(str, sys.version_info[:3])),
            "cpus": f"{sum(1 << cpu for cpu in os.sched_getaffinity(0)):x}",
            "start_ns": self._started_ns,
            "stacks": self._stacks,
            "clock": {"monotonic_ns": monotonic, "real_ns": real, "bracket_ns": bracket},
        }
        with contained(OSError, tell=self.failed):
            path = f"{self.run_dir}/{PROCESS}/{self.who}.json"
            write_json(path, {**facts, **self._described})

    def _after_fork(self) -> None:
        segment.release_maps()
        self._parent = self.who
        self._odd = {}
        self._become()


_active: Recorder | None = None
_argv: list[str] = []

capture_tokens: Callable[[Recorder, Row, Any, Any], None] | None = None
"""Stores token ids, where somebody asked for them (`token_capture`)."""

_LOAD_VOCABULARY = partial(__import__, "rltrace.trace.vocabulary")
"""Imported before a fork: a child forked amid that import would wait for ever. No function of ours:
a time limit that strikes in one would be lost, as nobody hears what is raised before a fork."""

_followers: list[Callable[[Recorder | None], None]] = []
_fork_hook_set = False


def _command_line() -> list[str]:
    """Shared with forked children: its paths are looked for once."""
    if not _argv:
        _argv.extend(shown(getattr(sys, "orig_argv", [])))
    return _argv


def active() -> Recorder | None:
    return _active


def start(run_dir: str, **facts: Any) -> Recorder | None:
    """Starts recording into a run directory, once; None, and said, where it cannot be written."""
    global _fork_hook_set
    if _active is not None:
        return _active
    try:
        os.listdir(f"{run_dir}/{PROCESS}")
        recorder = Recorder(run_dir, **facts)
        os.stat(f"{run_dir}/{PROCESS}/{recorder.who}.json")
    except Exception as error:
        if from_outside(error):
            raise
        to_stderr(f"cannot record into {run_dir}: {error}; the job goes on untraced")
        return None
    _set_active(recorder)
    spans.on_failure = failed
    segment.on_misfit = _misfit
    if not _fork_hook_set:
        os.register_at_fork(before=_LOAD_VOCABULARY, after_in_child=_after_fork)
        atexit.register(_at_exit)
        _fork_hook_set = True
    if hasattr(sys.modules.get("asyncio"), "current_task"):
        watch_asyncio()
    return recorder


def stop() -> None:
    """Stops recording in this process; spans still open can be ended."""
    _set_active(None)


def follow(follower: Callable[[Recorder | None], None]) -> None:
    """Tells `follower` the process's recorder, now and whenever it changes."""
    _followers.append(follower)
    follower(_active)


def _set_active(recorder: Recorder | None) -> None:
    global _active
    _active = recorder
    for follower in _followers:
        follower(recorder)


def _after_fork() -> None:
    if _active is not None:
        try:
            _active._after_fork()
        except Exception as error:
            if from_outside(error):
                raise
            stop()
            to_stderr(f"cannot record in forked process {os.getpid()}: {error}; the job goes on")


def problem(what: str, **fields: Any) -> None:
    """Writes to the run's problems, if there is a run (`Recorder.problem`)."""
    if _active is not None:
        _active.problem(what, **fields)


def hook_failed(target: str, error: BaseException, **fields: Any) -> None:
    """Tells that a hook could not be put in place, or did not do its work."""
    if _active is not None:
        from rltrace.hooks.patch.safe_repr import describe

        _active.problem("hook-failed", target=target, **fields, detail=describe(error))


def not_compiled(target: str) -> None:
    """Tells that a function was compiled in which `target` would have recorded a span."""
    problem(INSIDE, target=target, detail=_COMPILED)


def as_word(value: object) -> str:
    """A name or word that a job gives. Another object may be a completion: its kind only."""
    if isinstance(value, str):
        return str.__str__(value)
    from rltrace.hooks.patch.safe_repr import quoted

    return str(value) if type(value) is int else quoted(value)


def unknown_word(enum: str, word: object) -> None:
    """Tells that a word is none of the vocabulary's: its column stays unknown."""
    if _active is not None:
        said = f"left unknown; {enum} is one of {', '.join(codes_of(enum))}"
        _active.problem("unknown-word", say=True, target=as_word(word)[:_LONGEST_WORD], detail=said)


def _misfit(column: str, value: object) -> None:
    if _active is not None:
        with contained():  # in a signal handler, amid an import: the row counts for more
            _active.odd_value(column, value, "does not fit and was left unknown")


def failed(error: BaseException) -> None:
    if _active is not None:
        _active.failed(error)


def _at_exit() -> None:
    """For processes that end well: the step that nobody closed ends here, unless an exception cut
    it short (the interpreter keeps what it has printed the traceback of)."""
    if _active is None:
        return
    _active.ended_with_threads()
    if hasattr(sys, "last_value") and not hasattr(sys, "ps1"):
        _active.cut_short(PROCESS_FAILED, os.getpid(), sys.last_value)
        if _active.open_step is not None:
            _active.cut_short(STEP_FAILED, _active.step, sys.last_value)
    elif _active.open_step is not None:
        _active.open_step.end()


def to_stderr(text: str, longest: int | None = _LONGEST_SAID) -> None:
    """One line on stderr, to the descriptor: sys.stderr may be anybody's by now."""
    with contained():  # no file can be opened any more: said as it is
        from rltrace.trace.safe_text import visible  # few processes ever say anything

        text = visible(text, longest)
    with contained(OSError):
        os.write(2, f"rltrace: {text}\n".encode("utf-8", "backslashreplace"))
