"""Weight sync from the learner to rollout workers, in versions that are whole or not there.

    publisher = Publisher.open(layout_of(model), where="shm://policy")    # the learner
    publisher.publish(model, step)

    subscriber = Subscriber.connect("shm://policy")                       # a rollout worker
    subscriber.pull_into(model)

What holds it together:

- `layout`: names, types, shapes, shards and ties of all tensors, and the place of each in one flat
  run of bytes. Two sides whose layouts have the same digest agree on every byte.
- `blocks`: the data is checked in blocks of 512 KiB by their xxh3-64; `Manifest.root` is the
  xxh3-128 of the table of these.
- `version`: (run, epoch, counter). The epoch is when the publisher was opened: what is published
  after a restart is later than all before, whatever was lost. Receivers never go back.
- `arena`: the slots of a policy in shared memory, each a safetensors file. A version is there from
  one aligned 8-byte store on, after all of its data. Its only writer is a publisher or a relay; a
  reader's lease is a lock that the kernel frees when it dies, and a leased slot is never written.
- `device`: the same for tensors of a GPU, and for slots in its memory (`cuda://`). Control file,
  leases and locks are those of the arena; only the bytes lie elsewhere.
- `verifying`: who pulls checks what it copies, unless told otherwise.
"""

from __future__ import annotations

try:
    import xxhash  # noqa: F401
except ModuleNotFoundError:
    _said = "rltrace.sync needs xxhash: pip install 'rltrace-toolkit[sync]'"
    raise ModuleNotFoundError(_said, name="xxhash") from None

from rltrace.sync.commit import commit_together
from rltrace.sync.memory.layout import Shard, layout_of
from rltrace.sync.publisher import Publisher
from rltrace.sync.subscriber import PoisonedError, Subscriber
from rltrace.sync.transfer.broadcast_group import Group
from rltrace.sync.transfer.relay import Relay
from rltrace.sync.verifying import DamagedError
from rltrace.sync.version import Version
from rltrace.trace.errors import RltraceError

__all__ = [
    "DamagedError",
    "Group",
    "PoisonedError",
    "Publisher",
    "Relay",
    "RltraceError",
    "Shard",
    "Subscriber",
    "Version",
    "commit_together",
    "layout_of",
]
