"""Moving weights from learner to rollout, by mechanism: what a link could do says little.

Published times of one mechanism follow a fixed cost, a cost for each tensor (which is why mixtures
of many small experts are the worst), and bytes over a bandwidth of the mechanism's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.analysis.plan.constants import PlanConstants
from rltrace.analysis.plan.hardware import Gpu, broadcast_s
from rltrace.analysis.plan.shapes import Shape
from rltrace.analysis.whatif.physics import MECHANISMS
from rltrace.trace.errors import WrongUsage


@dataclass(frozen=True)
class Movement:
    """An update: seconds, and the arithmetic in words."""

    mechanism: str
    seconds: float
    bytes: float
    says: str


def movement(
    mechanism: str,
    shape: Shape,
    constants: PlanConstants,
    receivers: float = 8.0,
    bytes_each: float = 2.0,
) -> Movement:
    """One update of all weights to `receivers` GPUs. Errors: `RltraceError` for an unknown
    mechanism."""
    size = bytes_each * shape.parameters
    giga = 1e9
    if mechanism == "naive":
        fixed, each = constants["sync_fixed_s"], constants["tensor_s"]
        rate = giga * constants["naive_link_gb_per_s"]
    elif mechanism == "bucketed":
        fixed, each = constants["sync_latency_s"], constants["bucketed_tensor_s"]
        rate = giga * constants["bucketed_link_gb_per_s"]
    elif mechanism == "relay":
        fixed, each = constants["sync_latency_s"], 0.0
        rate = giga * constants["relay_link_gb_per_s"]
    elif mechanism == "delta":
        fixed, each = constants["sync_fixed_s"], 0.0
        rate = giga * constants["delta_link_gb_per_s"]
    elif mechanism == "direct":
        fixed, each = 0.0, 0.0
        rate = giga * constants["direct_gpu_gb_per_s"] * max(1.0, receivers)
    else:
        raise WrongUsage(f"--sync must be one of {', '.join(MECHANISMS)}, not {mechanism!r}")
    hop_s = constants["hop_latency_far_s"] if mechanism == "relay" else 0.0
    moved_s = broadcast_s(size, 1 + receivers, rate, hop_s)
    seconds = fixed + each * shape.tensors + moved_s
    tensors = f" + {shape.tensors:,.0f} tensors x {1e3 * each:.2g} ms" if each else ""
    says = f"{fixed:.2g} s{tensors} + {size / giga:,.0f} GB / {rate / giga:,.3g} GB/s"
    return Movement(mechanism, seconds, size, says)


def reshard_s(shape: Shape, gpu: Gpu, devices: float, constants: PlanConstants) -> float:
    """Weights on shared devices, from training's layout to the engines': tensor by tensor every GPU
    receives nearly all of them and keeps its part."""
    rate = gpu.link(devices) * constants["reshard_link_share"]
    return shape.weight_bytes / rate + constants["bucketed_tensor_s"] * shape.tensors


def switch_s(
    shape: Shape, gpu: Gpu, devices: float, offloads: bool, constants: PlanConstants
) -> tuple[float, str]:
    """Seconds that shared devices change sides for, there and back, and the arithmetic in words:
    sleep and wake, training's state to the host and back where it does not fit beside the engine,
    and the weights in the engines' layout."""
    fixed = constants["switch_fixed_s"]
    state = 16 * shape.parameters / devices if offloads else 0.0
    moved = 2 * state / (1e9 * gpu.host_gb_per_s)
    resharded = reshard_s(shape, gpu, devices, constants)
    says = f"{fixed:.2g} s sleep and wake + {moved:.2g} s offload + {resharded:.2g} s reshard"
    return fixed + moved + resharded, says
