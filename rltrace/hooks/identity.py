"""The 64-bit ids under which trajectories, groups and prompts meet across processes."""

from __future__ import annotations

from _blake2 import blake2b  # hashlib would cost every process 2 ms


def identify(value: str | int | bytes) -> int:
    """A signed 64-bit hash of a framework's own id, the same in every process and run. Numbers and
    their text are one id: `identify(7) == identify("7")`. Never -1, which means unknown."""
    data = value if isinstance(value, bytes) else str(value).encode("utf-8", "backslashreplace")
    number = int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)
    return number if number != -1 else -2
