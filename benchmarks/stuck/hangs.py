"""`python -m benchmarks.stuck.hangs KIND FOLDER`: a job that hangs at its fifth step.

FOLDER gets `culprit.json`, whose fields the finding has to show. A pipe there, `release`, ends what
hangs once somebody writes into it; the job then goes on to its end.
"""

from __future__ import annotations

import asyncio
import http.server
import json
import multiprocessing
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import rltrace

STEPS, HANGS_AT = 7, 4
_FOLDER = Path(sys.argv[2]) if len(sys.argv) > 2 else Path()
_context = multiprocessing.get_context("spawn")


def tell(**culprit: object) -> None:
    """What the finding has to name: a `kind`, a `pid`, a part of its place or of what it says."""
    part = _FOLDER / "culprit.part"
    part.write_text(json.dumps({"pid": os.getpid(), "at_ns": time.time_ns(), **culprit}))
    part.rename(_FOLDER / "culprit.json")


def until_released() -> None:
    with open(_FOLDER / "release", "rb") as pipe:
        pipe.read()


def when_released(let_go: Callable[[], object]) -> None:
    """Lets something else go then."""

    def wait() -> None:
        until_released()
        let_go()

    threading.Thread(target=wait, daemon=True).start()


def loop(work: Callable[[int], None]) -> None:
    for step in range(STEPS):
        with rltrace.step(step):
            with rltrace.span("rollout"):
                time.sleep(0.05)
            work(step)
            with rltrace.span("train"):
                time.sleep(0.05)


def in_processes(work: Callable[..., None], ranks: int) -> None:
    """Runs `work(rank, ranks)` in processes of a gloo group."""
    port, started = _free_port(), []
    for rank in range(ranks):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        os.environ.update(place)  # as torchrun gives it
        started.append(_context.Process(target=_rank, args=(work, rank, ranks, port)))
        started[-1].start()
    for process in started:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in started))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _rank(work: Callable[..., None], rank: int, ranks: int, port: int) -> None:
    from torch import distributed

    url = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group(
        "gloo", url, rank=rank, world_size=ranks, timeout=timedelta(seconds=90)
    )
    work(rank)
    distributed.destroy_process_group()


def _absent(rank: int) -> None:
    import torch
    from torch import distributed

    def train(step: int) -> None:
        with rltrace.span("train", "update"):
            if step == HANGS_AT and rank == 2:
                tell(kind="absent", place="until_released")
                until_released()
            distributed.all_reduce(torch.ones(8))

    loop(train)


def _fewer(rank: int) -> None:
    import torch
    from torch import distributed

    def train(step: int) -> None:
        for _ in range(5 if step == HANGS_AT and rank == 1 else 6):
            with rltrace.span("train", "micro-batch"):
                distributed.all_reduce(torch.ones(8))
        if step == HANGS_AT and rank == 1:
            tell(kind="absent", says="5 pieces")
            with rltrace.span("other", "checkpoint"):
                until_released()  # it thinks that it is done
            with rltrace.span("train", "micro-batch"):
                distributed.all_reduce(torch.ones(8))

    loop(train)


def absent_rank() -> None:
    in_processes(_absent, 3)


def fewer_micro_batches() -> None:
    in_processes(_fewer, 3)


def endless_sample() -> None:
    """A coroutine waits for an event that nobody sets: no thread has it on its stack."""

    async def generate(step: int, sample: int, released: asyncio.Event) -> None:
        row = rltrace.trajectory(f"{step}/{sample}")
        with row:
            if step == HANGS_AT and sample == 2:
                tell(kind="open work", says="trajectory")
                await released.wait()
            await asyncio.sleep(0.01)
            row.finish("stop", response_tokens=10)

    async def batch(step: int) -> None:
        released = asyncio.Event()
        running = asyncio.get_running_loop()
        if step == HANGS_AT:
            when_released(lambda: running.call_soon_threadsafe(released.set))
        await asyncio.gather(*(generate(step, sample, released) for sample in range(4)))

    loop(lambda step: asyncio.run(batch(step)))


def hung_judge() -> None:
    def judge(step: int) -> None:
        with rltrace.reward(f"{step}/0", 0.0) as row:
            if step == HANGS_AT:
                tell(kind="open work", says="reward", place="judge")
                subprocess.run(["cat", str(_FOLDER / "release")], check=True)
            row.set(value=1.0)

    loop(judge)


