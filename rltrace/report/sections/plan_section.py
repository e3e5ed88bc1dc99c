"""Plans, sweeps and triage in words and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rltrace.analysis.fixes.options import printed
from rltrace.analysis.plan.frameworks import Advice
from rltrace.analysis.plan.plan import Plan, PlanRow, Point
from rltrace.analysis.plan.triage import First, Triage
from rltrace.report import units
from rltrace.report.layout import Section, TableColumn, bar, labelled, numbers, table
from rltrace.report.sections.verdict_section import gain_words, try_words
from rltrace.report.sections.whatif_section import wall_line
from rltrace.trace.vocabulary import Stage, word

_BAR = 24
_SLIGHT = 0.005  # of the step: what takes less has no line of its own
_MORE = "More: rltrace plan ... --full (arithmetic, settings to launch it) · --json"


def sections(found: Plan, advice: Advice, full: bool = False) -> Iterator[Section]:
    """The design and what it rests on; `full`: with the arithmetic and settings to launch it."""
    yield _answer(found, advice)
    yield _stages(found, full)
    yield _placements(found)
    yield _memory(found, full)
    if full:
        walls = ((wall.name, units.share(wall.share)) for wall in found.walls)
        grid = table(walls, "wall", *numbers("of the step"))
        yield Section("Walls: how much shorter a step would be without each", (), grid)
        yield _framework(advice)
        spec = found.spec
        sources = (f"shape: {spec.model.source}", f"price: {spec.priced}", *found.rests_on)
        yield Section("What this rests on", notes=sources)
    else:
        yield Section(_MORE)


def _answer(found: Plan, advice: Advice) -> Section:
    spec, best = found.spec, found.best
    model, of = spec.model, found.parts.rollout.lengths
    rate = f"{units.number(best.useful_tokens_per_device_s)} tokens/s per GPU"
    if not math.isnan(best.useful_tokens_per_usd):
        rate += f", {units.count(best.useful_tokens_per_usd)} tokens per US$"
    ends = units.between(units.seconds(found.step_s.low), units.seconds(found.step_s.high))
    mixture = f", {model.active / 1e9:.4g}B active" if model.is_mixture else ""
    pools = {k: n for k, n in best.devices.items() if k == "shared"} or best.devices
    devices = " + ".join(f"{count} {pool}" for pool, count in pools.items())
    lines = [
        f"Design: {best.name} on {devices} GPUs, with {advice.choice.framework.name}.",
        f"A step takes {units.seconds(best.step_s)} ({ends}); {rate}.",
        wall_line(found.walls, found.binding),
        *_first(advice.first),
        *(f"Risk: {risk}." for risk in advice.risks),
        f"Planned for {model.name} ({model.parameters / 1e9:.4g}B{mixture}): "
        f"{spec.prompts:,} prompts × {spec.group} samples of {of.mean:,.0f} tokens a step (cap "
        f"{of.cap:,.0f}), lag up to {units.plural(round(spec.lag_bound), 'version')}.",
    ]
    if spec.assumed:
        lines.append(f"Assumed, as nothing says otherwise: {'; '.join(spec.assumed)}.")
    return Section(f"rltrace plan · {spec.name} on {spec.gpus} × {spec.gpu.name}", tuple(lines))


def _first(one: First | None) -> Iterator[str]:
    if one is not None:
        lever = f" ({one.lever})" if one.lever else ""
        found = one.prediction.goodput_gain if one.prediction else None
        gain = "" if found is None else f": goodput {gain_words(found)}"
        yield f"{try_words(found)}: {one.move}{lever}{gain}. {one.risk}"


def _stages(found: Plan, full: bool) -> Section:
    step_s = found.best.step_s
    shown = [cost for cost in found.stages if full or cost.tau_s >= _SLIGHT * step_s]
    longest = max(cost.tau_s for cost in shown)
    rows = []
    for cost in shown:
        name = cost.stage + ", each trajectory" * (cost.stage == word(Stage.ENV))
        devices = f"{cost.devices:g}" if cost.devices else ""
        drawn = bar(cost.tau_s / longest, _BAR)
        rows.append((name, drawn, units.seconds(cost.tau_s), devices))
    grid = table(rows, "stage", "", *numbers("time", "GPUs"))
    told = found.stages if full else ()
    notes = (f"{labelled(cost.stage, cost.symbol)}: {'; '.join(cost.lines)}." for cost in told)
    turns = found.parts.shared or found.best.name == "disaggregated"
    how = "stages take turns" if turns else "rollout and training overlap"
    title = f"Where a step of {units.seconds(step_s)} goes ({how})"
    return Section(title, (), grid, tuple(notes))


def _memory(found: Plan, full: bool) -> Section:
    lines = []
    for use in found.memory:
        parts = " + ".join(f"{name} {units.size(size)}" for name, size in use.used_bytes.items())
        note = f"; {use.note}" * full
        lines.append(f"{use.where}: {parts} of {units.size(use.usable_bytes)}{note}.")
    return Section("Memory of each GPU", tuple(lines))


def _placements(found: Plan) -> Section:
    rows = (_placement(row, row.name == found.best.name) for row in found.rows)
    columns = ("step", "tokens/s/GPU", "tokens/$", ("learner waits", 90), "mean lag")
    grid = table(rows, "placement", "GPUs", *numbers(*columns))
    notes = [f"{row.name} does not fit: {row.refused}." for row in found.rows if row.refused]
    if not all(row.allowed for row in found.rows):
        notes.append("(in brackets): not what --staleness or --split allows.")
    notes.append(f"Price: {found.spec.priced.partition(' (')[0]}.")
    return Section("Placements on the same GPUs", (), grid, tuple(notes))


def _placement(row: PlanRow, best: bool) -> tuple[str, ...]:
    name = f"> {row.name}" if best else row.name if row.allowed else f"({row.name})"
    if row.refused:
        return (name, "does not fit", *[units.UNKNOWN] * 5)
    waits = units.UNKNOWN if "shared" in row.devices else units.share(row.learner_waits_share)
    return (name, *_placed(row)[1:], waits, f"{row.mean_lag:.1f}")


def _placed(row: PlanRow) -> tuple[str, ...]:
    rates = units.number(row.useful_tokens_per_device_s), units.count(row.useful_tokens_per_usd)
    counts = " + ".join(map(str, row.devices.values()))
    return (row.name, counts, units.seconds(row.step_s), *rates)


def _framework(advice: Advice) -> Section:
    choice, one = advice.choice, advice.choice.framework
    options = []
    for option in advice.launch:
        why = f"{'an example: ' * option.example}{option.reason}"
        options.append(f"{printed(one.adapter, {option.option: option.value})}    # {why}")
    notes = (
        f"{one.name}: {one.says}; {'; '.join(choice.reasons)} ({one.source}).",
        "The plan cannot choose a value marked as an example: check it before the launch.",
    )
    return Section(f"Launch with {one.name}", tuple(options), notes=notes)


def swept(points: Sequence[Point], what: str) -> Section:
    """A sweep as a table: value, best placement and its wall; below it why a value has none."""
    placed = [(point, point.row) for point in points if point.row is not None]
    rates = [row.useful_tokens_per_device_s for _, row in placed]
    rows = ((units.count(point.value), *_placed(row), point.wall) for point, row in placed)
    first, last = (units.count(point.value) for point in (points[0], points[-1]))
    title = f"{what} from {first} to {last}"
    if rates:
        best, row = placed[rates.index(max(rates))]
        title += f": most tokens per GPU at {units.count(best.value)} ({row.name})"
    columns = ("best placement", TableColumn("GPUs", least_width=90))
    figures = numbers("step", "tokens/s/GPU", "tokens/$")
    grid = table(rows, *numbers(what), *columns, *figures, "wall")
    notes = (f"{units.count(one.value)}: {one.refused}." for one in points if one.row is None)
    return Section(title, (), grid, tuple(notes))


def triaged(found: Triage) -> Section:
    rows = []
    for step in found.steps:
        name = "> " * (step.placement == found.stated.placement) + step.placement
        gain = "" if step.goodput_gain is None else gain_words(step.goodput_gain)
        rows.append((name, units.seconds(step.step_s), gain))
    rest = [wall for wall in found.walls if wall.name not in found.binding and wall.share > 0]
    others = [f"{wall.name} {units.share(wall.share)}" for wall in rest]
    lines = [wall_line(found.walls, found.binding), *_first(found.first_fix)]
    if others:
        lines.append(f"Without each of the others a step is shorter by: {', '.join(others)}.")
    notes = ("step: if each stage keeps its devices; goodput: at as many devices as now.",)
    grid = table(rows, "placement", *numbers("step", "goodput per device"))
    return Section("rltrace triage", tuple(lines), grid, notes)
