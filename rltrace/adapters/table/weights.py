"""A weight update as its sender sees it: buckets go out one after another, then it is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rltrace.hooks.hook import Call, Reader
from rltrace.trace.vocabulary import SyncRole

_WIDTHS = {
    "bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4, "float64": 8,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "uint8": 1, "int8": 1, "int32": 4, "int64": 8,
}  # fmt: skip


def tensor_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of some tensors, told from their shapes: nothing is copied or waited for."""
    return sum(int(t.numel()) * int(t.element_size()) for t in tensors)


def parameter_bytes(model: Any) -> int:
    """Bytes of a model's parameters, those included of which this process holds a part (DeepSpeed
    keeps their real size as `ds_numel`)."""
    return sum(
        int(getattr(p, "ds_numel", None) or p.numel()) * int(p.element_size())
        for p in model.parameters()
    )


def named_bytes(pairs: Iterable[tuple[str, Any]]) -> int:
    return tensor_bytes(tensor for _, tensor in pairs)


def shape_bytes(shape: Iterable[int], dtype: object) -> int | None:
    """Bytes of a tensor that is only described; None for a type of unknown width."""
    width = _WIDTHS.get(str(dtype).removeprefix("torch."))
    if width is None:
        return None
    for size in shape:
        width *= int(size)
    return width


class Sending:
    """The update that a process is sending. `version` reads the version that it carries when the
    update is over, None where the framework does not say. One a process: no framework sends two
    at a time."""

    def __init__(self, version: Callable[[Call], int | None]) -> None:
        self._version = version
        self._bytes = -1

    def begins(self, call: Call) -> None:
        self._bytes = -1

    def bucket(self, argument: str) -> Reader:
        """The reader for a call that sends the `(name, tensor)` pairs of `argument`. It belongs
        before the call: some frameworks empty the list."""

        def read(call: Call) -> None:
            size = named_bytes(call.argument(argument))
            self.add(size)
            if call.span is not None:
                call.span.set(bytes=size)

        return read

    def add(self, size_bytes: int) -> None:
        self._bytes = max(self._bytes, 0) + size_bytes

    def ends(self, call: Call) -> None:
        """After the whole update. A process that sent nothing itself took no part."""
        size, self._bytes = self._bytes, -1
        if call.exception is not None:
            return
        version = self._version(call)
        if version is not None:
            call.recorder.version = version
            call.span.set(version=version)
        if size >= 0:
            call.span.set(bytes=size)
            known = {} if version is None else {"version": version}
            call.row("syncs", role=SyncRole.SOURCE, bytes=size, **known)
