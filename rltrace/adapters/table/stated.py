"""What a framework's configuration says, whatever it is made of."""

from __future__ import annotations

from typing import Any


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
