"""The default report: what binds, where a step goes, what to change and how the data is."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, chain, takewhile

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from rltrace.analysis.fixes.fixes import Fix
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.summary import Summary, Verdict, steps_of, verdict
from rltrace.analysis.walls.wall import LIKELY
from rltrace.report import run_description, units
from rltrace.report.formats.terminal_tables import COLOURS, WIDEST, wrapped
from rltrace.report.layout import bar, listed, lowered
from rltrace.report.run_description import cells
from rltrace.report.sections import verdict_section
from rltrace.report.sections.verdict_section import best_fix, gain_words, sentences, setting_words
from rltrace.trace.read.run import open_run
from rltrace.trace.safe_text import visible

MOST_LINES = 45
_PAIRS = 3  # of runs, by which `rltrace experiment` tries a fix
_SLIGHT = 0.005  # of the step: what is exposed for less has no line of its own
_BAR = 24
EFFORT = {1: "low", 2: "medium", 3: "high"}
UNTRACED = "untraced"
_FOLDERS = re.compile(r"(?<![^\s=])/?(?:[^\s/=]+/){2,}(?=[^\s/])")
"""Folders of a path, which say less than its end."""
_MORE = "More: rltrace report {} --full · --html out.html"
_MORE_OF = {False: "rltrace timeline {}", True: "rltrace import {} keeps the run"}  # of a log


@dataclass(frozen=True)
class _Room:
    """How much of each part is shown at most."""

    fixes: int
    stages: int
    alarm_lines: int
    verdict_lines: int


_Part = Callable[[Summary, int, _Room], Iterator[Text | str]]
_ALL = _Room(99, 99, 999, 99)
_ROOMS = (_Room(3, 9, 6, 6), _Room(2, 8, 5, 5), _Room(1, 6, 4, 4), _Room(1, 4, 3, 3))


def render(summary: Summary, console: Console) -> None:
    """Prints at most `MOST_LINES`, which fit into 80 columns and use up to 100."""
    for line in lines(summary, min(console.width, WIDEST)):
        console.print(line, no_wrap=True, soft_wrap=True)


def lines(summary: Summary, width: int) -> list[Text]:
    """The screen's lines. Where all of it is too much, each part gives a little."""
    run = verdict_section.run_word(summary)
    more = [_MORE.format(run), _MORE_OF[summary.run.is_log].format(run)]
    if cell_len(" · ".join(more)) <= width:  # no command is broken
        more = [" · ".join(more)]
    last = [Text(line, style="dim") for each in more for line in wrapped(each, width)]
    parts = (_head, _alarms, _verdict, _where, _change, _health)
    for room in _ROOMS:
        made = {part: _made(part, summary, width, room) for part in parts}
        if (left := MOST_LINES - sum(map(len, made.values())) - len(last)) >= 0:
            break
    if made[_alarms]:  # they get what the other parts leave
        free = left + len(made[_alarms]) - 1
        made[_alarms] = _made(_alarms, summary, width, replace(room, alarm_lines=free))
    return [*chain(*made.values()), *last]


def top(summary: Summary, width: int) -> list[Text]:
    """Its first lines with all that is wrong, as the head of a longer report."""
    parts = (_head, _alarms, _verdict)
    return [line for part in parts for line in _made(part, summary, width, _ALL)][:-1]


def _made(part: _Part, summary: Summary, width: int, room: _Room) -> list[Text]:
    made = [Text(one) if isinstance(one, str) else one for one in part(summary, width, room)]
    return [*made, Text()] if made else []


def in_short(analysis: RunAnalysis, predict: bool = True) -> str:
    """`100 steps · 678 ms a step · wall: rollout (42 %) · try: lag_bound=1`; `predict` is slow."""
    steps, found = steps_of(analysis), verdict(analysis, predict)
    if steps.whole_run:
        return "no step was recorded"
    parts = [units.plural(steps.complete, "step")]
    if steps.step_s.n:
        parts.append(f"{units.seconds(steps.step_s.mean)} a step")
    if found.alarms:
        parts.append(verdict_section.what_is_wrong(analysis.health))
    elif found.first is not None:
        maybe = "" if found.confidence == LIKELY else "maybe "
        walls = (f"{wall.name} ({units.share(wall.cost.share)})" for wall in found.binding)
        parts.append(f"wall: {maybe}{listed([*walls])}")
        best = best_fix(found) if predict else None  # by the replay, or not at all
        if best is not None and best.goodput_gain is not None:
            gain = f"{100 * (best.goodput_gain.value - 1):+.0f} %"
            what = setting_words(best) if best.setting else best.sized
            parts.append(f"try{verdict_section.MAY_LOSE * best.may_lose}: {what} ({gain})")
    else:
        other = f"other work: {found.other_work}" if found.other_work else "wall: cannot tell"
        lacks = "no wall" if found.balanced else other
        parts.append(found.because if analysis.no_rollout else lacks)
    return " · ".join(parts)


def look(path: str) -> None:
    """Prints the line of a run in `path`: what is known soon, and then all of it."""
    analysis = RunAnalysis(open_run(path))
    for predict in (False, True):
        print(visible(in_short(analysis, predict)), flush=True)


