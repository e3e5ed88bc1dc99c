"""One thing that is wrong with a run, and what looks for it.

An alarm is a function of the analysis that yields `grave` or `note`, under `@alarm` in a module of
this folder; or an entry of alarms.toml, a query that counts.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltrace.trace import vocabulary
from rltrace.trace.read.trajectory_lifecycle import DECIDED_SAMPLES, TRAINED_SAMPLES
from rltrace.trace.untrusted_files import packaged_toml

if TYPE_CHECKING:
    from rltrace.analysis.run_analysis import RunAnalysis

ALARM = "alarm"
NOTE = "note"

CRASH = "crash"  # kind of the alarm that says how a job ended that did not end by itself
STALL_TIMES = 3.0  # a step that takes this many times the usual one stalled, unless both are short
LOST_SHARE = 0.1  # what cost less of the run is a note
NAMED = 5  # steps that a sentence names
HALF = 0.5


@dataclass(frozen=True)
class Said:
    """What is wrong: how grave it is, in a sentence, and whether the run is judged all the same."""

    severity: str
    says: str
    judged_anyway: bool = False


@dataclass(frozen=True)
class Alarm(Said):
    """The same with its kind, which `short` has in a few words."""

    kind: str = ""
    short: str = ""

    @property
    def forbids(self) -> bool:
        return self.severity == ALARM and not self.judged_anyway


def grave(says: str, judged_anyway: bool = False) -> Said:
    return Said(ALARM, says, judged_anyway)


def note(says: str) -> Said:
    return Said(NOTE, says)


Check = Callable[["RunAnalysis"], Iterable[Said]]
_CHECKS: list[tuple[str, str, Check]] = []


def alarm(kind: str, short: str) -> Callable[[Check], Check]:
    """Makes a function look for alarms of this kind, `short` in a few words."""

    def kept(check: Check) -> Check:
        _CHECKS.append((kind, short, check))
        return check

    return kept


def _counting(one: Mapping[str, Any]) -> Check:
    """What looks for an alarm of alarms.toml, which explains it."""
    tables = {"decided": DECIDED_SAMPLES, "trained": TRAINED_SAMPLES}
    query = one["query"].format(**vars(vocabulary), **tables)

    def count(analysis: RunAnalysis) -> Iterator[Said]:
        n, of = analysis.run.ask(query)[0]
        if n and of and n > one.get("above", 0.0) * of:
            says = one["says"].format(n=n, of=of, share=n / of)
            yield Said(one.get("severity", ALARM), says, one.get("judged_anyway", False))

    return count


@dataclass(frozen=True)
class Health:
    """What is wrong, the gravest first. A note never `forbids` advice on tuning."""

    alarms: tuple[Alarm, ...]

    @property
    def forbids(self) -> tuple[str, ...]:
        return tuple(alarm.says for alarm in self.alarms if alarm.forbids)

    @property
    def ok(self) -> bool:
        return not self.forbids


def health_of(analysis: RunAnalysis) -> Health:
    found = [
        Alarm(said.severity, said.says, said.judged_anyway, kind, short)
        for kind, short, check in _checks()
        for said in check(analysis)
    ]
    return Health(tuple(sorted(found, key=lambda one: one.severity != ALARM)))


@cache
def _checks() -> list[tuple[str, str, Check]]:
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        import_module(f"{__package__}.{module.name}")
    told = packaged_toml("analysis/data/alarms.toml")["alarm"]
    return [*_CHECKS, *((one["kind"], one["short"], _counting(one)) for one in told)]
