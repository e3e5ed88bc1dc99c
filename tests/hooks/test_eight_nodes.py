"""A job on eight nodes of Ray, one of which is killed: who was traced, and every row."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import dedent

import pytest

import rltrace
from tests.hooks.clusters import ENVIRONMENT
from tests.hooks.conftest import WRAP, clean_environment
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow

NODES, STEPS, KILLED_AFTER = 8, 4, 2

JOB = dedent("""
    import json, os, signal, sys, time
    from contextlib import suppress
    from pathlib import Path
    import ray, rltrace
    from ray.cluster_utils import Cluster
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    folder, told, number, steps, killed_after = *sys.argv[1:3], *map(int, sys.argv[3:])

    @ray.remote(num_cpus=1, max_restarts=0)
    class Rollout:
        def generate(self, step):
            with rltrace.span("rollout", items=step):
                return os.getpid(), step * step

        def never_returns(self, path):
            with rltrace.span("rollout", items=99):
                Path(path).touch()
                time.sleep(600)

    def below(pid):
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in task.read_text().split():
                yield int(child)
                yield from below(int(child))

    health = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}
    node = {"num_cpus": 1, "object_store_memory": 80_000_000}
    head = {**node, "temp_dir": folder, "_system_config": health}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.head_node, *(cluster.add_node(**node) for _ in range(number - 1))]
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    places = [NodeAffinitySchedulingStrategy(node.node_id, soft=False) for node in nodes]
    actors = [Rollout.options(scheduling_strategy=place).remote() for place in places]
    pids, results = set(), []
    for step in range(steps):
        with rltrace.step(step):
            made = ray.get([actor.generate.remote(step) for actor in actors])
        pids |= {pid for pid, _ in made}
        results.append([value for _, value in made])
        if step + 1 == killed_after:
            lost = actors.pop().never_returns.remote(f"{folder}/begun")
            while not os.path.exists(f"{folder}/begun"):
                time.sleep(0.1)
            raylet = nodes[-1].all_processes["raylet"][0].process.pid
            for pid in [raylet, *below(raylet)]:
                with suppress(ProcessLookupError):  # workers follow their raylet by themselves
                    os.kill(pid, signal.SIGKILL)
            cluster.worker_nodes.remove(nodes[-1])  # or its end is waited for
            try:
                ray.get(lost)
            except ray.exceptions.RayActorError:
                results.append("lost")
    # in a file: Ray prints of the node that died
    made = {"results": results, "pids": sorted(pids), "driver": os.getpid()}
    Path(told).write_text(json.dumps(made))
    ray.shutdown()
    cluster.shutdown()
""")


def test_eight_nodes_of_which_one_is_killed(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    run_path = tmp_path / "run"
    with tempfile.TemporaryDirectory(prefix="rlt", dir="/tmp", ignore_cleanup_errors=True) as path:
        numbers = map(str, (NODES, STEPS, KILLED_AFTER))
        done = subprocess.run(
            [*WRAP, "--out", str(run_path), "--", sys.executable, "job.py", path, "told", *numbers],
            cwd=tmp_path,
            env=clean_environment(
                **ENVIRONMENT,
                RAY_memory_monitor_refresh_ms="0",
                RAY_raylet_start_wait_time_s="300",
            ),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads((tmp_path / "told").read_text())
    before = [[step * step] * NODES for step in range(KILLED_AFTER)]
    after = [[step * step] * (NODES - 1) for step in range(KILLED_AFTER, STEPS)]
    assert told["results"] == [*before, "lost", *after]  # what the code says, as without rltrace
    assert len(told["pids"]) == NODES

    run = rltrace.open_run(run_path)
    found = run.sql(
        "SELECT pid, items, end_ns IS NULL FROM spans WHERE stage = 'rollout' ORDER BY ALL"
    ).fetchall()
    ended = [(pid, step) for pid, step, is_open in found if not is_open]
    still_open = [pid for pid, _, is_open in found if is_open]
    assert len(still_open) == 1
    (lost,) = still_open
    expected = [(pid, step) for pid in told["pids"] for step in range(STEPS)]
    assert ended == [(pid, s) for pid, s in expected if pid != lost or s < KILLED_AFTER]
    assert run.sql("SELECT count(*) FROM steps").fetchall() == [(STEPS,)]
    traced = {process.pid for process in run.processes}
    assert {*told["pids"], told["driver"]} <= traced
    assert [p for p in run.problems if p["what"] != "no-gpu"] == []
