"""`rltrace wrap -- COMMAND`: runs a command with every process of it traced.

The job comes first. Whatever goes wrong on our side is one sentence on stderr, and the command runs
as it would have without us; its exit code is passed on. A wrap inside a wrapped job joins the outer
run (its own `--hook`s are added), unless that has ended or it is given a directory of its own.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltrace.hooks.apart import made_here
from rltrace.hooks.boot import (
    CAPTURE_VARIABLE,
    DETACHED_VARIABLE,
    HOOKS_VARIABLE,
    LOG_STEPS_VARIABLE,
    MAIN_VARIABLE,
    PROBE_VARIABLE,
    SAMPLED_VARIABLE,
    SEGMENT_VARIABLE,
    SHIP_VARIABLE,
    SYNC_VARIABLE,
)
from rltrace.hooks.doses import Design
from rltrace.hooks.hook import Hook, split_target, stage_code
from rltrace.plugins import REPLACEMENTS
from rltrace.run.child import run_child
from rltrace.run.closing import (
    close_run,
    hooks_out_of_place,
    job_processes,
    unused_hooks,
)
from rltrace.run.each_step import EachStep
from rltrace.run.killed_agent import note_killed_agent
from rltrace.run.location import RUNS_FOLDER, is_newest
from rltrace.run.opening import make_run, start_agent, traced_environment, why_elsewhere
from rltrace.run.shipping import waiting
from rltrace.run.shipping.places import begin, check_ship, make_folder, shipped_to
from rltrace.run.size_option import segment_bytes
from rltrace.run.step_figures import StepFigures
from rltrace.trace.errors import WRONG_USAGE, RltraceError
from rltrace.trace.printable import visible
from rltrace.trace.run_dir import (
    CAPTURE_TOKENS,
    MAX_BYTES,
    RUN_FILE,
    RUN_VARIABLE,
    SAMPLED,
    read_run_json,
    update_run_json,
)

if TYPE_CHECKING:
    from rltrace.analysis.live.snapshot import StepDone

NOT_FOUND, NOT_EXECUTABLE = 127, 126

_OWN_VARIABLES = (
    *(PROBE_VARIABLE, LOG_STEPS_VARIABLE, SYNC_VARIABLE, SHIP_VARIABLE, SEGMENT_VARIABLE),
    *(SAMPLED_VARIABLE, CAPTURE_VARIABLE),
)
"""Variables of a run that no other run takes over."""


def wrap(
    command: list[str],
    out: Path | None = None,
    hooks: Sequence[str] = (),
    probe: Design | None = None,
    live: bool = False,
    log_steps: bool = False,
    sync: bool = False,
    ship: str | None = None,
    max_bytes: int | None = None,
    sampled: float | None = None,
    capture_tokens: bool = False,
) -> int:
    """Runs the command and returns its exit code, 128 + n when signal n ended it, 127 when there is
    no such command, 126 when it cannot be executed.

    `out` is the run directory to make (by default a new one in `rltrace-runs/`), `hooks` are the
    user's own as `"module:qualname=stage"`, `probe` delays stages, `live` says a line a step,
    `log_steps` puts the figures of steps into what the job logs, `sync` has its weights moved by
    rltrace.sync, `ship` is the URL of a folder to which the run is shipped, `max_bytes` has the
    oldest details dropped of a run that grows beyond (of one that is shipped here, and once they
    are at the URL), `sampled` is the share of the samples of which there are rows,
    `capture_tokens` has their token ids recorded.
    Errors: `RltraceError` for wrong usage.
    """
    if not command:
        raise RltraceError("give a command: `rltrace wrap -- python train.py`", WRONG_USAGE)
    for hook in hooks:
        check_hook(hook)
    runs_url = None if ship is None else check_ship(ship)
    program = shutil.which(command[0])
    if program is None:
        return _cannot_run(command[0])
    outer = _outer_run()
    if outer and out is None:
        if probe is not None:
            _say("--probe: this joins the outer run, which alone can be probed")
        if live:
            _say("--live: this joins the outer run, which says its own steps")
        if log_steps:
            _say("--log-steps: this joins the outer run, whose steps are logged if it was asked to")
        if runs_url:
            _say("--ship: this joins the outer run, which is shipped if that was asked to be")
        if max_bytes is not None:
            _say("--max-bytes: this joins the outer run, which has a size of its own")
        if sampled is not None:
            _say("--sample: this joins the outer run, which records what it was asked to")
        if capture_tokens:
            _say("--capture-tokens: this joins the outer run, which has them if it was asked to")
        return _run(program, command, traced_environment(outer, hooks) | _replaced(sync), None)
    if runs_url:
        make_folder(runs_url)
    run_dir = _make_run(
        command, out, hooks, probe, sync, runs_url, max_bytes, sampled, capture_tokens
    )
    if run_dir is None:
        return _run(program, command, dict(os.environ), None)
    start_agent(run_dir)
    shown = os.path.relpath(run_dir)
    environment = traced_environment(str(run_dir), hooks)
    for name in _OWN_VARIABLES:
        environment.pop(name, None)  # an outer run's
    environment |= _replaced(sync)
    if url := shipped_to(run_dir):
        environment[SHIP_VARIABLE] = made_here(url)
    if probe is not None:
        environment[PROBE_VARIABLE] = probe.text()
        _say(
            f"probing {', '.join(probe.stages)}: doses of {100 * probe.dose:g} % in a quarter of "
            f"the steps, so at most {100 * probe.budget:g} % of the job's time (seed {probe.seed})"
        )
    if sampled is not None:
        environment[SAMPLED_VARIABLE] = str(sampled)
    if capture_tokens:
        environment[CAPTURE_VARIABLE] = "1"
    if max_bytes is not None:
        environment[SEGMENT_VARIABLE] = str(segment_bytes(max_bytes))
    if log_steps:
        environment[LOG_STEPS_VARIABLE] = "1"
    steps = _each_step(run_dir, live, log_steps)
    code = _run(program, command, environment, run_dir, steps)
    if steps is not None:
        steps.finish()
    _finish(run_dir, code, shown, out, hooks)
    return code


def _replaced(sync: bool) -> dict[str, str]:
    return {SYNC_VARIABLE: ";".join(REPLACEMENTS)} if sync else {}


def check_hook(text: str) -> None:
    """Errors: `RltraceError` unless `text` is of the form `module:qualname=stage`."""
    target, equals, stage = text.partition("=")
    try:
        if not equals:
            raise ValueError(f"{text!r} names no stage")
        split_target(target)
        stage_code(Hook(target, stage).stage_word)
    except ValueError as error:
        message = f"--hook {text}: {error}; write it as module:function=stage"
        raise RltraceError(message, WRONG_USAGE) from None


def _cannot_run(name: str) -> int:
    path = Path(name)
    if "/" in name and path.exists():
        why = "is a directory" if path.is_dir() else "is not executable"
        _say(f"{name} {why}: name a program, for instance `rltrace wrap -- python {name}`")
        return NOT_EXECUTABLE
    _say(f"{name}: command not found")
    return NOT_FOUND


def _outer_run() -> str | None:
    """The run that we are inside of. A shell or a daemon that a job started may keep the variables
    of a run that has ended, or is deleted, for weeks: they are dropped."""
    outer = os.environ.get(RUN_VARIABLE)
    if not outer:
        return None
    try:
        over = read_run_json(outer).get("end_real_ns") is not None
    except RltraceError:
        over = True
    if over and (DETACHED_VARIABLE not in os.environ or not Path(outer, RUN_FILE).exists()):
        for name in (
            *(RUN_VARIABLE, HOOKS_VARIABLE, MAIN_VARIABLE, DETACHED_VARIABLE),
            *_OWN_VARIABLES,
        ):
            os.environ.pop(name, None)
        return None
    return outer


def _make_run(
    command: list[str],
    out: Path | None,
    hooks: Sequence[str],
    probe: Design | None,
    sync: bool,
    runs_url: str | None,
    max_bytes: int | None,
    sampled: float | None,
    capture_tokens: bool,
) -> Path | None:
    try:
        asked: dict[str, Any] = {} if probe is None else {"probe": probe.settings()}
        asked |= {"sync": True} if sync else {}
        asked |= {MAX_BYTES: max_bytes} if max_bytes is not None else {}
        asked |= {SAMPLED: sampled} if sampled is not None else {}
        asked |= {CAPTURE_TOKENS: True} if capture_tokens else {}
        path = make_run(command, out, hooks=list(hooks), **asked)
    except OSError as error:
        where, why = out or RUNS_FOLDER, error.strerror or error
        without = " and without --sync" if sync else ""
        _say(f"cannot record into {where}: {why}; the job runs untraced{without}")
        return None
    if runs_url:
        try:
            begin(path, runs_url)
        except OSError as error:
            _say(f"nothing is shipped to {runs_url} yet: {error}; `rltrace ship` does it later")
    why_there = why_elsewhere(out, path)
    if why_there:
        _say(f"{why_there}; this one goes to {path}")
    return path


def _each_step(run_dir: Path, live: bool, log_steps: bool) -> EachStep | None:
    """What is told of each step, if anything was asked for."""
    tell: list[Callable[[StepDone], None]] = []
    if live:
        tell.append(_say_line)
    if log_steps:
        tell.append(StepFigures(run_dir))
    return EachStep(run_dir, tell, _say) if tell else None


def _say_line(step: StepDone) -> None:
    from rltrace.report.live_line import line

    _say(line(step))


def _run(
    program: str,
    command: list[str],
    environment: dict[str, str],
    run_dir: Path | None,
    steps: EachStep | None = None,
) -> int:
    def started(pid: int) -> None:
        if run_dir is not None:
            with suppress(OSError, RltraceError):  # said when the run is completed
                update_run_json(str(run_dir), command_pid=pid)
        if steps is not None:  # here the signals that are waited for are blocked
            steps.start()

    signals: list[int] = []
    try:
        code = run_child(program, command, environment, started, signals.append)
    except OSError as error:
        _say(f"{command[0]} cannot be executed: {error.strerror or error}")
        return NOT_EXECUTABLE
    if run_dir is not None and signals:
        with suppress(OSError, RltraceError):  # said when the run is completed
            update_run_json(str(run_dir), signals=signals)
    return code


def _finish(run_dir: Path, code: int, shown: str, out: Path | None, hooks: Sequence[str]) -> None:
    if _is_gone(run_dir):
        _say(f"{shown} was deleted while the job ran: there is no trace of it")
        return
    url, apart = shipped_to(run_dir), 0
    try:
        if killed := note_killed_agent(run_dir):  # before the run ends, and so the agent
            _say(killed)
        close_run(run_dir, code)
        if url:
            for sentence in waiting.what_is_left(run_dir, waiting.wait(run_dir, _say)):
                _say(sentence)
            apart = waiting.nodes_apart(run_dir)
        if apart:  # what is here is a part of it
            _say(f"the trace is in {url}; next: rltrace report {shlex.quote(url)}")
            return
        if not job_processes(run_dir):
            _say(f"no Python process was traced ({shown}): `rltrace doctor` tells what is needed")
            return
        nowhere = hooks_out_of_place(run_dir, hooks)
        if nowhere:
            named = ", ".join(f"--hook {hook}" for hook in nowhere)
            _say(f"never put in place: {named}: no process ran such code where it can be hooked")
        for hook in unused_hooks(run_dir, [hook for hook in hooks if hook not in nowhere]):
            _say(f"--hook {hook} recorded nothing: it was never called")
    except (OSError, RltraceError) as error:
        _say(f"{shown}/{RUN_FILE} could not be completed: {error}")
        if url:
            _say(f"not all may be at {url}: `rltrace ship {shlex.quote(shown)}` brings the rest")
            url = ""
    named = "" if out is None and is_newest(run_dir) else f" {shlex.quote(shown)}"
    why_there = why_elsewhere(out, run_dir)
    because = f" ({why_there})" if why_there else ""
    too = f" and {url}" if url else ""
    _say(f"the trace is in {shown}{because}{too}; next: rltrace report{named}")


def _is_gone(run_dir: Path) -> bool:
    """Whether the directory was deleted, and maybe another run made in its place."""
    if not (run_dir / RUN_FILE).exists():
        return True
    with suppress(RltraceError):  # said when the run is completed
        return read_run_json(str(run_dir)).get("wrap_pid") != os.getpid()
    return False


def _say(text: str) -> None:
    try:
        os.write(2, f"rltrace: {visible(text)}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass  # nobody listens any more
