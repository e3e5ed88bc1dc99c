"""What a framework's configuration says, whatever it is made of."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any


def options(config: Any) -> dict[str, Any]:
    """All options of a configuration of dicts by their dotted names, those without a value too; of
    one that stands for another the reference, where OmegaConf has not resolved it yet."""
    loaded = sys.modules.get("omegaconf")
    if loaded is not None and loaded.OmegaConf.is_config(config):
        config = loaded.OmegaConf.to_container(config)
    return dict(flat(config))


def flat(values: Any, above: str = "", deepest: int = 20) -> Iterator[tuple[str, Any]]:
    """`{"a": {"b": 1}}` as `a.b` and 1."""
    for name, value in values.items() if isinstance(values, dict) else ():
        key = f"{above}{name}"
        if isinstance(value, dict) and deepest:
            yield from flat(value, f"{key}.", deepest - 1)
        else:
            yield key, value


def at(config: Any, *paths: str) -> Any:
    """What a configuration has at the first of some dotted paths that is there; else None."""
    for path in paths:
        found = config
        for name in path.split("."):
            found = found.get(name) if isinstance(found, dict) else getattr(found, name, None)
        if found is not None:
            return found
    return None


def not_none(**facts: Any) -> dict[str, Any]:
    """Those of the facts that are not None."""
    return {name: value for name, value in facts.items() if value is not None}


def are_counts(*values: Any) -> bool:
    """Whether all of them are whole numbers above 0."""
    return all(isinstance(value, int) and value > 0 for value in values)
