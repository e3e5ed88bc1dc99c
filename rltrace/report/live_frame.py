"""The live view of a run as the lines of one screen, of any size."""

from __future__ import annotations

import math

from rich.text import Text

from rltrace.analysis.live import snapshot
from rltrace.analysis.live.live_state import BUSY_OVER_S
from rltrace.analysis.live.role_activity import IDLE
from rltrace.analysis.live.snapshot import LiveWindow, RoleNow, Snapshot
from rltrace.report import units
from rltrace.report.formats.terminal_tables import COLOURS
from rltrace.report.layout import of_rank, pid_on
from rltrace.report.live_line import NO_WORK, step_name
from rltrace.trace.safe_text import visible

_MOST_STOPPED = 2
_SEPARATOR = " · "
_SPARKS = "▁▂▃▄▅▆▇█"
_LATE_STEP = 1.5  # a step that lasts this many times the usual one is told
_LATE = 3.0  # a trajectory that takes this many times the median is told
_BRIEF = 1e-3  # a stage that took less of the step than this is not shown
_QUIET = 0.005  # of a stage with a smaller share of the time nothing is shown


def frame(shown: Snapshot, width: int, height: int, hint: str = "") -> list[Text]:
    """The lines, what matters most first; `hint` stands in the last corner."""
    lines = [_title(shown, width), step_line(shown, width), *_stuck(shown), *losses(shown)]
    lines += figures(shown, width)
    for block in (dead, stages, roles, slowest):
        lines += block(shown, width)
    # Where a name of the job's holds what a terminal would obey, that is written out.
    most = height - bool(hint)
    lines = [one if one.plain.isprintable() else Text(visible(one.plain)) for one in lines[:most]]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True  # it fits, and looking for places to break it at takes a while
    if hint:
        lines += [Text() for _ in range(height - 1 - len(lines))]
        lines.append(Text(hint[:width].rjust(width), style="dim"))
    return lines


def _title(shown: Snapshot, width: int) -> Text:
    job = shown.job
    style = "bold green" if job.state in (snapshot.RUNNING, snapshot.ENDED) else "bold red"
    if job.state == snapshot.STARTING:
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


def _stuck(shown: Snapshot) -> list[Text]:
    """Who the job waits for."""
    said = [] if shown.stuck is None or shown.job.is_over else shown.stuck.lines()
    return [Text(f"{label:<8}{says}", style="bold red") for label, says in said]


def losses(shown: Snapshot) -> list[Text]:
    """What the live view has no figures of, as it was not recorded."""
    said = []
    since = "before its end" if shown.job.is_over else "ago"
    for one in shown.stopped[:_MOST_STOPPED]:
        who = of_rank(one.role, one.rank) + pid_on(one.pid, one.host)
        when = "" if math.isnan(one.silent_s) else f" {units.seconds(one.silent_s)} {since}"
        why = f": {one.detail}" if one.detail else ""
        said.append(f"recording stopped in {who}{when}, figures lack what it did since{why}")
    if (others := len(shown.stopped) - _MOST_STOPPED) > 0:
        said.append(f"recording stopped in {units.plural(others, 'more process')}")
    return [Text(f"! {sentence}", style="yellow") for sentence in said]


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
    title.append(f"{f'τ ({scale.unit})':>10}  exposed", style="not bold dim")
    lines, rows = [title], []
    for row in sorted(window.stages, key=lambda row: row.stage in NO_WORK):
        if row.tau_s >= _BRIEF * whole_s:
            overlapped_s = 0.0 if row.stage in NO_WORK else row.tau_s - row.exposed_s
            name, style = f"{row.stage:<12}{row.symbol}", COLOURS.get(row.stage, "")
            rows.append((name, style, row.tau_s, row.exposed_s, overlapped_s))
    if (rest_s := window.untraced_s) > _QUIET * whole_s:
        rows.append(("untraced", "dim", rest_s, rest_s, 0.0))
    for name, style, tau_s, exposed_s, overlapped_s in rows:
        line = Text(f"  {name:<18}", style=style)
        numbers = f"{scale.show(tau_s):>10}{units.share(exposed_s / whole_s):>9}  "
        drawn = bar(exposed_s / whole_s, overlapped_s / whole_s, cells, style)
        lines.append(line.append(numbers, style="default").append_text(drawn))
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
    if not shown.dead or (shown.job.is_over and shown.job.state != snapshot.KILLED):
        return []
    lines = [Text("processes that died at work", style="bold red")]
    for one in shown.dead:
        who = of_rank(one.role, one.rank) + pid_on(one.pid, one.host)
        lines.append(Text(f"  {who} died in {one.doing}"))
    return lines


def step_line(shown: Snapshot, width: int) -> Text:
    """The step that is going on, and how long the last ones took."""
    step, window = shown.step, shown.window
    steps = shown.totals.steps
    done = f"{units.plural(steps, 'step')} done"
    if window is not None:
        done += f", {units.seconds(window.step_s)} each "
    if step is None:
        line = Text(done, style="bold")
    else:
        elapsed = units.seconds(step.elapsed_s)
        part = step.elapsed_s / step.usual_s if step.usual_s else math.nan
        line = Text(f"{step_name(step)}  ", style="bold")
        if shown.job.is_over:
            line = Text(f"{step_name(step)} was cut off after {elapsed}", "bold")
        elif math.isnan(part):
            line.append(f"{elapsed} so far", style="not bold")
        else:
            cells, style = max(8, min(24, width - 56)), "green" if part < _LATE_STEP else "yellow"
            line.append_text(bar(min(1.0, part), 0.0, cells, style))
            line.append(f" {elapsed}", style="not bold")
            if part >= _LATE_STEP:
                line.append(f", {part:.1f}× the usual", style="bold yellow")
        line.append(f"   {done}", style="not bold")
    if window is not None:
        line.append(sparks([one.step_s for one in window.recent]), style="not bold cyan")
    return line


