"""Whose a file of a run is, where several nodes share its directory: each ships its own."""

from __future__ import annotations

from pathlib import Path

from rltrace.trace.own_files import read_own
from rltrace.trace.run_dir import CLOCKS, PROCESS
from rltrace.trace.schema import TABLES
from rltrace.trace.texts import parsed


class Owner:
    """Tells the files of the node `name`. The first node has those, too, of which nobody can tell
    whose they are."""

    def __init__(self, run_dir: Path, name: str, is_first: bool) -> None:
        self._run_dir = run_dir
        self._name = name
        self._is_first = is_first
        self._nodes: dict[str, str] = {}

    def __call__(self, folder: str, name: str) -> bool:
        """Whether the file `name` in `folder` is this node's."""
        if folder == CLOCKS:
            return name.removesuffix(".jsonl") == self._name
        who = name.rsplit(".", 2 if folder in TABLES else 1)[0]
        node = self._nodes.get(who) or self._read(who)
        return node == self._name if node else self._is_first

    def _read(self, who: str) -> str:
        try:
            told = parsed(read_own(self._run_dir / PROCESS / f"{who}.json"))
            node = told.get("node")
        except (OSError, ValueError, AttributeError):
            return ""
        if not isinstance(node, str):
            return ""
        self._nodes[who] = node
        return node


def everything(folder: str, name: str) -> bool:
    """Where a directory is one node's alone, all of it is."""
    return True