def _head(summary: Summary, width: int, room: _Room) -> Iterator[Text | str]:
    run = summary.run
    command = "" if run.imported or run.command in ("", run.id) else f" · {brief(run.command)}"
    title = visible(f"rltrace · {run.id}{command}")
    yield Text(title if cell_len(title) <= width else f"{title[: width - 1]}…", style="bold")
    yield from wrapped(what_ran(summary), width)


def what_ran(summary: Summary) -> str:
    run, steps = summary.run, summary.steps
    parts = [_ended(summary)]
    if run.framework:
        parts.append(run.framework)
    if not steps.whole_run:
        which = run_description.which_steps(summary)
        if not which and steps.steady != steps.complete:
            which = f" ({steps.steady} measured)"
        which += run_description.which_phase(summary)
        parts.append(f"{units.plural(steps.complete, 'step')}{which}")
    if summary.composition is not None:
        parts.append(summary.composition.placement)
    if summary.goodput is not None and (devices := summary.goodput.devices).count:
        name = f" ({devices.name})" if devices.name else ""
        no_gpu = ", no GPU" if devices.kind == "core" else ""
        parts.append(f"{units.plural(devices.count, devices.kind)}{name}{no_gpu}")
    return " · ".join(parts)


def brief(command: str) -> str:
    """Without the folders of the program, and with the ends of other paths."""
    program, space, words = command.partition(" ")
    return program.rpartition("/")[2] + space + _FOLDERS.sub("…/", words)


def _ended(summary: Summary) -> str:
    run = summary.run
    if run.imported:
        return f"imported ({run.imported})"
    lasted_s = run.recorded_s if run.lasted_s is None else run.lasted_s
    if run.exit_code:
        return f"exit code {run.exit_code} after {units.seconds(lasted_s)}"
    if run.ended:
        how = "finished in" if run.exit_code == 0 else "ended, nobody saw how, after"
        return f"{how} {units.lasted(lasted_s, run.shown_s)}"
    return f"no end seen; {units.seconds(lasted_s)} recorded"


def _alarms(summary: Summary, width: int, room: _Room) -> Iterator[Text | str]:
    said = [wrapped(f"! {one}", width, later="  ") for one in run_description.warnings(summary)]
    if sum(map(len, said)) > room.alarm_lines:
        whole = takewhile(lambda lines: lines < room.alarm_lines, accumulate(map(len, said)))
        said = [*said[: len(list(whole))], ["! more is wrong: `rltrace report --full`"]]
    yield from (Text(line, style="bold red") for line in chain(*said))


def _verdict(summary: Summary, width: int, room: _Room) -> Iterator[Text | str]:
    found, inner = summary.verdict, width - 2
    left, style = room.verdict_lines, "bold"
    for sentence in sentences(summary):
        said = wrapped(sentence, inner - 2)
        if sentence.startswith(verdict_section.TYPE_THIS):  # to be pasted: a shell joins its lines
            said = [f"{line} \\" for line in said[:-1]] + said[-1:]
        if (left := left - len(said)) < 0 and not style:
            break
        yield from (Text(f"  {line}", style=style) for line in said)
        style = ""
    if found.alarms or (best := best_fix(found)) is None:
        return
    first = f"{verdict_section.try_words(best.goodput_gain)}:  {visible(how(best))}"
    gain = f"predicted: {effect(summary, best)}"
    if cell_len(f"{first}   {gain}") > inner:
        yield from (Text(f"  {line}", style="bold") for line in wrapped(first, inner))
        first = " " * 9
    for line in wrapped(f"{first}   {gain}", inner, later=" " * 12):
        yield Text(f"  {line}", style="bold")
    if tried := check_of(summary, best):
        check = f"  check it:   {'   '.join(tried)}"
        yield from wrapped(check, width, later=" " * 14)


def check_of(summary: Summary, fix: Fix) -> tuple[str, str] | None:
    """The command that tries a fix, and what that takes; None where none can."""
    if not (fix.setting and verdict_section.tried_run(summary)):
        return None
    runs_s = 2 * _PAIRS * (summary.run.lasted_s or math.nan)
    took = "" if math.isnan(runs_s) else f", {units.seconds(runs_s)} in all"
    number = summary.verdict.fixes.index(fix) + 1
    command = f"rltrace experiment {verdict_section.run_word(summary)} --fix {number}"
    return command, f"({_PAIRS} runs with it, {_PAIRS} without{took})"


def how(fix: Fix) -> str:
    """`--max-running 16 (now 8)`, or the move where no option makes it."""
    if not fix.setting:
        return setting_words(fix) if fix.program else fix.sized
    now = fix.now if isinstance(fix.now, str) else json.dumps(fix.now)
    return setting_words(fix) + (f" (now {now})" if fix.now is not None else "")


def effect(summary: Summary, fix: Fix) -> str:
    """`678 → 513 ms a step, goodput +32 % (+9 to +55)`."""
    gain = f"goodput {gain_words(fix.goodput_gain)}"
    return f"{step} a step, {gain}" if (step := step_change(summary, fix)) else gain


