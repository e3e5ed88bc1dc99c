"""Whether a module exists, told from the files of its package: nothing is imported for it."""

from __future__ import annotations

import os
import sys
from typing import Any

_SUFFIXES = (".py", ".pyc", ".so", ".abi3.so")


def may_exist(name: str) -> bool:
    """Whether a module is imported or can be, as far as the imported part of its package tells.
    False when its top package is not imported; True when that does not lie in plain folders."""
    if name in sys.modules:
        return True
    parent: Any = None
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        parent = sys.modules.get(".".join(parts[:count]))
        if parent is not None:
            break
    if parent is None:
        return False
    folders = [str(folder) for folder in getattr(parent, "__path__", ())]
    plain = [folder for folder in folders if os.path.isdir(folder)]
    if folders and not plain:
        return True
    return any(_in_folder(os.path.join(folder, *parts[count:])) for folder in plain)


def _in_folder(path: str) -> bool:
    if os.path.isdir(path) or any(os.path.exists(path + suffix) for suffix in _SUFFIXES):
        return True
    folder, stem = os.path.split(path)
    if not os.path.isdir(folder):
        return False
    return any(entry.startswith(stem + ".") for entry in os.listdir(folder))
