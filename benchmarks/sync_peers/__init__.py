"""Other ways to move weights on one host, beside rltrace.sync (`benchmarks.sync_local`)."""

from __future__ import annotations

from benchmarks.sync_bench.ways import Way
from benchmarks.sync_peers.ray_objects import ObjectStore
from benchmarks.sync_peers.torch_and_files import GlooFlat, GlooPerTensor, Saved
from benchmarks.sync_peers.verl_buckets import VerlBuckets

PEERS: tuple[Way, ...] = (
    ObjectStore(flat=True),
    GlooFlat(),
    GlooPerTensor(),
    Saved("torch"),
    Saved("safetensors"),
    VerlBuckets(),
    ObjectStore(flat=False),
)
