"""`rltrace experiment`: runs a job with a change and without, in turns.

The turns (before, after, after, before, ...) let a host that gets busier take from both alike.
"""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltrace.analysis.compare import FRESHNESS, GOODPUT, STEP, RunPace, Trial, pace, trial
from rltrace.analysis.compare import UNDECIDED as UNCLEAR
from rltrace.analysis.figures.devices import framework_of
from rltrace.analysis.fixes import job_settings
from rltrace.analysis.fixes.job_settings import form_of, stated_settings, value_of, with_settings
from rltrace.analysis.fixes.options import in_words, is_rule
from rltrace.analysis.fixes.playbook import WRAP_SYNC
from rltrace.analysis.stats.confidence_interval import Estimate
from rltrace.analysis.walls import wall
from rltrace.report.notebook import open_run
from rltrace.run.run_folders import new_run_path, open_phase, whole_command
from rltrace.trace.errors import CANNOT_TELL, RltraceError, WrongUsage
from rltrace.trace.run_dir import RUNS_FOLDER
from rltrace.trace.safe_text import REDACTED

if TYPE_CHECKING:
    from rltrace.analysis.fixes.fixes import Fix
    from rltrace.trace.read.run import OpenedRun

BEFORE, AFTER = "before", "after"
_GIVEN = "`rltrace experiment RUN -- python train.py ...`"
_PATIENCE_S = 30.0  # for a job that was interrupted to end

Say = Callable[[str], None]


@dataclass(frozen=True)
class ExperimentPlan:
    """The command before and after, to be run in `cwd`, in turns for `pairs` pairs, and on while
    nobody can tell until there are `most_pairs`. `sync`, `sync_after`: wrapped with `--sync`. Of
    several trainings in a run that of this `phase` is held (None: the last)."""

    change: SettingsChange
    before: tuple[str, ...]
    after: tuple[str, ...]
    framework: str
    cwd: str
    folder: Path
    pairs: int
    most_pairs: int
    resume: bool = False  # what is there and ended well is not made again
    sync: bool = False
    sync_after: bool = False
    phase: int | None = None

    def order(self) -> list[tuple[int, str]]:
        return [(pair, variant) for pair in range(self.pairs) for variant in self.turn(pair)]

    def turn(self, pair: int) -> tuple[str, str]:
        return (AFTER, BEFORE) if pair % 2 else (BEFORE, AFTER)

    def command(self, pair: int, variant: str) -> list[str]:
        words = self.before if variant == BEFORE else self.after
        form = form_of(self.framework)
        moved = job_settings.elsewhere(form, words, str(self.output(pair, variant)))
        return with_settings(words, form, moved)

    def runs(self) -> list[dict[str, Any]]:
        """Each run in its order: its pair (from 1), variant, command and run directory."""
        found: list[dict[str, Any]] = []
        for pair, variant in self.order():
            run = {"pair": pair + 1, "variant": variant, "command": self.command(pair, variant)}
            found.append({**run, "path": str(self.run_path(pair, variant))})
        return found

    def run_path(self, pair: int, variant: str) -> Path:
        return self.folder / f"{pair + 1}-{variant}"

    def output(self, pair: int, variant: str) -> Path:
        return self.folder / "output" / f"{pair + 1}-{variant}"

    def sentences(self) -> list[str]:
        goes_on = self.most_pairs > self.pairs
        more = f", up to {2 * self.most_pairs} while the answer is not clear," if goes_on else ""
        return [
            f"change: {self.change.name}",
            f"before: {shlex.join(self.command(0, BEFORE))}",
            f"after:  {shlex.join(self.command(0, AFTER))}",
            f"{2 * self.pairs} runs{more} in {self.cwd}, traced into {self.folder}",
        ]


