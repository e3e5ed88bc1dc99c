"""TransferQueue, AsyncFlow's data plane: puts, gets, how long samples lie there.

Clients put and get in their own processes. Every sample passes the controller, an actor of Ray's:
its age is the time from the first put to the first request there. Who clears samples by their keys
looks these up as a reader does, so that counts as a request once they were not cleared. A policy
version is in a sample only where the program puts it there, as the tag `version`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from itertools import repeat
from typing import Any

from rltrace.adapters.table import TableAdapter
from rltrace.adapters.table.rows import either
from rltrace.adapters.table.weights import tensor_bytes
from rltrace.hooks.hook import Call, Hook

AGE = "transfer_queue/age_s"
LYING = "transfer_queue/samples"
LAG = "transfer_queue/lag"
"""Counters: seconds between the first put of a sample and the first time that it was asked for; how
many lie there; versions between the process that gets a sample and the one that put it."""

_CLIENT = "transfer_queue.client:AsyncTransferQueueClient"
_CONTROLLER = "transfer_queue.controller:TransferQueueController"
_Key = tuple[str, int]  # partition and index of a sample, in the controller
_put_ns: dict[_Key, int] = {}  # samples that nobody has asked for
_looked_up_ns: dict[_Key, tuple[int, int]] = {}  # put and looked up by key: to be read, or cleared
_asked_for: set[_Key] = set()  # those that still lie there, and may get more fields


def is_alone(call: Call) -> bool:
    """verl's own adapter shows the stages that these calls are a part of."""
    return "verl" not in sys.modules


def waits_for_samples(call: Call) -> bool:
    """Asking for samples that are ready, which the controller may make wait."""
    return is_alone(call) and call.argument("mode", "fetch") == "fetch"


def put(call: Call) -> None:
    if call.exception is None and call.span is not None:
        data, versions = call.argument("data"), _versions(call.argument("metadata"))
        known = {"version": versions[0]} if len(set(versions)) == 1 else {}
        call.span.set(bytes=_bytes(data), items=int(data.batch_size[0]), **known)


def got(call: Call) -> None:
    if call.exception is not None:
        return
    data = call.result
    if call.span is not None and data.batch_size:
        call.span.set(bytes=_bytes(data), items=int(data.batch_size[0]))
    if call.recorder.version >= 0:
        lags = [call.recorder.version - own for own in _versions(call.argument("metadata"))]
        call.rows("samples", len(lags), counter=call.recorder.name(LAG), value=lags)


def asked(call: Call) -> None:
    if call.span is not None and call.exception is None:
        call.span.set(items=int(call.result.size))


def arrived(call: Call) -> None:
    if call.result:
        now, before = time.monotonic_ns(), len(_put_ns)
        for key in zip(repeat(call.argument("partition_id")), call.argument("global_indexes")):
            _was_read(call, key)
            if key not in _asked_for:
                _put_ns.setdefault(key, now)
        _count_lying(call, before)


def handed_out(call: Call) -> None:
    """Samples that are ready are asked for, to be read; or new ones, to be written."""
    if call.exception is None and call.argument("mode") == "fetch":
        now, before = time.monotonic_ns(), len(_put_ns)
        for key in _keys(call.result):
            _look_up(key, now)
            _was_read(call, key)
        _count_lying(call, before)


def looked_up(call: Call) -> None:
    """Samples are looked up by their keys, to be read or to be cleared; or to be written."""
    if call.exception is None and not call.argument("create"):
        now, before = time.monotonic_ns(), len(_put_ns)
        for key in _keys(call.result):
            _was_read(call, key)  # the time before
            _look_up(key, now)
        _count_lying(call, before)


def cleared(call: Call) -> None:
    _go(call, zip(call.argument("partition_ids"), call.argument("global_indexes"), strict=True))


def partition_cleared(call: Call) -> None:
    """So do all of a partition, which are not looked up for that."""
    partition = call.argument("partition_id")
    for key in [key for key in _looked_up_ns if key[0] == partition]:
        _was_read(call, key)
    _go(call, [key for key in (*_put_ns, *_asked_for) if key[0] == partition])


def _keys(metadata: Any) -> list[_Key]:
    return list(zip(metadata.partition_ids, metadata.global_indexes, strict=True))


def _look_up(key: _Key, now: int) -> None:
    since = _put_ns.pop(key, None)
    if since is not None:
        _looked_up_ns[key] = since, now


def _was_read(call: Call, key: _Key) -> None:
    """Who has looked it up, if anybody, did not do so to clear it."""
    put_ns, asked_ns = _looked_up_ns.pop(key, (0, 0))
    if asked_ns:
        _asked_for.add(key)
        _count(call, AGE, (asked_ns - put_ns) / 1e9, asked_ns)


def _go(call: Call, keys: Iterable[_Key]) -> None:
    before = len(_put_ns)
    for key in keys:
        _put_ns.pop(key, None)
        _looked_up_ns.pop(key, None)
        _asked_for.discard(key)
    _count_lying(call, before)


def _count_lying(call: Call, before: int) -> None:
    if len(_put_ns) != before:
        _count(call, LYING, len(_put_ns))


def _count(call: Call, counter: str, value: float, time_ns: int = 0) -> None:
    when = {"time_ns": time_ns} if time_ns else {}
    call.row("samples", counter=call.recorder.name(counter), value=float(value), **when)


def _versions(metadata: Any) -> list[int]:
    tags = () if metadata is None else metadata.custom_meta
    return [tag["version"] for tag in tags if type(tag.get("version")) is int]


def _bytes(data: Any) -> int:
    """Bytes of a batch's tensors, those of ragged ones without padding; other things have none."""
    fields = (f.values() if getattr(f, "is_nested", False) else f for f in data.values())
    return tensor_bytes(values for values in fields if hasattr(values, "element_size"))


class TransferQueue(TableAdapter):
    framework = "transfer_queue"
    versions = ">=0.1.11,<0.2"
    is_part = True
    calls = (
        *(
            Hook(f"{_CLIENT}.{method}", name=name, after=reader, **either(waits, "wait"))
            for method, name, reader, waits in (
                ("async_put", "TransferQueue put", put, is_alone),
                ("async_get_data", "TransferQueue get", got, is_alone),
                ("async_get_meta", "TransferQueue ready", asked, waits_for_samples),
            )
        ),
        Hook(f"{_CONTROLLER}.update_production_status", after=arrived),
        Hook(f"{_CONTROLLER}.get_metadata", after=handed_out),
        Hook(f"{_CONTROLLER}.kv_retrieve_meta", after=looked_up),
        Hook(f"{_CONTROLLER}.clear_meta", before=cleared),
        Hook(f"{_CONTROLLER}.clear_partition", before=partition_cleared),
    )
