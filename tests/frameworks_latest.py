"""The newest release of each framework, held to what rltrace knows of it: `make frameworks-latest`.

    python -m tests.frameworks_latest [--only PACKAGE ...] [--sources] [--json]

Hooks are looked for in its sources, and so are the options of settings: with `--sources` that is
all, a minute, and nothing is kept. Then it is installed from the package index into an environment
of its own, `.venvs/latest-NAME`, under the first Python here that it asks for, with no pin but
torch's (and OpenRLHF's own: see its pins), and its suite runs with QUICK=1. What is found is kept
in `tests/adapters/latest.json`, of which docs/reference/frameworks.md has a table. Exit code 1:
something broke, or could not be installed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidSdistFilename, InvalidWheelFilename
from packaging.utils import parse_sdist_filename as sdist
from packaging.utils import parse_wheel_filename as wheel
from packaging.version import InvalidVersion, Version

from rltrace.testing.inside.hooks import Adapter
from rltrace.testing.inside.trace import satisfies
from tests.adapters.record_options import known
from tests.adapters.settings import Setting, not_taken, settings_file
from tests.adapters.sources import OPENRLHF, TRL, VERL, Sources, Tree, parameters
from tests.adapters.symbols import reads
from tests.docs.frameworks import LATEST, adapters, latest_table, short
from tests.docs.frameworks import main as write
from tests.hooks.conftest import clean_environment
from tests.pythons import find_python

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.10", "3.14")
"""In the order in which they are tried."""
INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple")
SUITE_S = 3600
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
FIELD = (
    *("accelerate", "aiofiles", "aiohttp", "colorlog", "datasets", "einops", "fastapi", "flask"),
    *("hydra-core", "icmplib", "lark", "numba", "nvitop", "omegaconf", "openai", "peft", "Pebble"),
    *("pybase64", "ray", "sortedcontainers", "swanlab", "tabulate", "tenacity", "tensorboardX"),
    *("torchdata", "trackio", "uvicorn", "uvloop", "wandb"),
)
"""What the parts of AReaL and RLinf import that run here."""


@dataclass(frozen=True)
class Framework:
    """`package` is what it installs as, `beside` what is installed with it; `alone`: it is without
    what it asks for itself. `options` says where those of its settings are (`record_options`)."""

    name: str
    package: str
    suite: tuple[str, ...]
    beside: tuple[str, ...] = ()
    alone: bool = False
    pins: str = ""
    sources: Sources | None = None
    options: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()  # tests that hold pins, which are not used here
    compiled: str = ""  # code that compiles beforehand what a job would have to wait for
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return ROOT / ".venvs" / f"latest-{self.package.lower()}"

    @property
    def python(self) -> Path:
        return self.folder / "bin/python"

    def variables(self) -> dict[str, str]:
        """The environment of its programs."""
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        extensions = str(self.folder / "extensions")
        return {**self.environment, "TORCH_EXTENSIONS_DIR": extensions, "PATH": path}

    @property
    def adapter(self) -> type[Adapter] | None:
        return adapters().get(self.name)


CPU = {"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
DEEPSPEED = """
from deepspeed.accelerator import get_accelerator
for name in ("FusedAdam", "ShareMemComm"):
    get_accelerator().create_op_builder(f"{name}Builder").load()
