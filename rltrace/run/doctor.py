"""`rltrace doctor`: what can be seen here, and what is wrong.

Whether a hook's target exists is told from source files: nothing of a framework is imported.
"""

from __future__ import annotations

import ast
import mmap
import os
import shutil
import site
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltrace import __version__
from rltrace.adapters import find_adapters
from rltrace.hooks.hook import Adapter
from rltrace.hooks.patch.install import spec_of
from rltrace.hooks.patch.main_module import assigned, statements
from rltrace.report import units
from rltrace.report.layout import Section, brief, table
from rltrace.report.notebook import open_run
from rltrace.report.run_contents import HARMLESS
from rltrace.run.node.nvml import NoGpu, NvmlDevices
from rltrace.run.run_folders import ONLY_ON, WHY_ONLY
from rltrace.trace.clock import node_id
from rltrace.trace.read.framework_figure import satisfies
from rltrace.trace.safe_text import visible
from rltrace.trace.schema import TABLES

if TYPE_CHECKING:
    from rltrace.trace.read.run import OpenedRun

_TOLD = ("target", "name", "stage", "detail")
_LITTLE_SPACE_BYTES = 1 << 30
_LONGEST = 300  # characters of a problem that are shown
_MOST = 8  # problems that are shown

YES, NO, UNKNOWN = "yes", "no", "cannot tell"
"""Whether a hook finds its target in what is installed."""
_DEEPEST = 8  # modules that a name is followed through


@dataclass(frozen=True)
class Check:
    """`ok` is `None` for a plain fact, neither good nor bad."""

    name: str
    ok: bool | None
    detail: str


@dataclass(frozen=True)
class HookCheck:
    """Whether a hook finds its target: `found` is `YES`, `NO` or `UNKNOWN`."""

    target: str
    stage: str
    found: str


@dataclass(frozen=True)
class AdapterCheck:
    """`installed` is the framework's version, `None` when it is not here."""

    framework: str
    adapter: str
    installed: str | None
    fits: bool
    hooks: tuple[HookCheck, ...]
    detail: str = ""

    @property
    def stages(self) -> tuple[str, ...]:
        seen = ", ".join(hook.stage for hook in self.hooks if hook.found != NO and hook.stage)
        return tuple(dict.fromkeys(seen.split(", "))) if seen else ()

    @property
    def lacking(self) -> tuple[HookCheck, ...]:
        return tuple(hook for hook in self.hooks if hook.found == NO)


