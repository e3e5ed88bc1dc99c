"""A weight update as its sender sees it: bytes, buckets, version."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from rltrace.hooks.hook import Call, Hook, Reader
from rltrace.trace.vocabulary import SyncRole

_WIDTHS = {
    "bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4, "float64": 8,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "uint8": 1, "int8": 1, "int32": 4, "int64": 8,
}  # fmt: skip


def tensor_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of whole tensors, told from their shapes: nothing is copied or waited for."""
    return sum(elements(tensor) * int(tensor.element_size()) for tensor in tensors)


def elements(parameter: Any) -> int:
    """All of a parameter's elements; under ZeRO-3 a rank holds a part, and `ds_numel` says all."""
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def parameter_count(model: Any) -> int:
    """All of a model's parameters, tied ones once."""
    return sum(map(elements, model.parameters()))


def shape_bytes(shape: Iterable[int], dtype: object) -> int | None:
    """Bytes of a tensor that is only described; None for a type of unknown width."""
    width = _WIDTHS.get(str(dtype).removeprefix("torch."))
    return None if width is None else width * math.prod(map(int, shape))


def version_is(argument: str) -> Reader:
    """A reader of the argument that says which version this process has from here on."""

    def read(call: Call) -> None:
        version = call.argument(argument)
        if version is not None:
            call.recorder.version = int(version)

    return read


def phase_row(
    phase: str, target: str, before: Reader | None = None, after: Reader | None = None, **more: Any
) -> Hook:
    """The row of a function that is a phase of a weight update."""
    return Hook(target, "sync", phase=phase, before=before, after=after, **more)


def weights_moved(
    call: Call, role: SyncRole, version: int | None, size_bytes: int = -1, **more: int
) -> None:
    """An update is over for this process, which has the new version from here on; None and -1 are
    unknown. `more` are other columns of its row."""
    known = {}
    if version is not None:
        call.recorder.version = known["version"] = int(version)
    if size_bytes >= 0:
        known["bytes"] = size_bytes
    if call.span is not None:
        call.span.set(**known)
    call.row("syncs", role=role, **(known | more))


class Sending:
    """The update that a process is sending: no framework sends two at a time. `version` reads the
    version that it carries when it is over, None where the framework does not say."""

    def __init__(self, version: Callable[[Call], int | None]) -> None:
        self._version = version
        self._bytes = -1

    def update_row(self, target: str, phase: str | None = None) -> Hook:
        """The row of the function that is the whole update."""
        return Hook(target, "sync", phase=phase, before=self.begins, after=self.ends)

    def begins(self, _call: Call) -> None:
        self._bytes = -1

    def bucket_row(self, target: str, argument: str) -> Hook:
        """The row of a function that sends a bucket (`bucket`)."""
        return phase_row("transfer", target, self.bucket(argument))

    def bucket(self, argument: str) -> Reader:
        """The reader for a call that sends the `(name, tensor)` pairs of `argument`. It belongs
        before the call: some frameworks empty the list."""

        def read(call: Call) -> None:
            size = tensor_bytes(tensor for _, tensor in call.argument(argument))
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
        if size >= 0:
            weights_moved(call, SyncRole.SOURCE, version, size)
        elif version is not None:
            call.recorder.version = version
            call.span.set(version=version)
