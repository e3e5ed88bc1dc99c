"""What a way to move weights is, for those beside rltrace.sync."""

from rltrace.sync.bench.models import Model, Weights, digest
from rltrace.sync.bench.ways import OTHER_BITS, Crowd, Receive, Receivers, Sender, Setting, Way

__all__ = [
    "OTHER_BITS", "Crowd", "Model", "Receive", "Receivers", "Sender", "Setting", "Way", "Weights",
    "digest",
]  # fmt: skip
