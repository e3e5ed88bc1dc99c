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
from tests.fuzz.target import Target, costly, parts, put, together

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
    if name in MAPPED:
        mapping, data = parts(data, 2)
        mapped = put(folder / "map.toml", mapping) if mapping else None
        if mapped is None and name == "chrome":
            mapped = put(folder / "map.toml", MAPPING)
        arguments = (mapped,) if mapped is not None else ()
        found = read(put(folder / "log", data), *arguments)
    else:
        found = read(put(folder / "log", data))
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


def _steps(**metrics: float) -> bytes:
    return _lines(
        *({"step": n, "data": {**metrics, "loss": 0.5}, "timestamp": 1.8e9 + n} for n in range(3))
    )


def _console(text: str) -> bytes:
    return text.encode()


_EVENTS = [
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
    span = {
        "name": name,
        "traceId": "aa",
        "attributes": attributes,
        "startTimeUnixNano": "1800000000000000000",
        "endTimeUnixNano": "1800000001000000000",
    }
    about = {"attributes": _attributes(**{"service.name": "trainer", "process.pid": 7})}
    return {"resourceSpans": [{"resource": about, "scopeSpans": [{"spans": [span]}]}]}


_OWN = [
    *_attributes(**{"rltrace.table": "spans", "rltrace.stage": "rollout", "rltrace.lane": 1}),
    *_attributes(**{"rltrace.name": "generate", "rltrace.step": 2, "rltrace.tokens": 5}),
]

_FIGURES = {
    "verl": {"timing_s/gen": 30.0, "timing_s/update_actor": 20.0, "timing_s/step": 60.0},
    "openrlhf": {"timing/generation": 3.0, "timing/ppo_train": 2.0, "timing/step_total": 9.0},
    "trl": {"step_time": 4.0, "completions/mean_length": 50.0, "completions/clipped_ratio": 0.1},
    "slime": {"perf/actor_train_time": 3.0, "perf/rollout_time": 2.0, "perf/step_time": 9.0},
    "miles": {"perf/actor_train_time": 3.0, "perf/rollout_time": 2.0, "perf/step_time": 9.0},
    "relax": {"perf/actor_train_time": 3.0, "perf/rollout_time": 2.0, "perf/step_time": 9.0},
    "nemo-rl": {"timing/train/generation": 3.0, "timing/train/total_step_time": 9.0},
    "areal": {"timeperf/rollout": 3.0, "timeperf/train_step": 2.0},
    "roll": {"time/step_generate": 3.0, "time/step_train": 2.0, "time/step_total": 9.0},
    "rlinf": {"time/generate_rollouts": 3.0, "time/actor/run_training": 2.0, "time/step": 9.0},
    "prime-rl": {"time/forward_backward": 3.0, "time/wait_for_batch": 1.0, "time/step": 9.0},
    "torchforge": {
        "main_perf/continuous_training/total_duration_avg_s": 20.0,
        "main_perf/continuous_rollouts/policy_generation/duration_avg_s": 9.0,
    },
    "mindspeed-rl": {"timing/all": 9.0, "timing/update": 3.0, "timing/rollout": 4.0},
}

_SESSION = {
    "task_id": 1,
    "session_id": 2,
    "rank": 0,
    "status": "accepted",
    "submit_ts": 1.8e9,
    "finalized_ts": 1.8e9 + 9,
    "phases": {"generate": [{"start_ts": 1.8e9, "end_ts": 1.8e9 + 5}]},
}
_TITAN = {
    "rank": 0,
    "source": "trainer",
    "step": 2,
    "log_type_name": "train_step_end",
    "value": 5.0,
    "time_us": 1_800_000_000_000_000,
    "tid": 3,
    "pid": 9,
    "host_name": "h",
}
_PHASE = {
    "name": "generate",
    "t0": 1.8e9,
    "t1": 1.8e9 + 5,
    "node": "n1",
    "gpus": [0],
    "rank": 0,
    "role": "rollout_manager",
}
_AREAL = {"ph": "X", "name": "train.ppo_update", "ts": 100.0, "dur": 900.0, "pid": 1, "tid": 7}


def _fixture(*names: str) -> list[bytes]:
    """Logs of real jobs, those that are not larger than a fuzzer likes."""
    files = [file for name in names for file in sorted(_FIXTURES.glob(name)) if file.is_file()]
    return [file.read_bytes()[:6000] for file in files]


def _seeds(name: str) -> list[bytes]:
    if name == "chrome":
        whole = json.dumps(
            {"baseTimeNanoseconds": 1_800_000_000_000_000_000, "traceEvents": _EVENTS}
        )
        forms = [
            whole.encode(),
            json.dumps(_EVENTS).encode(),
            _lines(*_EVENTS),
            whole[:-40].encode(),
        ]
        return [together(MAPPING, form) for form in forms]
    if name == "otlp":
        own = json.dumps(_export("generate", _OWN)).encode()
        return [together(MAPPING, _lines(_export("generate", [])) * 2), together(b"", own)]
    if name == "torchtitan":
        return [_lines(_TITAN, {**_TITAN, "log_type_name": "generate_end"})]
    found = [_steps(**_FIGURES[name])] if name in _FIGURES else []
    more = {
        "verl": ("legacy_console.log", "v1_sync.jsonl", "verl.wandb", "separate_async/*"),
        "openrlhf": ("openrlhf_console.log", "openrlhf_async_console.log", "openrlhf.wandb"),
        "trl": ("trl_console.log", "trl_async_state.json"),
        "areal": ("areal/*",),
    }
    found += _fixture(*more.get(name, ()))
    if name == "areal":
        found += [_lines(_SESSION), _lines(_AREAL, {**_AREAL, "args": {"global_step": 2}})]
    if name == "miles":
        found += [_lines(_PHASE, {**_PHASE, "name": "actor_train", "role": "train"})]
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
    more = _MORE.get(name, ("scalars", "json_lines"))
    modules = tuple(dict.fromkeys((module, *(_I + one for one in more))))
    return Target(name, partial(_read, name), partial(_seeds, name), modules)


_I = "rltrace.importers."
_PLACED = ("json_text", "placed", "traced")
_MORE = {
    "chrome": (*_PLACED, "toml_file"),
    "otlp": ("otlp_own", *_PLACED),
    "torchtitan": _PLACED,
    "areal": ("field", "scalars", *_PLACED),
    "miles": ("field", "scalars", *_PLACED),
    "verl": ("verl_trainers", "console", "json_lines", "log", "reading"),
    "openrlhf": ("console", "json_lines", "log", "reading"),
    "trl": ("scalars", "console", "json_lines", "means"),
    "slime": ("scalars", "json_lines", "log", "means", "times", "reading"),
}


def _read_mapping(data: bytes, folder: Path) -> None:
    read_names(put(folder / "map.toml", data))


TARGETS = (
    *map(_of, IMPORTERS),
    Target(
        "event-files",
        partial(_read_frames, framed_events),
        _event_seeds,
        (_I + "event_files", _I + "protobuf", _I + "log"),
    ),
    Target(
        "wandb-files",
        partial(_read_frames, framed_wandb),
        _wandb_seeds,
        (_I + "wandb_files", _I + "protobuf", _I + "reading"),
    ),
    Target("mapping", _read_mapping, lambda: [MAPPING], (_I + "placed", _I + "toml_file")),
)
