"""`rltrace wrap`: runs a command with every process of it traced.

The job comes first. Whatever goes wrong on our side is one sentence on stderr, and the command runs
as it would have without us.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rltrace.analysis.stuck.observed import Stuck, stuck_of
from rltrace.hooks import boot
from rltrace.hooks.hook import Hook, split_target, stage_code
from rltrace.hooks.node_setup import made_here
from rltrace.hooks.patch.safe_repr import describe
from rltrace.hooks.patch.wandb_rows import FILE
from rltrace.hooks.recorder import to_stderr
from rltrace.run import run_end, run_start
from rltrace.run.child_process import run_child
from rltrace.run.run_end import WatchedProcess
from rltrace.run.run_folders import is_newest
from rltrace.run.run_start import WrapOptions
from rltrace.run.shipping import final_shipping
from rltrace.run.shipping.destinations import begin, check_ship, make_folder, shipped_to
from rltrace.trace import launcher_ranks
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.metadata_validation import read_run_json, update_run_json
from rltrace.trace.run_dir import NODES, RUN_FILE, RUN_VARIABLE, RUNS_FOLDER, STUCK, write_json

if TYPE_CHECKING:
    from rltrace.analysis.live.snapshot import StepDone

NOT_FOUND, NOT_EXECUTABLE = 127, 126
_say = partial(to_stderr, longest=None)


def wrap(command: list[str], out: Path | None, asked: WrapOptions) -> int:
    """The exit code of the command: 128 + n when signal n ended it, 127 when there is none of that
    name, 126 when it cannot be executed. Errors: `RltraceError` for wrong usage."""
    for hook in asked.hooks:
        check_hook(hook)
    if asked.ship is not None:
        asked = replace(asked, ship=check_ship(asked.ship))
    program = shutil.which(command[0])
    if program is None:
        name = command[0]
        if "/" in name and os.path.exists(name):
            why = "is a directory" if os.path.isdir(name) else "is not executable"
            _say(f"{name} {why}: name a program, for instance `rltrace wrap -- python {name}`")
            return NOT_EXECUTABLE
        _say(f"{name}: command not found")
        return NOT_FOUND
    outer = _outer_run()
    if outer and out is None:
        if left := asked.left_to_the_outer_run():
            _say(f"{left}: this joins the outer run, which has what it was asked for")
        joined = run_start.traced_environment(outer, asked.hooks) | asked.replaced()
        return _run(program, command, joined, None)
    if asked.ship is not None:
        make_folder(asked.ship)
    try:
        begun = _begin(command, out, asked)
    except RltraceError:
        raise
    except Exception as error:  # a mistake of ours: the job comes first
        _say(f"cannot trace this job ({describe(error)}); it runs untraced")
        begun = None
    if begun is None:
        return _run(program, command, dict(os.environ), None)
    shown, began_s = os.path.relpath(begun.run.path), time.monotonic()
    code = _run(program, command, begun.environment, begun)
    try:
        if begun.steps is not None:
            begun.steps.finish()
        _finish(begun, code, shown, out, asked.hooks, time.monotonic() - began_s)
    except (Exception, KeyboardInterrupt) as error:  # what is the job's stands already
        _say(f"{shown} may not be complete ({describe(error)})")
    return code


class _Begun(NamedTuple):
    run: run_start.Opened
    made_by: int | None
    environment: dict[str, str]
    steps: EachStep | None
    on_stuck: str


def _begin(command: list[str], out: Path | None, asked: WrapOptions) -> _Begun | None:
    """Makes the run and its agent; None where there is no place to record into, which is said."""
    opened = _make_run(command, out, asked)
    if opened is None:
        return None
    run_dir = opened.path
    if opened.joined:  # what is done once a run is done by whoever made it
        asked = replace(asked, probe=None, live=False, log_steps=False)
    run_start.start_agent(run_dir)
    environment = run_start.traced_environment(str(run_dir), asked.hooks)
    for name in boot.OWN_VARIABLES:
        environment.pop(name, None)  # an outer run's
    environment |= asked.variables()
    if url := shipped_to(run_dir):
        environment[boot.SHIP_VARIABLE] = made_here(url)
    if (probe := asked.probe) is not None:
        _say(
            f"probing {', '.join(probe.stages)}: doses of {100 * probe.dose:g} % in a quarter of "
            f"the steps, so at most {100 * probe.budget:g} % of the job's time (seed {probe.seed})"
        )
    tell = [_say_line] if asked.live else []
    tell += [partial(_put_figures, run_dir)] if asked.log_steps else []
    steps = EachStep(run_dir, tell) if tell else None
    made_by = read_run_json(str(run_dir)).get("wrap_pid")
    return _Begun(opened, made_by, environment, steps, asked.on_stuck)


def check_hook(text: str) -> None:
    """Errors: `RltraceError` unless `text` is of the form `module:qualname=stage`."""
    target, equals, stage = text.partition("=")
    try:
        if not equals:
            raise ValueError(f"{text!r} names no stage")
        split_target(target)
        stage_code(Hook(target, stage).stage_word)
    except ValueError as error:
        raise WrongUsage(f"--hook {text}: {error}; write it as module:function=stage") from None


def _outer_run() -> str | None:
    """The run that we are inside of. A shell or a daemon that a job started may keep the variables
    of a run that has ended, or is deleted, for weeks: they are dropped."""
    outer = os.environ.get(RUN_VARIABLE)
    if not outer or (boot.DETACHED_VARIABLE in os.environ and Path(outer, RUN_FILE).exists()):
        return outer
    with suppress(RltraceError):
        if read_run_json(outer).get("end_real_ns") is None:
            return outer
    inherited = (RUN_VARIABLE, boot.HOOKS_VARIABLE, boot.MAIN_VARIABLE, boot.DETACHED_VARIABLE)
    for name in (*inherited, *boot.OWN_VARIABLES):
        os.environ.pop(name, None)
    return None


def _make_run(command: list[str], out: Path | None, asked: WrapOptions) -> run_start.Opened | None:
    try:
        opened = run_start.make_run(command, out, **asked.settings())
    except OSError as error:
        where, why = out or RUNS_FOLDER, error.strerror or error
        without = " and without --sync" if asked.sync else ""
        _say(f"cannot record into {where}: {why}; the job runs untraced{without}")
        return None
    if asked.ship is not None and not opened.joined:
        try:
            begin(opened.path, asked.ship)
        except OSError as error:
            _say(f"nothing is shipped to {asked.ship} yet: {error}; `rltrace ship` does it later")
    if opened.why:
        _say(f"{opened.why}; this one goes to {opened.path}")
    return opened


def _say_line(step: StepDone) -> None:
    from rltrace.report.live_line import line

    _say(line(step))


def _run(
    program: str, command: list[str], environment: dict[str, str], begun: _Begun | None
) -> int:
    made = begun.run.path if begun is not None and not begun.run.joined else None

    def started(pid: int) -> None:
        if begun is None:
            return
        with suppress(OSError, ValueError, RltraceError):  # said when the run is completed
            if made is not None:
                update_run_json(str(made), command_pid=pid)
            if begun.run.rank is not None:
                launcher_ranks.tell(begun.run.path, begun.run.rank, command_pid=pid)
        if begun.steps is not None:  # here the signals that are waited for are blocked
            begun.steps.start()

    signals: dict[int, int] = {}  # when each came first, Unix ns
    keeper = AgentKeeper(made, begun.on_stuck) if made is not None and begun is not None else None
    meanwhile = keeper.look if keeper is not None else None

    def came(number: int) -> None:
        signals.setdefault(number, time.time_ns())

    try:
        code = run_child(program, command, environment, started, came, meanwhile)
    except OSError as error:
        _say(f"{command[0]} cannot be executed: {error.strerror or error}")
        return NOT_EXECUTABLE
    if made is not None and signals:
        with suppress(OSError, RltraceError):  # said when the run is completed
            by_hand = [at for number, at in signals.items() if number in _BY_HAND]
            at = min(by_hand, default=None)
            update_run_json(str(made), signals=[*signals], signalled_real_ns=at)
    return code


def _finish(
    begun: _Begun, code: int, shown: str, out: Path | None, hooks: Sequence[str], job_s: float
) -> None:
    run_dir, rank = begun.run.path, begun.run.rank
    if run_end.is_gone(run_dir, begun.made_by):
        _say(f"{shown} was deleted while the job ran: there is no trace of it")
        return
    if rank is not None and not launcher_ranks.leave(run_dir, rank, code):
        return  # the last says how all ended
    url, apart, left = shipped_to(run_dir), False, 0
    try:
        if killed := run_end.note_killed_agent(run_dir):  # before the run ends, and so the agent
            _say(killed)
        left = run_end.close_run(run_dir, code)
        if missing := read_run_json(str(run_dir)).get(launcher_ranks.MISSING_RANKS):
            _say(launcher_ranks.MISSING.format(missing))
        if url:
            for sentence in final_shipping.what_is_left(
                run_dir, final_shipping.wait(run_dir, _say)
            ):
                _say(sentence)
            apart = any((run_dir / NODES).glob("*~*.json"))  # nodes with a disk of their own
        if apart:  # what is here is a part of it
            _say(f"the trace is in {url}; next: rltrace report {shlex.quote(url)}")
            return
        if not left and not run_end.job_processes(run_dir):
            _say(f"no Python process was traced ({shown}): `rltrace doctor` tells what is needed")
            return
        for sentence in run_end.what_hooks_missed(run_dir, hooks):
            _say(sentence)
    except (OSError, RltraceError) as error:
        _say(f"{shown}/{RUN_FILE} could not be completed: {error}")
        if url:
            _say(f"not all may be at {url}: `rltrace ship {shlex.quote(shown)}` brings the rest")
            url = ""
    named = "" if out is None and is_newest(run_dir) else f" {shlex.quote(shown)}"
    because = f" ({begun.run.why})" if begun.run.why else ""
    too = f" and {url}" if url else ""
    plural = f"{left} process{'es' * (left != 1)}"
    grows = f" and grows: the job outlives its command ({plural})" if left else ""
    found = in_short(run_dir, min(_LONGEST_LOOK_S, _LOOK * job_s))
    _say(f"{found}the trace is in {shown}{because}{too}{grows}; next: rltrace report{named}")


_LONGEST_LOOK_S, _SHORTEST_LOOK_S = 0.9, 0.3  # to end it takes time, too
_BY_HAND = (signal.SIGINT, signal.SIGTERM)
_LOOK = 0.1  # of the time that the job took
_PACKAGES = Path(__file__).parent.parent.parent
_LOOK_AT = (
    "import sys; sys.path.append(sys.argv[1]); from rltrace.report.screen import look; "
    "look(sys.argv[2])"
)


def in_short(run_dir: Path, within_s: float) -> str:
    """What the run shows, in a line to stand before another: as much as is known in that time."""
    if within_s < _SHORTEST_LOOK_S:
        return ""
    import subprocess  # here: the job is over, and waits for nothing

    look = [sys.executable, "-I", "-c", _LOOK_AT, str(_PACKAGES), str(run_dir)]
    try:
        told = subprocess.run(
            look, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=within_s
        ).stdout
    except subprocess.TimeoutExpired as late:
        told = late.stdout or b""
    except (OSError, ValueError):
        return ""
    *_, last = told.decode("utf-8", "replace").rpartition("\n")[0].splitlines() or [""]
    return f"{last} · " if last else ""


_INTERVAL_S = 1.0
_LAST_STEPS = 100  # of more steps between two looks the first ones are not told


class EachStep:
    """Calls each of `tell` with each step of the run in `path`, as it ends. What goes wrong there
    is said once and ends the telling, not the job."""

    def __init__(self, path: Path, tell: Sequence[Callable[[StepDone], None]]) -> None:
        self._path = path
        self._tell = tell
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="rltrace-steps", daemon=True)

    def start(self) -> None:
        """Begins. The thread takes over which signals are blocked: all that `wrap` waits for have
        to be, else one might end `wrap` from here."""
        try:
            self._thread.start()
        except RuntimeError as error:  # as many processes and threads as there may be
            _say(f"nothing is said of steps: {error}")

    def finish(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        try:
            from rltrace.analysis.live.live_state import LiveState
            from rltrace.analysis.live.recent_rows import SPARING

            state = LiveState(self._path, _LAST_STEPS, SPARING)
            told_until_ns = settled_until_ns = 0
            while True:
                over = self._over.wait(_INTERVAL_S)
                state.poll(at_once=over)
                if over:  # what ended just before is complete at the second look
                    state.poll(at_once=True)
                window = state.snapshot().window
                recent = window.recent if window is not None else ()
                latest_ns = recent[-1].end_ns if recent else 0
                # What ends with a step comes in by the next look.
                until_ns = latest_ns if over else settled_until_ns
                for step in recent:
                    if told_until_ns < step.end_ns <= until_ns:
                        for tell in self._tell:
                            tell(step)
                told_until_ns, settled_until_ns = max(told_until_ns, until_ns), latest_ns
                if over:
                    return
        except Exception as error:  # the job goes on
            _say(f"no more is said of steps: {type(error).__name__}: {error}")


def _put_figures(run_dir: Path, step: StepDone) -> None:
    """Into a file, for the job's own tracker to take up. Errors: OSError."""
    from rltrace.report.live_line import scalars

    figures = scalars(step)
    if step.step >= 0:
        figures["rltrace/step"] = step.step
    write_json(str(run_dir / FILE), figures)


