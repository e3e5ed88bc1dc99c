"""Every row of a table resolves in the versions that it names: module, function and arguments.

Held to recorded symbol lists, which `record_symbols` makes of source trees. `-v` prints the table:
one line a framework, version and hook.
"""

from __future__ import annotations

from typing import Any

import pytest

from rltrace.adapters import find_adapters
from rltrace.adapters.table import TableAdapter
from rltrace.adapters.table.logged import logged
from rltrace.adapters.table.weights import Sending
from rltrace.testing.inside.hooks import Adapter, Hook, Observer, stage_code
from rltrace.testing.inside.trace import satisfies
from tests.adapters.symbols import found_at, reads, symbols, versions
from tests.docs.frameworks import adapters

TABLES = [adapter for adapter in adapters().values() if issubclass(adapter, TableAdapter)]
"""Those of others are held to sources, or have the built-in trainer beside them."""
CODETIMING = "1.4.0"

each_table = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.framework)
each_adapter = pytest.mark.parametrize("adapter", adapters().values(), ids=adapters())

ABSENT = {
    # 0.8.0 and what came after call themselves the same, so no range can tell them apart.
    "prime_rl": {
        "prime_rl.orchestrator.utils:episode_staleness",
        "prime_rl.monitors:log",
        "prime_rl.utils.monitor.multi:MultiMonitor.log",
    },
    # So do versions of ROLL.
    "roll": {"roll.utils.tracking:TrackioTracker.log"},
}
"""Optional hooks that some version does not have."""


def package(table: type[TableAdapter]) -> str:
    """The package that a framework is."""
    return table.framework.split(".")[0]


def rows() -> list[Any]:
    """One a framework, recorded version and hook that the version is said to have."""
    found = []
    for table in TABLES:
        for version in versions(package(table)):
            for hook in table.hooks:
                if satisfies(version, hook.versions):
                    name = f"{package(table)} {version} {hook.target}"
                    found.append(pytest.param(table, version, hook, id=name))
    return found


def place_of(table: type[TableAdapter], version: str, hook: Hook) -> list[list[str]]:
    """The signatures of a hook's targets in a version, of the framework or of its timer."""
    name = hook.target.split(".")[0]
    return found_at(hook, name, version if name == package(table) else CODETIMING)


@pytest.mark.parametrize(("table", "version", "hook"), rows())
def test_a_row_resolves_with_the_arguments_that_it_reads(
    table: type[TableAdapter], version: str, hook: Hook
) -> None:
    places = place_of(table, version, hook)
    if not places:
        assert hook.optional, f"{version} has none of {hook.targets}"
        assert hook.target in ABSENT.get(package(table), set())
    asked = {name for part in (hook.before, hook.after, hook.stage) for name in reads(part)}
    for kind, *parameters in places:
        assert asked <= set(parameters), f"{hook.target} has no {asked - set(parameters)}"
        if hook in table.timers and callable(hook.stage):
            assert kind == "context manager"


def test_what_a_reader_asks_for_is_found_in_its_code() -> None:
    hooks = {hook.target: hook for hook in adapters()["slime"].hooks}
    begins = hooks["slime.rollout.sglang_rollout:generate_and_rm"].before
    assert set(reads(begins)) == {"sample", "evaluation"}
    assert set(reads(logged("metrics", "prefix"))) == {"metrics", "prefix"}
    assert set(reads(logged("metrics"))) == {"metrics"}
    assert set(reads(Sending(lambda call: None).bucket("tensors"))) == {"tensors"}


@each_table
def test_a_row_outside_its_range_has_no_function(table: type[TableAdapter]) -> None:
    """A range that is too narrow would hide a function that is there."""
    hidden = {
        (version, hook.target)
        for version in versions(package(table))
        for hook in table.hooks
        if not satisfies(version, hook.versions) and place_of(table, version, hook)
    }
    assert {target for _, target in hidden} <= SUPERSEDED


SUPERSEDED = {
    # Since 1.0.4 it calls the one that is hooked instead.
    "areal.engine.fsdp_engine:FSDPEngine._update_bucket_weights_from_distributed",
}
"""Functions that a version has and that are hooked in other versions only."""


@each_adapter
def test_stages_are_words_of_the_vocabulary(adapter: type[Adapter]) -> None:
    assert adapter.hooks
    for hook in adapter.hooks:
        Observer(hook)
        assert all(stage_code(word) >= 0 for word in hook.stages)
    assert all(stage_code(word) >= 0 for word in adapter.labels.values() if word)


@each_adapter
def test_a_function_has_one_row(adapter: type[Adapter]) -> None:
    """But where the call itself and what it streams are two spans."""
    rows = [(hook.target, hook.stream) for hook in adapter.hooks]
    assert len(rows) == len(set(rows))


@each_adapter
def test_wrap_finds_the_adapter_by_its_entry_point(adapter: type[Adapter]) -> None:
    assert find_adapters()[adapter.framework] == f"{adapter.__module__}:{adapter.__qualname__}"


@each_table
def test_the_versions_that_are_recorded_are_those_that_the_table_fits(
    table: type[TableAdapter],
) -> None:
    recorded = versions(package(table))
    assert recorded
    assert all(satisfies(version, table.versions) for version in recorded)
    assert all(symbols(package(table), version) for version in recorded)
