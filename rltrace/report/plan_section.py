"""Plans and triage in words and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rltrace.analysis.plan.advice import Advice
from rltrace.analysis.plan.plan import Plan, Point, Row
from rltrace.analysis.plan.triage import First, Triage
from rltrace.report import units
from rltrace.report.layout import Column, Section, bar, binds, labelled, numbers, table
from rltrace.report.walls_section import gain_words

_BAR = 24


def sections(found: Plan, advice: Advice) -> list[Section]:
    """All parts, in the order in which they follow from each other."""
    return [
        _workload(found),
        _stages(found),
        _memory(found),
        _placements(found),
        _walls(found),
        *_lags(found),
        Section("First, and risks", (*_first(advice.first), *(f"risk: {r}" for r in advice.risks))),
        *_framework(advice),
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
        lines.append(f"{labelled(cost.stage, cost.symbol)}: {units.seconds(cost.tau_s)}{on}")
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
        parts = " + ".join(f"{name} {units.size(size)}" for name, size in use.used_bytes.items())
        lines.append(f"{use.where}: {parts} of {units.size(use.usable_bytes)} a GPU")
        lines.append(f"    {use.note}")
    return Section("Memory of a GPU", tuple(lines))


def _placements(found: Plan) -> Section:
    rows = (_placement(row, row.name == found.best.name) for row in found.rows)
    columns = ("step", "tokens/GPU-s", "tokens/$", ("learner waits", 90), "mean lag")
    grid = table(rows, "placement", "GPUs", *numbers(*columns))
    notes = [f"prices: {found.spec.priced}"]
    notes += [f"{row.name}: {row.refused}" for row in found.rows if row.refused]
    if not all(row.allowed for row in found.rows):
        notes.append(f"in brackets: more lag than the {found.spec.lag_bound:g} that is allowed")
    title = "Placements side by side, equal GPUs and equal dollars"
    return Section(title, (), grid, tuple(notes))


def _placement(row: Row, best: bool) -> tuple[str, ...]:
    name = f"> {row.name}" if best else row.name if row.allowed else f"({row.name})"
    if row.refused:
        return (name, units.UNKNOWN, "cannot be", "", "", "", "")
    waits = units.UNKNOWN if "shared" in row.devices else units.share(row.learner_waits_share)
    return (name, *_placed(row)[1:], waits, f"{row.mean_lag:.1f}")


def _placed(row: Row) -> tuple[str, ...]:
    rates = units.number(row.useful_tokens_per_device_s), units.count(row.useful_tokens_per_usd)
    return (row.name, _devices(row), units.seconds(row.step_s), *rates)


def _walls(found: Plan) -> Section:
    rows = ((wall.name, units.share(wall.share), wall.because) for wall in found.walls)
    says = binds(found.binding) if found.binding else "nothing binds: balanced"
    grid = table(rows, "wall", *numbers("of the step"), "because")
    return Section("Walls, by what each would cost", (says,), grid)


def _lags(found: Plan) -> Iterator[Section]:
    best, bound = found.best, found.parts.lag_bound
    if not best.lag_shares or set(best.lag_shares) == {0}:
        return
    rows = ((str(lag), units.share(part), bar(part, _BAR)) for lag, part in best.lag_shares.items())
    lines = [
        f"mean {best.mean_lag:.1f} policy versions, from the first token to the update; planned "
        f"with a bound of {bound:g} on what is begun, of the {found.spec.lag_bound:g} allowed"
    ]
    if bound < found.spec.lag_bound:
        lines.append("that keeps the engines full: what is begun beyond only grows old")
    grid = table(rows, *numbers("versions", "of the groups"), "")
    yield Section("Lag to expect", tuple(lines), grid)


def _first(one: First | None) -> Iterator[str]:
    if one is None:
        return
    gain = ""
    if one.prediction is not None:
        gain = f": {gain_words(one.prediction.goodput_gain)} tokens a device-second"
    lever = f" ({one.lever})" if one.lever else ""
    yield f"first, against {one.wall}: {one.move}{lever}{gain}"
    yield f"    {one.risk}"


def _framework(advice: Advice) -> Iterator[Section]:
    choice, one = advice.choice, advice.choice.framework
    lines = (
        f"{one.name}: {one.says}",
        *(f"    {reason}" for reason in choice.reasons),
        f"rltrace traces it: adapter {one.adapter} (docs/frameworks.md)",
    )
    yield Section("Framework", lines, notes=(one.source,))
    options = []
    for option in advice.launch:
        value = str(option.value).lower() if isinstance(option.value, bool) else option.value
        why = f"{'an example: ' * option.example}{option.reason}"
        options.append(f"{option.option}={value}    # {why}")
    notes = ("an example is that of rltrace's settings, which no plan can tell: look at it first",)
    yield Section(f"Launch {one.name} with", tuple(options), notes=notes)


def _devices(row: Row) -> str:
    if "shared" in row.devices:
        return f"{row.devices['shared']} shared"
    return " + ".join(f"{count} {pool}" for pool, count in row.devices.items())


def swept(points: Sequence[Point], what: str) -> Section:
    """A sweep as a table: value, best placement, what binds, or why there is none."""
    rates = [point.row.useful_tokens_per_device_s for point in points if point.row is not None]
    rows: list[tuple[str, ...]] = []
    for point in points:
        row = point.row
        if row is None:
            rows.append((f"{point.value:g}", point.refused, "", "", "", "", "", ""))
            continue
        drawn = bar(row.useful_tokens_per_device_s / max(rates), _BAR)
        rows.append((f"{point.value:g}", *_placed(row), drawn, point.wall))
    title = f"{what} from {points[0].value:g} to {points[-1].value:g}"
    placed = ("best placement", Column("GPUs", least_width=90))
    last = (Column("", least_width=120), Column("binds", least_width=80))
    figures = numbers("step", "tokens/GPU-s", "tokens/$")
    grid = table(rows, *numbers(what), *placed, *figures, *last)
    return Section(title, (), grid)


def triaged(found: Triage, fix: First | None) -> Section:
    rows = (
        (
            f"> {step.placement}" if step.placement == found.stated.placement else step.placement,
            *map(units.seconds, (step.actors_s, step.learner_s, step.sync_s, step.step_s)),
        )
        for step in found.steps
    )
    costs = ", ".join(f"{wall.name} {units.share(wall.share)}" for wall in found.walls)
    says = binds(found.binding) if found.binding else "nothing binds"
    lines = (f"{says}: {costs}", *_first(fix))
    notes = (
        "colocated is the sum, the others the longer chain and exposed weights, each stage on as "
        "many devices as it has now: at equal devices in all, that alone gains nothing",
    )
    grid = table(rows, "placement", *numbers("actors", "learner", "weights", "step"))
    return Section("Triage", lines, grid, notes)
