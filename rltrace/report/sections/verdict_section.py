"""The walls, the fixes and hooks to type, in words and tables."""

from __future__ import annotations

import ast
import difflib
import math
import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from rltrace.analysis.alarms.alarm import Health
from rltrace.analysis.fixes.fixes import Fix
from rltrace.analysis.stats.confidence_interval import Estimate
from rltrace.analysis.summary import Summary, Verdict
from rltrace.analysis.walls.learner import IN_PHASE, UPDATE, UPDATE_BYTES
from rltrace.analysis.walls.rank import NO_STAGE
from rltrace.analysis.walls.wall import HOW_SURE, LIKELY, WEIGHTS, Figure, Wall, stages_of
from rltrace.report import units
from rltrace.report.layout import Section, TableColumn, listed, lowered, numbers, raised, table
from rltrace.trace.errors import RltraceError
from rltrace.trace.metadata_validation import read_run_json
from rltrace.trace.run_dir import RUNS_FOLDER
from rltrace.trace.safe_text import visible

_MOST_FIGURES = 4
_WALLS, _FIXES = "Walls", "Fixes"
_MATTERS = 0.05
_MUCH = 0.2  # of the goodput: a wall that costs this is none to live with
_MANY_UNKNOWN = 5  # walls: then they are named and no more
_WOULD_TELL = "What would tell each: `rltrace report --json`."


def walls_section(verdict: Verdict) -> Section:
    unknown = [wall for wall in verdict.walls if not wall.cost.known]
    are_many = len(unknown) >= _MANY_UNKNOWN
    shown = [wall for wall in verdict.walls if not (are_many and wall in unknown)]
    if not verdict.walls:
        return Section(_WALLS, (f"None: {verdict.because}.",))
    if not shown:
        return Section(_WALLS, (f"None can be told: {verdict.because}. {_WOULD_TELL}",))
    rows = []
    for wall in shown:
        cost = wall.cost
        known = cost.known and not math.isnan(cost.low)
        interval = f"{units.share(cost.low)} to {units.share(cost.high)}" if known else ""
        share = units.share(cost.share) if cost.known else units.UNKNOWN
        rows.append((wall.name, share, interval, HOW_SURE[wall.confidence]))
    grid = table(rows, "wall", *numbers("costs", "95 % CI"), "how sure")
    return Section(_WALLS, (), grid, (*_evidence(verdict), *_unknown(unknown)))


def _evidence(verdict: Verdict) -> Iterator[str]:
    """What the cost of each wall that matters is, and the figures that go with it."""
    for wall in verdict.walls:
        if wall in verdict.binding or (wall.cost.known and wall.cost.share >= _MATTERS):
            telling = sorted(wall.evidence, key=lambda one: not one.value)  # nothing comes last
            said = "; ".join(figure_words(one) for one in telling[:_MOST_FIGURES])
            yield f"{wall.name}: {wall.because}." + f" {raised(said)}." * bool(said)


def figure_words(one: Figure) -> str:
    """`exposed rollout 1.78 s a step`."""
    if one.unit == "share":
        return f"{one.name} {units.share(one.value)}"
    if one.unit.startswith("bytes"):
        return f"{one.name} {units.size(one.value)}{one.unit[5:]}"
    if one.unit == "s" or one.unit.startswith("s "):
        return f"{one.name} {units.seconds(one.value)}{one.unit[1:]}"
    return f"{one.name} {units.number(one.value)} {one.unit}".rstrip()


def _unknown(unknown: Sequence[Wall]) -> Iterator[str]:
    if len(unknown) >= _MANY_UNKNOWN:
        yield f"Cannot be told: {listed([wall.name for wall in unknown])}. {_WOULD_TELL}"
        return
    for wall in unknown:
        if wall.missing:
            yield f"{wall.name}: {wall.because}. What would tell: {'; '.join(wall.missing)}."


