"""Compile kernels for a GPU on a machine without one and report what was made of them.

`python -m benchmarks.aot` prints, for each kernel, kind and shape: registers, spill bytes, shared memory, tensor core
and TMA instructions, instructions a weight of the main loop (nan where none is unpacked for a tensor core), full-size
temporaries in the HLO, the bound the roofline predicts and the time below which no run can be. Needs jax >= 0.11.2 with
the CUDA plugin, ptxas and nvdisasm (extra `aot`); nothing is run. `compile_case` is what the tests call. Leaves out
timing: that is bench_matmul_gpu's.
"""

import argparse
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
from benchmarks.cases import WEIGHT_CASES, WeightCase

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_TENSOR_OPCODES = ("HMMA", "HGMMA", "UTCHMMA", "UTCOMMA")
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
      hlo: instructions of the optimized module's entry: name, op, shape, bytes, result.
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

    @property
    def tensor_instructions(self) -> int:
        """Tensor core instructions of any architecture: HMMA, HGMMA, UTCHMMA (tcgen05) and UTCOMMA (block-scaled)."""
        return sum(sass.count(program, opcode) for program in self.sass for opcode in _TENSOR_OPCODES)

    def temporaries(self, at_least: int = 0) -> list[dict[str, Any]]:
        """Arrays XLA itself writes to memory, of at least so many bytes: no arguments, kernel outputs or results."""
        free = {"parameter", "bitcast", "custom-call", "tuple", "get-tuple-element", "constant"}
        return [i for i in self.hlo if i["op"] not in free and not i["result"] and i["bytes"] >= at_least]


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


def versions() -> str:
    """The compilers a table was made with, as its first line says it."""
    said = subprocess.run([str(_tool("ptxas")), "--version"], capture_output=True, text=True, check=True).stdout
    return f"made with jax {jax.__version__}, ptxas {ptxas_version(said)}"


def ptxas_version(said: str) -> str:
    """The version in what `ptxas --version` says."""
    found = re.search(r"\bV(\d[\d.]*)", said)
    return found[1] if found is not None else "of unknown version"


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
    launches = [i for i in child["hlo"] if i["op"] == "custom-call"]
    if len(programs) != len(logs) or (launches and not logs):
        raise RuntimeError(f"{len(logs)} kernels were compiled and {len(programs)} disassembled: is nvdisasm there?")
    return AotReport(
        kernels=len(logs),
        registers=max((log["registers"] for log in logs), default=0),
        spill_bytes=max((log["spill_stores"] + log["spill_loads"] for log in logs), default=0),
        stack_bytes=max((log["stack"] for log in logs), default=0),
        smem_bytes=max(smem, default=0),
        hgmma=sum(sass.count(program, "HGMMA") for program in programs),
        tma_loads=sum(sass.count(program, "UTMALDG") for program in programs),
        loops=tuple(loop for program in programs for loop in sass.weight_loops(program)),
        hlo=tuple(child["hlo"]),
        sass=programs,
    )


#: The weights compiled without --all: one a kind, and the one with a row tail and one with a padded K.
_SOME = ("27b mlp gate_up", "27b mlp down", "27b head", "27b mtp gate_up", "27b nvfp4 gate_up", "27b fp8 gate_up")
_TAILS = ("vision fc1", "vision fc2")
_TOKENS = (1, 16, 1024)
_HEADER = (
    f"{'kernel':17} {'kind':5} {'m':>5} {'n':>7} {'k':>6} {'regs':>4} {'spill':>5} {'smem KiB':>8} {'MMA':>5} "
    f"{'TMA':>4} {'instr/w':>7} {'unpack/w':>8} {'XLA KiB':>8} {'bound':>6} at least, us"
)


#: Row gathers are compiled for so many rows at least: several of them share a block.
_GATHERED = 1024
#: Devices whose bounds are given, by the one whose machine code they run.
_DEVICES = {
    "h100": ("h100", "h200"), "b200": ("b200",), "a100": ("a100",), "rtx4090": ("rtx4090",), "rtx5090": ("rtx5090",),
}  # fmt: skip


def kernel_case(kernel: str, gpu: str = "h100", /, **arguments: Any) -> AotCase:
    """The case of a kernel on a device; arguments are those of what builds it."""
    builder = "gather_builder:take_rows" if kernel == "row_gather" else "kernel_builder:matmul"
    named = {} if kernel == "row_gather" else {"kernel": kernel}
    name = f"{kernel} for {gpu}, {' '.join(f'{key}={value}' for key, value in arguments.items())}"
    return AotCase(name, f"benchmarks.{builder}", {**arguments, **named, "hardware": gpu}, gpu)