class _Silent(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == f"/{HANGS_AT}":
            until_released()
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def _serve(port: int) -> None:
    http.server.HTTPServer(("127.0.0.1", port), _Silent).serve_forever()


def silent_server() -> None:
    port = _free_port()
    code = f"from benchmarks.stuck.hangs import _serve; _serve({port})"
    plain = {k: v for k, v in os.environ.items() if not k.startswith("RLTRACE")}
    server = subprocess.Popen([sys.executable, "-c", code, "-", str(_FOLDER)], env=plain)
    while server.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            break
        time.sleep(0.1)

    def ask(step: int) -> None:
        with rltrace.reward(f"{step}/0", 0.0) as row:
            if step == HANGS_AT:
                tell(kind="open work", says="reward", place="ask")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{step}"):
                row.set(value=1.0)

    loop(ask)
    server.kill()


def _engine(connection: socket.socket) -> None:
    for version in range(STEPS):
        connection.recv(1)
        with rltrace.weight_update(version, role="sink"):
            if version == HANGS_AT:
                tell(kind="died", says="sync")
                os.kill(os.getpid(), signal.SIGKILL)
            connection.send(b"x")


def died_in_a_sync() -> None:
    here, there = socket.socketpair()
    engine = _context.Process(target=_engine, args=(there,))
    engine.start()

    def sync(step: int) -> None:
        if step > HANGS_AT:  # there is no engine any more
            return
        with rltrace.weight_update(step, role="source"):
            here.send(b"x")
            if step == HANGS_AT:  # whoever else has its end of the socket keeps it open
                when_released(lambda: there.send(b"x"))
            here.recv(1)

    loop(sync)
    engine.join()


def blocked_loop() -> None:
    async def generate(step: int, sample: int) -> None:
        row = rltrace.trajectory(f"{step}/{sample}")
        with row:
            await asyncio.sleep(0.01)
            if step == HANGS_AT and sample == 2:
                tell(kind="blocked loop", place="until_released")
                until_released()  # in the loop's own thread
            await asyncio.sleep(0.01)
            row.finish("stop", response_tokens=10)

    async def batch(step: int) -> None:
        await asyncio.gather(*(generate(step, sample) for sample in range(4)))

    loop(lambda step: asyncio.run(batch(step)))


def full_queue() -> None:
    waiting: queue.Queue[int] = queue.Queue(2)
    over = threading.Event()

    def learner() -> None:
        hung = False
        while not over.is_set():
            if waiting.get() == HANGS_AT and not hung:
                hung = True
                tell(kind="full queue", place="produce")
                until_released()
                over.wait(0.01)

    threading.Thread(target=learner, daemon=True).start()

    def produce(step: int) -> None:
        for _ in range(4):
            waiting.put(step)

    loop(produce)
    over.set()


def lock_of_a_dead_thread() -> None:
    held = threading.Lock()

    def take(step: int) -> None:
        def keep() -> None:
            held.acquire()
            if step != HANGS_AT:
                held.release()

        thread = threading.Thread(target=keep)
        thread.start()
        thread.join()
        if step == HANGS_AT:
            tell(kind="locks", place="take")
            when_released(held.release)
        with held:
            pass

    loop(take)


def deadlocked_locks() -> None:
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def other() -> None:
        second.acquire()  # given back by whoever ends the deadlock
        both.wait()
        with first:
            pass

    def take(step: int) -> None:
        if step != HANGS_AT:
            return
        threading.Thread(target=other, daemon=True).start()
        tell(kind="locks", place="take")
        when_released(second.release)
        with first:
            both.wait()
            with second:  # the other waits for `first`
                pass

    loop(take)


def _stops(connection: socket.socket) -> None:
    for step in range(STEPS):
        with rltrace.span("rollout", "answer"):
            connection.recv(1)
            if step == HANGS_AT:
                tell(kind="stopped")
                os.kill(os.getpid(), signal.SIGSTOP)
            connection.send(b"x")


def stopped_process() -> None:
    here, there = socket.socketpair()
    engine = _context.Process(target=_stops, args=(there,))
    engine.start()

    when_released(lambda: os.kill(engine.pid or 0, signal.SIGCONT))

    def ask(_: int) -> None:
        here.send(b"x")
        here.recv(1)

    loop(ask)
    engine.join()


def actor_never_starts() -> None:
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False,
             _temp_dir=os.environ.get("RLTRACE_TEST_RAY_TMP"), log_to_driver=False)  # fmt: skip

    class Engine:
        def answer(self) -> int:
            return 1

    engines: Any = ray.remote(num_cpus=0)(Engine)
    engine = engines.remote()

    def ask(step: int) -> None:
        asked = engine
        if step == HANGS_AT:
            asked = engines.options(resources={"gpu-that-nobody-has": 1}).remote()
            tell(kind="not begun", place="ask")
            answer = asked.answer.remote()
            # Killed, the call fails: what the job does about that is go on.
            when_released(lambda: ray.kill(asked))
            try:
                ray.get(answer)
            except ray.exceptions.RayActorError:
                return
        ray.get(asked.answer.remote())

    loop(ask)
    ray.shutdown()


KINDS = {
    work.__name__: work
    for work in (
        *(absent_rank, fewer_micro_batches, endless_sample, hung_judge, silent_server),
        *(died_in_a_sync, blocked_loop, full_queue, lock_of_a_dead_thread, deadlocked_locks),
        *(stopped_process, actor_never_starts),
    )
}

if __name__ == "__main__":
    KINDS[sys.argv[1]]()
