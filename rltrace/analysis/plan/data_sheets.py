"""GPUs and models by their data sheets, and what links cost."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cache

from rltrace.analysis.whatif.workload import named, packaged
from rltrace.trace.errors import WrongUsage, did_you_mean

_COUNTED = re.compile(r"([1-9]\d{0,5})\s*[x×]\s*(.+)", re.IGNORECASE)


@dataclass(frozen=True)
class Gpu:
    """`near_gb_per_s` is to another GPU of its node, `far_gb_per_s` of its own network adapter,
    `host_gb_per_s` to the host's memory, each one way; `node` is how many a node holds."""

    name: str
    tflops: float
    memory_gb: float
    memory_tb_per_s: float
    near_gb_per_s: float
    far_gb_per_s: float
    host_gb_per_s: float
    node: int

    @property
    def peak(self) -> float:
        """Dense bf16, FLOP/s."""
        return self.tflops * 1e12

    @property
    def memory_bytes(self) -> float:
        return self.memory_gb * 1e9

    @property
    def bandwidth(self) -> float:
        """Bytes/s of its memory."""
        return self.memory_tb_per_s * 1e12

    def link(self, devices: float) -> float:
        """Bytes/s, one way, that a GPU has to the others of a group of so many."""
        return 1e9 * (self.near_gb_per_s if devices <= self.node else self.far_gb_per_s)


def counted(text: str) -> tuple[int, Gpu]:
    """`32xH100` -> 32 and the GPU. Errors: `RltraceError`, one sentence, for anything else."""
    found = _COUNTED.fullmatch(text.strip())
    if not found:
        raise WrongUsage(f"--gpus must be like 32xH100, of 1 to 999,999, not {text!r}")
    known = _known().get(_key(found[2]))
    if known is None:
        names = ", ".join(entry["name"] for entry in packaged("hardware")["gpu"])
        how = "name one that is near it, and its figures in a workload file, [gpu]"
        raise WrongUsage(f"the GPU {found[2]!r} is not in the table ({names}): {how}")
    return int(found[1]), known


def of_driver(name: str) -> Gpu | None:
    """The GPU that a driver's name means; None: none is known."""
    said = _key(name)
    return next((_known()[key] for key in sorted(_known(), key=len)[::-1] if key in said), None)


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().removeprefix("nvidia"))


@cache
def _known() -> dict[str, Gpu]:
    return {key: Gpu(**one) for key, one in named(packaged("hardware")["gpu"], _key).items()}


def powers_of_two(most: int) -> list[int]:
    """Into how many equal parts so many devices are split, at most."""
    return [2**i for i in range(most.bit_length())]


# --- collectives as latency plus bytes over bandwidth (nccl-tests, PERFORMANCE.md): seconds for
# `size` bytes over `devices` GPUs of `bandwidth` bytes/s each, one way, and `latency_s` a round.


def all_gather_s(size: float, devices: float, bandwidth: float) -> float:
    """Everybody gets the whole, `size`, of which it holds a part; a reduce-scatter is the same."""
    return size * max(0.0, devices - 1) / (devices * bandwidth)


def all_reduce_s(size: float, devices: float, bandwidth: float, latency_s: float = 0.0) -> float:
    return latency_s + 2 * all_gather_s(size, devices, bandwidth) if devices > 1 else 0.0


_PARAMETERS = re.compile(r"([0-9]*\.?[0-9]+)\s*([KMBT]?)", re.IGNORECASE)
_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_DENSE_TENSORS = 9.0  # of a layer: four of attention, three of the MLP, two norms


@dataclass(frozen=True)
class Shape:
    """A model. `parameters` are all of them (what is moved and stored), `active` those that a token
    passes (what is computed). `latent` are the numbers that a layer caches of a token where these
    are no keys and values; 0: they are. `source` says where all this is from."""

    name: str
    parameters: float
    active: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int = 0
    chosen: int = 0
    latent: int = 0
    source: str = ""

    @property
    def is_mixture(self) -> bool:
        return self.experts > self.chosen > 0

    @property
    def weight_bytes(self) -> float:
        """One copy of the weights in two bytes each: 140 GB of 70B, 810 GB of 405B."""
        return 2 * self.parameters

    @property
    def kv_bytes(self) -> float:
        """Cache of a token in two bytes: 2 (key and value) x 2 x kv_heads x head_dim x layers."""
        return 2.0 * (self.latent or 2 * self.kv_heads * self.head_dim) * self.layers

    @property
    def routed(self) -> float:
        """Parameters in routed experts: total = rest + X, active = rest + X chosen / experts."""
        if not self.is_mixture:
            return 0.0
        return (self.parameters - self.active) / (1 - self.chosen / self.experts)

    @property
    def tensors(self) -> float:
        """How many tensors a checkpoint has: three of each expert."""
        return self.layers * (_DENSE_TENSORS + 3 * self.experts) + 3

    def read_bytes(self, tokens: float) -> float:
        """Bytes of weights that one pass of so many tokens reads: of a mixture all that some token
        chose, 1 - (1 - chosen / experts)^tokens of the experts."""
        if not self.is_mixture:
            return self.weight_bytes
        hit = 1 - math.pow(1 - self.chosen / self.experts, max(1.0, tokens))
        return 2 * (self.parameters - self.routed * (1 - hit))

    def attention_flop(self, square: float) -> float:
        """Forward FLOP of causal attention for a sequence whose squared length is `square`: 4 x T^2
        x heads x head_dim a layer, half of which the mask saves."""
        return 2.0 * square * self.heads * self.head_dim * self.layers


def by_name(name: str) -> Shape:
    """The shape of a model by its name. Errors: `RltraceError` with what comes near."""
    known = _shapes_known()
    found = known.get(_shapes_key(name))
    if found is None:
        near = did_you_mean(name.rpartition("/")[2], *(shape.name for shape in known.values()))
        how = "give --params, or what its config.json says in a workload file, [model]"
        raise WrongUsage(f"the model {name!r} is not in the table{near}: {how}")
    return found


def by_size(parameters: float, active: float) -> Shape:
    """A shape with layers and heads of the known model of its kind that is nearest in size."""
    mixture = active < parameters
    models = [s for s in _shapes_known().values() if s.is_mixture == mixture]
    near = min(models, key=lambda s: abs(math.log(s.parameters / parameters)))
    passed = f" ({active / 1e9:.4g}B active)" if mixture else ""
    return replace(
        near,
        name=f"{parameters / 1e9:.4g}B{passed}",
        parameters=parameters,
        active=active,
        source=f"by hand; layers and heads are those of {near.name}",
    )


def parameters(text: str, what: str = "--params") -> float:
    """`405B` -> 4.05e11. Errors: `RltraceError` for what is no size of a model."""
    found = _PARAMETERS.fullmatch(text.strip())
    value = float(found[1]) * _UNITS[found[2].upper()] if found else math.nan
    if not value >= 1e6:
        raise WrongUsage(f"{what} must be a number like 7B or 405B, not {text!r}")
    return value


def _shapes_key(name: str) -> str:
    short = name.rsplit("/", 1)[-1].lower()
    return re.sub(r"-(instruct|base|chat|thinking|hf|it)(-\d+)?$", "", short)


@cache
def _shapes_known() -> dict[str, Shape]:
    data = packaged("models")
    return {
        key: Shape(
            name=one["name"],
            parameters=one["total"] * 1e9,
            active=one.get("active", one["total"]) * 1e9,
            source=f"table of {data['date']}: {data['source']}",
            **one["shape"],
        )
        for key, one in named(data["model"], _shapes_key).items()
    }
