"""The live view of a run as the lines of one screen, of any size."""

from __future__ import annotations

import math

from rich.text import Text

from rltrace.analysis.live.roles import IDLE
from rltrace.analysis.live.snapshot import (
    ENDED,
    KILLED,
    RUNNING,
    STARTING,
    RoleNow,
    Snapshot,
    Stopped,
)
from rltrace.analysis.live.state import BUSY_OVER_S
from rltrace.report import units
from rltrace.report.layout import of_rank, pid_on
from rltrace.report.live_line import NO_WORK
from rltrace.report.live_numbers import bar, figures, step_line
from rltrace.report.printed import COLOURS
from rltrace.report.run_lines import dropped_lines
from rltrace.trace.printable import visible

_MOST_STOPPED = 2
_LATE = 3.0  # a trajectory that takes this many times the median is told
_BRIEF = 1e-3  # a stage that took less of the step than this is not shown
_QUIET = 0.005  # of a stage with a smaller share of the time nothing is shown


def frame(shown: Snapshot, width: int, height: int, hint: str = "") -> list[Text]:
    """The lines, what matters most first; `hint` stands in the last corner."""
    lines = [_title(shown, width), step_line(shown, width), *losses(shown), *figures(shown, width)]
    for block in (dead, stages, roles, slowest):
        lines += block(shown, width)
    lines = [_harmless(line) for line in lines[: height - bool(hint)]]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True  # it fits, and looking for places to break it at takes a while
    if hint:
        lines += [Text() for _ in range(height - 1 - len(lines))]
        lines.append(Text(hint[:width].rjust(width), style="dim"))
    return lines


def _harmless(line: Text) -> Text:
    """The line; where a name of the job's holds what a terminal would obey, that is written out."""
    return line if line.plain.isprintable() else Text(visible(line.plain))


def _title(shown: Snapshot, width: int) -> Text:
    job = shown.job
    style = "bold green" if job.state in (RUNNING, ENDED) else "bold red"
    if job.state == STARTING:
        style = "bold yellow"
    state = f"{job.sentence}{' after' if job.is_over else ','} {units.seconds(job.elapsed_s)}"
    about = ", ".join(word for word in (job.framework, shown.placement) if word)
    name = Text(f"rltrace top · {job.id}", style="bold")
    if about and len(name) + len(about) + len(state) + 5 <= width:
        name.append(f" · {about}", style="not bold dim")
    name.truncate(max(10, width - len(state) - 2), overflow="ellipsis")
    name.append(" " * max(1, width - len(name) - len(state)))
    name.append(state, style=style)
    return name


def losses(shown: Snapshot) -> list[Text]:
    """What the live view has no figures of: details that were dropped, or were not recorded."""
    said = [*dropped_lines(shown.dropped)]
    said += [f"{shown.only_some}: there are no figures of samples"] if shown.only_some else []
    when = "before its end" if shown.job.is_over else "ago"
    said += [_stopped_sentence(one, when) for one in shown.stopped[:_MOST_STOPPED]]
    if (others := len(shown.stopped) - _MOST_STOPPED) > 0:
        said.append(f"recording stopped in {units.plural(others, 'more process')}")
    return [Text(f"! {sentence}", style="yellow") for sentence in said]


def _stopped_sentence(one: Stopped, since: str) -> str:
    who = of_rank(one.role, one.rank) + pid_on(one.pid, one.host)
    when = "" if math.isnan(one.silent_s) else f" {units.seconds(one.silent_s)} {since}"
    why = f": {one.detail}" if one.detail else ""
    return f"recording stopped in {who}{when}, figures lack what it did since{why}"


# --- the blocks: each a title and lines, or none where nothing is known


