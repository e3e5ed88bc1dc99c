"""The parsers of what somebody writes or hands over: baselines, settings, workloads, queries."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import rltrace
from rltrace.testing.inside.analysis import (
    Constants,
    from_config,
    named_queries,
    plan,
    read_baseline,
    read_stages,
    read_workload,
    spec_of,
    write_baseline,
)
from rltrace.testing.inside.report import torch_profile
from rltrace.testing.inside.run import FILE, read_settings
from rltrace.testing.inside.trace import only_asks
from tests.fuzz.target import Target, costly, modules, one_line, put, reading

if TYPE_CHECKING:
    import duckdb

_ROOT = Path(__file__).parent.parent.parent
_PLANNED = 16  # of so many inputs, one that is a workload is planned for


def _read_baseline(data: bytes, folder: Path) -> None:
    found = read_baseline(put(folder / "baseline.json", data))
    write_baseline(found, folder / "again.json")
    assert len(read_baseline(folder / "again.json").runs) == len(found.runs)


_BASELINE = b"""{"format": "rltrace-baseline", "schema_version": 1, "rltrace_version": "0.1",
"created": "2026-01-01T00:00:00+00:00", "hardware": {"devices": 8}, "framework": {"verl": "0.9"},
"settings": {"placement": "async"}, "runs": [RUN, RUN]}"""
_BASELINE_RUN = b"""{"run": "a", "start_ns": 1000000000000000000, "steps": [0, 1, 2], "columns":
{"length_s": [1.0, 1.5, 2], "stage.rollout": [0.5, null, 1], "lag.2": [1, 1, 0]}}"""


_SETTINGS = b"""
[gate]
baseline = "ci/baseline.json"
wall = "rollout decode"
forbid = ["anti_pattern"]
normalise = true
max-regression = { goodput = "3%", "step.p95" = "10%" }
max = { "lag.p99" = 4 }
"""


def _read_workload(data: bytes, folder: Path) -> None:
    spec = spec_of(read_workload(put(folder / "workload.toml", data)), "workload.toml")
    if costly(data, _PLANNED):
        plan(spec)


def _workloads() -> list[bytes]:
    return [file.read_bytes() for file in sorted(_ROOT.glob("examples/workloads/*.toml"))]


def _read_stages(data: bytes, folder: Path) -> None:
    found = read_stages(put(folder / "stages.toml", data))
    if costly(data, _PLANNED):
        found.workload(Constants())


_STAGES = b"""name = "a job"
placement = "one-step-off"
step_s = 600.0
stages = { rollout = 360, reward = 80, train = 120, sync = 35 }
rollout = { prompts = 64, samples = 8, mean_tokens = 6000, cap_tokens = 32768 }
devices = { rollout = 24, train = 8, name = "H100" }
model = { parameters = 7e9 }
sync = { mechanism = "bucketed" }
"""


def _stages() -> list[bytes]:
    """With those of published jobs: colocated and not, with devices and without."""
    published = _ROOT / "benchmarks" / "published"
    names = ("miles", "verl-64", "dora-64", "nemo-aligner")
    return [_STAGES, *((published / f"{name}.toml").read_bytes() for name in names)]


_CONFIG = b"""{"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "num_experts": 8,
"num_experts_per_tok": 2, "tie_word_embeddings": false}"""
_LATENT = b"""{"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
"v_head_dim": 128, "q_lora_rank": 1536, "n_routed_experts": 256, "moe_intermediate_size": 2048,
"n_shared_experts": 1, "first_k_dense_replace": 3}"""


def _configs() -> list[bytes]:
    latent = {**json.loads(_CONFIG), **json.loads(_LATENT)}
    return [one_line(_CONFIG), json.dumps({"text_config": latent, "_name_or_path": "a/b"}).encode()]


_PROFILE = b"""{"schemaVersion": 1, "baseTimeNanoseconds": 1000000000000000000, "traceEvents": [
{"ph": "X", "pid": 7, "tid": 1, "name": "aten::mm", "ts": 5.0, "dur": 2.5, "cat": "cpu_op"},
{"ph": "X", "pid": 0, "tid": 7, "name": "k", "ts": 6.0, "cat": "kernel", "args": {"a": 1}},
{"ph": "M", "pid": 7, "name": "process_name", "args": {"name": "python"}},
{"ph": "s", "id": 1, "pid": 7, "tid": 1, "ts": 5.5, "cat": "ac2g"},
{"ph": "f", "id": 1, "pid": 0, "tid": 7, "ts": 6.0, "cat": "ac2g", "bp": "e"}],
"distributedInfo": {"rank": 0}}"""


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """One with a table, closed as `rltrace query` closes it."""
    run = rltrace.open_run(_ROOT / "tests" / "fixtures" / "run-schema-1")
    run.lock()
    return run.connection


def _ask(data: bytes, folder: Path) -> None:
    """A statement that passes for a question is bound, not run: what it may reach is refused by
    then, and a query may take as long as it likes."""
    import duckdb

    query = data.decode("utf-8", "replace")
    try:
        only_asks(query)
        for statement in duckdb.extract_statements(query)[:1]:
            if statement.type == duckdb.StatementType.SELECT:
                _database().sql(f"EXPLAIN {statement.query}")
                lock = _database().sql("SELECT current_setting('lock_configuration')")
                assert lock.fetchall() == [(True,)]
    except (duckdb.Error, RuntimeError):
        pass


_ATTACKS = b"""
COPY (SELECT 1) TO '/dev/shm/rltrace-fuzz-out'
SELECT * FROM read_csv('/etc/passwd')
EXPLAIN ANALYZE COPY (SELECT 1) TO 'x'
ATTACH 'x'; INSTALL httpfs; LOAD httpfs
SET enable_external_access = true
PRAGMA table_info('steps')
SELECT * FROM spans JOIN names ON true
"""


def _queries() -> list[bytes]:
    return [*(one.sql.encode() for one in named_queries()), *_ATTACKS.strip().splitlines()]


_ANALYSIS = "rltrace.analysis"
_PLAN = f"{_ANALYSIS}.plan"

TARGETS = (
    Target(
        "baseline",
        _read_baseline,
        lambda: [one_line(_BASELINE.replace(b"RUN", _BASELINE_RUN))],
        modules(_ANALYSIS, "gate.baseline"),
    ),
    Target(
        "gate-settings",
        reading(lambda path: read_settings(path.parent), FILE),
        lambda: [_SETTINGS],
        (*modules("rltrace.run", "gate_settings"), *modules(_ANALYSIS, "conditions")),
    ),
    Target("workload", _read_workload, _workloads, modules(_PLAN, "reading hardware shapes")),
    Target("stages", _read_stages, _stages, modules(_ANALYSIS, "whatif.stated")),
    Target("model-config", reading(from_config, "x.json"), _configs, modules(_PLAN, "shapes")),
    Target(
        "torch-profile",
        reading(torch_profile.read, "profile.json"),
        lambda: [one_line(_PROFILE)],
        modules("rltrace.report", "perfetto.torch_profile"),
    ),
    Target("query", _ask, _queries, modules("rltrace.trace", "questions")),
)
