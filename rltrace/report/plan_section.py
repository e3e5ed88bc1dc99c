"""A plan in words and tables: stages with their arithmetic first, the framework last."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rltrace.analysis.plan.advice import Advice
from rltrace.analysis.plan.costed_walls import Walls
from rltrace.analysis.plan.plan import Plan, Row
from rltrace.report import units
from rltrace.report.layout import Column, Grid, Section, bar, labelled, listed

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
        _next(found, advice),
        _framework(advice),
        *_launch(advice),
        _basis(found),
    ]


def _workload(found: Plan) -> Section:
    spec = found.spec
    model = spec.model
    mixture = f", {model.active / 1e9:.4g}B active" if model.is_mixture else ""
    of = found.parts.rollout.lengths
    return Section(
        f"Plan for {spec.name} on {spec.gpus} x {spec.gpu.name}",
        (
            f"{model.name}: {model.parameters / 1e9:.4g}B parameters{mixture}, "
            f"{units.size(model.weight_bytes)} a copy, {units.size(16 * model.parameters)} to "
            "train",
            f"{spec.prompts:,} prompts x {spec.group} samples of {of.mean:,.0f} tokens (cap "
            f"{of.cap:,.0f}, log-deviation {of.s:.2f}), {units.count(spec.response_tokens)} "
            f"tokens a step; lag of up to {spec.lag_bound:g} versions",
            *(f"assumed: {line}" for line in spec.assumed),
        ),
    )


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
        Column("step", right=True),
        Column("tokens/GPU-s", right=True),
        Column("tokens/$", right=True),
        Column("learner waits", right=True, least_width=90),
        Column("mean lag", right=True),
    )
    rows = tuple(_placement(row, row.name == found.best.name) for row in found.rows)
    notes = [f"prices: {found.spec.priced}"]
    notes += [f"{row.name}: {row.refused}" for row in found.rows if row.refused]
    lags = [row.name for row in found.rows if not row.allowed]
    if lags:
        notes.append(f"in brackets: more lag than the {found.spec.lag_bound:g} that is allowed")
    equal = "equal GPUs and equal dollars"
    if found.spec.rollout_gpu is not None:
        equal = "equal GPUs; dollars differ with the pools"
    return Section(f"Placements side by side, {equal}", (), Grid(columns, rows), tuple(notes))


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
    names = [wall.name for wall in walls.binding]
    says = f"{listed(names)} bind{'s' * (len(names) == 1)}" if names else "nothing binds: balanced"
    return Section("Walls, by what each would cost", (says,), Grid(columns, rows))


def _pools(found: Plan) -> Iterator[Section]:
    if not found.split_curve:
        return
    columns = (
        Column("rollout : training"),
        Column("actors", right=True),
        Column("learner", right=True),
        Column("step", right=True),
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


def _next(found: Plan, advice: Advice) -> Section:
    lines = []
    if advice.first is not None:
        one = advice.first
        gain = ""
        if one.found is not None:
            gain = f": {100 * (one.found.goodput_gain.middle - 1):+.0f} % tokens a GPU-second"
        lever = f" ({one.lever})" if one.lever else ""
        lines.append(f"first optimization, against {one.wall}: {one.move}{lever}{gain}")
        lines.append(f"    {one.risk}")
    lines += [f"risk: {risk}" for risk in advice.risks]
    lines += [f"move on {when}" for when in advice.move_on]
    return Section("First, risks, and when to move on", tuple(lines))


def _framework(advice: Advice) -> Section:
    choice = advice.choice
    one = choice.framework
    sees = f"adapter {one.adapter} (docs/frameworks.md)" if one.adapter else "no adapter"
    lines = [
        f"{one.name}: {one.says}",
        *(f"    {reason}" for reason in choice.reasons),
        f"watch: {one.watch}",
        f"rltrace traces it: {sees}; effort: {one.effort}",
        f"near it: {listed(list(choice.others))}",
        *choice.papers,
    ]
    notes = (f"maturity and effort are opinions of {choice.opinions}; {one.source}",)
    return Section("Framework", tuple(lines), notes=notes)


def _launch(advice: Advice) -> Iterator[Section]:
    if not advice.launch:
        return
    lines = [
        f"{one.option}={_written(one.value)}    # {'an example: ' * one.example}{one.why}"
        for one in advice.launch
    ]
    notes = ("an example is that of rltrace's settings, which no plan can tell: look at it first",)
    yield Section(f"Launch {advice.choice.framework.name} with", tuple(lines), notes=notes)


def _basis(found: Plan) -> Section:
    notes = [f"shape: {found.spec.model.source}", *found.rests_on]
    return Section("It rests on", (), notes=tuple(notes))


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _devices(row: Row) -> str:
    if "shared" in row.devices:
        return f"{row.devices['shared']} shared"
    return " + ".join(f"{count} {pool}" for pool, count in row.devices.items())


def swept(points: Sequence[tuple[float, Row | None, str, str]], what: str, least: str) -> Section:
    """A sweep as a table: value, best placement, what binds, or why there is none."""
    columns = (
        Column(what, right=True),
        Column("best placement"),
        Column("GPUs", least_width=90),
        Column("step", right=True),
        Column("tokens/GPU-s", right=True),
        Column("tokens/$", right=True),
        Column("binds", least_width=80),
    )
    rows = []
    for value, row, wall, refused in points:
        if row is None:
            rows.append((f"{value:g}", refused, "", "", "", "", ""))
            continue
        rows.append(
            (
                f"{value:g}", row.name, _devices(row), units.seconds(row.step_s),
                units.number(row.tokens_per_gpu_s), units.count(row.tokens_per_usd), wall,
            )
        )  # fmt: skip
    known = [row for _, row, _, _ in points if row is not None]
    lines = _curve([(v, r) for v, r, _, _ in points if r is not None], what) if known else ()
    return Section(f"{what} from {least}", (), Grid(columns, tuple(rows)), lines)


def _curve(points: Sequence[tuple[float, Row]], what: str) -> tuple[str, ...]:
    """The useful tokens of a GPU-second as bars."""
    most = max(row.tokens_per_gpu_s for _, row in points)
    width = max(len(f"{value:g}") for value, _ in points)
    if not most or math.isnan(most):
        return ()
    lines = [
        f"{value:>{width}g} {bar(row.tokens_per_gpu_s / most, 40):<40} "
        f"{units.number(row.tokens_per_gpu_s)}"
        for value, row in points
    ]
    return (f"useful tokens for a GPU-second, by {what}:", *lines)
