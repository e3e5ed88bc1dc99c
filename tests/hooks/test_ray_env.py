"""What is merged into a runtime environment, and what is left of the user's: all of it."""

from __future__ import annotations

import os
import sys
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rltrace.hooks.patch.ray_env import merged, patch_actor_options, patch_init
from rltrace.testing.inside.hooks import CARRIED, SITE


@pytest.fixture(autouse=True)
def run(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process belongs to a run."""
    for name in CARRIED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RLTRACE_RUN", "/runs/1")
    monkeypatch.setenv("RLTRACE_ADAPTERS", "a=b:C")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_RUNTIME_ENV_HOOK", raising=False)


OURS = {"RLTRACE_RUN": "/runs/1", "RLTRACE_ADAPTERS": "a=b:C"}
PATH = SITE + ":${PYTHONPATH}"


@pytest.mark.parametrize(
    ("theirs", "variables"),
    [
        (None, {"PYTHONPATH": PATH}),
        ({}, {"PYTHONPATH": PATH}),
        ({"env_vars": {"A": "1"}}, {"A": "1", "PYTHONPATH": PATH}),
        ({"env_vars": {"PYTHONPATH": "/x"}}, {"PYTHONPATH": f"{SITE}:/x"}),
        ({"env_vars": {"PYTHONPATH": f"{SITE}:/x"}}, {"PYTHONPATH": f"{SITE}:/x"}),
        ({"pip": ["x"], "working_dir": "."}, {"PYTHONPATH": PATH}),
    ],
)
def test_joining_a_cluster(theirs: Any, variables: dict[str, str]) -> None:
    before = deepcopy(theirs)
    assert merged(theirs) == {**(theirs or {}), "env_vars": {**OURS, **variables}}
    assert theirs == before  # the user's own dict is not written to


@pytest.mark.parametrize("theirs", [None, {}, {"env_vars": {"A": "1"}}])
def test_a_cluster_of_the_jobs_own_inherits_and_needs_nothing(theirs: Any) -> None:
    assert merged(theirs, joining=False) is theirs
    hides = {"env_vars": {"PYTHONPATH": "/x", "A": "1"}}  # which would hide ours
    assert merged(hides, joining=False) == {"env_vars": {"PYTHONPATH": f"{SITE}:/x", "A": "1"}}


def older_ray(started: list[Any]) -> Any:
    """`ray._private.worker` of a Ray that has no `_maybe_modify_runtime_env`."""

    def init(address: Any = None, *, runtime_env: Any = None, **options: Any) -> str:
        hook = os.environ.get("RAY_RUNTIME_ENV_HOOK")
        if hook:
            module, _, name = hook.rpartition(".")
            runtime_env = getattr(sys.modules[module], name)(runtime_env)
        started.append(runtime_env)
        if options.get("fail"):
            raise ConnectionError("theirs")
        return "context"

    services = SimpleNamespace(
        find_gcs_addresses=SimpleNamespace(cache_clear=lambda: None),
        canonicalize_bootstrap_address=lambda address, folder: None,
    )
    return SimpleNamespace(init=init, services=services)


def test_an_older_ray_is_reached_through_its_hook(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[Any] = []
    worker = older_ray(started)
    patch_init(worker)
    assert worker.init("10.0.0.1:6379") == "context"
    assert worker.init() == worker.init(address="local") == "context"
    assert [env and env["env_vars"]["RLTRACE_RUN"] for env in started] == ["/runs/1", None, None]
    assert "RAY_RUNTIME_ENV_HOOK" not in os.environ
    (tmp_path / "rlt_theirs.py").write_text("def hook(env): return {'env_vars': {'A': '1'}}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RAY_RUNTIME_ENV_HOOK", "rlt_theirs.hook")
    worker.init("10.0.0.1:6379")
    assert started[-1]["env_vars"].items() >= {"A": "1", "RLTRACE_RUN": "/runs/1"}.items()
    assert os.environ["RAY_RUNTIME_ENV_HOOK"] == "rlt_theirs.hook"
    with pytest.raises(ConnectionError, match="theirs"):
        worker.init("10.0.0.1:6379", fail=True)
    assert os.environ["RAY_RUNTIME_ENV_HOOK"] == "rlt_theirs.hook"


def test_a_remote_driver_gets_it_with_its_arguments() -> None:
    started: list[Any] = []
    worker = older_ray(started)
    patch_init(worker)
    worker.init("ray://head:10001", runtime_env={"pip": ["x"]})
    assert started[0]["pip"] == ["x"]
    assert started[0]["env_vars"]["RLTRACE_RUN"] == "/runs/1"


def test_options_that_are_no_dict_are_rays_to_refuse() -> None:
    utils = SimpleNamespace(parse_runtime_env_for_task_or_actor=lambda env: env)
    patch_actor_options(utils)
    assert utils.parse_runtime_env_for_task_or_actor(3) == 3
    assert utils.parse_runtime_env_for_task_or_actor(None) is None
    patch_actor_options(SimpleNamespace())  # a Ray that does it elsewhere
