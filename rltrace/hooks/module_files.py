"""Whether a module exists, told from the files of its package: nothing is imported for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder

_SUFFIXES = (".py", ".pyc", ".so", ".abi3.so")


def may_exist(name: str) -> bool:
    """Whether a module is imported or could be, as far as files tell. True where they do not tell:
    a package that lies in no plain folder."""
    if name in sys.modules:
        return True
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        parent = sys.modules.get(".".join(parts[:count]))
        if parent is not None:
            return _in_folders(getattr(parent, "__path__", ()), parts[count:])
    spec = PathFinder.find_spec(parts[0])
    if spec is None:
        return False
    return len(parts) == 1 or _in_folders(spec.submodule_search_locations or (), parts[1:])


def _in_folders(folders: Iterable[str], inner: list[str]) -> bool:
    paths = [str(folder) for folder in folders]
    plain = [path for path in paths if os.path.isdir(path)]
    if paths and not plain:
        return True
    return any(_in_folder(os.path.join(path, *inner)) for path in plain)


def _in_folder(path: str) -> bool:
    if os.path.isdir(path) or any(os.path.exists(path + suffix) for suffix in _SUFFIXES):
        return True
    folder, stem = os.path.split(path)
    if not os.path.isdir(folder):
        return False
    return any(entry.startswith(stem + ".") for entry in os.listdir(folder))
