"""Inside of torch.compile and torch.jit we are not there: one graph, the same result, and said."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rltrace.hooks.null_api import INSIDE
from tests.hooks.conftest import RunJob, untraced

pytestmark = pytest.mark.slow

PY = sys.executable

COMPILED = """
    import json, sys, torch, rltrace
    from torch._dynamo.utils import counters
    torch.set_num_threads(1)
    class Policy(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x)
    policy = Policy()
    def act(x):
        return x + 1
    def blocks(x):
        with rltrace.span("train", tokens=3) as span:
            x = torch.relu(x)
            span.set(tokens=4)
        with rltrace.trajectory("a") as sample:
            sample.finish("stop")
        rltrace.reward("a", 1.0)
        rltrace.counter("loss", 1.0)
        return x
    @rltrace.span("train")
    def decorated(x):
        return x * 2
    def step(x):
        return decorated(blocks(act(policy(x)))).sum()
    compiled = torch.compile(step, backend="eager", fullgraph=True)
    results = [float(compiled(torch.ones(4))) for _ in range(3)]
    hooked = torch.compile(act, backend="eager", fullgraph=True)
    results += hooked(torch.ones(2)).tolist()
    results += act(torch.ones(1)).tolist()  # not compiled: this one is recorded
    broken = sum(counters["graph_break"].values())
    print(json.dumps([results, counters["stats"]["unique_graphs"], broken]))
"""
HOOKS = ("__main__:Policy.forward=rollout", "__main__:act=env")


def test_a_compiled_region_stays_one_graph(job: RunJob, tmp_path: Path) -> None:
    done = job(PY, "script.py", program=COMPILED, hooks=HOOKS)
    assert (done.code, json.loads(done.out)) == (0, [[16.0, 16.0, 16.0, 2.0, 2.0, 2.0], 2, 0]), (
        done.err
    )
    told = {problem["target"] for problem in done.problems if problem["what"] == INSIDE}
    assert {"__main__:Policy.forward", "__main__:act", "rltrace.span", "rltrace.reward"} <= told
    assert done.spans() == ["act"]
    plain = untraced(PY, "script.py", cwd=tmp_path)
    assert (plain.returncode, plain.stdout) == (0, done.out)


@pytest.mark.parametrize("way", ["script", "trace"])
def test_a_module_with_a_hooked_forward_is_scripted(job: RunJob, way: str) -> None:
    program = f"""
        import torch
        class Policy(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.relu(x)
        made = torch.jit.{way}(Policy(){", torch.ones(2)" if way == "trace" else ""})
        print(made(torch.ones(2)).tolist())
    """
    done = job(PY, "script.py", program=program, hooks=("__main__:Policy.forward=rollout",))
    assert (done.code, done.out) == (0, "[1.0, 1.0]\n"), done.err