_GRACE_S = 30.0  # for a stuck job that is to end
_FIRST_S, _LONGEST_S = 10.0, 3600.0
"""After one was started again: twice as long each time, so that what kills them all is not fed."""


class AgentKeeper:
    """Keeps the agent that this process has started for the run in `run_dir`: a job of weeks goes
    on being read and shipped when the kernel, out of memory, has picked the agent."""

    def __init__(self, run_dir: Path, on_stuck: str = "report") -> None:
        self._run_dir, self._on_stuck = run_dir, on_stuck
        self._told_since_ns, self._kill_at = 0, math.inf
        self._agent = WatchedProcess(-1)
        self._patience_s, self._not_before = _FIRST_S, 0.0

    def look(self) -> None:
        """Starts it again if it was killed. One that ended by itself, or was asked to, has said so
        and is let go. Raises nothing: the job comes first."""
        told = run_end.told_by_agent(self._run_dir)
        self._tell_stuck(stuck_of(told.get(STUCK)))
        if "end_ns" in told or not isinstance(told.get("pid"), int):
            return
        if told["pid"] != self._agent.pid:
            self._agent = WatchedProcess(told["pid"])
        now = time.monotonic()
        if self._agent.is_alive() or now < self._not_before:
            return
        if run_end.is_gone(self._run_dir, os.getpid()):
            return
        self._not_before = now + self._patience_s
        self._patience_s = min(2 * self._patience_s, _LONGEST_S)
        with suppress(OSError):
            os.unlink(run_start.agent_lock(self._run_dir))
            run_start.start_agent(self._run_dir)

    def _tell_stuck(self, stuck: Stuck | None) -> None:
        """Says once each time who the job waits for, and does what was asked for then."""
        if time.monotonic() >= self._kill_at:
            self._signal(signal.SIGKILL)
        if stuck is None or stuck.since_ns == self._told_since_ns:
            return
        self._told_since_ns = stuck.since_ns
        for label, says in stuck.lines():
            _say(f"{label:<8}{says}")
        if self._on_stuck == "kill":
            _say(f"ending the job (--on-stuck kill): SIGTERM, after {_GRACE_S:.0f} s SIGKILL")
            self._kill_at = time.monotonic() + _GRACE_S
            self._signal(signal.SIGTERM, signal.SIGCONT)
        elif self._on_stuck != "report":
            told = json.dumps({**stuck.told(), "run": str(self._run_dir)})
            kept = {name: v for name, v in os.environ.items() if name != RUN_VARIABLE}
            with suppress(OSError):  # there is no shell: the job goes on
                says = 'echo "rltrace: the command of --on-stuck ended with exit code $?" >&2'
                shell = ["/bin/sh", "-c", f"({self._on_stuck}\n) || {says}"]
                # What `wrap` waits for is blocked here.
                os.posix_spawn(shell[0], shell, {**kept, "RLTRACE_STUCK": told}, setsigmask=())

    def _signal(self, *numbers: int) -> None:
        """To all that the command started: what hangs may be a shell's child."""
        spared = {os.getpid(), self._agent.pid}
        for pid in set(run_end.pids_of_run(self._run_dir)) - spared:
            for number in numbers:
                with suppress(OSError):
                    os.kill(pid, number)
