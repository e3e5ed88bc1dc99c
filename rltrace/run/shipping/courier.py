"""A node's courier: ships what it recorded and brings what nodes on other disks say."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rltrace.run.shipping import shipping_state
from rltrace.run.shipping.shipper import Shipper
from rltrace.run.shipping.shipping_state import ShippingProgress
from rltrace.trace.errors import RltraceError
from rltrace.trace.metadata_validation import read_run_json
from rltrace.trace.read.clock_alignment import AGAIN, ALL_LOOKED, LOOKED, SHIPPED
from rltrace.trace.run_dir import CLOCKS, NODES, PROCESS, RUN_FILE, write_json
from rltrace.trace.safe_text import redacted_urls
from rltrace.trace.schema import TABLES
from rltrace.trace.transfer.store import Store
from rltrace.trace.untrusted_files import told_in

_MAIL_EVERY_S, _MAIL_AT_END_S = 5.0, 1.0
_SHIP_FIRST_S, _SHIP_LATER_S, _SHIP_SLOWER = 5.0, 60.0, 20.0
"""Between two packs: 5 s at first, 60 s once the run is 20 minutes old."""
_CPU_SHARE = 0.02  # of one core: what looking for changes may take
_PATIENCE_S, _PATIENCE_AT_END_S = 60.0, 5.0


class Courier:
    """Ships the run in `run_dir` to `url` from the node `node`, whose files at the store are called
    `name`: another name where the directory is not the run's own (`apart`) but this node's."""

    def __init__(self, run_dir: Path, node: str, name: str, url: str, is_first: bool, apart: bool):
        self._run_dir, self._name, self._url = run_dir, name, url
        self._is_first, self._apart = is_first, apart
        ours = everything if apart else Owner(run_dir, node, is_first)
        self._shipper = Shipper(run_dir, name, url, ours)
        self._store: Store | None = None
        self._put: dict[str, bytes] = {}
        self._others: dict[str, dict[str, Any]] = {}
        self._sizes: dict[str, int] = {}
        self._began = time.monotonic()
        self._mail_at = self._ship_at = 0.0
        self._again_s = 0.0
        self._mail_every_s = _MAIL_EVERY_S
        self._finish_by = float("inf")
        self._progress = ShippingProgress(url)
        self._wake, self._mailed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="rltrace-courier", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        """Has the mail brought now: something has changed that the other nodes wait for."""
        self._mail_at = 0.0
        self._wake.set()

    def hurry_at_end(self, within_s: float) -> None:
        """The run is over: has the mail brought every second from now on, and waits until it has
        been once, for so long at most."""
        self._mail_every_s = _MAIL_AT_END_S
        self._mailed.clear()
        self.hurry()
        self._mailed.wait(within_s)

    def finish(self, within_s: float) -> None:
        """Nothing more is recorded here: waits until all is shipped and, on the first node, the
        others say the same, for so long at most."""
        self._finish_by = time.monotonic() + within_s
        self._ship_at = 0.0
        self.hurry()
        self._thread.join(within_s)
        self._tell(over=True)

    def _work(self) -> None:
        while self._run_dir.is_dir() and time.monotonic() < self._finish_by:
            try:
                with shipping_state.held(self._run_dir, self._name) as is_alone:
                    if is_alone:
                        self._carry()
                return
            except OSError:  # no room for the lock, yet
                self._wake.wait(_PATIENCE_AT_END_S)
                self._wake.clear()

    def _carry(self) -> None:
        patience_s = 1.0
        while self._run_dir.is_dir() and time.monotonic() < self._finish_by:
            self._wake.clear()
            finishing = self._finish_by < float("inf")
            try:
                if self._round(finishing):
                    return
                patience_s, wait_s = 1.0, 1.0
            except (OSError, RltraceError) as error:
                self._tell(error=redacted_urls(str(error))[:300])
                longest_s = _PATIENCE_AT_END_S if finishing else _PATIENCE_S
                patience_s = wait_s = min(2 * patience_s, longest_s)
            self._wake.wait(wait_s)

    def _round(self, finishing: bool) -> bool:
        """Ships and brings what is due. Whether there is nothing more to do, ever."""
        if self._store is None:
            store = Store(self._url)
            if self._is_first and not store.is_local:
                store.create()
            self._store = store
        now = time.monotonic()
        no_room: OSError | None = None
        if now >= self._mail_at:
            self._mail_at = now + self._mail_every_s
            self._send_described(self._store)
            try:
                self._fetch_mail(self._store)
            except OSError as error:  # for the others' mail here: what is here is to be shipped
                no_room = error
            self._mailed.set()
        if now >= self._ship_at or (finishing and not self._progress.done):
            slower_s = max(_SHIP_FIRST_S, (now - self._began) / _SHIP_SLOWER)
            self._ship_at = now + min(slower_s, _SHIP_LATER_S)
            self._ship(self._store, finishing)
        if no_room is not None:
            raise no_room
        if not finishing:
            return False
        self._send_described(self._store)
        # The hosts whose agents have not said that all of theirs is there.
        left = [told for told in self._others.values() if not told.get(SHIPPED)]
        waits_for = tuple(sorted(str(told.get("host")) for told in left if self._is_first))
        self._tell(waits_for=waits_for)
        return not waits_for

    def _ship(self, store: Store, finishing: bool) -> None:
        began = time.thread_time()
        if finishing:
            self._shipper.look()
            self._tell()
        self._shipper.ship(store, finishing, self._tell)
        self._tell(error="")
        if not finishing:
            self._shipper.merge(store)
        took_s = time.thread_time() - began
        self._ship_at = max(self._ship_at, time.monotonic() + took_s / _CPU_SHARE)
        self._again_s = self._ship_at - time.monotonic()
        if finishing:
            self._shipper.save()
            self._tell(done=True)
        else:
            self._send_node(store)

    def _send_described(self, store: Store) -> None:
        if self._is_first:
            self._send(store, RUN_FILE, read_run_json(str(self._run_dir)))
        self._send_node(store)

    def _send_node(self, store: Store) -> None:
        """What describes this node, and until when all that it recorded is there."""
        node = told_in(self._run_dir / NODES / f"{self._name}.json")
        if not node:
            return  # the agent is about to introduce itself
        kept_there = {"directory": str(self._run_dir), SHIPPED: self._progress.done}
        if not self._progress.done and self._shipper.looked_ns:
            kept_there |= {
                LOOKED: self._shipper.looked_ns,
                ALL_LOOKED: self._shipper.all_looked_ns,
                AGAIN: round(self._again_s, 1),
            }
        self._send(store, f"{NODES}/{self._name}.json", {**node, **kept_there})

    def _send(self, store: Store, name: str, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        if self._put.get(name) != data:
            store.put(name, data)
            self._put[name] = data

    def _fetch_mail(self, store: Store) -> None:
        if self._apart:
            run = store.get_json(RUN_FILE)
            if run is not None and run != read_run_json(str(self._run_dir)):
                write_json(f"{self._run_dir}/{RUN_FILE}", run)
            if run is not None and isinstance(run.get("node"), str):
                self._take(store, str(run["node"]))
        elif self._is_first:
            for file, size in store.sizes(NODES).items():
                name = file.removesuffix(".json")
                if name != self._name and self._sizes.get(name) != size:
                    self._take(store, name)  # whether all of it is there changes its size, too
                    self._sizes[name] = size

    def _take(self, store: Store, name: str) -> None:
        """Brings the file of another node's agent, unless that node shares our disk."""
        told = store.get_json(f"{NODES}/{name}.json")
        if told is None or self._others.get(name) == told:
            return
        if not (self._run_dir / NODES / f"{name}.lock").exists():
            write_json(f"{self._run_dir}/{NODES}/{name}.json", told)
        self._others[name] = told

    def _tell(self, **changed: Any) -> None:
        sent = self._shipper
        changed |= {"packs": sent.packs, "shipped_bytes": sent.shipped_bytes}
        told = replace(self._progress, left_bytes=sent.left_bytes, **changed)
        if told != self._progress:
            self._progress = told
            with suppress(OSError):  # the disk is full, or the directory is gone
                shipping_state.write_progress(self._run_dir, self._name, told)


class Owner:
    """Whether the file `name` in `folder` is to be shipped by this node, of several that share a
    run's directory; the first node also ships those that may be anybody's."""

    def __init__(self, run_dir: Path, name: str, is_first: bool) -> None:
        self._run_dir, self._name, self._is_first = run_dir, name, is_first
        self._nodes: dict[str, str] = {}

    def __call__(self, folder: str, name: str) -> bool:
        if folder == CLOCKS:
            return name.removesuffix(".jsonl") == self._name
        who = name.rsplit(".", 2 if folder in TABLES else 1)[0]
        if who not in self._nodes:
            node = told_in(self._run_dir / PROCESS / f"{who}.json").get("node")
            if not isinstance(node, str) or not node:
                return self._is_first
            self._nodes[who] = node
        return self._nodes[who] == self._name


def everything(folder: str, name: str) -> bool:
    """Where a directory is one node's alone, all of it is."""
    return True