def step_change(summary: Summary, fix: Fix) -> str:
    """The step before and after; empty where nothing predicts it."""
    if fix.gain is None or not summary.steps.step_s.mean > 0:
        return ""
    now_s = summary.steps.step_s.mean
    return units.before_after(now_s, now_s / fix.gain.value)


@dataclass(frozen=True)
class StageShare:
    name: str
    exposed_s: float
    share: float


@dataclass(frozen=True)
class TimeShares:
    """What a step waits for, the longest first, and in words what ran beside that."""

    title: str
    length: str
    sure: str
    rows: tuple[StageShare, ...]
    beside: str


def where(summary: Summary) -> TimeShares | None:
    """Where the time goes; None where neither a stage nor a step was recorded."""
    steps = summary.steps
    step_s = steps.step_s
    rows = [StageShare(row.name, row.exposed_s.mean, row.share) for row in summary.stages]
    if not step_s.n or not (rows or steps.complete):
        return None
    rows.append(StageShare(UNTRACED, steps.untraced_s.mean, steps.untraced_share))
    title = "Where the time goes" if steps.whole_run else "Where a step goes"
    sure = ""
    if step_s.n > 1 and not summary.run.steps_are_means:
        low, high = units.seconds(max(0.0, step_s.low)), units.seconds(step_s.high)
        sure = f"(95 % CI {units.between(low, high)}, {units.count(step_s.n)} steps)"
    shown = sorted((row for row in rows if row.share >= _SLIGHT), key=lambda row: -row.share)
    named = {row.name for row in shown}
    beside = [row for row in summary.stages if row.name not in named and row.overlapped_s.mean > 0]
    said = ", ".join(f"{row.name} {units.seconds(row.tau_s.mean)}" for row in beside)
    also = f"beside these: {said}" if said else ""
    if steps.between:
        between = ", ".join(f"{name} {units.seconds(s)}" for name, s in steps.between.items())
        also = "; ".join(filter(None, (f"between two steps: {between}", also)))
    return TimeShares(title, units.seconds(step_s.mean), sure, tuple(shown), also)


def _where(summary: Summary, width: int, room: _Room) -> Iterator[Text | str]:
    found = where(summary)
    if found is None:
        return
    title, sure = found.title.upper(), f"  {found.sure}" if found.sure else ""
    heading = f"{title:<{_BAR + 18}}{found.length:>9}"
    if len(heading + sure) > width:
        heading = f"{title}  {found.length}"
    yield Text(heading, style="bold").append(sure, style="not bold")
    for row in found.rows[: room.stages]:
        line = Text(f"  {row.name:<14}")
        drawn = bar(row.share / found.rows[0].share, _BAR)
        line.append(f"{drawn:<{_BAR + 2}}", COLOURS.get(row.name, ""))
        yield line.append(f"{units.seconds(row.exposed_s):>9} {units.share(row.share):>8}")
    if found.beside:
        yield from wrapped(found.beside, width, "  ", "  ")


def _change(summary: Summary, width: int, room: _Room) -> Iterator[Text | str]:
    found = summary.verdict
    shown = found.fixes[: room.fixes]
    if found.alarms or not (shown or found.no_gain or found.not_worth_it):
        return
    name_width = 36 if width >= 90 else 27
    framework = summary.run.framework
    no_option = f"no option in {framework}   " if framework else ""
    title = f"{'WHAT TO CHANGE':<{name_width + 4}}{'step':<18}{'goodput per device':<22}effort"
    yield Text(title, style="bold")
    for number, fix in enumerate(shown, 1):
        name, *more = wrapped(fix.sized, name_width - 2)
        change = step_change(summary, fix) or units.UNKNOWN
        figures = f"{change:<16}  {gain_words(fix.goodput_gain):<20}  "
        yield f"  {number} {name:<{name_width}}{figures}{EFFORT[fix.effort]}"
        yield from (f"    {line}" for line in more)
        option = f"{how(fix)}   " if fix.setting or fix.program else no_option
        risk = lowered(fix.risk.partition(". ")[0].rstrip("."))
        yield from wrapped(f"{option}risk: {risk}", width, " " * 6, " " * 6)
    yield from _notes(found, len(found.fixes) - len(shown), summary.steps.step_s.mean, width)


def _notes(found: Verdict, more: int, step_s: float, width: int) -> Iterator[str]:
    said = list(verdict_section.gains_nothing(found))
    said += [f"More fixes: {more}, with --full."] * bool(more)
    checked = verdict_section.model_check(found, step_s)
    last = f"Gains {found.unpredicted}." if found.unpredicted else checked
    for text in (" ".join(said), last):
        yield from wrapped(text, width, "  ", "  ")


def _health(summary: Summary, width: int, room: _Room) -> Iterator[Text | str]:
    told = [(name, text) for name, text in cells(summary) if text]
    if told:
        yield Text("HEALTH", style="bold")
    for name, text in told:
        yield from wrapped(f"{name:<14}{text}", width, "  ", " " * 16)[:2]