def table_cases(every: bool) -> list[WeightCase]:
    """The weights of a table: every registered one, or one a kind and the tails."""
    return [case for case in WEIGHT_CASES if every or case.name in (*_SOME, *_TAILS)]


def kernels_for(case: WeightCase, m: int, gpu: str, portable: bool = False) -> list[str]:
    """The kernels of a table: the one the public call takes, for NVFP4 on Blackwell the one asked for by name, and for
    many tokens the gather of as many rows.

    With `portable` it is the portable kernel alone, whatever the device.
    """
    if portable:
        return ["portable_mma"]
    from pallas_kernels.hardware import KNOWN_HARDWARE
    from pallas_kernels.mosaic_gpu import dispatch

    kernels = [dispatch.kernel_for(m, KNOWN_HARDWARE[gpu])]
    if gpu == "b200" and case.kind == "nvfp4":
        kernels.append("mosaic_nvfp4_w4a4")
    return [*kernels, "row_gather"] if m >= _GATHERED else kernels


def _bound(kernel: str, case: WeightCase, m: int, gpu: str) -> tuple[str, str]:
    """What bounds a kernel at the roofline, and the microseconds no run of it can beat, on each device."""
    from pallas_kernels.hardware import KNOWN_HARDWARE
    from pallas_kernels.mosaic_gpu import dispatch, gather

    if kernel == "mosaic_nvfp4_w4a4":  # the bound of a product with bfloat16 activations is none of its
        return "-", "-"
    problem: dict[str, Any] = {"kind": case.kind, "n": case.n, "k": case.k}
    bounds = {}
    for name in _DEVICES[gpu]:
        hardware = KNOWN_HARDWARE[name]
        if kernel == "row_gather":
            bounds[name] = "memory", gather.lower_bound(**problem, tokens=m, hardware=hardware)
        else:
            bounds[name] = dispatch.lower_bound(**problem, m=m, hardware=hardware)
    return bounds[gpu][0], ", ".join(f"{name} {seconds * 1e6:.1f}" for name, (_, seconds) in bounds.items())


def table_row(case: WeightCase, m: int, gpu: str = "h100", kernel: str | None = None) -> str:
    """Compile a kernel for m tokens of a weight and put what was made of it on a line.

    XLA KiB is the largest array XLA itself writes, x in the unpacker's order among them.
    """
    kernel = kernel or kernels_for(case, m, gpu)[0]
    arguments = {"kind": case.kind, "m": m, "n": case.n, "k": case.k}
    report = compile_case(kernel_case(kernel, gpu, **arguments))
    bound, times = _bound(kernel, case, m, gpu)
    largest = max((i["bytes"] for i in report.temporaries()), default=0)
    return (
        f"{kernel:17} {case.kind:5} {m:5} {case.n:7} {case.k:6} {report.registers:4} {report.spill_bytes:5} "
        f"{report.smem_bytes / 1024:8.0f} {report.tensor_instructions:5} {report.tma_loads:4} {report.per_weight:7.2f} "
        f"{report.unpack_per_weight:8.2f} {largest / 1024:8.1f} {bound:>6} {times}"
    )


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.aot", description="Compile kernels for a GPU without one."
    )
    parser.add_argument("--gpu", choices=(*_DEVICES, "all"), default="h100", help="the device to compile for")
    parser.add_argument("--portable", action="store_true", help="the portable kernel, on any device")
    parser.add_argument("--all", action="store_true", help="every registered weight, not one a kind and the tails")
    parser.add_argument("--kind", help="only this weight kind")
    parser.add_argument("--tokens", default=",".join(map(str, _TOKENS)), help="numbers of tokens, comma separated")
    options = parser.parse_args(arguments)
    reason = unavailable_reason()
    if reason is not None:
        raise SystemExit(f"nothing can be compiled here: {reason}")
    print(versions())
    cases = table_cases(options.all)
    for gpu in _DEVICES if options.gpu == "all" else [options.gpu]:
        print(f"{gpu}\n{_HEADER}", flush=True)
        for case in cases:
            for m in map(int, options.tokens.split(",") if options.kind in (None, case.kind) else ()):
                for kernel in kernels_for(case, m, gpu, options.portable):
                    print(table_row(case, m, gpu, kernel), flush=True)


if __name__ == "__main__":
    main()
