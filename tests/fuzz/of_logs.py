"""The importers' parsers: logs of finished jobs, in every format and of every framework."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from rltrace.importers import IMPORTERS, MAPPED
from rltrace.testing.inside.importers import (
    ImportedRun,
    event_files,
    read_log,
    read_names,
    write_run,
)
from rltrace.testing.inside.trace import TABLES, RunFiles, read_described
from tests.fuzz.target import Target, costly, modules, parts, put, reading, together

_FIXTURES = Path(__file__).parent.parent / "importers" / "fixtures"
_WRITTEN = 32  # of so many inputs, one is made a run of and read again
_START = b":W&B\xe1\xbe\x00"

MAPPING = b"""
framework = "my-rl"
placement = "colocated"
steps = ["step"]
[stages]
"Step#*" = "step"
"generate*" = "rollout"
"update" = "train"
[roles]
"trainer*" = "learner"
"""


def framed_events(*messages: bytes) -> bytes:
    """Messages as records of an event file, with their checksums."""

    def record(message: bytes) -> bytes:
        length = struct.pack("<Q", len(message))
        sums = [struct.pack("<I", event_files.checksum(part)) for part in (length, message)]
        return length + sums[0] + message + sums[1]

    return b"".join(map(record, messages))


def framed_wandb(*messages: bytes) -> bytes:
    """Messages as whole pieces of wandb's file, with their checksums."""
    found = _START
    for message in messages:
        found += struct.pack("<IHB", zlib.crc32(b"\1" + message), len(message) & 0xFFFF, 1)
        found += message
    return found


def _read_frames(framed: Callable[..., bytes], data: bytes, folder: Path) -> None:
    """A format with checksums: what stands between them is fuzzed, or the file as it is."""
    if data[:1] == b"\0":
        data = framed(*parts(data[1:], 4))
    read_log(put(folder / "log", data))


def _read(name: str, data: bytes, folder: Path) -> None:
    module, _, function = IMPORTERS[name].partition(":")
    read = getattr(import_module(module), function)
    mapping = b""
    if name in MAPPED:
        mapping, data = parts(data, 2)
        if name == "chrome":
            mapping = mapping or MAPPING
    arguments = (put(folder / "map.toml", mapping),) if mapping else ()
    found = read(put(folder / "log", data), *arguments)
    if costly(data, _WRITTEN):
        _write(found, folder / "run")


def _write(found: ImportedRun, path: Path) -> None:
    """The run of a log, which every reader takes."""
    try:
        write_run(path, found, "test")
        files = RunFiles(path, read_described(str(path)))
        for table in TABLES:
            files.columns(table)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _lines(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def _steps(figures: str) -> bytes:
    metrics = {name: 0.5 + 3 * n for n, name in enumerate(figures.split())} | {"loss": 0.5}
    return _lines(*({"step": n, "data": metrics, "timestamp": 1.8e9 + n} for n in range(3)))


_EVENTS: list[object] = [
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "trainer 0"}},
    {"ph": "X", "name": "Step#3", "ts": 100.0, "dur": 900.0, "pid": 1, "tid": 7},
    {"ph": "X", "name": "generate_a", "ts": 100.0, "dur": 60, "pid": 1, "args": {"step": 3}},
    {"ph": "B", "name": "update", "ts": 700.0, "pid": 1, "tid": 7},
    {"ph": "E", "name": "update", "ts": 900.0, "pid": 1, "tid": 7},
    {"ph": "b", "name": "generate_b", "cat": "r", "id": 9, "ts": 200.0, "pid": 1},
    {"ph": "e", "name": "generate_b", "cat": "r", "id": 9, "ts": 250.0, "pid": 1},
]


def _attributes(**values: object) -> list[object]:
    return [{"key": key, "value": {"stringValue": str(v)}} for key, v in values.items()]


def _export(name: str, attributes: list[object]) -> dict[str, object]:
    times = {"startTimeUnixNano": f"18{'0' * 17}", "endTimeUnixNano": f"1800000001{'0' * 9}"}
    span = {"name": name, "traceId": "aa", "attributes": attributes, **times}
    about = {"attributes": _attributes(**{"service.name": "trainer", "process.pid": 7})}
    return {"resourceSpans": [{"resource": about, "scopeSpans": [{"spans": [span]}]}]}


_OWN = [
    *_attributes(**{"rltrace.table": "spans", "rltrace.stage": "rollout", "rltrace.lane": 1}),
    *_attributes(**{"rltrace.name": "generate", "rltrace.step": 2, "rltrace.tokens": 5}),
]

_FIGURES = {
    "verl": "timing_s/gen timing_s/update_actor timing_s/step",
    "openrlhf": "timing/generation timing/ppo_train timing/step_total",
    "trl": "completions/clipped_ratio step_time completions/mean_length",
    "slime": "perf/actor_train_time perf/rollout_time perf/step_time",
    "miles": "perf/actor_train_time perf/rollout_time perf/step_time",
    "relax": "perf/actor_train_time perf/rollout_time perf/step_time",
    "nemo-rl": "timing/train/generation timing/train/total_step_time",
    "areal": "timeperf/rollout timeperf/train_step",
    "roll": "time/step_generate time/step_train time/step_total",
    "rlinf": "time/generate_rollouts time/actor/run_training time/step",
    "prime-rl": "time/forward_backward time/wait_for_batch time/step",
    "torchforge": "main_perf/continuous_training/total_duration_avg_s"
    " main_perf/continuous_rollouts/policy_generation/duration_avg_s",
    "mindspeed-rl": "timing/update timing/rollout timing/all",
}
"""What each logs of a step, the longest last."""

