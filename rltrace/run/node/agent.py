"""A node's agent: the one process that runs beside the job, and ends with the run.

It holds no descriptor of the job's, no terminal, and a port only while the run has several nodes.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltrace.hooks import recorder as recording
from rltrace.hooks.recorder import Recorder
from rltrace.run.node.clock_exchange import ClockServer, measure, own_addresses
from rltrace.run.node.nvml import NoGpu, NvmlDevices, Reading
from rltrace.run.node.silence import Silence
from rltrace.run.run_end import Lifetime, close_run
from rltrace.trace.clock import boot_id, monotonic_ns, node_id, pair
from rltrace.trace.errors import RltraceError
from rltrace.trace.run_dir import APART_FILE, CLOCKS, NODES, PROCESS, STUCK, append_line, write_json
from rltrace.trace.untrusted_files import told_in

if TYPE_CHECKING:
    from rltrace.run.shipping.courier import Courier

SAMPLE_EVERY_S = 1.0
PAIR_EVERY_S = 5.0
EXCHANGE_EVERY_S = 60.0
# When the run is over:
LAST_WORDS_S = 5.0  # the first node's agent waits for the others' last exchange
COMPARE_WITHIN_S = 15.0  # a node that shares no disk tries to compare its clock if it never could
SHIP_WITHIN_S = 600.0  # an agent goes on shipping


def main(run_dir: str) -> None:
    # Nothing is held that belongs to whoever started us.
    os.chdir("/")
    os.closerange(3, 4096)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    recorder = recording.start(run_dir, role="agent", cpu=cpu_model())
    if recorder is None:
        return
    agent = Agent(run_dir, recorder)
    signal.signal(signal.SIGTERM, lambda *_: agent.stop())
    try:
        agent.work()
    finally:
        agent.leave()


class Agent:
    def __init__(self, run_dir: str, recorder: Recorder) -> None:
        self.node = node_id()
        self._run_dir = run_dir
        self._recorder = recorder
        apart = told_in(Path(run_dir, APART_FILE))  # where the directory is this node's own
        self._is_apart = bool(apart)
        # Containers have directories of their own and may share a kernel, so a clock: its name.
        self._name = f"{self.node}~{recorder.who.rpartition('-')[2]}" if apart else self.node
        detached = bool(apart.get("detached"))
        self._lifetime = Lifetime(run_dir, self.node, self._is_apart, detached)
        self._stopped = False
        told = told_in(self._file(NODES, "json"))
        if "pid" in told and "end_ns" not in told:
            says = "the agent of the node was killed; readings are missing until this one's"
            recorder.problem("agent-replaced", target=str(told["pid"]), detail=says)
        self._courier: Courier | None = None
        url = self._lifetime.run.get("shipped_to")
        if isinstance(url, str):
            from rltrace.run.shipping.courier import Courier  # few runs are shipped

            where, is_first = (Path(run_dir), self.node, self._name, url), self._lifetime.is_first
            self._courier = Courier(*where, is_first, self._is_apart)
        self._server: ClockServer | None = None
        self._devices: NvmlDevices | None = None
        try:
            self._devices = NvmlDevices(self._is_of_run)
            recorder.describe(devices=self._devices.names(), uuids=self._devices.uuids())
        except NoGpu as error:
            recorder.problem("no-gpu", target=self.node, detail=str(error))
        self._held: dict[str, list[int]] = {}  # as was said last
        self._spent_s: dict[str, float] = {}  # by a process's file
        self._ended: set[str] = set()  # of them, or on another node
        self._silence = Silence(run_dir, self._lifetime.run.get("settings") or {})
        self._stuck: dict[str, Any] = {}  # what the last closer look found
        self._pair_at = self._exchange_at = 0.0
        self._patience_s = SAMPLE_EVERY_S
        self._compared = False
        self._unreached = ""  # why the last exchange failed

    def stop(self) -> None:
        self._stopped = True

    def work(self) -> None:
        """Samples and exchanges until the run is over, then does both a last time. What cannot be
        written is left out: a full disk may have room later, one that is away may come back."""
        with suppress(OSError):
            self._introduce()
        if self._courier is not None:
            self._courier.start()
        while not self._stopped and not self._lifetime.is_over():
            with suppress(OSError):
                self._tick(time.monotonic())
            time.sleep(SAMPLE_EVERY_S - time.monotonic() % SAMPLE_EVERY_S)
        if self._lifetime.is_deleted():
            return  # nobody is left to write to
        if self._courier is not None:
            self._courier.hurry_at_end(LAST_WORDS_S)  # the others are to hear of it
        for last in (self._sample, self._pair, self._exchange_at_last, self._tell_unreached):
            with suppress(OSError):
                last()
        with suppress(OSError):
            self._introduce(end_ns=monotonic_ns())
        if self._lifetime.is_first:
            with suppress(OSError):
                self._listen()
                if self._courier is None:  # else it waits for them
                    self._await_others()
            if self._lifetime.run.get("end_real_ns") is None and not self._stopped:
                with suppress(OSError, RltraceError):  # `wrap` could not
                    close_run(Path(self._run_dir), None)
        if self._courier is not None:
            self._courier.finish(SHIP_WITHIN_S)

    def leave(self) -> None:
        """A process that starts later on a node apart gets another agent."""
        if self._is_apart:
            with suppress(OSError):
                os.unlink(f"{self._run_dir}/{NODES}/{self.node}.lock")

    def _tick(self, now: float) -> None:
        self._sample()
        if (stuck := self._silence.look(now)) is not None:
            self._stuck = stuck
            since, says = str(stuck["since_ns"]), str(stuck["culprit"]["says"])
            self._recorder.problem(STUCK, target=since, detail=says, stuck=stuck)
            self._introduce()  # `wrap` looks there
        if now >= self._pair_at:
            self._pair_at = now + PAIR_EVERY_S
            self._pair()
        if self._lifetime.is_first:
            self._listen()
        elif now >= self._exchange_at:
            self._exchange_at = now + self._exchange()

    def _file(self, folder: str, kind: str) -> Path:
        return Path(self._run_dir, folder, f"{self._name}.{kind}")

    def _is_of_run(self, pid: str) -> bool:
        """Whether a pid of this host is that of a process which records."""
        who = f"{self._recorder.who.rsplit('-', 3)[0]}-{pid}-"
        with suppress(OSError):
            return any(n.startswith(who) for n in os.listdir(f"{self._run_dir}/{PROCESS}"))
        return False

    def _sample(self) -> None:
        spent = "host/job_cpu_seconds", NO_DEVICE, self._spent()
        readings = [*read_host(), spent, *(self._devices.read() if self._devices else ())]
        now_ns = monotonic_ns()
        for counter, device, value in readings:
            name = self._recorder.name(counter)
            columns = {"time_ns": now_ns, "counter": name, "device": device, "value": value}
            self._recorder.append("samples", **columns)
        if self._devices is not None and self._held != self._devices.held:
            self._held = dict(self._devices.held)
            self._recorder.describe(held=self._held)

    def _spent(self) -> float:
        """CPU seconds so far of the job's processes on this node, those that have ended, too."""
        host, own, *_ = self._recorder.who.rsplit("-", 3)
        for name in set(os.listdir(f"{self._run_dir}/{PROCESS}")) - self._ended:
            of, pid, *_ = name.rsplit("-", 3)
            self._ended.add(name)
            if of == host and pid != own:
                with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                    self._spent_s[name] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
                    self._ended.discard(name)
        return sum(self._spent_s.values())

    def _tell_unreached(self) -> None:
        if self._unreached and not self._compared:
            first = self._lifetime.first_node
            self._recorder.problem("clocks-not-compared", target=first, detail=self._unreached)

    def _pair(self) -> None:
        monotonic, real, bracket = pair()
        self._note(kind="pair", monotonic_ns=monotonic, real_ns=real, bracket_ns=bracket)

    def _exchange(self) -> float:
        """Measures the first node's clock. Returns in how many seconds to do so again: soon while
        its agent has not introduced itself, later and later while it cannot be reached."""
        first = self._lifetime.first_node
        if first == self.node:
            return EXCHANGE_EVERY_S  # one's own clock needs no comparing
        peer = told_in(Path(self._run_dir, NODES, f"{first}.json"))
        try:
            addresses = [str(address) for address in peer["addresses"]]
            port, token = int(peer["port"]), str(peer["token"])
        except (ValueError, KeyError, TypeError):
            self._unreached = "its agent has not introduced itself"
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

    def _exchange_at_last(self) -> None:
        until = time.monotonic() + COMPARE_WITHIN_S
        self._exchange()
        # Where nodes share no disk this one may hear late where the first one listens.
        while self._is_apart and self._unreached and not self._compared:
            if time.monotonic() >= until:
                return
            time.sleep(0.2)
            self._exchange()

    def _listen(self) -> None:
        """Opens a port once the run has another node, which will ask for the clock of this one."""
        if self._server is not None:
            return
        files = Path(self._run_dir, NODES).iterdir()  # locks of nodes on this disk, files of all
        if len({file.stem for file in files if file.suffix in (".lock", ".json")}) > 1:
            self._server = ClockServer()
            self._introduce()
            if self._courier is not None:
                self._courier.hurry()

    def _introduce(self, **more: Any) -> None:
        host: dict[str, Any] = {"node": self.node, "host": socket.gethostname()}
        facts = {"boot_id": boot_id(), "pid": os.getpid(), "addresses": own_addresses()}
        if self._server is not None:
            facts |= {"port": self._server.port, "token": self._server.token}
        facts |= {STUCK: self._stuck} if self._stuck else {}
        write_json(str(self._file(NODES, "json")), {**host, **facts, **more})

    def _await_others(self) -> None:
        until = time.monotonic() + LAST_WORDS_S
        while self._server is not None and time.monotonic() < until:
            files = Path(self._run_dir, NODES).glob("*.json")
            others = (told_in(path) for path in files if path.stem != self._name)
            if not any(told and "end_ns" not in told for told in others):
                return
            time.sleep(0.1)

    def _note(self, **fields: object) -> None:
        append_line(str(self._file(CLOCKS, "jsonl")), fields)


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
NO_DEVICE = -1


def read_host() -> Iterator[Reading]:
    """Of the node itself (`NO_DEVICE`); nothing where there is no `/proc`. The busy seconds are
    cumulative over all cores; the runnable threads those of the moment, but the reader's."""
    try:
        with open("/proc/stat", "rb") as file:
            user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
            runnable = next(int(line.split()[1]) for line in file if line[:13] == b"procs_running")
        with open("/proc/meminfo", "rb") as file:
            memory = dict(line.split(b":", 1) for line in file)
    except (OSError, ValueError, StopIteration):
        return
    busy = (user + nice + system + irq + softirq) / _TICKS_PER_S
    yield "host/cpu_busy_seconds", NO_DEVICE, busy
    yield "host/runnable_threads", NO_DEVICE, float(max(runnable - 1, 0))
    keys = (b"MemAvailable", b"MemTotal")
    available, total = (1024.0 * int(memory.get(key, b"0").split()[0]) for key in keys)
    yield "host/memory_available_bytes", NO_DEVICE, available
    yield "host/memory_total_bytes", NO_DEVICE, total


def cpu_model() -> str:
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        names = (line.partition(":")[2].strip() for line in file if line[:10] == "model name")
        return next(names, "")
    return ""