"""
FRAMEWORKS = (
    Framework(
        "verl", "verl", ("tests/verl",), ("TransferQueue", "cachetools", "fastapi", "uvicorn"),
        sources=VERL,
        apart=("tests/verl/test_examples.py::test_the_extra_is_the_set_that_these_tests_run_on",),
    ),
    Framework(
        "OpenRLHF", "openrlhf", ("tests/openrlhf",), pins="pins/openrlhf.txt", sources=OPENRLHF,
        compiled=DEEPSPEED, environment=CPU,
    ),
    Framework(
        "TRL", "trl", ("tests/trl",), ("peft", "aiohttp", "requests", "tensorboard"), sources=TRL
    ),
    Framework(
        "AReaL", "areal", ("tests/parts/test_areal.py",), (*FIELD, "transformers<=5.3.0"),
        alone=True,
        options=("areal.api.cli_args:GRPOConfig",),
    ),
    Framework(
        "Agent Lightning", "agentlightning",
        ("tests/parts/test_agentlightning.py", "tests/parts/test_agentlightning_store.py"),
        ("openai", "aiohttp"),
        options=("agentlightning/verl/config.yaml",),
    ),
    Framework("TransferQueue", "TransferQueue", ("tests/parts/test_transfer_queue.py",)),
    Framework(
        "RLinf", "rlinf", ("tests/parts/test_rlinf.py",), (*FIELD, "transformers"), alone=True
    ),
    Framework("Monarch", "torchmonarch", ("tests/parts/test_monarch.py",)),
)  # fmt: skip


class NotInstalled(Exception):
    """Why a framework cannot be tried here."""


@dataclass(frozen=True)
class Release:
    version: Version
    day: str
    asks_for: SpecifierSet


def newest(package: str) -> Release:
    """The newest final release on the index that was not withdrawn. Errors: `NotInstalled`."""
    kind = {"Accept": "application/vnd.pypi.simple.v1+json"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{INDEX}/{package.lower()}/", headers=kind), timeout=60
        ) as answer:
            files = json.load(answer)["files"]
    except (OSError, ValueError, KeyError) as error:
        raise NotInstalled(f"the index does not tell its releases: {error}") from None
    found = []
    for file in files:
        version = version_of(file["filename"])
        if version is not None and not version.is_prerelease and not file.get("yanked"):
            asks_for = SpecifierSet(file.get("requires-python") or "")
            found.append(Release(version, str(file.get("upload-time", ""))[:10], asks_for))
    if not found:
        raise NotInstalled("the index has no release")
    return max(found, key=lambda one: one.version)


def version_of(filename: str) -> Version | None:
    try:
        return wheel(filename)[1] if filename.endswith(".whl") else sdist(filename)[1]
    except (InvalidSdistFilename, InvalidWheelFilename, InvalidVersion):
        return None


def ran(words: Sequence[str | Path], **environment: str) -> None:
    """Runs a program. Errors: `NotInstalled` with the last thing that it complained of."""
    done = subprocess.run(
        [*map(str, words)], cwd=ROOT, env=clean_environment(**environment), text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        errors = [line for line in lines if "error" in line.lower()]
        raise NotInstalled((errors or lines)[-1].strip()[:300])


def install(framework: Framework, release: Release, python: str) -> None:
    """Makes its environment, unless it is there already. Errors: `NotInstalled`."""
    done = framework.folder / f".{release.version}"
    if done.exists():
        return
    print(f"installing {framework.name} {release.version} ({python})", file=sys.stderr)
    program = find_python(python)
    ran([program or sys.executable, "-m", "venv", framework.folder])
    pins = (ROOT / "pins/dev.txt").read_text()
    torch = re.search(r"^torch==\S+", pins, re.M)
    assert torch is not None
    constraint = framework.folder / "torch.txt"
    constraint.write_text(torch[0])
    pip = [framework.python, *PIP]
    this = f"{framework.package}=={release.version}"
    if framework.pins:
        lines = (ROOT / framework.pins).read_text().splitlines()
        others = [line for line in lines if not line.lower().startswith(f"{framework.package}==")]
        listed = framework.folder / "pins.txt"
        listed.write_text("\n".join([*others, this]))
        alone = [*pip, "--no-deps"]
        ran([*alone, "--use-pep517", "--requirement", listed], **framework.environment)
        ran([*alone, "--editable", "."])
    else:
        own = [] if framework.alone else [this]
        ran([*pip, torch[0]])
        ran([*pip, "--constraint", constraint, *own, *framework.beside])
        if framework.alone:
            ran([*pip, "--no-deps", this])
        ran([*pip, "--constraint", constraint, "--editable", ".[sync]", "pytest"])
    if framework.compiled:
        ran([framework.python, "-c", framework.compiled], **framework.variables())
    done.touch()


def unpack(framework: Framework, version: str) -> None:
    """Unpacks the sources of a version, which are only read. Errors: `NotInstalled`."""
    target = framework.folder / "sources" / version
    if not target.exists():
        alone = ["--no-deps", "--no-compile", "--ignore-requires-python", "--target", target]
        ran([sys.executable, *PIP, *alone, f"{framework.package}=={version}"])


@dataclass
class Found:
    """What became of a framework's newest release on a day. Counts are (those that are there, all);
    of the suite: passed, failed, skipped. None: not looked for."""

    name: str
    day: str
    version: str = ""
    released: str = ""
    python: str = ""
    rows: tuple[int, int] | None = None
    options: tuple[int, int] | None = None
    suite: tuple[int, int, int] | None = None
    broke: list[str] = field(default_factory=list)


def try_out(framework: Framework, sources_only: bool = False) -> Found:
    found = Found(framework.name, time.strftime("%Y-%m-%d", time.gmtime()))
    try:
        release = newest(framework.package)
        found.version, found.released = str(release.version), release.day
        if framework.adapter is not None:
            unpack(framework, found.version)
            look_at_rows(framework, framework.adapter, found)
            look_at_options(framework, found)
        if sources_only:
            return found
        pythons = [one for one in PYTHONS if find_python(one) and f"{one}.0" in release.asks_for]
        if not pythons:
            raise NotInstalled(f"it asks for Python {release.asks_for}")
        found.python = pythons[0]
        install(framework, release, pythons[0])
        for version in framework.sources.known if framework.sources is not None else ():
            unpack(framework, version)
        run_suite(framework, found)
    except NotInstalled as error:
        found.broke.append(f"not installed: {error}")
    return found


def look_at_rows(framework: Framework, adapter: type[Adapter], found: Found) -> None:
    """Whether each function that is hooked in this version is there, with what its readers ask for
    (frameworks whose versions are unpacked here have tests of their own for that)."""
    tree = Tree(framework.folder / "sources" / found.version)
    if not satisfies(found.version, adapter.versions):
        found.broke.append(f"the adapter is for {adapter.versions}")
    package = adapter.framework.split(".")[0]
    own = [hook for hook in adapter.hooks if hook.target.split(".")[0] == package]
    hooks = [hook for hook in own if satisfies(found.version, hook.versions)]
    there = 0
    for hook in hooks:
        places = (tree.function(target) for target in (hook.target, *hook.alternates))
        function = next((place for place in places if place is not None), None)
        there += function is not None
        if function is None:
            found.broke.append(f"no {'(optional) ' * hook.optional}{short(hook)}")
        elif framework.sources is None:
            readers = (hook.before, hook.after, hook.stage)
            asked = set(chain.from_iterable(map(reads, readers)))
            lacks = asked - {*parameters(function)}
            found.broke += [f"{short(hook)} has no {', '.join(sorted(lacks))}"] if lacks else []
    found.rows = there, len(hooks)


def settings_of(framework: Framework, version: str) -> list[Setting]:
    """The settings that a version is said to have."""
    every = settings_file(framework.package)["setting"]
    return [one for one in every if satisfies(version, one["versions"])]


def look_at_options(framework: Framework, found: Found) -> None:
    """Whether the options that settings name are there (as above)."""
    options: dict[str, str] = {}
    for where in framework.options:
        options |= known(framework.folder / "sources" / found.version, where)
    if options:
        settings = settings_of(framework, found.version)
        lacking = not_taken(settings, found.version, lambda _: options)
        found.broke += [f"no option {one}" for one in lacking]
        found.options = len(settings) - len(lacking), len(settings)


def run_suite(framework: Framework, found: Found) -> None:
    paths, environment = [*framework.suite], {"QUICK": "1", **framework.variables()}
    if framework.sources is not None:
        paths += sorted(map(str, Path("tests/adapters").glob(f"test_{framework.package}_*.py")))
        own = f"RLTRACE_{framework.package.upper()}_SOURCES"
        environment |= {own: str(framework.folder / "sources")}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        pytest = [framework.python, "-m", "pytest", "-q", f"--junitxml={report}", *paths]
        pytest += [f"--deselect={test}" for test in framework.apart]
        late = ""
        with open(framework.folder / "suite.log", "w") as log:
            try:
                subprocess.run(
                    [*map(str, pytest)], cwd=ROOT, env=clean_environment(**environment),
                    stdout=log, stderr=log, timeout=SUITE_S, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                late = f"the suite takes more than {SUITE_S} s"
        if late or not report.exists():
            found.broke.append(late or f"the suite did not run: {framework.folder}/suite.log")
            return
        cases = list(ElementTree.parse(report).iter("testcase"))
    outcomes = [outcome_of(case) for case in cases]
    of_settings = [
        outcome
        for case, outcome in zip(cases, outcomes, strict=True)
        if str(case.get("classname")).endswith(f"{framework.package}_settings")
    ]
    if of_settings and "broke" not in of_settings:
        count = len(settings_of(framework, found.version))
        found.options = count, count
    found.suite = outcomes.count(""), outcomes.count("broke"), outcomes.count("skipped")
    reasons: dict[str, list[str]] = {}
    for case, outcome in zip(cases, outcomes, strict=True):
        if outcome == "broke":
            told = next(chain(case.iter("failure"), case.iter("error")))
            place = str(case.get("classname")).rpartition(".")[2]
            errors = re.findall(r"^E\s+(\w*(?:Error|Exception)\b.*)", told.text or "", re.M)
            why = (errors or str(told.get("message")).splitlines())[-1]
            reasons.setdefault(f"{place}: {why[:160]}", []).append(str(case.get("name")))
    for reason, tests in reasons.items():
        more = f" and {len(tests) - 1} more" if tests[1:] else ""
        found.broke.append(f"{tests[0]}{more} of {reason}")


def outcome_of(case: ElementTree.Element) -> str:
    kinds = {child.tag for child in case}
    return "broke" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [framework.name for framework in FRAMEWORKS]
    packages = [framework.package for framework in FRAMEWORKS]
    parser.add_argument("--only", action="append", choices=packages, metavar="PACKAGE")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--sources", action="store_true", help="install nothing, run no suite")
    asked = parser.parse_args()
    tried = [one for one in FRAMEWORKS if one.package in (asked.only or packages)]
    now = {}
    for framework in tried:
        now[framework.name] = asdict(try_out(framework, asked.sources))
        if asked.sources:
            continue
        kept = (json.loads(LATEST.read_text("utf-8")) if LATEST.exists() else {}) | now
        in_order = {name: kept[name] for name in names if name in kept}
        LATEST.write_text(json.dumps(in_order, indent=1) + "\n", "utf-8")
        write()
    print(json.dumps(now, indent=1) if asked.json else latest_table(now))
    return int(any(found["broke"] for found in now.values()))


if __name__ == "__main__":
    sys.exit(main())
