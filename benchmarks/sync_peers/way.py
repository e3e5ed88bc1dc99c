"""What a way to move weights is, for those beside rltrace.sync."""

from rltrace.sync.bench.models import Model, Weights, digest
from rltrace.sync.bench.ways import OTHER_BITS, Crowd, Receive, Sender, Setting, Way

__all__ = [
    "OTHER_BITS", "Crowd", "Model", "Receive", "Sender", "Setting", "Way", "Weights",
    "digest",
]  # fmt: skip
