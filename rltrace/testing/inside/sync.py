"""What tests ask of `rltrace.sync`."""

from rltrace.sync import (
    arena,
    beside,
    changes,
    copying,
    frames,
    holders,
    joined_files,
    place,
    relay,
    wire,
)
from rltrace.sync.bench import measuring
from rltrace.sync.bench.measuring import OWN, PEERS, Round, Row, measure
from rltrace.sync.bench.models import Memory, Model, Weights, model_of, seconds
from rltrace.sync.bench.models import digest as models_digest
from rltrace.sync.bench.own import Slots
from rltrace.sync.bench.verl_peer import VerlBuckets
from rltrace.sync.blocks import BLOCK_BYTES, block_count, digests_of, root_of
from rltrace.sync.blocks import digest as blocks_digest
from rltrace.sync.changes import Bytes, Finder
from rltrace.sync.control import CONTROL, Control
from rltrace.sync.copying import Workers, default_threads
from rltrace.sync.delta import DENSE, BadBlocks, Delta, Encoded, apply, encode, widths_of
from rltrace.sync.encodings import Encoder, Encoding
from rltrace.sync.fetching import Fetch
from rltrace.sync.filling import Filler
from rltrace.sync.flat import layout_of as flat_layout_of
from rltrace.sync.flat import pack, unpack
from rltrace.sync.following import Elsewhere, Follower, Received, checked
from rltrace.sync.frames import Kind
from rltrace.sync.interface import Manifest as interface_Manifest
from rltrace.sync.joined_files import JoinedFiles, sweep
from rltrace.sync.joining import place_of
from rltrace.sync.kernel import compiled
from rltrace.sync.landing import Wishes
from rltrace.sync.layout import Layout
from rltrace.sync.layout import layout_of as layout_layout_of
from rltrace.sync.locks import Lock
from rltrace.sync.place import folder_of, shared_memory
from rltrace.sync.relay import Reach, Relay, Status
from rltrace.sync.serving import Node, Server
from rltrace.sync.shelf import GoneError, Held, Shelf
from rltrace.sync.version import Behind, Version
from rltrace.sync.version import Manifest as version_Manifest
from rltrace.sync.wire import Address, Connection, LinkError, RefusedError
