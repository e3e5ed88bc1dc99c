"""Weight movement from the learner to rollout workers, in versions that are whole or not there.

    publisher = Publisher.open(layout_of(model), where="shm://policy")    # the learner
    publisher.publish(model, step)

    subscriber = Subscriber.connect("shm://policy")                       # a rollout worker
    subscriber.pull_into(model)

The parts, and what each promises to the others:

- `layout.Layout`: names, types, shapes, shards, aliases and the offset of every tensor in one flat
  run of bytes without gaps. Made once; its `id` is the digest of its canonical JSON. Two sides that
  have the same id agree on the place of every byte; with another id nothing is received.
- `blocks`: the data is checked in blocks of `BLOCK_BYTES` (512 KiB), each by its xxh3-64; a version
  by its `root`, the xxh3-128 of the block table. A block may hold parts of several tensors.
- `version.Version`: (run, writer epoch, counter), never backwards in a run.
  `version.Manifest`: a version, its learner step, layout id, bytes and root.
- `arena.Arena`: the slots of one policy in shared memory. Every slot is a safetensors file; a
  version is visible from the one aligned 8-byte store of (epoch, counter, slot) on, after all of
  its blocks and digests are in place, and never before. Whoever fills slots (a publisher, a relay)
  is the arena's only writer: `arena.write()` gives a free slot, `slot.data` its bytes,
  `slot.digests` its block table, `slot.commit(version, step)` makes it the latest,
  `slot.abort()` leaves everything as it was. Readers hold a lease (a lock that the kernel frees
  when they die): a leased slot is never written.
"""

from __future__ import annotations

try:
    import xxhash  # noqa: F401
except ModuleNotFoundError:
    _said = "rltrace.sync needs xxhash: pip install 'rltrace-toolkit[sync]'"
    raise ModuleNotFoundError(_said, name="xxhash") from None

from rltrace.sync.arena import Arena
from rltrace.sync.commit import commit_together
from rltrace.sync.group import Group
from rltrace.sync.layout import Layout, Shard, layout_of
from rltrace.sync.publisher import Publisher
from rltrace.sync.relay import Relay
from rltrace.sync.subscriber import PoisonedError, Subscriber
from rltrace.sync.verifying import DamagedError
from rltrace.sync.version import Manifest, Version
from rltrace.sync.views import Views

__all__ = [
    "Arena",
    "DamagedError",
    "Group",
    "Layout",
    "Manifest",
    "PoisonedError",
    "Publisher",
    "Relay",
    "Shard",
    "Subscriber",
    "Version",
    "Views",
    "commit_together",
    "layout_of",
]