def plan(
    run: OpenedRun,
    change: SettingsChange,
    pairs: int,
    folder: Path | None,
    most_pairs: int | None = None,
    *,
    resume: bool = False,
    asked: Sequence[str] = (),
    phase: int | None = None,
) -> ExperimentPlan:
    """By the command that is `asked` for or else that of `run`. Errors: `RltraceError` where it is
    not known or cannot take the settings, or the folder is in use and not resumed."""
    command = run.meta.get("command")
    if run.meta.get("imported") or not isinstance(command, list) or not command:
        raise RltraceError("the run does not say by which command it was made", CANNOT_TELL)
    whole = asked or whole_command(run.path, run.meta)
    if whole is None:
        said = "a run keeps no values of its command that may be secret, and they are not here: "
        raise WrongUsage(f"{said}give the command behind the options, as in {_GIVEN}")
    framework, _ = framework_of(run)
    form = form_of(framework)
    words = tuple(whole)
    stated = stated_settings(run)
    sync = bool((run.meta.get("settings") or {}).get("sync"))
    options = {option: v for option, v in change.settings.items() if option != WRAP_SYNC}
    job_settings.refuse_unknown(options, form, stated)
    after = tuple(with_settings(words, form, options))
    if change.settings.get(WRAP_SYNC, sync) == sync and all(
        same(job_settings.given(words, form, option), stated.get(option), v)
        for option, v in options.items()
    ):
        raise RltraceError(f"the job has {change.name} already: nothing to try", CANNOT_TELL)
    where = folder or new_run_path([f"experiment-{run.path.name}"], Path.cwd() / RUNS_FOLDER)
    if where.exists() and (not where.is_dir() or (not resume and any(where.iterdir()))):
        said = f"{where} is there already: name a new directory, or go on in it with --resume"
        raise WrongUsage(said)
    cwd = str(run.meta.get("cwd") or Path.cwd())
    most = max(pairs, most_pairs or pairs)
    return ExperimentPlan(
        *(change, words, after, framework, cwd, where.absolute(), pairs, most, resume, sync),
        sync_after=bool(change.settings.get(WRAP_SYNC, sync)),
        phase=phase,
    )


def carry_out(plan: ExperimentPlan, say: Say) -> Trial:
    """Runs the plan and says what came of it. Ctrl-C ends it with what is there. Errors:
    `RltraceError` when a run fails or shows that the change was not applied."""
    pairs: list[tuple[RunPace, RunPace]] = []
    found = trial((), plan.change.metric, plan.change.predicted)
    try:
        for pair in range(plan.most_pairs):
            if pair >= plan.pairs and found.answer != UNCLEAR:
                break
            paces = {variant: _paced(plan, pair, variant, say) for variant in plan.turn(pair)}
            pairs.append((paces[BEFORE], paces[AFTER]))
            found = trial(tuple(pairs), plan.change.metric, plan.change.predicted)
    except KeyboardInterrupt:
        say("interrupted: what follows is of the pairs of runs that ended")
    return found


def _paced(plan: ExperimentPlan, pair: int, variant: str, say: Say) -> RunPace:
    began = time.monotonic()
    nth = 2 * pair + plan.turn(pair).index(variant) + 1
    is_there = plan.resume and _is_there(plan, pair, variant)
    which = f"run {nth} of {2 * max(plan.pairs, pair + 1)}: {variant}"
    say(f"{which}: it is there already" if is_there else f"{which} ...")
    if not is_there:
        _run_once(plan, pair, variant)
    run = open_phase(plan.run_path(pair, variant), plan.phase)
    stated = stated_settings(run) if variant == AFTER else {}
    for option, value in plan.change.settings.items():
        told = stated.get(option, REDACTED)  # a run keeps no free texts
        if told != REDACTED and not same(None, told, value):
            said = f"the job ran with {option} = {told!r}, not {value!r}: "
            raise RltraceError(f"{said}its command does not take the setting", CANNOT_TELL)
    found = pace(run)
    say(f"  {1000 * found.step_s:,.0f} ms a step ({time.monotonic() - began:.0f} s)")
    return found


def _is_there(plan: ExperimentPlan, pair: int, variant: str) -> bool:
    """Whether that run was made and ended well; one that did not is put aside."""
    path = plan.run_path(pair, variant)
    if not path.exists():
        return False
    meta = open_run(path).meta
    if whole_command(path, meta) != plan.command(pair, variant):
        raise WrongUsage(f"{path} is a run of another command: name a new directory")
    if meta.get("exit_code") == 0:
        return True
    aside = (path.with_name(f"{path.name}-unfinished-{n}") for n in itertools.count(1))
    path.rename(next(name for name in aside if not name.exists()))
    return False