def stages(shown: Snapshot, width: int) -> list[Text]:
    """Where the steps went: exposed time full, overlapped time pale, the whole bar a step."""
    window = shown.window
    if window is None or not window.stages:
        return []
    of = f"the last {units.plural(window.steps, 'step')}"
    cells = max(10, width - 41)
    whole_s = window.step_s
    scale = units.scale(whole_s)
    title = Text(f"{f'stages, {of}':<20}", style="bold")
    title.append(f"{f'τ ({scale.unit})':>10}", style="not bold dim")
    title.append("  exposed", "not bold dim")
    lines = [title]

    def add(name: str, style: str, tau_s: float, exposed_s: float, overlapped_s: float) -> None:
        line = Text(f"  {name:<18}", style=style)
        figures = f"{scale.show(tau_s):>10}{units.share(exposed_s / whole_s):>9}  "
        line.append(figures, style="default")
        drawn = bar(exposed_s / whole_s, overlapped_s / whole_s, cells, style)
        lines.append(line.append_text(drawn))

    for row in sorted(window.stages, key=lambda row: row.stage in NO_WORK):
        if row.tau_s >= _BRIEF * whole_s:
            overlapped_s = 0.0 if row.stage in NO_WORK else row.tau_s - row.exposed_s
            name, style = f"{row.stage:<12}{row.symbol}", COLOURS.get(row.stage, "")
            add(name, style, row.tau_s, row.exposed_s, overlapped_s)
    if (rest_s := window.untraced_s) > _QUIET * whole_s:
        add("untraced", "dim", rest_s, rest_s, 0.0)
    return lines


def roles(shown: Snapshot, width: int) -> list[Text]:
    """What each role is doing at this moment, and did in the last seconds."""
    if shown.job.is_over or not shown.roles:
        return []
    now_width = max(16, min(34, (width - 20) // 3))
    cells = max(6, min(24, width - 47 - now_width))
    title = f"{'roles':<15}processes  {'now':<{now_width}}last {BUSY_OVER_S:.0f} s"
    return [Text(title, style="bold"), *(_role(role, now_width, cells) for role in shown.roles)]


def _role(role: RoleNow, now_width: int, cells: int) -> Text:
    line = Text(f"  {role.role[:12]:<12}{role.processes:>9}   ")
    gone = role.processes - role.living - role.unknown
    doing = Text()
    if gone:
        doing.append(f"{gone} gone ", style="bold red")
    alone = role.processes == 1
    for stage, n in sorted(role.doing.items(), key=lambda item: (item[0] == IDLE, -item[1])):
        style = COLOURS.get(stage, "dim" if stage == IDLE else "")
        doing.append(f"{stage} " if alone else f"{stage} {n} ", style=style)
    doing.truncate(now_width, overflow="ellipsis", pad=True)
    line.append_text(doing)
    shares = sorted(role.busy_shares.items(), key=lambda item: (item[0] in NO_WORK, -item[1]))
    shares = [(stage, share) for stage, share in shares if share >= _QUIET]
    drawn = 0.0
    for stage, share in shares:
        begin, drawn = round(drawn * cells), drawn + share
        count = min(cells, round(drawn * cells)) - begin
        line.append(("░" if stage in NO_WORK else "█") * count, style=COLOURS.get(stage, ""))
    line.append(" " * max(0, cells - round(min(1.0, drawn) * cells)) + " ")
    if shares:
        line.append(f"{shares[0][0]} {units.share(shares[0][1])}", style="dim")
    return line


def slowest(shown: Snapshot, width: int) -> list[Text]:
    """The trajectories that have been generated for longest."""
    if shown.job.is_over or not shown.slowest:
        return []
    usual = shown.window.latency_p50_s if shown.window else math.nan
    lines = [Text("slowest in flight", style="bold")]
    for one in shown.slowest:
        where = of_rank(one.role, one.rank)
        name = f"{one.trajectory & (1 << 64) - 1:016x}" if one.trajectory != -1 else units.UNKNOWN
        line = Text(f"  {name:<18}{where:<14}{units.seconds(one.elapsed_s):>10}")
        times = one.elapsed_s / usual if usual else math.nan
        said = "" if math.isnan(times) else f"{times:.1f}× p50"
        line.append(f"{said:>12}", "yellow" if times > _LATE else "")
        if not one.has_first_token:
            line.append("  no token yet", style="dim")
        elif one.first_version >= 0:
            line.append(f"  version {one.first_version}", style="dim")
        lines.append(line)
    return lines


def dead(shown: Snapshot, width: int) -> list[Text]:
    """Processes that ended in the middle of something. At a job's own end that is usual."""
    if not shown.dead or (shown.job.is_over and shown.job.state != KILLED):
        return []
    lines = [Text("processes that died at work", style="bold red")]
    for one in shown.dead:
        where = of_rank(one.role, one.rank) + pid_on(one.pid, one.host)
        lines.append(Text(f"  {where} died in {one.doing}"))
    return lines
