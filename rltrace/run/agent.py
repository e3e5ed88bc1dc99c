"""The agent of a node: the one process that runs beside the job and ends with the run.

It reads the devices and the host once a second into the `samples` table, pairs the node's clock
with real time every few seconds, and measures how far the clock is from that of the node where the
run was started: when it starts, every minute, and at the end. Where weights are published on the
node it measures what the node's memory carries, once. It holds no descriptor of the job's and no
terminal. A port is open only while the run has more than one node.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from rltrace.hooks import recorder as recording
from rltrace.hooks.recorder import Recorder, describe
from rltrace.run.cgroup import memory_room_bytes
from rltrace.run.closing import close_run
from rltrace.run.exchange import Server, measure, own_addresses
from rltrace.run.host import NO_DEVICE, cpu_model, read_host
from rltrace.run.lifetime import Lifetime
from rltrace.run.memory import COUNTER, MemoryFloor
from rltrace.run.nvml import Devices, NoGpu
from rltrace.trace.clock import boot_id, monotonic_ns, node_id, pair
from rltrace.trace.errors import RltraceError
from rltrace.trace.run_dir import CLOCKS, NODES, append_line, write_json

SAMPLE_EVERY_S = 1.0
PAIR_EVERY_S = 5.0
EXCHANGE_EVERY_S = 60.0
LAST_WORDS_S = 5.0
"""How long the first node's agent waits for the others' last exchange."""


def main(run_dir: str) -> None:
    """Runs the agent of this node until the run is over."""
    _let_go()
    cores = len(os.sched_getaffinity(0))
    recorder = recording.start(run_dir, role="agent", cores=cores, cpu=cpu_model())
    if recorder is None:
        return
    agent = Agent(run_dir, recorder)
    signal.signal(signal.SIGTERM, lambda *_: agent.stop())
    try:
        agent.work()
    except OSError:
        return  # the run directory is gone or full: nothing is left to do


class Agent:
    """See the module."""

    def __init__(self, run_dir: str, recorder: Recorder) -> None:
        self.node = node_id()
        self._run_dir = run_dir
        self._recorder = recorder
        self._lifetime = Lifetime(run_dir, self.node)
        self._stopped = False
        self._server: Server | None = None
        self._devices = self._open_devices()
        self._floor = MemoryFloor(run_dir, self.node, os.cpu_count() or 1)
        self._pair_at = self._exchange_at = 0.0
        self._patience_s = SAMPLE_EVERY_S
        self._compared = False
        self._unreached = ""  # why the last exchange failed

    def stop(self) -> None:
        """Ends the agent at the next tick."""
        self._stopped = True

    def work(self) -> None:
        """Samples and exchanges until the run is over, then does both a last time."""
        self._introduce()
        while not self._stopped and not self._lifetime.is_over():
            self._tick(time.monotonic())
            time.sleep(SAMPLE_EVERY_S - time.monotonic() % SAMPLE_EVERY_S)
        self._sample()
        self._pair()
        self._exchange()
        if self._floor.is_wanted:
            self._measure_memory()
        if self._unreached and not self._compared:
            first = self._lifetime.first_node
            self._recorder.problem("clocks-not-compared", target=first, detail=self._unreached)
        self._introduce(end_ns=monotonic_ns())
        if self._lifetime.first_node == self.node:
            self._await_others()
            self._close_run()

    def _tick(self, now: float) -> None:
        self._sample()
        if now >= self._pair_at:
            self._pair_at = now + PAIR_EVERY_S
            self._pair()
        if self._lifetime.first_node == self.node:
            self._listen()
        elif now >= self._exchange_at:
            self._exchange_at = now + self._exchange()

    def _open_devices(self) -> Devices | None:
        try:
            devices = Devices()
        except NoGpu as error:
            self._recorder.problem("no-gpu", target=self.node, detail=str(error))
            return None
        self._recorder.describe(devices=devices.names())
        return devices

    def _sample(self) -> None:
        host = list(read_host())
        readings = [*host, *(self._devices.read() if self._devices else ())]
        now_ns = monotonic_ns()
        for reading in readings:
            self._record(now_ns, *reading)
        of_host = {counter: value for counter, _, value in host}
        wanted = self._floor.is_wanted
        room_bytes = memory_room_bytes() if wanted else math.inf
        if self._floor.was_calm(now_ns, of_host, room_bytes) and wanted:
            self._measure_memory()

    def _measure_memory(self) -> None:
        try:
            rate = self._floor.measure()
        except Exception as error:  # no room for it: the reading is missing
            self._recorder.problem("not-recorded", target=COUNTER, detail=describe(error))
        else:
            self._record(monotonic_ns(), COUNTER, NO_DEVICE, rate)

    def _record(self, now_ns: int, counter: str, device: int, value: float) -> None:
        name = self._recorder.name(counter)
        self._recorder.append("samples", time_ns=now_ns, counter=name, device=device, value=value)

    def _pair(self) -> None:
        monotonic, real, bracket = pair()
        self._note(kind="pair", monotonic_ns=monotonic, real_ns=real, bracket_ns=bracket)

    def _exchange(self) -> float:
        """Measures the clock of the node that everyone is compared with. Returns in how many
        seconds to do so again: soon while that node's agent has not introduced itself, later and
        later while it cannot be reached."""
        first = self._lifetime.first_node
        if first == self.node:
            return EXCHANGE_EVERY_S  # one's own clock needs no comparing
        try:
            peer = json.loads(Path(self._run_dir, NODES, f"{first}.json").read_text())
            addresses = [str(address) for address in peer["addresses"]]
            port, token = int(peer["port"]), str(peer["token"])
        except (OSError, ValueError, KeyError) as error:
            self._unreached = f"its agent has not introduced itself ({type(error).__name__})"
            return SAMPLE_EVERY_S
        if peer.get("boot_id") == boot_id():
            addresses.insert(0, "127.0.0.1")
        try:
            offset = measure(addresses, port, token)
        except OSError as error:
            self._unreached = f"{', '.join(addresses)} port {port}: {error}"
            self._patience_s = min(2 * self._patience_s, EXCHANGE_EVERY_S)
            return self._patience_s
        self._compared = True
        self._patience_s = SAMPLE_EVERY_S
        self._note(kind="exchange", peer=first, **offset._asdict())
        return EXCHANGE_EVERY_S

    def _listen(self) -> None:
        """Opens a port once the run has another node, which will ask for the clock of this one."""
        if self._server is None and len(list(Path(self._run_dir, NODES).glob("*.lock"))) > 1:
            self._server = Server()
            self._introduce()

    def _introduce(self, **more: Any) -> None:
        facts: dict[str, Any] = {
            "node": self.node,
            "host": socket.gethostname(),
            "boot_id": boot_id(),
            "pid": os.getpid(),
            "addresses": own_addresses(),
        }
        if self._server is not None:
            facts.update(port=self._server.port, token=self._server.token)
        write_json(f"{self._run_dir}/{NODES}/{self.node}.json", {**facts, **more})

    def _await_others(self) -> None:
        until = time.monotonic() + LAST_WORDS_S
        while self._server is not None and time.monotonic() < until and self._others_at_work():
            time.sleep(0.1)

    def _others_at_work(self) -> bool:
        for path in Path(self._run_dir, NODES).glob("*.json"):
            try:
                if "end_ns" not in json.loads(path.read_text()):
                    return True
            except (OSError, ValueError):
                continue
        return False

    def _close_run(self) -> None:
        """Writes the run's end when `wrap` could not."""
        if self._lifetime.run.get("end_real_ns") is None and not self._stopped:
            with suppress(OSError, RltraceError):
                close_run(Path(self._run_dir), None)

    def _note(self, **fields: object) -> None:
        append_line(f"{self._run_dir}/{CLOCKS}/{self.node}.jsonl", fields)


def _let_go() -> None:
    """Holds on to nothing that belongs to whoever started us."""
    os.chdir("/")
    os.closerange(3, 4096)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
