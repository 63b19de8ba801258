"""Compile one function for a described GPU on a machine without one, and print what XLA made of it as JSON.

Run as a process of its own by `benchmarks.aot`: an instruction the target lacks aborts the whole process. The case is
JSON on standard input: `builder` ("module:function", called with `arguments`, returning a function and its argument
shapes) and `hardware` (a key of `KNOWN_HARDWARE`). What the Mosaic compiler made is left in MOSAIC_GPU_DUMP_TO.
"""

import importlib
import json
import re
import sys
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, NamedSharding, PartitionSpec

from pallas_kernels.hardware import KNOWN_HARDWARE, Hardware

_HLO_LINE = re.compile(
    r"^\s*(?P<root>ROOT )?%?(?P<name>\S+) = \(?(?P<shape>[a-z0-9]+\[[0-9,]*\]).*? "
    r"(?P<op>[a-z\-]+)\(%?(?P<first>[\w.\-]*)"
)
_SHAPE = re.compile(r"^(?P<dtype>[a-z]+)(?P<bits>\d*)[a-z0-9]*\[(?P<dims>[0-9,]*)\]$")


class _DescribedDevice(AbstractDevice):
    """An abstract device that says its compute capability; without it Mosaic assumes 9.0."""

    def __init__(self, hardware: Hardware):
        super().__init__(device_kind=hardware.name, num_cores=None, platform="gpu")
        object.__setattr__(self, "compute_capability", hardware.capability)


def target_config(hardware: Hardware) -> str:
    """The text proto that makes XLA compile for that GPU."""
    major, minor = hardware.compute_capability
    # Left out, XLA compiles for the plain architecture of 12.0, which lacks instructions that Mosaic emits.
    features = "feature_extension: ACCELERATED_FEATURES" if major == 12 else ""
    return f"""gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: {hardware.smem_per_sm} threads_per_core_limit: 2048 core_count: {hardware.sms}
  fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {int(hardware.memory_bandwidth)} l2_cache_size: {hardware.l2_bytes}
  clock_rate_ghz: {hardware.clock_hz / 1e9} device_memory_size: {hardware.memory_bytes}
  shared_memory_per_block_optin: {hardware.smem_per_block}
  cuda_compute_capability {{ major: {major} minor: {minor} {features} }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
device_description_str: "{hardware.name}"
"""


def _shape_bytes(text: str) -> int:
    match = _SHAPE.match(text)
    if match is None:
        return 0
    bits = 8 if match["dtype"] == "pred" else int(match["bits"] or 8)
    elements = int(np.prod([int(d) for d in match["dims"].split(",") if d], dtype=np.int64))
    return elements * bits // 8


def hlo_instructions(text: str) -> list[dict[str, Any]]:
    """Name, opcode, shape, bytes of every instruction of an HLO module's entry, and whether it is the result."""
    entry = text[text.index("\nENTRY ") :]
    found, results = [], set()
    for match in filter(None, map(_HLO_LINE.match, entry.splitlines()[1:])):
        shape, name = match["shape"], match["name"]
        found.append({"name": name, "op": match["op"], "shape": shape, "bytes": _shape_bytes(shape)})
        if match["root"]:
            # A bit cast of the result is no array of its own.
            results |= {name, match["first"]} if match["op"] == "bitcast" else {name}
    return [{**instruction, "result": instruction["name"] in results} for instruction in found]


def compile_for(hardware: Hardware, function, arguments) -> str:
    """Optimized HLO of function(*arguments) compiled for that GPU; arguments are shapes and dtypes."""
    topology = topologies.get_topology_desc(platform="cuda", target_config=target_config(hardware), topology="1x1x1")
    mesh = jax.sharding.Mesh(np.array(topology.devices[:1]), ("d",))
    abstract = AbstractMesh((1,), ("d",), axis_types=(AxisType.Explicit,), abstract_device=_DescribedDevice(hardware))
    placed = NamedSharding(mesh, PartitionSpec())
    with jax.sharding.use_abstract_mesh(abstract):
        jitted = jax.jit(function, in_shardings=placed, out_shardings=placed)
        return jitted.trace(*arguments).lower(lowering_platforms=("cuda",)).compile().as_text() or ""


def main() -> None:
    """Compile the case on standard input and print its HLO instructions."""
    case = json.load(sys.stdin)
    module, _, name = case["builder"].partition(":")
    function, arguments = getattr(importlib.import_module(module), name)(**case["arguments"])
    text = compile_for(KNOWN_HARDWARE[case["hardware"]], function, arguments)
    json.dump({"hlo": hlo_instructions(text), "jax": jax.__version__}, sys.stdout)


if __name__ == "__main__":
    main()
