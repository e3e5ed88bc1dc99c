"""Ray workers that need not import torch: forks of one process that has.

A worker of Ray begins as a new interpreter, and an actor of the trainer spends nearly all of its
CPU, three to five seconds, on importing torch. Tests that hire dozens of actors have Ray start
`forked_worker.py` in the place of its own `default_worker.py`: it hands its command line, its
environment and its streams to the process that runs here, which forks. The fork then runs Ray's own
`default_worker.py` with them. All that is left out are imports, and none of Ray's: it reads the
environment as it is imported.
"""

from __future__ import annotations

import array
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path
from types import FrameType
from typing import Any

ADDRESS = "FORKED_WORKERS"
"""The environment variable that says where the process that forks is asked."""
END = b"\n"
"""After all that is asked; JSON has none within."""
STREAMS = (0, 1, 2)
"""The descriptors that a worker takes over."""


@contextmanager
def forked_workers() -> Iterator[None]:
    """Clusters that this process starts meanwhile have workers that are forks."""
    from ray._private.parameter import RayParams  # the process that forks imports it by itself

    began = RayParams.__init__
    entry = str(Path(__file__).with_name("forked_worker.py"))
    with tempfile.TemporaryDirectory(prefix="rltf", dir="/tmp") as folder:
        os.environ[ADDRESS] = f"{folder}/socket"
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.environ[ADDRESS])
            server.listen(100)  # workers wait until the imports are through
            forks = subprocess.Popen(
                [sys.executable, "-m", __name__, str(server.fileno())],
                stdin=subprocess.PIPE,  # that ends with this process, however that ends
                pass_fds=[server.fileno()],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                cwd=Path(__file__).parents[2],
                start_new_session=True,  # Ctrl-C is for the tests, as with Ray's own processes
            )
        # Ray has no option for it.
        setattr(RayParams, "__init__", partialmethod(began, worker_path=entry))  # noqa: B010
        try:
            yield
        finally:
            setattr(RayParams, "__init__", began)  # noqa: B010
            del os.environ[ADDRESS]
            forks.terminate()
            forks.communicate()


def ask(address: str) -> None:
    """Hands this process's command line, environment and streams to a fork, and stays until it has
    ended, as Ray expects of what it started."""
    asked = {"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        descriptors = array.array("i", STREAMS).tobytes()
        server.sendmsg([b"!"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        server.sendall(json.dumps(asked).encode() + END)
        server.shutdown(socket.SHUT_WR)
        server.recv(1)  # nothing comes: the fork holds the other end


def serve(server: socket.socket) -> None:
    """Forks for everyone who asks. Returns in the forks only, each with its worker set up."""
    signal.signal(signal.SIGCHLD, _bury)
    while server in select.select([server, sys.stdin], [], [])[0]:
        asking, _ = server.accept()
        _, rights, *_ = asking.recvmsg(1, socket.CMSG_SPACE(len(STREAMS) * 4))
        streams = array.array("i", rights[0][2] if rights else b"")
        with asking.makefile("rb") as words:
            asked = words.read()
        # Ray may end whom it started, at any time: then less has come, and nobody waits.
        if asked.endswith(END) and os.fork() == 0:
            server.close()
            asking.detach()  # open for as long as the worker is there
            for mine, theirs in zip(STREAMS, streams, strict=True):
                os.dup2(theirs, mine)
                os.close(theirs)
            os.setpgid(0, 0)  # Ray ends what is left of a worker by its process group
            _become(json.loads(asked))
            return
        asking.close()
        for descriptor in streams:
            os.close(descriptor)
    sys.exit()  # nobody is left who would ask


def _become(asked: dict[str, Any]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.argv = [_default_worker(), *asked["argv"]]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])


def _default_worker() -> str:
    spec = importlib.util.find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "_private" / "workers" / "default_worker.py")


def _bury(number: int, frame: FrameType | None) -> None:
    """Ends the forks that have ended for good."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    # What the actors import, torch's compiler because each of its optimizers does, and what Ray
    # imports of others.
    import google.protobuf.json_format  # noqa: F401
    import jsonschema  # noqa: F401
    import requests  # noqa: F401
    import torch._dynamo  # noqa: F401
    import yaml  # noqa: F401

    assert "ray" not in sys.modules
    serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_path(sys.argv[0], run_name="__main__")
