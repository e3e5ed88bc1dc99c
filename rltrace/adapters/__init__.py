"""What to hook in each framework; adapters are found through entry points."""

from __future__ import annotations

GROUP = "rltrace.adapters"
"""Entry point group; an entry's name is the framework's import name, its value the adapter."""


def find_adapters() -> dict[str, str]:
    """Installed adapters: framework -> `"module:Class"`. Takes some 20 ms: `wrap` does it once and
    hands the answer to the traced processes."""
    from importlib.metadata import entry_points

    return {entry.name: entry.value for entry in entry_points(group=GROUP)}