def _run_once(plan: ExperimentPlan, pair: int, variant: str) -> None:
    path, output = plan.run_path(pair, variant), plan.output(pair, variant)
    output.mkdir(parents=True, exist_ok=True)
    asked = ["--sync"] if (plan.sync if variant == BEFORE else plan.sync_after) else []
    wrap = [sys.executable, "-m", "rltrace", "wrap", "--out", str(path), *asked, "--"]
    log = output / "log.txt"
    with open(log, "wb") as file:
        child = subprocess.Popen(
            [*wrap, *plan.command(pair, variant)],
            cwd=plan.cwd,
            env={k: v for k, v in os.environ.items() if not k.startswith("RLTRACE_")},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C comes to us, and we tell the job
        )
        try:
            code = child.wait()
        except BaseException:
            _end(child)
            raise
    if code:
        lines = log.read_text("utf-8", "replace").strip().splitlines()
        its_own = [line for line in lines if not line.startswith("rltrace: ")]
        last = "".join(its_own[-1:])
        raise RltraceError(f"the {variant} run ended with exit code {code} ({log}): {last}")


def _end(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            child.wait(_PATIENCE_S)
            return


@dataclass(frozen=True)
class SettingsChange:
    """Settings to change, and what that is predicted to gain (None: nobody knows). `metric` says in
    what: "step", "freshness" or "goodput" (see `rltrace.analysis.compare`)."""

    name: str
    settings: Mapping[str, Any]
    predicted: Estimate | None = None
    metric: str = STEP


def change_of_fix(fixes: Sequence[Fix], number: int | None) -> SettingsChange:
    """The change that a fix of the verdict stands for: the `number`th (from 1) or, without one, the
    first whose setting is known and whose gain is predicted. Errors: `RltraceError`."""
    if number is None:
        told = [fix for fix in fixes if fix.setting]
        able = [fix for fix in told if not any(map(is_rule, (fix.value, *fix.needs.values())))]
        if not able:
            said = "the verdict has no fix with a setting to try: give --set option=value"
            raise RltraceError(said, CANNOT_TELL)
        chosen = next((fix for fix in able if fix.goodput_gain is not None), able[0])
    elif 1 <= number <= len(fixes):
        chosen = fixes[number - 1]
    else:
        raise WrongUsage(f"there are {len(fixes)} fixes, not {number}")
    if not chosen.setting:
        takes = f" (it takes another program: {chosen.program})" if chosen.program else ""
        said = f"no option of this job makes the move {chosen.move!r}{takes}: give --set"
        raise RltraceError(said, CANNOT_TELL)
    settings = {**dict(chosen.needs), chosen.setting: chosen.value}
    for option, value in settings.items():
        if is_rule(value):
            said = f"{option} should be {in_words(value)}, and what it is the run does not state"
            raise RltraceError(f"{said}: give --set {option}=VALUE", CANNOT_TELL)
    name = f"{chosen.move} ({chosen.printed})"
    step, goodput = chosen.gain, chosen.goodput_gain
    if step is None:
        metric = FRESHNESS if chosen.wall == wall.FRESHNESS else GOODPUT
        return SettingsChange(name, settings, goodput, metric)
    if goodput is not None and step.value < 1 < goodput.value:
        # Its steps take longer and are worth it (more samples, more of which teach): then only
        # goodput, which is noisier, shows what it gains.
        return SettingsChange(name, settings, goodput, GOODPUT)
    return SettingsChange(name, settings, step)


def change_of_words(words: Sequence[str]) -> SettingsChange:
    """The change that `option=value` words stand for. Errors: `RltraceError`."""
    settings: dict[str, Any] = {}
    for word in words:
        option, equals, value = word.partition("=")
        if not equals or not option:
            raise WrongUsage(f"--set {word!r} must be OPTION=VALUE")
        settings[option] = value and value_of(value)
    return SettingsChange(", ".join(words), settings)


def refuse_what_takes_no_settings(run: OpenedRun) -> None:
    """Errors: `RltraceError` where nobody knows how the job of `run` would be told of a change."""
    if not run.meta.get("imported"):  # which has no command: `plan` says so
        form_of(framework_of(run)[0])


def refuse_unwell(alarms: Sequence[str]) -> None:
    """Errors: `RltraceError` for a run with an alarm: what it gained would mean nothing."""
    if alarms:
        said = f"no fix is tried, because of the run's alarm: {'; '.join(alarms)}; repair that "
        raise RltraceError(f"{said}first, or try a change of your own with --set", CANNOT_TELL)


def same(text: str | None, stated: object, value: object) -> bool:
    """Whether a setting has a value already: as the command line has it (`text`), or as stated."""
    known = value_of(text) if text is not None else stated
    return known is not None and (known == value or str(known) == str(value))