def run_word(summary: Summary) -> str:
    """The run as a command takes it here: its name, or the path by which it was asked for."""
    path = min(summary.run.path, os.path.relpath(summary.run.path), key=len)
    here = os.path.dirname(path) == RUNS_FOLDER
    return shlex.quote(visible(os.path.basename(path) if here else path))


def tried_run(summary: Summary) -> str:
    """The same where `rltrace experiment` can try a fix: a log has no command to run again."""
    return "" if summary.run.imported else run_word(summary)


def fixes_section(verdict: Verdict, run: str = "") -> Section | None:
    """What to change, best first; None where nothing binds or nobody can tell. `run` is the run as
    a command takes it, empty where its job cannot be run again."""
    if verdict.alarms:
        return Section(_FIXES, ("No advice before what is wrong is mended.",))
    why_none = why_no_fix(verdict)
    if not (verdict.fixes or verdict.no_gain or verdict.not_worth_it or why_none):
        return None
    lines = []
    if verdict.do_nothing:
        none = f"no known move against {against(verdict)} is predicted to gain"
        said = f"{nothing_to_do(verdict).capitalize()}: {none}."
        lines.append(f"{said} `rltrace whatif` tries every lever.")
    if why_none:
        lines.append(f"{raised(why_none)}.")
    rows = [
        (f"{number}. {fix.sized}", setting_words(fix), gain_words(fix.goodput_gain))
        for number, fix in enumerate(verdict.fixes, 1)
    ]
    grid = table(rows, "fix", TableColumn("setting", copied=True), *numbers("goodput per device"))
    return Section(_FIXES, tuple(lines), grid, tuple(_fix_notes(verdict, run)))


def against(verdict: Verdict) -> str:
    return listed([wall.name for wall in verdict.binding])


def setting_words(fix: Fix) -> str:
    """`--reward-workers 4` and what has to be set with it, as the framework takes them; or else
    the program that the move takes; a dash where no option makes it."""
    program = f"another program: {fix.program}" if fix.program else ""
    return ", or ".join(filter(None, (fix.printed, program))) or units.UNKNOWN


def gain_words(gain: Estimate | None) -> str:
    """`+33 % (+22 to +42)`; a dash where nothing predicts it."""
    if gain is None:
        return "no number"
    low, middle, high = (round(100 * (x - 1)) for x in (gain.low, gain.value, gain.high))
    return f"{middle:+d} % ({low:+d} to {high:+d})" if low != high else f"{middle:+d} %"


def _fix_notes(verdict: Verdict, run: str) -> Iterator[str]:
    yield from gains_nothing(verdict)
    if not verdict.fixes:
        return
    if verdict.unpredicted:
        yield f"Gains {verdict.unpredicted}."
    else:
        can_try = bool(run) and any(fix.setting for fix in verdict.fixes)
        tries = f" `rltrace experiment {run} --fix N` tries the Nth." * can_try
        yield f"Each gain is for that fix alone. What surely gains by an option is first.{tries}"
    for number, fix in enumerate(verdict.fixes, 1):
        yield f"{number}. Risk: {lowered(fix.risk)} Watch {fix.watch}."


def gains_nothing(verdict: Verdict) -> Iterator[str]:
    if verdict.no_gain:
        yield f"No gain: {listed(verdict.no_gain)}."
    if verdict.not_worth_it:
        yield f"Costs more than it gains: {listed(verdict.not_worth_it)}."


def model_check(verdict: Verdict, step_s: float) -> str:
    """How far the replay of the run as it was misses it; empty where there was none."""
    return "" if verdict.unpredicted else replay_check(verdict.replay_error_share, step_s)


def replay_check(error: float, step_s: float) -> str:
    """How far a replay misses a step, by its share; empty where that is not known."""
    if math.isnan(error) or not step_s > 0:
        return ""
    played, measured = units.seconds(step_s * (1 + error)), units.seconds(step_s)
    return f"Model check, of the run as it was: a step takes {played}; measured {measured}."


def nothing_to_do(verdict: Verdict) -> str:
    """What to say where no move gains: a wall that costs little is no reason to do anything."""
    costs = any(wall.cost.share >= _MUCH for wall in verdict.binding)
    return "no fix is known" if costs else "do nothing"


