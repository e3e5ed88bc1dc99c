"""A small training loop for `benchmarks.gpu.beside`: seeded, deterministic, with spans around its
parts and inside of what is compiled. Says what it computed and how it was compiled, as JSON.

    python -m benchmarks.gpu.beside_job --form compile --out FILE [--profile TRACE] [--steps 20]
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rltrace

FORMS = ("eager", "compile", "reduce-overhead", "cuda-graph")
COMPILED = ("compile", "reduce-overhead")
BLOCK = "block"
"""The span inside of the forward pass."""


class Job:
    """The model, its optimizer, and the loop's parts. Shapes: batch, length, width."""

    def __init__(self, device: str, form: str, blocks: int, width: int, backend: str) -> None:
        import torch

        torch.manual_seed(0)
        self.device, self.form = device, form
        self.layers: Any = torch.nn.ModuleList([_block(width) for _ in range(blocks)]).to(device)
        self.optimizer = torch.optim.SGD(self.layers.parameters(), lr=0.05, momentum=0.9)
        data = torch.Generator().manual_seed(1)
        self.x, self.y = torch.randn(2, 4, 8, 32, width, generator=data).to(device)
        self.loss_of: Callable[[Any, Any], Any] = self.forward
        if form in COMPILED:
            mode = "reduce-overhead" if form == "reduce-overhead" else None
            self.loss_of = torch.compile(self.forward, mode=mode, backend=backend)
            self.odd: Callable[[Any, int], Any] = torch.compile(odd, backend="eager")
        self.graph: Any = None

    def forward(self, x: Any, y: Any) -> Any:
        """The loss."""
        import torch

        for layer in self.layers:
            with rltrace.span("other", name=BLOCK):
                x = x + attention(layer["norm"](x), layer["mix"])
                x = x + layer["out"](torch.nn.functional.gelu(layer["up"](x)))
        return torch.nn.functional.mse_loss(x, y)

    def step(self, n: int) -> float:
        """One step; its parts are marked for rltrace and for torch.profiler alike."""
        import torch

        x, y = self.x[n % len(self.x)], self.y[n % len(self.y)]
        if self.form == "cuda-graph":
            return self._replayed(n, x, y)
        if self.form == "reduce-overhead":
            mark: Any = torch.compiler.cudagraph_mark_step_begin
            mark()
        with self.marked(f"forward {n}"):
            loss = self.loss_of(x, y)
        with self.marked(f"backward {n}"):
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
        with self.marked(f"update {n}"):
            self.optimizer.step()
        if self.form in COMPILED and n < 4:  # breaks the graph, and is compiled again and again
            kind = torch.float64 if n == 3 else torch.float32
            self.odd(torch.ones(4, dtype=kind, device=self.device), n)
        return float(loss.detach())

    @contextmanager
    def marked(self, name: str) -> Iterator[None]:
        """A span and a record_function of the same extent: stamps of the two lie side by side. Its
        stage is one of the host's: passes last until the device has done them."""
        import torch

        with rltrace.span("data", name=name), torch.profiler.record_function(name):
            yield
            if self.device == "cuda":
                torch.cuda.synchronize()

    def _replayed(self, n: int, x: Any, y: Any) -> float:
        if self.graph is None:
            self._capture()
        with self.marked(f"replay {n}"):
            self.static_x.copy_(x)
            self.static_y.copy_(y)
            self.graph.replay()
        return float(self.static_loss.detach())

    def _capture(self) -> None:
        """The whole step as a CUDA graph, after three on a stream beside it, as torch asks for."""
        import torch

        self.static_x, self.static_y = self.x[0].clone(), self.y[0].clone()
        stream: Any = torch.cuda.Stream
        beside = stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(3):
                self._whole_step()
        torch.cuda.current_stream().wait_stream(beside)
        self.optimizer.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.static_loss = self._whole_step()

    def _whole_step(self) -> Any:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.forward(self.static_x, self.static_y)
        loss.backward()
        self.optimizer.step()
        return loss


def odd(x: Any, times: int) -> Any:
    """Breaks the graph between two spans; another number or type has it compiled again."""
    import torch

    with rltrace.span("other", name="before the break"):
        x = x * 2
    torch._dynamo.graph_break()
    with rltrace.span("other", name="after the break"):
        x = x * times
    return x.sum()


def attention(x: Any, mix: Any) -> Any:
    """Causal attention of one head, by operators that are deterministic everywhere."""
    import torch

    query, key, value = mix(x).chunk(3, dim=-1)
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    return scores.masked_fill(later, -1e9).softmax(-1) @ value


def _block(width: int) -> Any:
    import torch

    parts = {
        "norm": torch.nn.LayerNorm(width),
        "mix": torch.nn.Linear(width, 3 * width),
        "up": torch.nn.Linear(width, 4 * width),
        "out": torch.nn.Linear(4 * width, width),
    }
    return torch.nn.ModuleDict(parts)


def compiled_counts() -> dict[str, int]:
    """What torch.compile has done until now. Not what comes from its caches, which differs."""
    from torch._dynamo.utils import counters, get_compilation_metrics

    ids = [str(getattr(one, "compile_id", "")) for one in get_compilation_metrics()]
    return {
        "graphs": counters["stats"]["unique_graphs"],
        "calls captured": counters["stats"]["calls_captured"],
        "frames": counters["frames"]["total"],
        "frames compiled": counters["frames"]["ok"],
        "breaks": sum(counters["graph_break"].values()),
        "recompiled": sum(not one.endswith("/0") for one in set(ids) if "/" in one),
    }


def explained(job: Job) -> dict[str, dict[str, int]]:
    """What `torch._dynamo.explain` says of what is compiled here. It compiles anew: to be last."""
    import torch

    found = {}
    one = torch.ones(4, device=job.device)
    asked = ((job.forward, (job.x[0], job.y[0])), (odd, (one, 2)))
    for function, arguments in asked:
        said = torch._dynamo.explain(function)(*arguments)
        counts = ("graph_count", "graph_break_count", "op_count")
        found[function.__name__] = {count: getattr(said, count) for count in counts}
    return found


def work(asked: argparse.Namespace) -> dict[str, Any]:
    """Runs the loop; what is to be equal whoever is beside it, and what was not the same."""
    import torch

    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    if asked.form in COMPILED:
        from torch._inductor import config

        if hasattr(config, "deterministic"):  # no choice is made by a stopwatch
            config.deterministic = True
    job = Job(asked.device, asked.form, asked.blocks, asked.width, asked.backend)
    profiler = None
    losses = []
    for n in range(asked.steps):
        if asked.profile and n == asked.steps // 3:
            kinds = [torch.profiler.ProfilerActivity.CPU]
            kinds += [torch.profiler.ProfilerActivity.CUDA] * (asked.device == "cuda")
            profiler = torch.profiler.profile(activities=kinds)
            profiler.start()
        with rltrace.step(n):
            losses.append(job.step(n).hex())
    if profiler is not None:
        profiler.stop()
        profiler.export_chrome_trace(str(asked.profile))
    with torch.no_grad():
        weights = [float(p.double().sum()).hex() for p in job.layers.parameters()]
    return {
        "equal": {
            "losses": losses,
            "weights": weights,
            "compiled": compiled_counts() if asked.form in COMPILED else {},
            "explained": explained(job) if asked.form in COMPILED else {},
        },
        "torch": torch.__version__,
        "traced": "RLTRACE_RUN" in os.environ,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--form", choices=FORMS, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.out.write_text(json.dumps(work(asked)))


if __name__ == "__main__":
    main()
