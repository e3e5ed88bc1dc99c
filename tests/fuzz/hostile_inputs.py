"""Oversized and odd files of runs, logs and settings, each with a command that reads it."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rltrace.testing.inside.trace import TABLES, Column, packaged_toml

_BIG = 3_000_000  # rows, lines or names of one kind
_EXTREMES: dict[str, tuple[float, ...]] = {
    "b": (127, -128, 100, 15, -2),
    "i": (2**31 - 1, -(2**31), 2**30, -2, 10**9),
    "q": (2**63 - 1, -(2**63), 2**62, 2**53 + 1, -2, 0),
    "d": (1e308, -1e308, float("inf"), float("-inf"), float("nan"), 5e-324, 1e30),
}
Made = tuple[str, list[str]]


def _reading(randomness: random.Random) -> list[str]:
    """A command that reads a run."""
    table = randomness.choice([*TABLES, "steps", "stages", "lags", "processes", "names"])
    return randomness.choice(
        (
            ["report", "{run}"],
            ["report", "{run}"],
            ["report", "{run}", "--full"],
            ["report", "{run}", "--json"],
            ["report", "{run}", "--html", "page.html"],
            ["report", "{run}", "--last", "3"],
            ["info", "{run}"],
            ["ls", "."],
            ["top", "{run}", "--once"],
            ["top", "{run}", "--once", "--json"],
            ["query", "{run}", f"from {table}"],
            ["query", "{run}", f"select count(*) from {table}", "--json"],
            ["timeline", "{run}", "-o", "t.pftrace"],
            ["compact", "{run}"],
            ["whatif", "{run}"],
            ["compare", "{run}", "segments"],
            ["gate", "{run}", "--min", "goodput=1"],
            ["gate", "{run}", "--baseline", "baseline.json"],
            ["baseline", "{run}", "-o", "b.json", "--anyway"],
            ["ls", f"file://{os.sep}{{cwd}}"],
        )
    )


def _of_run(change: Callable[[Path, random.Random], str]) -> Callable[..., Made]:
    def made(run: Path, randomness: random.Random) -> Made:
        what = change(run, randomness)
        command = _reading(randomness)
        place = str(run.parent).lstrip("/")
        return what, [word.replace("{cwd}", place) for word in command]

    return made


def _any_file(run: Path, randomness: random.Random, pattern: str = "*") -> Path:
    files = [path for path in sorted(run.rglob(pattern)) if path.is_file()]
    return randomness.choice(files) if files else run / "run.json"


def _another_kind(run: Path, randomness: random.Random) -> str:
    path = _any_file(run, randomness)
    name = str(path.relative_to(run))
    data = path.read_bytes()
    path.unlink()
    kind = randomness.choice(("pipe", "device", "link", "loop", "folder", "gone", "socket-like"))
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to(randomness.choice(("/dev/zero", "/dev/urandom", "/dev/stdin")))
    elif kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket-like":
        path.write_bytes(data[: len(data) // 2])
        path.chmod(0)
    return f"{name} is a {kind}"


def _hole(run: Path, randomness: random.Random) -> str:
    path = _any_file(run, randomness)
    size = 1 << randomness.choice((20, 26, 27, 30, 36, 42))
    with open(path, "r+b") as file:
        if randomness.random() < 0.5:
            file.truncate(0)
        file.truncate(size)
    return f"{path.relative_to(run)} is a hole of {size:,} bytes"


def _cut_or_changed(run: Path, randomness: random.Random) -> str:
    path = _any_file(run, randomness)
    data = bytearray(path.read_bytes())
    for _ in range(randomness.choice((1, 4, 32))):
        if data:
            at = randomness.randrange(len(data))
            new = randomness.choice((0, 0xFF, 0x7F, randomness.randrange(256)))
            data[at : at + randomness.choice((1, 8))] = bytes([new]) * randomness.choice((1, 8))
    path.write_bytes(data[: randomness.choice((len(data), randomness.randrange(len(data) + 1)))])
    return f"{path.relative_to(run)} has other bytes"


def _extreme(run: Path, randomness: random.Random) -> str:
    """A few rows of one column have extremes."""
    is_parquet = run.name == "compacted"
    name = randomness.choice(sorted(set(TABLES) - {"captured_tokens"}))
    place = run / "parquet" / name if is_parquet else run / name
    path = _any_file(place, randomness)
    table = pq.read_table(path) if is_parquet else pa.ipc.open_stream(path.read_bytes()).read_all()
    column = randomness.choice(TABLES[name].columns)
    at = table.schema.get_field_index(column.name)
    values = np.array(table.column(at).to_numpy())
    count = randomness.choice((1, 2, len(values)))
    value = randomness.choice(_EXTREMES[column.kind])
    with np.errstate(all="ignore"):
        values[:count] = value
    new = table.set_column(at, table.schema.field(at), pa.array(values))
    if is_parquet:
        pq.write_table(new, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, new.schema) as writer:
            writer.write_table(new)
    return f"{name}.{column.name} is {value} {count} times"


def one_batch(columns: Sequence[Column], count: int, value: int) -> tuple[bytes, bytes]:
    """The beginning of a segment of these columns, and a batch of so many rows, all alike: `value`
    in the first column, -1 in the others."""
    kinds = {"b": pa.int8(), "i": pa.int32(), "q": pa.int64(), "d": pa.float64()}
    schema = pa.schema([pa.field(c.name, kinds[c.kind], nullable=False) for c in columns])
    values = [value, *[-1] * (len(columns) - 1)]
    arrays = [pa.array(np.full(count, v), f.type) for v, f in zip(values, schema, strict=True)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch(arrays, schema))
        first = sink.tell()
        writer.write_batch(pa.record_batch(arrays, schema))
        end = sink.tell()
    data = sink.getvalue().to_pybytes()
    return data[: 2 * first - end], data[first:end]  # the schema goes out with the first batch


def _many_batches(run: Path, randomness: random.Random) -> str:
    """One segment of very many batches: without rows, of one row, or holes."""
    name = randomness.choice(("spans", "trajectories", "samples"))
    folder = run / name
    folder.mkdir(exist_ok=True)
    path = next(iter(sorted(folder.glob("*.arrows"))), folder / "host-1-1-ab.0.arrows")
    whole = randomness.random() < 0.5
    columns = TABLES[name].columns if whole else TABLES[name].columns[:1]
    count = randomness.choice((0, 1, 1 << 13, 1 << 16, 1 << 22))
    value = randomness.choice((0, 1_700_000_000_000_000_000))
    head, message = one_batch(columns, count, value)
    times = min(200_000, (64 << 20) // max(1, len(message)) + 1)
    files = randomness.choice((1, 3))
    for number in range(files):
        with open(path.with_name(path.name.replace(".0.", f".{number}.")), "wb") as file:
            file.write(head)
            body = len(message) - len(message.rstrip(b"\0"))
            for _ in range(times):
                if value == 0 and body > 1 << 16:
                    file.write(message[: len(message) - body])
                    file.seek(body, 1)
                else:
                    file.write(message)
            file.truncate(file.tell())
    return f"{files} segments of {name} have {times:,} batches of {count:,} rows ({whole=})"


def _many_lines(run: Path, randomness: random.Random) -> str:
    folder = randomness.choice(("names", "clocks", "problems", "ends", "nodes", "stacks"))
    (run / folder).mkdir(exist_ok=True)
    path = _any_file(run / folder, randomness)
    if path.parent != run / folder:
        path = run / folder / "host-1-1-ab.jsonl"
    line = randomness.choice(
        (
            b'[%d, "name %d"]\n', b'{"kind":"pair","monotonic_ns":%d,"real_ns":%d}\n',
            b'{"what":"no-room","target":"t%d","detail":"d%d"}\n', b"[%d%d\n", b"%d%d",
            b'{"kind":"exchange","peer":"p%d","at_ns":%d,"offset_ns":1,"rtt_ns":2}\n',
        )
    )  # fmt: skip
    count = randomness.choice((1000, 100_000, 1_000_000))
    path.write_bytes(b"".join(line % (i, i) for i in range(count)))
    return f"{path.relative_to(run)} has {count:,} of {line!r}"


def _many_files(run: Path, randomness: random.Random) -> str:
    folder = run / randomness.choice(("process", "names", "problems", "spans", "x"))
    folder.mkdir(exist_ok=True)
    count = randomness.choice((100, 3000, 9000))
    facts = {"pid": 1, "ppid": 1, "node": "n", "host": "h", "start_ns": 1}
    chained = randomness.random() < 0.5
    for i in range(count):
        name = f"h-{i + 1}-{i + 1}-ab"
        if folder.name == "process":
            pids = {"pid": i, "ppid": i - 1} if chained else {}
            told = {**facts, **pids, "start_ns": i + 1}
            (folder / f"{name}.json").write_text(json.dumps(told))
        else:
            (folder / f"{name}{'.0.arrows' if folder.name == 'spans' else '.jsonl'}").touch()
    return f"{folder.name} has {count:,} files more ({chained=})"


def _odd_json(run: Path, randomness: random.Random) -> str:
    path = _any_file(run, randomness, "*.json")
    odd = randomness.choice(
        (None, [], "x" * 100_000, 10**400, -1, 2**63, 1e308, float("nan"), True, {"a": {}},
         [[[[]]]] * 1000, "\ud800", "\x1b[2J", [{}] * 200_000)
    )  # fmt: skip
    try:
        value = json.loads(path.read_bytes())
        key = randomness.choice(sorted(value))
        value[key] = odd
        path.write_text(json.dumps(value))
        return f"{path.relative_to(run)}: {key} is {str(odd)[:40]!r}"
    except (ValueError, IndexError, TypeError):
        path.write_text("[" * 100_000)
        return f"{path.relative_to(run)} is nested"


def _many_parquet_rows(run: Path, randomness: random.Random) -> str:
    """A table of Parquet of very many equal rows, in very few bytes, or names of many bytes."""
    place = run / "parquet"
    if not place.exists():
        return _extreme(run, randomness)
    count = randomness.choice((_BIG, 1_000_000, 60_000_000))
    if randomness.random() < 0.3:
        count = min(count, _BIG)
        texts = pa.array(["x" * 50]).take(pa.array(np.zeros(count, np.int64)))
        named = {"id": pa.array(np.arange(count, dtype=np.int32)), "text": texts}
        pq.write_table(pa.table(named), place / "names.parquet")
        return f"{count:,} names"
    name = randomness.choice(("spans", "trajectories", "uses", "samples"))
    path = _any_file(place / name, randomness)
    read = pq.read_table(path)
    chunk = read.take(pa.array(np.zeros(1_000_000, np.int64)))
    with pq.ParquetWriter(path, read.schema, compression="zstd") as writer:
        for _ in range(count // 1_000_000):
            writer.write_table(chunk)
    manifest = json.loads((place / "manifest.json").read_text())
    if randomness.random() < 0.5:
        manifest["tables"][name][0]["rows"] = manifest["rows"][name] = count
    (place / "manifest.json").write_text(json.dumps(manifest))
    return f"{name} of {count:,} equal rows"


def _baseline(run: Path, randomness: random.Random) -> Made:
    path = run.parent / "baseline.json"
    value = json.loads(path.read_text())
    one = value["runs"][0]
    size = len(one["steps"])
    column = randomness.choice(sorted(one["columns"]))
    odd = randomness.choice((1e308, -1, 0, 1e-320, None, 10**400, "x", [1], 1e17, True))
    which = randomness.choice(("column", "steps", "count", "key", "lengths", "hole", "pipe"))
    if which == "column":
        one["columns"][column] = [odd] * size
    elif which == "steps":
        one["steps"] = randomness.choice(([odd] * size, [0] * size, [0.5] * size, [-1] * size))
    elif which == "count":
        value["runs"] = [one] * 100_000
    elif which == "key":
        value[randomness.choice(sorted(value))] = odd
    elif which == "lengths":
        more = 300_000
        one["steps"] = [*range(more)]
        one["columns"] = {name: [1.5] * more for name in one["columns"]}
    path.write_text(json.dumps(value))
    if which == "hole":
        os.truncate(path, 1 << 40)
    elif which == "pipe":
        path.unlink()
        os.mkfifo(path)
    return f"baseline: {which} {column} {odd!r}"[:90], ["gate", "{run}", "--baseline", path.name]


def _log(run: Path, randomness: random.Random) -> Made:
    path = run.parent / "log.jsonl"
    count = randomness.choice((100, 100_000, 1_000_000))
    line = randomness.choice(
        (
            b'{"step": %d, "timing_s/gen": 1.5, "timing_s/step": 2.5, "training/x": %d}\n',
            b"step:%d - timing_s/gen:1.5 - timing_s/step:2.5 - training/global_step:%d\n",
            b'{"traceEvents": [{"name": "%d", "ph": "X", "ts": %d, "dur": 1}]}',
            b"[%d,%d],\n", b"{'loss': %d, 'epoch': %d}\n", b"%d %d",
        )
    )  # fmt: skip
    data = b"".join(line % (i, i) for i in range(count))
    kind = randomness.choice(("plain", "gzip", "hole", "pipe", "device", "bomb"))
    name = path.name
    if kind == "gzip":
        path.write_bytes(gzip.compress(data, 1))
    elif kind == "bomb":
        path.write_bytes(gzip.compress(b"[" + b"[]," * (1 << 24), 6))
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        name = "/dev/zero"
    else:
        path.write_bytes(data)
        if kind == "hole":
            os.truncate(path, 1 << randomness.choice((30, 40)))
    framework = randomness.choice(([], ["verl"], ["trl"], ["slime"], ["openrlhf"], ["chrome"]))
    said = f"{kind} log of {count:,} of {line[:30]!r}"
    return said, ["import", *framework, name, "--out", "made"]


_STATED = {  # a file that a user states things in: the command that reads it, and its schema
    "stages.toml": (["whatif", "--stages", "stages.toml"], "analysis/data/stages_file.toml"),
    "workload.toml": (["plan", "workload.toml"], "analysis/plan/data/workload.toml"),
    "map.toml": (["import", "chrome", "trace.json", "--map", "map.toml", "--out", "made"], ""),
    "rltrace.toml": (["gate", "{run}"], ""),
}
_TOP = ("max-regression", "min", "max", "baseline", "wall", "steps", "roles", "framework", "x")


def _settings(run: Path, randomness: random.Random) -> Made:
    """A key, mostly one that the file has, with an odd value."""
    odd = randomness.choice(
        ('"goodput=3%"', "1e999", "nan", "-inf", '"goodput=nan%"', "[[]]", "1" * 5000, "true",
         '"' + "x" * 100_000 + '"', "[" * 5000, '"lag.p99=1e400"', "{}", "1e308", "5e-324", "-1",
         "0", "[1, nan]", "{ goodput = true }", "1979-05-27", "1" * 300, "0.5", "1e8")
    )  # fmt: skip
    name, (command, file) = randomness.choice(sorted(_STATED.items()))
    schema = packaged_toml(file) if file else {"gate": dict.fromkeys(_TOP), **dict.fromkeys(_TOP)}
    table = randomness.choice(["", *(key for key in schema if isinstance(schema[key], dict))])
    key = randomness.choice(list(schema.get(table, schema)))
    text = f"[{table}]\n" if table else ""
    text += f"{key} = {odd}\n" * randomness.choice((1, 1, 1, 3))
    if table != "stages" and name == "stages.toml":
        text += "[stages]\nrollout = 6\ntrain = 4\n"
    (run.parent / name).write_text(text)
    (run.parent / "trace.json").write_text('[{"name": "x", "ph": "X", "ts": 1, "dur": 1}]')
    return f"{name} [{table}] {key} = {odd[:40]}", command


KINDS: tuple[Callable[[Path, random.Random], Made], ...] = (
    *map(_of_run, (_another_kind, _hole, _cut_or_changed, _extreme, _extreme, _extreme)),
    *map(_of_run, (_many_batches, _many_lines, _many_files, _odd_json, _many_parquet_rows)),
    *(_baseline, _log, _settings),
)