def why_no_fix(verdict: Verdict) -> str:
    """Why no fix is named against a wall, and what to look at; empty where that needs no word."""
    if verdict.alarms or verdict.first is None or verdict.fixes:
        return ""
    weights = [wall for wall in verdict.binding if wall.name == WEIGHTS]
    if weights and not verdict.bytes_take_time:
        why = _beside_bytes(weights[0])
        return why if verdict.no_gain or verdict.not_worth_it else f"no fix is known: {why}"
    if verdict.no_gain or verdict.not_worth_it:
        return ""
    lacks = "has an option in this job or a predicted gain"
    return f"no fix is known: no move against {against(verdict)} {lacks}"


def _beside_bytes(wall: Wall) -> str:
    """Of updates whose bytes are no load to any link: where else their time may be."""
    found = {one.name: one.value for one in wall.evidence}
    took, size = units.seconds(found[UPDATE]), units.size(found[UPDATE_BYTES])
    rest = f"most of the {took} of an update is likely spent elsewhere"
    says = f"{size} are little for a link: {rest}"
    phases = [one for one in wall.evidence if one.name.startswith(IN_PHASE)]
    if phases:
        most = max(phases, key=lambda one: one.value)
        name = most.name.removeprefix(IN_PHASE)
        return f"{says}. Look at its longest phase, “{name}” ({units.seconds(most.value)})"
    which = "each part (gather, convert, wait for engines, load) to see which"
    return f"{says}. Put a span with a `phase` around {which}"


TYPE_THIS = "Type this: "


def sentences(summary: Summary) -> Iterator[str]:
    """Which wall binds, which is the headline, and what that means, in the order of reading."""
    found = summary.verdict
    if found.alarms:
        yield f"No advice: {what_is_wrong(summary.health)}. Mend that before anything is tuned."
    elif found.balanced:
        yield f"No wall: {found.because}."
    elif summary.run.no_rollout:
        most = sorted(summary.stages, key=lambda row: -row.share)[:_MOST_FIGURES]
        said = [f"{row.name} {units.share(row.share)}" for row in most if row.share >= _MATTERS]
        yield f"{raised(found.because)}. A step is {listed(said)}."
    elif found.first is None:
        lead = "Other work" if found.other_work else "The wall cannot be told"
        yield f"{lead}: {found.because}."
        if found.because == NO_STAGE and (command := suggested(summary.run.path)):
            yield f"{TYPE_THIS}{command}"
        elif found.would_tell:
            yield f"What would tell: {listed(found.would_tell)}."
    else:
        yield _walls(summary)
        yield f"{raised(found.first.symptom)}."
        others = [w for w in found.walls if w not in found.binding and w.cost.share >= _MATTERS]
        if others:
            behind = (f"{wall.name} ({_cost(wall)})" for wall in others[:2])
            yield f"Behind it: {listed([*behind])}."
        if found.may_cost_more:
            yield f"Cannot be told, and may cost more: {listed(found.may_cost_more)}."
        if why := why_no_fix(found):
            yield f"{raised(why)}."
        elif found.do_nothing:
            yield f"{nothing_to_do(found).capitalize()}: no known move is predicted to gain."


def what_is_wrong(health: Health) -> str:
    return listed(list(dict.fromkeys(one.short for one in health.alarms if one.forbids)))


def best_fix(found: Verdict) -> Fix | None:
    """The first of all, where it gains."""
    return next((fix for fix in found.fixes if fix.gains), None)


MAY_LOSE = " (may be slower)"


def try_words(gain: Estimate | None) -> str:
    """What may gain or lose is no first advice."""
    return f"Try{MAY_LOSE if gain and gain.may_lose else ' first'}"


