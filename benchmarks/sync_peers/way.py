"""What a way to move weights is, for those beside rltrace.sync."""

from rltrace.sync.bench.models import Model, Weights, digest
from rltrace.sync.bench.ways import OTHER_BITS, BenchSetting, Crowd, Receive, Sender, Way

__all__ = [
    "OTHER_BITS", "BenchSetting", "Crowd", "Model", "Receive", "Sender", "Way", "Weights",
    "digest",
]  # fmt: skip
