"""Where members of a group meet and what they say there: torch.distributed's store, and a process
group of their own."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rltrace.sync.wire import Address, is_loopback
from rltrace.trace.errors import CANNOT_TELL, RltraceError

_POLL_S = 0.0005


class LostError(Exception):
    """A member, or all of them."""


class Talk:
    """What one member says and hears through the store, in rounds that all of them take part in."""

    def __init__(self, store: Any, timeout_s: float) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self.round = 0
        """The one that is under way."""
        self.aborted = threading.Event()
        """Set, it ends every wait, from any thread."""

    def say(self, what: str, said: dict[str, Any]) -> None:
        """Tells the others; what was said two rounds ago has been heard by all of them. Errors:
        `LostError`."""
        try:
            self._store.set(f"{self.round}{what}", json.dumps(said))
            self._store.delete_key(f"{self.round - 2}{what}")
        except RuntimeError as error:
            raise LostError(f"rank 0 is lost: {first_line(error)}") from error

    def hear(self, what: str) -> dict[str, Any]:
        """What was said in this round, once it is: "" is rank 0's word, "/2" that of rank 2.
        Errors: `LostError`."""
        key, who = f"{self.round}{what}", f"rank {what[1:] or 0}"
        deadline = time.monotonic() + self._timeout_s
        try:
            while not self._store.check([key]):
                self.still(deadline, who)
            said: dict[str, Any] = json.loads(self._store.get(key))
        except RuntimeError as error:
            raise LostError(f"rank 0 is lost: {first_line(error)}") from error
        return said

    def still(self, deadline: float, who: str) -> None:
        """A short wait. Errors: `LostError` where there is no more to wait for."""
        if self.aborted.is_set():
            raise LostError("it was aborted")
        if time.monotonic() > deadline:
            raise LostError(f"{who} did not answer for {self._timeout_s:g} s")
        time.sleep(_POLL_S)

    def close(self) -> None:
        """Lets go of the store."""
        self._store = None


def store_at(address: Address, rank: int, size: int, timeout_s: float) -> Any:
    """The store of all members, which is in rank 0's process. It asks nobody for a token.

    Errors: `RltraceError` where rank 0 cannot listen there, or is not there in time.
    """
    import torch.distributed as dist

    listening: dict[str, Any] = {}
    try:
        if rank == 0 and is_loopback(address.host):  # torch's own would listen on all networks
            family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
            server = socket.create_server((address.host, address.port), family=family)
            listening = {"master_listen_fd": server.detach(), "use_libuv": False}
        return dist.TCPStore(  # type: ignore[attr-defined]
            *(address.host, address.port, size, rank == 0),
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            **listening,
        )
    except (RuntimeError, OSError) as error:
        said = f"no group meets at {address}: {first_line(error)}"
        raise RltraceError(said, CANNOT_TELL) from error


@contextmanager
def gloo_near(address: Address) -> Iterator[None]:
    """Groups that are made meanwhile use what connects this host to itself, where that is an
    address of it; gloo would go by what the host's name means. Later ones of the process do not."""
    name = "GLOO_SOCKET_IFNAME"
    ours = is_loopback(address.host) and name not in os.environ
    if ours:
        os.environ[name] = "lo"
    try:
        yield
    finally:
        if ours:
            os.environ.pop(name, None)


def group_of(backend: str, store: Any, rank: int, size: int, timeout_s: float) -> Any:
    """A process group of its own, beside any that the process has. Errors: `RuntimeError` where not
    all come in time."""
    import torch.distributed as dist

    timeout = timedelta(seconds=timeout_s)
    if backend == "gloo":
        return dist.ProcessGroupGloo(store, rank, size, timeout)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)


def first_line(error: Exception) -> str:
    """What torch says of an error, without the trace of its C++."""
    return str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
