"""Devices that a product is asked about: the one of an array, or a GPU described by name that need not be here.

A description answers `explain_matmul` and the support matrix; nothing runs on it.
"""

from typing import Any, NamedTuple

import jax
from jax.core import Tracer

from ninfer_jax.errors import UnsupportedError
from ninfer_jax.ops.registry import Device
from pallas_kernels import KNOWN_HARDWARE


class DescribedGpu(NamedTuple):
    """What the implementations ask of a GPU.

    Attributes:
        platform: "gpu".
        device_kind: the name jax gives the device.
        compute_capability: "major.minor".
        core_count: streaming multiprocessors.
    """

    platform: str
    device_kind: str
    compute_capability: str
    core_count: int


def resolve_device(device: Device | str | None, x: Any = None) -> Device:
    """A device as it is, the one described by a name, or for None the one of `x`.

    Args:
        device: a `jax.Device`, a name such as "h100" or "b200", or None.
        x: an array whose device is taken where it is concrete; else the default device.

    Raises:
        UnsupportedError: for an unknown name; the message lists the known ones.
    """
    if isinstance(device, str):
        known = KNOWN_HARDWARE.get(device)
        if known is None:
            raise UnsupportedError(
                f"no GPU is described as {device!r}; the names are {', '.join(KNOWN_HARDWARE)}, and a device that is"
                " here is given as itself, such as jax.devices()[0]"
            )
        return DescribedGpu("gpu", known.name, known.capability, known.sms)
    if device is not None:
        return device
    if isinstance(x, jax.Array) and not isinstance(x, Tracer):
        return min(x.devices(), key=lambda device: device.id)
    return jax.devices()[0]