@dataclass(frozen=True)
class DoctorReport:
    """`problems` are those of the run that was named: of its recording, and of its job; `notes` is
    what its report notes of how it went, which is none."""

    checks: tuple[Check, ...]
    adapters: tuple[AdapterCheck, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether a job would be traced as it should be here, and nothing is wrong with the run."""
        return not any(_wrong(self))


def examine(run: Path | None = None) -> DoctorReport:
    """Looks at this machine, what is installed, and a run. Errors: `RltraceError`: no such run."""
    from rltrace.analysis.alarms.alarm import ALARM
    from rltrace.analysis.run_analysis import RunAnalysis
    from rltrace.trace.read.run_losses import unreadable

    distributions = packages_distributions()
    adapters = tuple(_adapter(*each, distributions) for each in sorted(find_adapters().items()))
    checks = tuple(_machine())
    if run is None:
        return DoctorReport(checks, adapters)
    opened = open_run(run)
    problems = [*_of_recording(opened)]
    notes: list[str] = []
    if (why := unreadable(opened)) is not None:
        problems.append(why)
    else:
        of_job = RunAnalysis(opened).health.alarms  # what went wrong with the job itself
        for one in of_job:
            (problems if one.severity == ALARM else notes).append(one.says)
        if not of_job and not problems:
            notes.append(f"{run}: nothing is wrong with its recording or its job")
    return DoctorReport(checks, adapters, tuple(dict.fromkeys(problems)), tuple(notes))


def _machine() -> Iterator[Check]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Check("rltrace", None, f"{__version__}, Python {python}, node {node_id()}")
    yield _recording(Path.cwd())
    free = shutil.disk_usage(Path.cwd()).free
    roomy = free > _LITTLE_SPACE_BYTES
    advice = "" if roomy else ": free some, or record elsewhere with `rltrace wrap --out`"
    yield Check("disk", roomy, f"{free / 1e9:.1f} GB free in {Path.cwd()}{advice}")
    if any(Path(folder, "rltrace.pth").exists() for folder in site.getsitepackages()):
        said = "PYTHONPATH and the wheel's .pth file: python -I and -E are traced, too"
        yield Check("carriers", True, said)
    else:
        said = "PYTHONPATH only: python -I and -E are not traced (install the wheel for that)"
        yield Check("carriers", None, said)
    try:
        names = NvmlDevices().names()
        yield Check("GPU", True, f"{len(names)} × {', '.join(sorted(set(names)))}")
    except NoGpu as error:
        yield Check("GPU", None, f"cannot be read: {error}")
    try:
        yield Check("Ray", None, version("ray"))
    except PackageNotFoundError:
        yield Check("Ray", None, "not installed here")


def _recording(folder: Path) -> Check:
    """Does what a segment does: make a file, allocate it, map it, store into it."""
    if sys.platform != ONLY_ON:
        return Check("recording", False, WHY_ONLY)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"recorded")
            file.flush()
            try:
                os.posix_fallocate(file.fileno(), 0, mmap.PAGESIZE)
                with mmap.mmap(file.fileno(), mmap.PAGESIZE) as mapped:
                    mapped[:8] = b"recorded"
            except OSError as error:
                why = error.strerror or type(error).__name__
                said = f"{folder} cannot be mapped ({why}): rows are written instead, slower"
                return Check("recording", None, said)
    except OSError as error:
        said = f"{folder} cannot be written to ({error.strerror}): give wrap an --out elsewhere"
        return Check("recording", False, said)
    return Check("recording", True, f"files can be mapped in {folder}")


def _adapter(framework: str, target: str, distributions: Any) -> AdapterCheck:
    installed = _installed(framework, distributions)
    module, _, name = target.partition(":")
    try:
        adapter: Adapter = getattr(import_module(module), name)()
    except Exception as error:
        said = f"the adapter cannot be loaded: {type(error).__name__}: {error}"
        return AdapterCheck(framework, target, installed, False, (), said)
    if installed is None:
        return AdapterCheck(framework, target, None, True, ())
    fits = satisfies(installed, adapter.versions)
    hooks = []
    for hook in (one for one in adapter.hooks if satisfies(installed, one.versions)):
        found = [resolves(module, name) for module, name in hook.targets]
        best = YES if YES in found else UNKNOWN if UNKNOWN in found or hook.optional else NO
        hooks.append(HookCheck(hook.target, hook.stage_word, best))
    return AdapterCheck(framework, target, installed, fits, tuple(hooks))


def _installed(framework: str, distributions: Any) -> str | None:
    package = framework.partition(".")[0]
    if spec_of(package) is None:
        return None
    for name in distributions.get(package, ()):
        with suppress(PackageNotFoundError):
            return version(name)
    return source_version(framework) or "unknown version"


def _of_recording(run: OpenedRun) -> Iterator[str]:
    from rltrace.analysis.figures.coverage import never_hooked

    for name in TABLES:
        run.rows(name)  # a file that is cut is found when it is read
    for problem in run.problems:
        if run.meta.get("imported") and "who" in problem:
            continue  # what the importer says of the log is no fault of the run
        what = str(problem.get("what", "unreadable"))
        if what not in HARMLESS:
            rest = [str(v) for k, v in problem.items() if k in _TOLD]
            yield " ".join([what.replace("-", " ") + ":", *rest])
    told = {problem.get("target") for problem in run.problems}
    for target in (one for one in never_hooked(run) if one not in told):
        yield f"never put in place: --hook {target}"


def to_json(findings: DoctorReport) -> dict[str, Any]:
    adapters = [{**asdict(adapter), "stages": adapter.stages} for adapter in findings.adapters]
    return {"healthy": findings.healthy, **asdict(findings), "adapters": adapters}


def sections(findings: DoctorReport) -> Iterator[Section]:
    wrong = [f"✗ {visible(text, _LONGEST)}" for text in _wrong(findings)]
    notes = [f"· {visible(note, _LONGEST)}" for note in findings.notes]
    title = units.plural(len(wrong), "problem") if wrong else "nothing is wrong"
    yield Section(f"rltrace doctor · {title}", (*brief(wrong, _MOST), *brief(notes, _MOST)))
    rows = [(one.name, visible(one.detail)) for one in findings.checks if one.ok is not False]
    here = [one for one in findings.adapters if one.installed is not None and not one.detail]
    for one in here:
        found = sum(hook.found != NO for hook in one.hooks)
        named = f"{one.installed}" + ("" if one.fits else " (an untested version)")
        stages = ", ".join(one.stages) or "none"
        fit = f"{found} of {len(one.hooks)} hooks fit; stages: {stages}"
        rows.append((one.framework, f"{named}, {fit}"))
    away = [one.framework for one in findings.adapters if one.installed is None]
    rows += [("not installed", ", ".join(away))] if away else []
    yield Section("What can be seen here", (), table(rows, "", ""))


def _wrong(findings: DoctorReport) -> Iterator[str]:
    yield from (f"{one.name}: {one.detail}" for one in findings.checks if one.ok is False)
    for adapter in (one for one in findings.adapters if one.installed is not None):
        name = f"{adapter.framework} {adapter.installed}"
        yield from [f"{name}: {adapter.detail}"] if adapter.detail else []
        for hook in adapter.lacking:
            yield (
                f"{name}: {hook.stage or 'readings'} cannot be seen, {hook.target} is not there; "
                f"hook your own: rltrace wrap --hook MODULE:NAME={hook.stage or 'STAGE'}"
            )
    yield from (f"run: {problem}" for problem in findings.problems)


def module_file(name: str) -> Path | None:
    """The source file of a module, if there is one."""
    spec = spec_of(name)
    origin = None if spec is None else spec.origin
    return Path(origin) if origin is not None and origin.endswith(".py") else None


def source_version(package: str) -> str | None:
    """The constant `__version__` of a package's source, if it has one."""
    tree = _parse(package.partition(".")[0])
    for statement in tree.body if tree is not None else ():
        value = getattr(statement, "value", None)
        if "__version__" in assigned(statement) and isinstance(value, ast.Constant):
            return str(value.value)
    return None


def resolves(module: str, qualname: str) -> str:
    """`YES`, `NO`, or `UNKNOWN` (compiled code, names made at run time)."""
    if module_file(module) is None:
        return NO
    return _look_up(module, qualname.split("."), _DEEPEST)


def _look_up(module: str, path: list[str], depth: int) -> str:
    tree = _parse(module) if depth else None
    if tree is None:
        return UNKNOWN
    return _in_body(module, list(statements(tree.body)), path, depth)


def _in_body(module: str, body: list[ast.stmt], path: list[str], depth: int) -> str:
    name, rest = path[0], path[1:]
    for statement in reversed(body):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if statement.name == name:
                return NO if rest else YES
        elif isinstance(statement, ast.ClassDef) and statement.name == name:
            return _in_class(module, statement, body, rest, depth) if rest else YES
        elif isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    origin = _absolute(module, statement)
                    return _look_up(origin, [alias.name, *rest], depth - 1)
        elif name in assigned(statement):
            return UNKNOWN if rest else YES
    imported = (alias.name for s in body if isinstance(s, ast.ImportFrom) for alias in s.names)
    defined = (s.name for s in body if isinstance(s, ast.FunctionDef))
    return UNKNOWN if "*" in imported or "__getattr__" in defined else NO


def _in_class(
    module: str, cls: ast.ClassDef, around: list[ast.stmt], path: list[str], depth: int
) -> str:
    found = _in_body(module, list(statements(cls.body)), path, depth)
    if found != NO:
        return found
    for written in cls.bases:
        base = written.value if isinstance(written, ast.Subscript) else written
        if not isinstance(base, ast.Name):
            return UNKNOWN
        if base.id in ("object", "ABC", "Protocol", "Generic") or depth == 0:
            continue
        inherited = _in_body(module, around, [base.id, *path], depth - 1)
        if inherited != NO:
            return inherited
    return NO


def _absolute(module: str, statement: ast.ImportFrom) -> str:
    named = [statement.module] if statement.module else []
    if not statement.level:
        return ".".join(named)
    file = module_file(module)
    is_package = file is not None and file.name == "__init__.py"
    parts = module.split(".")
    return ".".join([*parts[: len(parts) - statement.level + is_package], *named])


def _parse(module: str) -> ast.Module | None:
    file = module_file(module)
    return None if file is None else _parsed(file)


@lru_cache(maxsize=256)
def _parsed(file: Path) -> ast.Module | None:
    with suppress(OSError, SyntaxError, ValueError):
        return ast.parse(file.read_bytes())
    return None
