"""Plans, triage and designs in words and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rltrace.analysis.plan.advice import Advice
from rltrace.analysis.plan.breakdown import Walls
from rltrace.analysis.plan.frameworks import Choice
from rltrace.analysis.plan.plan import Plan, Row
from rltrace.analysis.plan.triage import Design, First, Triage
from rltrace.report import units
from rltrace.report.layout import Column, Grid, Section, bar, binds, labelled, listed, numbers
from rltrace.report.walls_section import gain_words

_BAR = 24
_POOL_BAR = 16  # beside four columns


def sections(found: Plan, advice: Advice) -> list[Section]:
    """All parts, in the order in which they follow from each other."""
    return [
        _workload(found),
        _stages(found),
        _memory(found),
        _placements(found),
        _walls(found.walls),
        *_pools(found),
        *_lags(found),
        _next(advice),
        _framework(advice),
        *_launch(advice),
        Section("It rests on", notes=(f"shape: {found.spec.model.source}", *found.rests_on)),
    ]


def _workload(found: Plan) -> Section:
    spec, model = found.spec, found.spec.model
    mixture = f", {model.active / 1e9:.4g}B active" if model.is_mixture else ""
    of = found.parts.rollout.lengths
    lines = (
        f"{model.name}: {model.parameters / 1e9:.4g}B parameters{mixture}, "
        f"{units.size(model.weight_bytes)} a copy, {units.size(16 * model.parameters)} to train",
        f"{spec.prompts:,} prompts x {spec.group} samples of {of.mean:,.0f} tokens (cap "
        f"{of.cap:,.0f}, log-deviation {of.s:.2f}), {units.count(spec.response_tokens)} tokens a "
        f"step; lag of up to {spec.lag_bound:g} versions",
        *(f"assumed: {line}" for line in spec.assumed),
    )
    return Section(f"Plan for {spec.name} on {spec.gpus} x {spec.gpu.name}", lines)


def _stages(found: Plan) -> Section:
    lines = []
    for cost in found.stages:
        on = f" on {cost.devices:g} GPUs" if cost.devices else ""
        lines.append(f"{labelled(cost.stage, cost.symbol)}: {units.seconds(cost.seconds)}{on}")
        lines += [f"    {line}" for line in cost.lines]
    best = found.best
    lines.append(
        f"step: {units.seconds(best.step_s)} ({units.seconds(found.step_s.low)} to "
        f"{units.seconds(found.step_s.high)}), {best.name}"
    )
    return Section(f"Where a step goes, {best.name} on {_devices(best)}", tuple(lines))


def _memory(found: Plan) -> Section:
    lines = []
    for use in found.memory:
        parts = " + ".join(f"{name} {units.size(size)}" for name, size in use.parts.items())
        verdict = "fits" if use.fits else "does not fit"
        lines.append(f"{use.where}: {parts} of {units.size(use.usable_bytes)} a GPU: {verdict}")
        lines += [f"    {note}" for note in use.notes]
    return Section("Memory of a GPU", tuple(lines))


def _placements(found: Plan) -> Section:
    columns = (
        Column("placement"),
        Column("GPUs"),
        *numbers("step", "tokens/GPU-s", "tokens/$"),
        Column("learner waits", right=True, least_width=90),
        Column("mean lag", right=True),
    )
    rows = tuple(_placement(row, row.name == found.best.name) for row in found.rows)
    notes = [f"prices: {found.spec.priced}"]
    notes += [f"{row.name}: {row.refused}" for row in found.rows if row.refused]
    lags = [row.name for row in found.rows if not row.allowed]
    if lags:
        notes.append(f"in brackets: more lag than the {found.spec.lag_bound:g} that is allowed")
    pools_differ = found.spec.rollout_gpu is not None
    dollars = "; dollars differ with the pools" if pools_differ else " and equal dollars"
    return Section(
        f"Placements side by side, equal GPUs{dollars}", (), Grid(columns, rows), tuple(notes)
    )


def _placement(row: Row, best: bool) -> tuple[str, ...]:
    name = f"> {row.name}" if best else row.name if row.allowed else f"({row.name})"
    if row.refused:
        return (name, units.UNKNOWN, "cannot be", "", "", "", "")
    return (
        name,
        _devices(row),
        units.seconds(row.step_s),
        units.number(row.tokens_per_gpu_s),
        units.count(row.tokens_per_usd),
        units.UNKNOWN if "shared" in row.devices else units.share(row.learner_waits_share),
        f"{row.mean_lag:.1f}",
    )


def _walls(walls: Walls) -> Section:
    columns = (Column("wall"), Column("of the step", right=True), Column("because"))
    rows = tuple((wall.name, units.share(wall.share), wall.because) for wall in walls.walls)
    binding = [wall.name for wall in walls.binding]
    says = binds(binding) if binding else "nothing binds: balanced"
    return Section("Walls, by what each would cost", (says,), Grid(columns, rows))


def _pools(found: Plan) -> Iterator[Section]:
    if not found.split_curve:
        return
    columns = (
        Column("rollout : training"),
        *numbers("actors", "learner", "step"),
        Column(""),
    )
    least = min(point.step_s for point in found.split_curve)
    rows = tuple(
        (
            f"{point.rollout} : {point.train}",
            units.seconds(point.rollout_s),
            units.seconds(point.learner_s),
            units.seconds(point.step_s),
            bar(least / point.step_s, _POOL_BAR),
        )
        for point in found.split_curve
    )
    lines = [f"both chains would be even with {units.share(found.balanced_part)} generating"]
    if found.spec.agentic:
        lines.append(f"{found.env_places:,.0f} sandboxes are busy on average")
    yield Section("Pool split", tuple(lines), Grid(columns, rows))


def _lags(found: Plan) -> Iterator[Section]:
    best = found.best
    if not best.lags or set(best.lags) == {0}:
        return
    columns = (Column("versions", right=True), Column("of the groups", right=True), Column(""))
    rows = tuple((str(lag), units.share(part), bar(part, _BAR)) for lag, part in best.lags.items())
    streams = found.parts.kind.played == "async"
    bound = found.parts.lag_bound if streams else found.spec.lag_bound
    beyond = sum(part for lag, part in best.lags.items() if lag > bound)
    lines = [f"mean {best.mean_lag:.1f} policy versions, from the first token to the update"]
    if streams and bound < found.spec.lag_bound:
        lines.append(
            f"planned with a bound of {bound:g} of the {found.spec.lag_bound:g} versions allowed: "
            "it keeps the engines full, and what is begun beyond only grows old"
        )
    if beyond > 0:
        lines.append(
            f"{units.share(beyond)} lie beyond the bound, which holds back what is begun: they are "
            "long and end late, and are trained on or dropped as the framework does"
        )
    yield Section("Lag to expect", tuple(lines), Grid(columns, rows))


def _next(advice: Advice) -> Section:
    lines: list[str] = []
    if (one := advice.first) is not None:
        gain = ""
        if one.found is not None:
            gain = f": {100 * (one.found.goodput_gain.middle - 1):+.0f} % tokens a GPU-second"
        lines = [f"first optimization, {_against(one)}{gain}", f"    {one.risk}"]
    lines += [f"risk: {risk}" for risk in advice.risks]
    lines += [f"move on {when}" for when in advice.move_on]
    return Section("First, risks, and when to move on", tuple(lines))


def _against(fix: First) -> str:
    lever = f" ({fix.lever})" if fix.lever else ""
    return f"against {fix.wall}: {fix.move}{lever}"


def _framework(advice: Advice) -> Section:
    one = advice.choice.framework
    sees = f"adapter {one.adapter} (docs/frameworks.md)" if one.adapter else "no adapter"
    traced = f"rltrace traces it: {sees}; effort: {one.effort}"
    lines = _framework_lines(advice.choice, f"watch: {one.watch}", traced)
    notes = (f"maturity and effort are opinions of {advice.choice.opinions}; {one.source}",)
    return Section("Framework", lines, notes=notes)


def _launch(advice: Advice) -> Iterator[Section]:
    if not advice.launch:
        return
    lines = []
    for one in advice.launch:
        value = str(one.value).lower() if isinstance(one.value, bool) else one.value
        lines.append(f"{one.option}={value}    # {'an example: ' * one.example}{one.why}")
    notes = ("an example is that of rltrace's settings, which no plan can tell: look at it first",)
    yield Section(f"Launch {advice.choice.framework.name} with", tuple(lines), notes=notes)


def _devices(row: Row) -> str:
    if "shared" in row.devices:
        return f"{row.devices['shared']} shared"
    return " + ".join(f"{count} {pool}" for pool, count in row.devices.items())


def _framework_lines(choice: Choice, *more: str) -> tuple[str, ...]:
    """The framework, why, what is said of it besides, and which others are near it."""
    return (
        f"{choice.framework.name}: {choice.framework.says}",
        *(f"    {reason}" for reason in choice.reasons),
        *more,
        f"near it: {listed(choice.others)}",
        *choice.papers,
    )


def swept(points: Sequence[tuple[float, Row | None, str, str]], what: str, least: str) -> Section:
    """A sweep as a table: value, best placement, what binds, or why there is none."""
    columns = (
        Column(what, right=True),
        Column("best placement"),
        Column("GPUs", least_width=90),
        *numbers("step", "tokens/GPU-s", "tokens/$"),
        Column("binds", least_width=80),
    )
    rows = []
    for value, row, wall, refused in points:
        if row is None:
            rows.append((f"{value:g}", refused, "", "", "", "", ""))
            continue
        rates = units.number(row.tokens_per_gpu_s), units.count(row.tokens_per_usd)
        step = units.seconds(row.step_s)
        rows.append((f"{value:g}", row.name, _devices(row), step, *rates, wall))
    curve = _curve([(value, row) for value, row, _, _ in points if row is not None], what)
    return Section(f"{what} from {least}", (), Grid(columns, tuple(rows)), curve)


def _curve(points: Sequence[tuple[float, Row]], what: str) -> tuple[str, ...]:
    most = max((row.tokens_per_gpu_s for _, row in points), default=0)
    width = max((len(f"{value:g}") for value, _ in points), default=0)
    if not most or math.isnan(most):
        return ()
    lines = [
        f"{value:>{width}g} {bar(row.tokens_per_gpu_s / most, 40):<40} "
        f"{units.number(row.tokens_per_gpu_s)}"
        for value, row in points
    ]
    return (f"useful tokens for a GPU-second, by {what}:", *lines)


def triaged(found: Triage, fix: First | None) -> Section:
    columns = (
        Column("placement"),
        *numbers("actors", "learner", "weights", "step"),
        Column(""),
    )
    rows = tuple(
        (
            f"> {step.placement}" if step.placement == found.placement else step.placement,
            units.seconds(step.actors_s),
            units.seconds(step.learner_s),
            units.seconds(step.weights_s),
            units.seconds(step.step_s),
            step.formula,
        )
        for step in found.steps
    )
    binding = [wall.wall for wall in found.binding]
    costs = ", ".join(f"{wall.wall} {units.share(wall.share)}" for wall in found.walls)
    lines = [f"{binds(binding) if binding else 'nothing binds'}: {costs}"]
    if fix is not None:
        gain = ""
        if fix.found is not None:
            gain = f": {gain_words(fix.found.goodput_gain)} tokens a device-second"
        lines.append(f"first, {_against(fix)}{gain}")
    notes = (
        f"colocated over async: {found.gain:.2f}, each stage on as many devices as it has now; at "
        "equal devices in all, turning a sum into a maximum alone gains nothing",
    )
    return Section("Triage", tuple(lines), Grid(columns, rows), notes)


def designed(found: Design) -> list[Section]:
    columns = (Column("wall"), Column("architecture"), Column("first"), Column("risk"))
    rows = tuple((a.wall, a.architecture, a.first, a.risk) for a in found.aspects)
    notes = (f"maturity is an opinion of {found.choice.opinions}",)
    return [
        Section(f"Design: {found.placement}", (), Grid(columns, rows)),
        Section("Framework", _framework_lines(found.choice), notes=notes),
    ]
