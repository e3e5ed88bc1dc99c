"""The blocks of the live view: each a title and lines of at most a width."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rich.text import Text

from rltrace.analysis.live.roles import IDLE
from rltrace.analysis.live.snapshot import KILLED, RoleNow, Snapshot
from rltrace.analysis.live.state import BUSY_OVER_S
from rltrace.report import units
from rltrace.report.layout import of_rank
from rltrace.report.live_line import NO_WORK
from rltrace.report.printed import COLOURS

_LATE = 3.0  # a trajectory that takes this many times the median is told
_BRIEF = 1e-3  # a stage that took less of the step than this is not shown
_QUIET = 0.005  # of a stage with a smaller share of the time nothing is shown


def stages(shown: Snapshot, width: int) -> Block:
    """Where the steps went: exposed time full, hidden time pale, the whole bar a step."""
    window = shown.window
    if window is None or not window.stages:
        return Block(None)
    of = f"the last {units.plural(window.steps, 'step')}" if window.steps else "the last minute"
    cells = max(10, width - 41)
    whole_s = window.step_s if window.steps else window.seconds
    scale = units.scale(whole_s)
    title = Text(f"{f'stages, {of}':<20}", style="bold")
    known = not any(math.isnan(row.exposed_s) for row in window.stages)
    title.append(f"{f'τ ({scale.unit})':>10}", style="not bold dim")
    title.append("  exposed" if known else "  exposed: unknown (--sample)", "not bold dim")
    lines = []
    for row in sorted(window.stages, key=lambda row: row.stage in NO_WORK):
        if row.tau_s < _BRIEF * whole_s:
            continue
        style = COLOURS.get(row.stage, "")
        line = Text(f"  {row.stage:<12}{row.symbol:<6}", style=style)
        line.append(f"{scale.show(row.tau_s):>10}{units.share(row.share):>9}  ", style="default")
        if known:
            hidden_s = 0.0 if row.stage in NO_WORK else row.tau_s - row.exposed_s
            line.append_text(bar(row.exposed_s / whole_s, hidden_s / whole_s, cells, style))
        lines.append(line)
    if window.unattributed_s > _QUIET * whole_s:
        line = Text(f"  {'no span':<18}{scale.show(window.unattributed_s):>10}", style="dim")
        line.append(f"{units.share(window.unattributed_s / whole_s):>9}  ")
        line.append_text(bar(window.unattributed_s / whole_s, 0.0, cells, "dim"))
        lines.append(line)
    return Block(title, lines)


def roles(shown: Snapshot, width: int) -> Block:
    """What each role is doing at this moment, and did in the last seconds."""
    if shown.job.is_over or not shown.roles:
        return Block(None)
    now_width = max(16, min(34, (width - 20) // 3))
    cells = max(6, min(24, width - 47 - now_width))
    title = f"{'roles':<15}processes  {'now':<{now_width}}last {BUSY_OVER_S:.0f} s"
    return Block(heading(title), [_role(role, now_width, cells) for role in shown.roles])


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
    shares = sorted(role.busy.items(), key=lambda item: (item[0] in NO_WORK, -item[1]))
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


def slowest(shown: Snapshot, width: int) -> Block:
    """The trajectories that have been generated for longest."""
    if shown.job.is_over or not (shown.slowest or shown.totals.generated_samples):
        return Block(None)
    if not shown.slowest:  # the other blocks stay where they are
        return Block(heading("slowest in flight"), [Text("  none at this moment", style="dim")])
    usual = shown.window.latency_p50_s if shown.window else math.nan
    lines = []
    for one in shown.slowest:
        where = of_rank(one.role, one.rank)
        name = f"{one.trajectory & (1 << 64) - 1:016x}" if one.trajectory != -1 else units.UNKNOWN
        line = Text(f"  {name:<18}{where:<14}{units.seconds(one.seconds):>10}")
        times = one.seconds / usual if usual else math.nan
        said = "" if math.isnan(times) else f"{times:.1f}× p50"
        line.append(f"{said:>12}", "yellow" if times > _LATE else "")
        if not one.has_first_token:
            line.append("  no token yet", style="dim")
        elif one.first_version >= 0:
            line.append(f"  version {one.first_version}", style="dim")
        line.truncate(width)
        lines.append(line)
    return Block(heading("slowest in flight"), lines)


def last_steps(shown: Snapshot, width: int) -> Block:
    """The last complete steps, the latest first: their length, longest stages, tokens and lag."""
    if shown.window is None or not shown.window.recent:
        return Block(None)
    stages = shown.window.stages
    worked = [row for row in stages if row.stage not in NO_WORK and not math.isnan(row.tau_s)]
    most = sorted(worked, key=lambda row: -row.tau_s)[: max(0, (width - 38) // 11)]
    names = [row.stage for row in stages if row in most]
    title = Text(f"{'last steps':<12}{'length':>9}", style="bold")
    for name in names:
        title.append(f"{name:>11}", style=f"not bold {COLOURS.get(name, '')}")
    title.append(f"{'tokens':>9}{'lag':>6}", style="not bold dim")
    lines = []
    for step in shown.window.recent[::-1]:
        line = Text(f"  {step.step:<10}{units.seconds(step.seconds):>9}")
        for name in names:
            line.append(f"{units.seconds(step.tau_s.get(name, math.nan)):>11}")
        tokens = step.trained_tokens or step.generated_tokens
        line.append(f"{units.count(tokens) if tokens else units.UNKNOWN:>9}")
        line.append(f"{units.number(step.mean_lag):>6}")
        lines.append(line)
    return Block(title, lines)


def dead(shown: Snapshot, width: int) -> Block:
    """Processes that ended in the middle of something. At a job's own end that is usual."""
    if not shown.dead or (shown.job.is_over and shown.job.state != KILLED):
        return Block(None)
    lines = []
    for one in shown.dead:
        where = of_rank(one.role, one.rank)
        line = Text(f"  {where} (pid {one.pid} on {one.host}) ended in {one.doing}")
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return Block(Text("processes that ended in the middle", style="bold red"), lines)


