"""The verdict in sentences: the wall, what it looks like, what is behind it."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from rltrace.analysis.alarms.alarm import Health
from rltrace.analysis.fixes import Fix
from rltrace.analysis.summary import Summary
from rltrace.analysis.verdict import Verdict
from rltrace.analysis.walls.registry import stages_of
from rltrace.analysis.walls.wall import LIKELY, Wall
from rltrace.report import units
from rltrace.report.layout import listed, raised
from rltrace.report.walls_section import nothing_to_do, why_no_fix
from rltrace.trace.errors import RltraceError
from rltrace.trace.printable import visible
from rltrace.trace.run_dir import read_run_json

_MATTERS = 0.05  # of the goodput
TYPE_THIS = "Type this: "


def headline(summary: Summary) -> str:
    """The first of `sentences`, which is the answer."""
    return next(sentences(summary))


def evidence(summary: Summary) -> Iterator[str]:
    """The other sentences."""
    _, *others = sentences(summary)
    yield from others


def sentences(summary: Summary) -> Iterator[str]:
    """Which wall binds, and what that means, in the order in which it is read."""
    found = summary.verdict
    if found.alarms:
        yield f"No advice: {what_is_wrong(summary.health)}. Mend that before anything is tuned."
    elif found.balanced:
        yield f"No wall: {found.because}."
    elif found.first is None:
        yield f"The wall cannot be told: {found.because}."
        command = "" if summary.stages else suggested(summary.run.path)
        if command:
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
    """The alarms that forbid advice, in a few words."""
    return listed(list(dict.fromkeys(one.short for one in health.alarms if one.forbids)))


def best_fix(found: Verdict) -> Fix | None:
    """The best fix, of those that can be set here if any can."""
    gain = [fix for fix in found.fixes if fix.gains and fix.worth > 0]
    return next(iter([*(fix for fix in gain if fix.setting), *gain]), None)


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
    """What a step, or goodput, would be without it."""
    share = wall.cost.share
    if stages_of(wall.name):
        return f"a step {units.share(share)} shorter"
    return f"goodput {units.ratio(1 / (1 - share))}" if share < 1 else "all of goodput"


# --- Hooks to type for a job that was not recognised, with the names in its own main file.

# The first name of a stage wins that says it; a step is what has the others in it.
_SAYS = {
    "step": re.compile(r"(^|_)(step|iteration|epoch)(_|$)", re.I),
    "rollout": re.compile(r"generat|rollout|sampl|decod|collect|explor|act(_|$)", re.I),
    "reward": re.compile(r"reward|scor|judg|grad(e|ing)|verif|evaluat", re.I),
    "train": re.compile(r"train|updat|learn|optim|backward|fit(_|$)", re.I),
}
_MOST_BYTES = 1_000_000


def suggested(run_path: str) -> str:
    """`rltrace wrap --hook __main__:sample=rollout -- python train.py` by what functions of the
    command's own file are called; empty where that file is not here, or none is called so."""
    try:
        told = read_run_json(run_path)
        command = [str(word) for word in told.get("command") or ()]
        script = _script(command, Path(str(told.get("cwd") or ".")))
        if script is None or script.stat().st_size > _MOST_BYTES:
            return ""
        called = dict(_functions(ast.parse(script.read_bytes())))
    except (RltraceError, OSError, SyntaxError, ValueError, RecursionError):
        return ""
    says = {name: _says(name) for name in called}
    inner = {name.rpartition(".")[2] for name, stages in says.items() if stages - {"step"}}
    for name, stages in says.items():  # `train_step` is a step where it calls the others
        if len(stages) > 1 and "step" in stages:
            says[name] = {"step"} if called[name] & inner - {name} else stages - {"step"}
    hooks = []
    for stage in _SAYS:
        if first := next((name for name, stages in says.items() if stage in stages), ""):
            del says[first]
            hooks.append(f"--hook __main__:{visible(first)}={stage}")
    if not hooks:
        return ""
    return f"rltrace wrap {' '.join(hooks)} -- {visible(shlex.join(command))}"


def _says(name: str) -> set[str]:
    """The stages that a function's name says."""
    return {stage for stage, word in _SAYS.items() if word.search(name.rpartition(".")[2])}


def _script(command: list[str], cwd: Path) -> Path | None:
    """The Python file that the command runs."""
    found = (cwd / word for word in command if word.endswith(".py"))
    return next((path for path in found if path.is_file()), None)


def _functions(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """Functions of a module, and then methods of its classes, as a hook names them, and the names
    that each calls."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for body, of in ((tree.body, ""), *((one.body, f"{one.name}.") for one in classes)):
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                calls = (one.func for one in ast.walk(node) if isinstance(one, ast.Call))
                called = {ast.unparse(one).rpartition(".")[2] for one in calls}
                yield f"{of}{node.name}", called