def figures(shown: Snapshot, width: int) -> list[Text]:
    """Tokens, freshness, weights: one line each, where anything is known."""
    window = shown.window
    if window is None:
        told = {"so far": _so_far(shown)}
    else:
        told = {"tokens/s": _tokens(shown, window), "samples": _samples(shown, window)}
        told["weights"] = _weights(window)
    told["devices"] = _machines(shown)
    lines = []
    for name, parts in ((name, parts) for name, parts in told.items() if parts):
        while len(parts) > 1 and 10 + len(_SEPARATOR.join(parts)) > width:
            parts.pop()
        line = Text(f"{name:<10}", style="bold")
        lines.append(line.append(_SEPARATOR.join(parts), style="not bold"))
    return lines


def _so_far(shown: Snapshot) -> list[str]:
    totals = shown.totals
    parts = [f"{units.plural(shown.processes, 'process')} traced"]
    if totals.generated_samples:
        parts.append(f"{units.plural(totals.generated_samples, 'sample')} generated")
    if totals.generated_tokens:
        parts.append(units.plural(totals.generated_tokens, "token"))
    if shown.in_flight:
        parts.append(f"{units.count(shown.in_flight)} in flight")
    return parts


def _tokens(shown: Snapshot, window: LiveWindow) -> list[str]:
    parts, trained = [], window.trained
    if window.generated_tokens:
        parts.append(f"{_rate(window.generated_tokens_per_s)} generated")
    if trained is not None and trained.tokens:
        share = units.share(trained.useful_tokens / trained.tokens)
        useful = f"{_rate(shown.goodput)} useful a {shown.devices.kind} ({share})"
        if math.isnan(shown.goodput):
            useful = f"{share} of that useful"
        parts += [f"{_rate(window.trained_tokens_per_s)} trained on", useful]
    return parts


def _samples(shown: Snapshot, window: LiveWindow) -> list[str]:
    parts = []
    lags = window.lags
    if lags is not None and not math.isnan(lags.mean):
        parts.append(f"lag {units.number(lags.mean)} (p95 {lags.p95:.0f}, most {lags.largest})")
    if shown.queue is not None and not shown.job.is_over:
        parts.append(f"{units.count(shown.queue)} wait for the learner")
    if shown.in_flight:
        parts.append(f"{units.count(shown.in_flight)} in flight")
        if shown.waiting_for_first_token and shown.waiting_for_first_token < shown.in_flight:
            parts.append(f"{units.count(shown.waiting_for_first_token)} without a token yet")
    if not math.isnan(window.latency_p95_s):
        p50, p95 = units.seconds(window.latency_p50_s), units.seconds(window.latency_p95_s)
        parts.append(f"latency p50 {p50}, p95 {p95}")
    return parts


def _weights(window: LiveWindow) -> list[str]:
    updates = window.updates
    if updates is None:
        return []
    parts = [f"version {updates.latest_version}"] if updates.latest_version >= 0 else []
    parts += [f"{units.number(updates.per_minute)} a minute", units.seconds(updates.update_s)]
    if not math.isnan(updates.bytes):
        parts.append(units.size(updates.bytes))
    if not math.isnan(updates.bytes_per_s):
        parts.append(f"{units.size(updates.bytes_per_s)}/s")
    return parts


def _machines(shown: Snapshot) -> list[str]:
    by_counter: dict[str, list[float]] = {}
    for reading in shown.readings:
        by_counter.setdefault(reading.counter, []).append(reading.value)
    parts = []
    if gpus := by_counter.get("gpu/busy_percent"):
        busy = units.share(sum(gpus) / len(gpus) / 100)
        parts.append(f"{units.plural(len(gpus), 'GPU')} {busy} busy")
    used, total = (sum(by_counter.get(f"gpu/memory_{k}_bytes", [])) for k in ("used", "total"))
    if total:
        parts.append(f"{units.size(used)} of {units.size(total)}")
    if power := by_counter.get("gpu/power_watts"):
        parts.append(f"{sum(power):,.0f} W")
    cores = [r.per_s for r in shown.readings if r.counter == "host/cpu_busy_seconds"]
    if cores and not math.isnan(sum(cores)):
        # All that runs there, the job or not: which is why it says whose they are.
        where = "machine" if len(cores) == 1 else f"{len(cores)} machines"
        parts.append(f"{where}: {units.number(sum(cores))} cores busy")
    if free := by_counter.get("host/memory_available_bytes"):
        parts.append(f"{units.size(sum(free))} of memory free")
    return parts


def _rate(value: float) -> str:
    return units.count(round(value)) if value >= 100 else units.number(value)


def bar(full: float, soft: float, cells: int, style: str) -> Text:
    """`cells` characters for a whole: `full` of it strong, `soft` pale, the rest empty."""
    strong = min(cells, round(full * cells))
    pale = min(cells, round((full + soft) * cells)) - strong
    if full > 0 and not strong and not pale:
        pale = 1
    line = Text("█" * strong, style=style).append("▒" * pale, style=style)
    return line.append("·" * (cells - strong - pale), style="dim")


def sparks(values: list[float]) -> str:
    """A column for each value, the largest full."""
    most = max(values, default=0)
    if len(values) < 2 or not most:
        return ""
    return " " + "".join(_SPARKS[min(7, int(8 * value / most))] for value in values)