def devices(shown: Snapshot, width: int) -> Block:
    """Each GPU, and the processors and memory of each node."""
    read = {(r.host, r.device, r.counter): r for r in shown.readings}
    several = len({host for host, _, _ in read}) > 1
    lines = []
    for host, device in sorted({(h, d) for h, d, c in read if d >= 0 and c.startswith("gpu/")}):
        values = {c: r.value for (h, d, c), r in read.items() if (h, d) == (host, device)}
        busy = values.get("gpu/busy_percent", math.nan) / 100
        line = Text(f"  {f'{host} ' * several}GPU {device:<3}")
        line.append_text(bar(0.0 if math.isnan(busy) else busy, 0.0, 12, "green"))
        line.append(f" {units.share(busy):>6}")
        if "gpu/memory_used_bytes" in values:
            used, total = values["gpu/memory_used_bytes"], values.get("gpu/memory_total_bytes")
            line.append(f"  {units.size(used)}" + (f" of {units.size(total)}" if total else ""))
        if "gpu/power_watts" in values:
            line.append(f"  {values['gpu/power_watts']:.0f} W")
        line.truncate(width)
        lines.append(line)
    for host in sorted({h for h, _, c in read if c == "host/cpu_busy_seconds"}):
        busy = read[host, -1, "host/cpu_busy_seconds"].per_s
        free = read.get((host, -1, "host/memory_available_bytes"))
        line = Text(f"  {host:<12}{units.number(busy)} cores busy, by all programs")
        line.append(f"  {units.size(free.value)} of memory free" if free else "")
        lines.append(line)
    return Block(heading("devices"), lines) if len(lines) > 1 else Block(None)


# --- what the live view is made of: blocks of lines, bars and columns of characters

_FULL, _SOFT, _EMPTY = "█", "▒", "·"
_SPARKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Block:
    """A title (None: the lines speak for themselves) and lines, the most telling first."""

    title: Text | None
    lines: list[Text] = field(default_factory=list)

    @property
    def height(self) -> int:
        """How many lines it would like to have."""
        return len(self.lines) + (self.title is not None)

    def cut(self, height: int) -> list[Text]:
        """Its lines for so much room; what was left out is said."""
        head = [self.title] if self.title is not None else []
        room = height - len(head)
        if len(self.lines) <= room:
            return [*head, *self.lines]
        if room < 1:
            return []
        more = len(self.lines) - room + 1
        return [*head, *self.lines[: room - 1], Text(f"  … {more} more", style="dim")]


def heading(text: str) -> Text:
    return Text(text, style="bold")


def bar(full: float, soft: float, cells: int, style: str) -> Text:
    """`cells` characters for a whole: `full` of it strong, `soft` pale, the rest empty."""
    strong = min(cells, round(full * cells))
    pale = min(cells, round((full + soft) * cells)) - strong
    if full > 0 and not strong and not pale:
        pale = 1
    line = Text(_FULL * strong, style=style)
    line.append(_SOFT * pale, style=style)
    line.append(_EMPTY * (cells - strong - pale), style="dim")
    return line


def sparks(values: list[float]) -> str:
    """A column for each value, the largest full."""
    most = max(values, default=0)
    if len(values) < 2 or not most:
        return ""
    return " " + "".join(_SPARKS[min(7, int(8 * value / most))] for value in values)
