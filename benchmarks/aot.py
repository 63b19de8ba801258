"""Compile kernels for a GPU on a machine without one and report what was made of them.

`python -m benchmarks.aot` prints, for each kernel, kind and shape: registers, spill bytes, shared memory, tensor core
and TMA instructions, instructions a weight of the main loop, full-size temporaries in the HLO, the bound the roofline
predicts and the time below which no run can be. Needs jax >= 0.11.2 with the CUDA plugin, ptxas and nvdisasm (extra
`aot`); nothing is run. `compile_case` is what the tests call. Leaves out timing: that is bench_matmul_gpu's.
"""

import dataclasses
import functools
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any

import jax

from benchmarks import sass

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_SMEM = re.compile(r"smem_scratch_bytes=(\d+)")


@dataclasses.dataclass(frozen=True)
class AotCase:
    """A function to compile.

    Attributes:
      name: how the case is called in the table.
      builder: "module:function"; called with `arguments` it returns the function to compile and its argument shapes.
      arguments: JSON-able keyword arguments of the builder.
      hardware: a key of `KNOWN_HARDWARE`.
    """

    name: str
    builder: str
    arguments: dict[str, Any]
    hardware: str = "h100"


@dataclasses.dataclass(frozen=True)
class AotReport:
    """What the compilers made of a case.

    Attributes:
      kernels: Mosaic kernels in it.
      registers, spill_bytes, stack_bytes: from ptxas, the worst kernel's.
      smem_bytes: shared memory of the kernel that takes most.
      hgmma, tma_loads: instructions in the SASS of all its kernels.
      loops: the main loops of its kernels.
      hlo: instructions of the optimized module's entry: name, op, shape, bytes.
      sass: the disassembly of each kernel.
    """

    kernels: int
    registers: int
    spill_bytes: int
    stack_bytes: int
    smem_bytes: int
    hgmma: int
    tma_loads: int
    loops: tuple[sass.Loop, ...]
    hlo: tuple[dict[str, Any], ...]
    sass: tuple[str, ...]

    @property
    def per_weight(self) -> float:
        """All instructions a weight of the worst main loop, tensor core instructions aside; nan without a loop."""
        return max((loop.per_weight for loop in self.loops), default=float("nan"))

    @property
    def unpack_per_weight(self) -> float:
        """Unpacking instructions a weight of the worst main loop; nan without a loop."""
        return max((loop.unpack_per_weight for loop in self.loops), default=float("nan"))

    def temporaries(self, at_least: int = 0) -> list[dict[str, Any]]:
        """Arrays XLA itself writes to memory, of at least so many bytes: neither arguments nor kernel outputs."""
        free = {"parameter", "bitcast", "custom-call", "tuple", "get-tuple-element", "constant"}
        return [i for i in self.hlo if i["op"] not in free and i["bytes"] >= at_least]


def unavailable_reason() -> str | None:
    """Why nothing can be compiled here, or None."""
    if jax.__version_info__ < (0, 11, 2):
        return f"jax {jax.__version__} is older than 0.11.2, the first the kernels compile with"
    wanted = {"jax_cuda13_plugin": "jax-cuda13-plugin", "nvidia": "nvidia-cuda-nvcc"}
    missing = [package for module, package in wanted.items() if importlib.util.find_spec(module) is None]
    if missing:
        return f"{', '.join(missing)} not installed: install the extra `aot`"
    absent = [tool for tool in ("ptxas", "nvdisasm") if _tool(tool) is None]
    return f"no {' and no '.join(absent)} in the nvidia packages: install the extra `aot`" if absent else None


@functools.cache
def _tool(name: str) -> pathlib.Path | None:
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for path in sorted(pathlib.Path(folder).glob(f"*/bin/{name}")):
            return path
    return None


def _environment(dump: str) -> dict[str, str]:
    environment = dict(os.environ)
    environment.update(
        JAX_PLATFORMS="",
        JAX_SKIP_CUDA_CONSTRAINTS_CHECK="1",
        MOSAIC_GPU_DUMP_PTXAS="1",
        MOSAIC_GPU_DUMP_SASS="1",
        MOSAIC_GPU_DUMP_TO=dump,
        PYTHONPATH=os.pathsep.join([str(_ROOT), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        TF_CPP_MIN_LOG_LEVEL="2",
    )
    return environment


def compile_case(case: AotCase, *, timeout: float = 240.0) -> AotReport:
    """Compile a case in a process of its own.

    Args:
      case: what to compile.
      timeout: seconds the compilation may take.

    Returns:
      What ptxas, the disassembler and XLA say of it.

    Raises:
      RuntimeError: the compilation failed; the message ends with what the compiler said.
    """
    with tempfile.TemporaryDirectory() as dump:
        run = subprocess.run(
            [sys.executable, "-m", "benchmarks._aot_child"],
            input=json.dumps({"builder": case.builder, "arguments": case.arguments, "hardware": case.hardware}),
            capture_output=True,
            cwd=_ROOT,
            env=_environment(dump),
            text=True,
            timeout=timeout,
        )
        if run.returncode:
            raise RuntimeError(f"{case.name} did not compile (exit {run.returncode}): {run.stderr[-4000:]}")
        return _report(pathlib.Path(dump), json.loads(run.stdout[run.stdout.index("{") :]))


def _report(dump: pathlib.Path, child: dict[str, Any]) -> AotReport:
    logs = [sass.parse_ptxas(path.read_text()) for path in sorted(dump.glob("*.ptxas"))]
    programs = tuple(path.read_text() for path in sorted(dump.glob("*.sass*")))
    smem = [int(v) for path in dump.glob("*.resources.txt") for v in _SMEM.findall(path.read_text())]
    if not logs or len(programs) != len(logs):
        raise RuntimeError(f"{len(logs)} kernels were compiled and {len(programs)} disassembled: is nvdisasm there?")
    return AotReport(
        kernels=len(logs),
        registers=max(log["registers"] for log in logs),
        spill_bytes=max(log["spill_stores"] + log["spill_loads"] for log in logs),
        stack_bytes=max(log["stack"] for log in logs),
        smem_bytes=max(smem, default=0),
        hgmma=sum(sass.count(program, "HGMMA") for program in programs),
        tma_loads=sum(sass.count(program, "UTMALDG") for program in programs),
        loops=tuple(loop for program in programs for loop in sass.tensor_loops(program)),
        hlo=tuple(child["hlo"]),
        sass=programs,
    )
