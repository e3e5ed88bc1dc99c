"""The environment of development is the locked one."""

from __future__ import annotations

import re
from importlib.metadata import distributions

from tests.packaging.conftest import ROOT

_BROUGHT_BY_VENV = {"pip", "rltrace-toolkit"}


def _named(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def test_whatever_is_installed_has_the_version_of_the_lock() -> None:
    lines = (ROOT / "pins" / "dev.txt").read_text().splitlines()
    pins = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    locked = {_named(name): version for name, version in pins}
    found = {_named(one.metadata["Name"]): one.version for one in distributions()}
    held = {n: v.partition("+")[0] for n, v in found.items() if n not in _BROUGHT_BY_VENV}
    assert {n: v for n, v in held.items() if locked.get(n) != v} == {}
