"""Several nodes: a cluster that the job joins, one that is too small, one whose node is killed.

The cluster is held by a process of its own, whose nodes are real ones of Ray on this machine.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

import pytest

from tests.hooks.conftest import clean_environment
from tests.patience import PATIENCE_S
from tests.trainer.test_faults import started

pytestmark = pytest.mark.slow

PY = sys.executable
ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "PYTHONUNBUFFERED": "1",
}

# Takes orders, a line each, and answers each with a line of JSON.
NODES = dedent("""
    import json, os, signal, sys, time
    from contextlib import suppress
    from pathlib import Path
    import ray
    from ray._private import services
    from ray.cluster_utils import Cluster
    from ray.util import placement_group_table

    def below(pid):
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in task.read_text().split():
                yield int(child)
                yield from below(int(child))

    def patiently(look):
        # Ray gives a node 30 s to start, of which a busy machine may make nothing.
        def looked(*asked):
            until = time.monotonic() + float(sys.argv[3])
            while True:
                try:
                    return look(*asked)
                except (RuntimeError, TimeoutError):
                    if time.monotonic() > until:
                        raise
                time.sleep(0.2)
        return looked

    services.get_node = patiently(services.get_node)
    services.wait_for_node = patiently(services.wait_for_node)

    health = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}
    head = {"num_cpus": int(sys.argv[2]), "temp_dir": sys.argv[1], "_system_config": health}
    memory = {"object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={**head, **memory})
    nodes = {}
    print(json.dumps(cluster.address), flush=True)
    for line in sys.stdin:
        order, _, number = line.strip().partition(" ")
        answer = None
        if order == "add" and int(number) not in nodes:  # a node of so many CPUs
            nodes[int(number)] = cluster.add_node(num_cpus=int(number), **memory)
            cluster.wait_for_nodes(float(sys.argv[3]))
        elif order == "kill":  # that node, with all that runs on it
            node = nodes.pop(int(number))
            raylet = node.all_processes["raylet"][0].process.pid
            for pid in [raylet, *below(raylet)]:
                with suppress(ProcessLookupError):  # workers follow their raylet by themselves
                    os.kill(pid, signal.SIGKILL)
            cluster.worker_nodes.remove(node)  # or the next node waits for it too
        elif order == "left":  # what jobs have left behind
            ray.init(address=cluster.address, logging_level="ERROR")
            groups = placement_group_table().values()
            actors = ray._private.state.actors().values()
            answer = [group["state"] for group in groups if group["state"] != "REMOVED"]
            answer += [actor["State"] for actor in actors if actor["State"] != "DEAD"]
            ray.shutdown()
        print(json.dumps(answer), flush=True)
    cluster.shutdown()
""")

# A small run on the cluster; once its first step is made, a start may take only so long. It tells
# its ledger or its last word in a file: Ray prints of a node that died.
RUN = dedent("""
    import json, sys
    from pathlib import Path
    from rltrace.testing.inside.trainer import actor_pools as crew
    from rltrace.trainer import TrainerConfig, TrainerError, train

    def after(record):
        crew.START_SECONDS = float(sys.argv[2])
        print("step", record.step, flush=True)

    try:
        ledger = train(TrainerConfig.of(json.loads(sys.argv[1])), after)
    except TrainerError as error:
        told, code = str(error), 1
    else:
        told, code = ledger.to_json(), 0
    Path(sys.argv[3]).write_text(told)
    sys.exit(code)
""")
SETTINGS = {
    "steps": 6, "prompts": 4, "samples": 4, "model_size": 0.024, "layers": 2, "heads": 2,
    "max_running": 5, "minibatches": 2, "max_lag": 2, "decode_floor": 0.02, "checkpoint_every": 2,
}  # fmt: skip


@dataclass
class Nodes:
    """A cluster, and the process that holds it."""

    process: subprocess.Popen[str]
    address: str = ""

    def tell(self, order: str = "") -> Any:
        """Gives an order and waits for its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if order:
            self.process.stdin.write(order + "\n")
            self.process.stdin.flush()
        for line in self.process.stdout:
            if re.match(r'null|\[|"', line):
                return json.loads(line)
        raise AssertionError("the cluster has ended")

    def run(self, start_seconds: float = 120.0, kill: str = "", **settings: Any) -> tuple[int, str]:
        """A run that joins the cluster, and a node that is killed after step 1: its exit code, and
        its ledger or its last word."""
        job = {**SETTINGS, "joined_cluster": self.address, **settings}
        with tempfile.NamedTemporaryFile("r") as told:
            process = subprocess.Popen(
                [PY, "-c", RUN, json.dumps(job), str(start_seconds), told.name],
                env=clean_environment(**ENVIRONMENT),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert process.stdout is not None
            if kill:
                for line in process.stdout:
                    if line == "step 1\n":
                        self.tell(f"kill {kill}")
                        break
            _, err = process.communicate(timeout=PATIENCE_S)
            word = told.read()
            # An exit code of another's, Ray's say, is told with what was said last.
            meant = 0 if word.startswith("{") else 1
            return process.returncode, word if process.returncode == meant else err + word


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """A cluster whose head has three CPUs."""
    with tempfile.TemporaryDirectory(prefix="rlt", dir="/tmp", ignore_cleanup_errors=True) as path:
        process = subprocess.Popen(
            [PY, "-c", NODES, path, "3", str(PATIENCE_S)],
            env=clean_environment(**ENVIRONMENT, RAY_gcs_server_port_wait_time_s=str(PATIENCE_S)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        cluster = Nodes(process)
        try:
            cluster.address = cluster.tell()
            yield cluster
        finally:
            process.communicate(timeout=PATIENCE_S)  # no more orders: it ends


def check(ledger: dict[str, Any]) -> None:
    """All steps were made and every sample is accounted for."""
    records = [*ledger["steps"], ledger["after"]]
    assert [record["step"] for record in ledger["steps"]] == list(range(SETTINGS["steps"]))
    used = sum(sum(r["lags"].values()) + sum(r["drops"].values()) for r in records)
    assert sum(record["samples"] for record in records) == used + ledger["unused"]


def test_no_arrangement(nodes: Nodes) -> None:
    nodes.tell("add 2")
    code, word = nodes.run(placement="colocated")
    assert code == 1
    assert re.search(r"has 5 CPUs .* needs 5, .* in bundles of 5, .* on nodes of 3, 2 ", word)


def test_a_node_dies_and_the_run_goes_on_with_fewer_workers(nodes: Nodes) -> None:
    nodes.tell("add 2")
    nodes.tell("add 1")  # nodes of 3, 2, 1: it can only hold a rollout worker
    settings = {"placement": "disaggregated", "reward_workers": 2, "update_floor": 0.8}
    code, word = nodes.run(1.0, kill="1", **settings)  # it gives up before the run is over
    assert code == 0, word
    ledger = json.loads(word)
    check(ledger)
    events = [re.sub(r"\d", "N", event) for event in ledger["events"]]
    assert events[0] == "rollout worker N died; another is started in its place"
    assert events[-1] == "rollout worker N could not be started: N left"
    assert nodes.tell("left") == []


def test_a_node_dies_and_there_is_room_elsewhere(nodes: Nodes) -> None:
    nodes.tell("add 5")
    nodes.tell("add 6")
    code, word = nodes.run(placement="colocated", rollout_workers=3)  # the one of 6 holds it
    assert code == 0, word
    code, word = nodes.run(kill="6", placement="one-step-off")
    assert code == 0, word
    check(json.loads(word))
    assert nodes.tell("left") == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_job_that_is_ended_leaves_nothing_in_the_cluster(
    nodes: Nodes, number: signal.Signals
) -> None:
    nodes.tell("add 5")
    words = ("--steps", "1000", "--joined-cluster", nodes.address)
    job = started(*words, until="step   0", env=ENVIRONMENT)
    assert nodes.tell("left")
    job.send_signal(number)
    job.communicate(timeout=PATIENCE_S)
    left = nodes.tell("left")
    until = time.monotonic() + PATIENCE_S
    while left and number == signal.SIGKILL and time.monotonic() < until:
        left = nodes.tell("left")  # the cluster itself tidies up, in its own time
    assert left == []
