"""Stands where SGLang's server would, which needs a GPU: its HTTP interface, as far as AReaL asks.

It answers with tokens that a seed decides, aborts what is running when it is paused (one request in
each version runs until then), and takes part in weight updates with a process group of its own
(gloo), whose bytes it counts.
"""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from areal.engine.core.distributed import init_custom_process_group
from job_stamps import stamp
from json_server import serving

A_TOKEN_S = 0.01
HELD_S = 60  # at most; the job may end before there are new weights
MOST = 40  # tokens of a request that was not interrupted yet
VOCABULARY = range(4, 100)

_paused = threading.Event()
_hold = threading.Semaphore(1)
_random = random.Random(0)
_groups: dict[str, Any] = {}


def generate(request: dict[str, Any]) -> dict[str, Any]:
    """As many tokens as it takes; all that may be, in one of four."""
    most = request["sampling_params"]["max_new_tokens"]
    some = min(most, _random.randint(2, max(2, most // 4)))
    wanted = most if _random.random() < 0.25 else some
    tokens: list[int] = []
    if most == MOST and _hold.acquire(blocking=False):
        tokens = [_random.choice(VOCABULARY), _random.choice(VOCABULARY)]
        wanted = most
        _paused.wait(HELD_S)
    while len(tokens) < wanted and not _paused.is_set():
        time.sleep(A_TOKEN_S)
        tokens.append(_random.choice(VOCABULARY))
    reason = "abort" if len(tokens) < wanted else "length" if wanted == most else "stop"
    sizes = {"prompt_tokens": len(request["input_ids"]), "completion_tokens": len(tokens)}
    logprobs = [[-1.0, token] for token in tokens]
    meta = {"finish_reason": {"type": reason}, "output_token_logprobs": logprobs, **sizes}
    return {"meta_info": meta}


def join(request: dict[str, Any]) -> dict[str, Any]:
    _groups[request["group_name"]] = init_custom_process_group(
        backend=request["backend"],
        init_method=f"tcp://{request['master_address']}:{request['master_port']}",
        world_size=request["world_size"],
        rank=request["rank_offset"],
        group_name=request["group_name"],
    )
    return {"success": True}


def load(request: dict[str, Any]) -> dict[str, Any]:
    size = 0
    for dtype, shape in zip(request["dtypes"], request["shapes"], strict=True):
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        dist.broadcast(tensor, src=0, group=_groups[request["group_name"]])
        size += tensor.numel() * tensor.element_size()
    stamp("bucket", bytes=size, tensors=len(request["names"]))
    return {"success": True}


def pause(_: dict[str, Any]) -> dict[str, Any]:
    _paused.set()
    return {"success": True}


def go_on(_: dict[str, Any]) -> dict[str, Any]:
    _paused.clear()
    _hold.release()
    return {"success": True}


PLACES = {
    "/generate": generate,
    "/init_weights_update_group": join,
    "/update_weights_from_distributed": load,
    "/pause_generation": pause,
    "/continue_generation": go_on,
}


def start() -> tuple[str, Any]:
    """Starts it in a process of its own; its address, and the process."""
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("fork").Process(target=_serve, args=(there,), daemon=True)
    server.start()
    return f"127.0.0.1:{here.recv()}", server


def _serve(connection: Connection) -> None:
    server = serving(lambda path, asked: {} if asked is None else PLACES[path](asked))
    connection.send(server.server_port)
    server.serve_forever()