_SESSION = b"""{"task_id": 1, "session_id": 2, "rank": 0, "status": "accepted",
"submit_ts": 1800000000.0, "finalized_ts": 1800000009.0,
"phases": {"generate": [{"start_ts": 1800000000.0, "end_ts": 1800000005.0}]}}"""
_TITAN = b"""{"rank": 0, "source": "trainer", "step": 2, "log_type_name": "train_step_end",
"value": 5.0, "time_us": 1800000000000000, "tid": 3, "pid": 9, "host_name": "h"}"""
_PHASE = b"""{"name": "generate", "t0": 1800000000.0, "t1": 1800000005.0, "node": "n1",
"gpus": [0], "rank": 0, "role": "rollout_manager"}"""
_AREAL = b"""{"ph": "X", "name": "train.ppo_update", "ts": 100.0, "dur": 900.0, "pid": 1,
"tid": 7}"""


def _with(record: bytes, **more: object) -> bytes:
    """A line of JSON as it is, and one with more."""
    return _lines(json.loads(record), {**json.loads(record), **more})


def _fixture(*names: str) -> list[bytes]:
    """Logs of real jobs, those that are not larger than a fuzzer likes."""
    files = [file for name in names for file in sorted(_FIXTURES.glob(name)) if file.is_file()]
    return [file.read_bytes()[:6000] for file in files]


def _seeds(name: str) -> list[bytes]:
    if name == "chrome":
        said = {"baseTimeNanoseconds": 1_800_000_000_000_000_000, "traceEvents": _EVENTS}
        whole, events = (json.dumps(form).encode() for form in (said, _EVENTS))
        return [together(MAPPING, f) for f in (whole, events, _lines(*_EVENTS), whole[:-40])]
    if name == "otlp":
        own = json.dumps(_export("generate", _OWN)).encode()
        return [together(MAPPING, _lines(_export("generate", [])) * 2), together(b"", own)]
    if name == "torchtitan":
        return [_with(_TITAN, log_type_name="generate_end")]
    found = [_steps(_FIGURES[name])] if name in _FIGURES else []
    more = {
        "verl": ("legacy_console.log", "v1_sync.jsonl", "verl.wandb", "separate_async/*"),
        "openrlhf": ("openrlhf_console.log", "openrlhf_async_console.log", "openrlhf.wandb"),
        "trl": ("trl_console.log", "trl_async_state.json"),
        "areal": ("areal/*",),
    }
    found += _fixture(*more.get(name, ()))
    if name == "areal":
        found += [_lines(json.loads(_SESSION)), _with(_AREAL, args={"global_step": 2})]
    if name == "miles":
        found += [_with(_PHASE, name="actor_train", role="train")]
    return found


def _event_seeds() -> list[bytes]:
    tag, value = b"loss", struct.pack("<f", 0.5)
    scalar = b"\x0a\x04" + tag + b"\x15" + value
    summary = b"\x0a" + bytes([len(scalar)]) + scalar
    event = b"\x09" + struct.pack("<d", 1.8e9) + b"\x10\x03" + b"\x2a" + bytes([len(summary)])
    message = event + summary
    return [framed_events(message, message), b"\0" + together(message, message)]


def _wandb_seeds() -> list[bytes]:
    def field(number: int, value: bytes) -> bytes:
        key = number << 3 | 2
        head = bytes([key]) if key < 128 else bytes([key & 127 | 128, key >> 7])
        return head + bytes([len(value)]) + value

    item = field(1, field(2, b"loss") + field(16, b"0.5"))
    step = field(1, field(1, b"_step") + field(16, b"3"))
    message = field(2, item + step)
    return [framed_wandb(message), b"\0" + together(message, message), *_fixture("verl.wandb")]


def _of(name: str) -> Target:
    module = IMPORTERS[name].partition(":")[0]
    more = modules(_I, _MORE.get(name, "scalars json_lines"))
    counted = tuple(dict.fromkeys((module, *more)))
    return Target(name, partial(_read, name), partial(_seeds, name), counted)


_I = "rltrace.importers"
_PLACED = "json_text placed traced"
_MORE = {
    "chrome": f"{_PLACED} toml_file",
    "otlp": f"otlp_own {_PLACED}",
    "torchtitan": _PLACED,
    "areal": f"field scalars {_PLACED}",
    "miles": f"field scalars {_PLACED}",
    "verl": "verl_trainers console json_lines log reading",
    "openrlhf": "console json_lines log reading",
    "trl": "scalars console json_lines means",
    "slime": "scalars json_lines log means times reading",
}


TARGETS = (
    *map(_of, IMPORTERS),
    Target(
        "event-files",
        partial(_read_frames, framed_events),
        _event_seeds,
        modules(_I, "event_files protobuf log"),
    ),
    Target(
        "wandb-files",
        partial(_read_frames, framed_wandb),
        _wandb_seeds,
        modules(_I, "wandb_files protobuf reading"),
    ),
    Target(
        "mapping",
        reading(read_names, "map.toml"),
        lambda: [MAPPING],
        modules(_I, "placed toml_file"),
    ),
)
