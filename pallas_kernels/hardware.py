"""What the kernels need to know of a GPU: one record a device, and the record of the device jax sees.

Rates are the vendor's dense peaks for the SXM parts; the roofline lower bounds of `explain` and of the ahead-of-time
table are computed from them, so a measured time is never below its bound. Leaves out anything a kernel reads off the
device at run time. Source: the gpu-kernels note and the vendor's data sheets.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class Hardware:
    """A GPU as the heuristics see it.

    Attributes:
      name: the device kind as jax spells it.
      compute_capability: (major, minor).
      sms: streaming multiprocessors.
      smem_per_block: shared memory one block may opt in to, bytes.
      smem_per_sm: shared memory of a multiprocessor, bytes.
      l2_bytes: second level cache, bytes.
      memory_bytes: device memory, bytes.
      memory_bandwidth: device memory, bytes per second.
      bf16_flops: dense bfloat16 matrix rate, operations per second (two a multiply-add).
      clock_hz: boost clock, cycles per second.
    """

    name: str
    compute_capability: tuple[int, int]
    sms: int
    smem_per_block: int
    smem_per_sm: int
    l2_bytes: int
    memory_bytes: int
    memory_bandwidth: float
    bf16_flops: float
    clock_hz: float

    @property
    def capability(self) -> str:
        """The compute capability as "major.minor"."""
        return f"{self.compute_capability[0]}.{self.compute_capability[1]}"

    def memory_seconds(self, traffic_bytes: float) -> float:
        """traffic / bandwidth, the time device memory alone would take."""
        return traffic_bytes / self.memory_bandwidth

    def tensor_seconds(self, m: int, n: int, k: int) -> float:
        """2*m*n*k / rate, the time the tensor cores alone would take."""
        return 2.0 * m * n * k / self.bf16_flops

    def issue_seconds(self, weights: float, instructions_per_weight: float, passes: int = 1) -> float:
        """weights * instructions * passes / (sms * 128 * clock), the time instruction issue alone would take.

        A multiprocessor has four schedulers, each issuing one instruction for 32 threads a cycle.
        """
        return weights * instructions_per_weight * passes / (self.sms * 128 * self.clock_hz)


H100 = Hardware(
    name="NVIDIA H100 80GB HBM3",
    compute_capability=(9, 0),
    sms=132,
    smem_per_block=232448,
    smem_per_sm=233472,
    l2_bytes=52428800,
    memory_bytes=84978434048,
    memory_bandwidth=3.35232e12,
    bf16_flops=989.4e12,
    clock_hz=1.755e9,
)
H200 = dataclasses.replace(
    H100,
    name="NVIDIA H200",
    l2_bytes=62914560,
    memory_bytes=150754820096,
    memory_bandwidth=4.8e12,
)
B200 = Hardware(
    name="NVIDIA B200",
    compute_capability=(10, 0),
    sms=148,
    smem_per_block=232448,
    smem_per_sm=233472,
    l2_bytes=132644864,
    memory_bytes=191500000000,
    memory_bandwidth=7.672e12,
    bf16_flops=2250e12,
    clock_hz=1.965e9,
)
A100 = Hardware(
    name="NVIDIA A100-SXM4-80GB",
    compute_capability=(8, 0),
    sms=108,
    smem_per_block=166912,
    smem_per_sm=167936,
    l2_bytes=41943040,
    memory_bytes=84978434048,
    memory_bandwidth=2.039e12,
    bf16_flops=312e12,
    clock_hz=1.41e9,
)
RTX4090 = Hardware(
    name="NVIDIA GeForce RTX 4090",
    compute_capability=(8, 9),
    sms=128,
    smem_per_block=101376,
    smem_per_sm=102400,
    l2_bytes=75497472,
    memory_bytes=25250000000,
    memory_bandwidth=1.008096e12,
    bf16_flops=165.2e12,
    clock_hz=2.52e9,
)
RTX5090 = Hardware(
    name="NVIDIA GeForce RTX 5090",
    compute_capability=(12, 0),
    sms=170,
    smem_per_block=101376,
    smem_per_sm=102400,
    l2_bytes=100663296,
    memory_bytes=33670000000,
    memory_bandwidth=1.792128e12,
    bf16_flops=209.5e12,
    clock_hz=2.407e9,
)

KNOWN_HARDWARE: Mapping[str, Hardware] = MappingProxyType(
    {"h100": H100, "h200": H200, "b200": B200, "a100": A100, "rtx4090": RTX4090, "rtx5090": RTX5090}
)


def _capability(text: object) -> tuple[int, int] | None:
    parts = str(text).split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) == 2 and all(p.isdigit() for p in parts) else None


def hardware_of(device: Any) -> Hardware:
    """The record of a GPU by its device kind.

    A device that is not listed gets the record of the first listed one of its compute capability, or of the H100, under
    its own name, capability and multiprocessor count.

    Args:
      device: a `jax.Device`, or anything with its `device_kind`, `compute_capability` and `core_count`.
    """
    for known in KNOWN_HARDWARE.values():
        if known.name == device.device_kind:
            return known
    capability = _capability(getattr(device, "compute_capability", ""))
    alike = next((known for known in KNOWN_HARDWARE.values() if known.compute_capability == capability), H100)
    sms = getattr(device, "core_count", None) or alike.sms
    return dataclasses.replace(alike, name=device.device_kind, compute_capability=capability or (0, 0), sms=int(sms))


def visible_hardware() -> Hardware | None:
    """The record of the first GPU jax sees, or None where there is none."""
    try:
        devices = jax.devices("gpu")
    except RuntimeError:
        return None
    return hardware_of(devices[0]) if devices else None
