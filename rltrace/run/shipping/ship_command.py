"""`rltrace ship`: ships what an agent could not, or was not asked to."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from rltrace.run.shipping import shipping_state
from rltrace.run.shipping.courier import everything
from rltrace.run.shipping.destinations import check_ship, shipped_to, url_of_run
from rltrace.run.shipping.shipper import Shipper
from rltrace.run.shipping.shipping_state import ShippingProgress
from rltrace.trace.clock import node_id
from rltrace.trace.compact.manifest import read_manifest, segment_bytes
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.metadata_validation import read_described, update_run_json
from rltrace.trace.read.clock_alignment import SHIPPED
from rltrace.trace.run_dir import APART_FILE, NODES, RUN_FILE
from rltrace.trace.schema import TABLES
from rltrace.trace.transfer.store import Store, unreached
from rltrace.trace.untrusted_files import own_files, told_in

Tell = Callable[[int, int], None]


def ship(
    run_dir: Path, runs_url: str | None, tell: Tell = lambda done, left: None
) -> ShippingProgress:
    """Ships what is not yet: to where it was to go, or into the folder at `runs_url`. `tell` hears
    the bytes shipped and left. Errors: `RltraceError`; what was shipped is not shipped again."""
    read_described(str(run_dir))
    if read_manifest(run_dir) is not None and not any(segment_bytes(run_dir, t) for t in TABLES):
        said = f"{run_dir} is compacted and its segments are deleted: copy its folder as it is, "
        raise RltraceError(f"{said}commands read that at a URL, too")
    is_known = bool(shipped_to(run_dir))
    url = _destination(run_dir, runs_url)
    is_apart = (run_dir / APART_FILE).exists()
    with ExitStack() as stack:
        # What the agents said whose files lie here; those of other disks were only brought.
        said_by = {path.stem: told_in(path) for path in own_files(run_dir / NODES, ".json")[0]}
        nodes = {node: told for node, told in said_by.items() if told and SHIPPED not in told}
        for node in {node_id(), *nodes}:
            if not stack.enter_context(shipping_state.held(run_dir, node)):
                said = f"{run_dir} is being shipped by the agent of its node"
                raise RltraceError(f"{said}: wait until it has ended")
        # A node's own directory has the name that its agent gave it.
        name = next(iter(nodes), run_dir.name) if is_apart else node_id()
        shipper = Shipper(run_dir, name, url, everything)
        try:
            store = Store(url)
            if not (is_known and store.is_local):
                store.create()
            if not is_apart:
                store.put(RUN_FILE, json.dumps(read_described(str(run_dir))).encode())
            shipper.look()
            shipper.ship(store, True, lambda: tell(shipper.shipped_bytes, shipper.left_bytes))
            for node, told in nodes.items():
                whole = {**told, "directory": str(run_dir), SHIPPED: True}
                store.put(f"{NODES}/{node}.json", json.dumps(whole).encode())
        except OSError as error:
            there = f"{shipper.packs} packs are there and are not shipped again"
            raise RltraceError(f"{unreached(url, error)}; {there}") from None
        finally:
            shipper.save()
    return ShippingProgress(url, shipper.packs, shipper.shipped_bytes)


def _destination(run_dir: Path, runs_url: str | None) -> str:
    known = shipped_to(run_dir)
    if runs_url is None:
        if not known:
            where = f"say where to, e.g. `rltrace ship {run_dir} s3://bucket/runs`"
            raise WrongUsage(f"{run_dir} was not shipped: {where}")
        return known
    folder = check_ship(runs_url)
    if folder in (known, known.rpartition("/")[0]):
        return known
    if (run_dir / APART_FILE).exists():
        raise WrongUsage(f"this is a part of a run that is shipped to {known}")
    url = url_of_run(folder, run_dir.absolute().name)
    update_run_json(str(run_dir), shipped_to=url)
    return url