def _walls(summary: Summary) -> str:
    found = summary.verdict
    first, *others = found.binding
    maybe = "" if found.confidence == LIKELY else "maybe "
    costs = _cost(first)
    low, high = f"{100 * first.cost.low:.0f}", f"{100 * first.cost.high:.0f}"
    if maybe and first.cost.half_width and low != high:
        costs = f"{costs}, {low} to {high}"
    walls = [f"{first.name} (without it: {costs})"]
    walls += [f"{wall.name} ({_cost(wall)})" for wall in others]
    text = f"Wall{'s' * bool(others)}, the bottleneck{'s' * bool(others)}: {maybe}{listed(walls)}."
    if others and summary.composition is not None and not summary.composition.beside:
        text += " They take turns."
    return text


def _cost(wall: Wall) -> str:
    share = wall.cost.share
    if stages_of(wall.name):
        return f"a step {units.share(share)} shorter"
    return f"goodput {units.ratio(1 / (1 - share))}" if share < 1 else "all of goodput"


# What a function's name says: of a stage the first one wins; a step has the others in it.
_SAYS = {
    "step": re.compile(r"(^|_)(step|iteration|epoch)(_|$)", re.I),
    "rollout": re.compile(r"generat|rollout|sampl|decod|collect|explor|act(_|$)", re.I),
    "reward": re.compile(r"reward|scor|judg|grad(e|ing)|verif|evaluat", re.I),
    "train": re.compile(r"train|updat|learn|optim|backward|fit(_|$)", re.I),
}
_MOST_BYTES = 1_000_000


def suggested(run_path: str) -> str:
    """`rltrace wrap --hook __main__:sample=rollout -- python train.py`, by the functions in the
    command's own file; empty where that is not here, or no name says a stage. Hooks of the user's
    own stay, with the name of a function that is nearly alike where the file has none of theirs."""
    try:
        told = read_run_json(run_path)
        command = [str(word) for word in told.get("command") or ()]
        cwd = Path(str(told.get("cwd") or "."))
        files = (cwd / word for word in command if word.endswith(".py"))
        script = next((path for path in files if path.is_file()), None)
        if script is None or script.stat().st_size > _MOST_BYTES:
            return ""
        called = dict(_functions(ast.parse(script.read_bytes())))
        asked = [str(one) for one in (told.get("settings") or {}).get("hooks") or ()]
    except (RltraceError, OSError, SyntaxError, ValueError, TypeError, RecursionError):
        return ""
    says = {
        name: {stage for stage, said in _SAYS.items() if said.search(name.rpartition(".")[2])}
        for name in called
    }
    inner = {name.rpartition(".")[2] for name, stages in says.items() if stages - {"step"}}
    for name, stages in says.items():  # `train_step` is a step where it calls the others
        if len(stages) > 1 and "step" in stages:
            says[name] = {"step"} if called[name] & inner - {name} else stages - {"step"}
    hooks = [_mended(hook, called) for hook in asked]
    hooked = {word for hook in hooks for word in hook.removeprefix("__main__:").split("=")}
    for stage in (one for one in _SAYS if one not in hooked):
        names = (name for name, stages in says.items() if stage in stages and name not in hooked)
        if first := next(names, ""):
            hooked.add(first)
            hooks.append(f"__main__:{first}={stage}")
    if hooks == asked:
        return ""
    named = " ".join(f"--hook {shlex.quote(visible(hook))}" for hook in hooks)
    return f"rltrace wrap {named} -- {visible(shlex.join(command))}"


def _mended(hook: str, called: Collection[str]) -> str:
    module, _, name = hook.partition("=")[0].partition(":")
    alike = difflib.get_close_matches(name, called, 1) if module == "__main__" else []
    return hook.replace(f":{name}", f":{alike[0]}", 1) if alike else hook


def _functions(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """Functions of a module, then methods of its classes, as a hook names them; what each calls."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for body, of in ((tree.body, ""), *((one.body, f"{one.name}.") for one in classes)):
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                calls = (one.func for one in ast.walk(node) if isinstance(one, ast.Call))
                called = {ast.unparse(one).rpartition(".")[2] for one in calls}
                yield f"{of}{node.name}", called
