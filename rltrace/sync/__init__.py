"""Weight sync from the learner to rollout workers, in whole versions.

    publisher = Publisher.open(layout_of(model), where="shm://policy")    # the learner
    publisher.publish(model, step)

    subscriber = Subscriber.connect("shm://policy")                       # a rollout worker
    subscriber.pull_into(model)

A version lies in a slot of shared memory, and is there from one aligned 8-byte store on. A reader's
lease is a lock that the kernel frees when it dies; a leased slot is never written. What is
published after a restart is later than all before, and receivers never go back. Data is checked in
blocks of 512 KiB. The same holds for tensors of a GPU, and slots in its memory (`cuda://`).
"""

try:
    import xxhash  # noqa: F401
except ModuleNotFoundError:
    _said = "rltrace.sync needs xxhash: pip install 'rltrace-toolkit[sync]'"
    raise ModuleNotFoundError(_said, name="xxhash") from None

from rltrace.sync.memory.layout import Shard, layout_of
from rltrace.sync.publisher import Publisher
from rltrace.sync.rank_commit import commit_together
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
