"""Compile the Triton kernels for GPUs that are not here and report what was made of them.

`python -m benchmarks.aot_triton` prints, for each device, kernel and kind: registers and spill bytes as ptxas (which
comes with triton) has them, shared memory and tensor core instructions. Needs the extra `triton`; nothing is run.
Saved, its output becomes rows of README's matrix (benchmarks.support_matrix). Leaves out timing, and XLA's part: x put
in order and the sums of a split K added.
"""

import argparse
import dataclasses
import importlib.metadata
import os
import pathlib
import re
import subprocess
import tempfile
from typing import Any

from benchmarks.aot import ptxas_version, table_cases
from pallas_kernels.hardware import KNOWN_HARDWARE
from pallas_kernels.triton import dispatch
from pallas_kernels.triton.plan import TritonConfig, heuristic_config

DEVICES = ("a100", "rtx4090", "h100", "b200", "rtx5090")
_DTYPES = {"matmul_kernel": "*bf16", "gather_kernel": "*i32"}
_TENSOR_INSTRUCTIONS = re.compile(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill (?:stores|loads)")


@dataclasses.dataclass(frozen=True)
class TritonReport:
    """What Triton and ptxas made of a kernel.

    Attributes:
      registers: a thread's.
      spill_bytes: stores and loads of a thread.
      smem_bytes: shared memory of a program.
      tensor_instructions: tensor core instructions in the PTX.
    """

    registers: int
    spill_bytes: int
    smem_bytes: int
    tensor_instructions: int


def compile_matmul(
    kind: str, m: int, n: int, k: int, gpu: str, config: TritonConfig | None = None, out: str = "bf16"
) -> TritonReport:
    """The product compiled for a device; `config` None for the heuristic one."""
    hardware = KNOWN_HARDWARE[gpu]
    config = config or heuristic_config(m=m, n=n, k=k, sms=hardware.sms)
    _, constants = dispatch.matmul_launch(kind, m, n, k, config)
    out = "fp32" if config.split_k > 1 else out
    return _compile("matmul_kernel", kind, constants, gpu, config.warps, config.stages, out)


def compile_gather(kind: str, n: int, k: int, gpu: str, out: str = "bf16") -> TritonReport:
    """The gather of rows compiled for a device."""
    _, constants = dispatch.gather_launch(kind, 64, n, k)
    return _compile("gather_kernel", kind, constants, gpu, 4, 1, out)


def _compile(
    name: str, kind: str, constants: dict[str, Any], gpu: str, warps: int, stages: int, out: str
) -> TritonReport:
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]
    from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingImports]
    from triton.compiler import ASTSource  # pyright: ignore[reportMissingImports]

    from pallas_kernels.triton import _kernels

    kernel = getattr(_kernels, name)
    pointers = dict(zip(kernel.arg_names, (_DTYPES[name], *_plane_types(kind), f"*{out}"), strict=False))
    if name == "matmul_kernel":
        constants = constants | {"DOT": tl.bfloat16}
    # jax's arrays start at multiples of 256 bytes.
    aligned = {(index,): [["tt.divisibility", 16]] for index in range(len(pointers))}
    source = ASTSource(kernel, pointers | dict.fromkeys(constants, "constexpr"), constants, aligned)
    major, minor = KNOWN_HARDWARE[gpu].compute_capability
    target = GPUTarget("cuda", major * 10 + minor, 32)
    options = {"num_warps": warps, "num_stages": stages, **dispatch.COMPILER_OPTIONS}
    compiled = triton.compile(source, target=target, options=options)
    ptx = compiled.asm["ptx"]
    log = _assemble(ptx)
    return TritonReport(
        registers=int(_REGISTERS.findall(log)[0]),
        spill_bytes=sum(map(int, _SPILLS.findall(log))),
        smem_bytes=compiled.metadata.shared,
        tensor_instructions=len(_TENSOR_INSTRUCTIONS.findall(ptx)),
    )


def _plane_types(kind: str) -> tuple[str, str, str, str]:
    """Types of the pointers to codes, high bits, scales and divisor, absent planes being the codes'."""
    scales = "*u8" if kind == "nvfp4" else "*u16"
    return "*u8", "*u8", scales, "*u32" if kind == "nvfp4" else "*u8"


def _ptxas() -> pathlib.Path:
    """The ptxas that comes with triton: that for Blackwell is the newer of the two, and knows every target."""
    import triton.backends.nvidia as backend  # pyright: ignore[reportMissingImports]

    folder = pathlib.Path(backend.__path__[0], "bin")
    return next(folder / name for name in ("ptxas-blackwell", "ptxas") if (folder / name).exists())


def versions() -> str:
    """The compilers a table was made with, as its first line says it."""
    said = subprocess.run([str(_ptxas()), "--version"], capture_output=True, text=True, check=True).stdout
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "jax-triton", "triton"))
    return f"made with {packages}, ptxas {ptxas_version(said)}"


def _assemble(ptx: str) -> str:
    """What ptxas says of a program."""
    target = re.findall(r"^\.target (\w+)", ptx, re.MULTILINE)[0]
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch, "kernel.ptx")
        path.write_text(ptx)
        command = [str(_ptxas()), "-v", f"-arch={target}", str(path), "-o", os.devnull]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if run.returncode:
        raise RuntimeError(f"ptxas refused a program for {target}: {run.stderr[-2000:]}")
    return run.stderr


_HEADER = f"{'kernel':13} {'kind':5} {'m':>5} {'n':>7} {'k':>6} {'regs':>4} {'spill':>5} {'smem KiB':>8} {'MMA':>4}"


def _line(kernel: str, kind: str, m: int, n: int, k: int, report: TritonReport) -> str:
    return (
        f"{kernel:13} {kind:5} {m:5} {n:7} {k:6} {report.registers:4} {report.spill_bytes:5} "
        f"{report.smem_bytes / 1024:8.1f} {report.tensor_instructions:4}"
    )


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.aot_triton", description="Compile the Triton kernels for GPUs that are not here."
    )
    parser.add_argument("--gpu", choices=(*DEVICES, "all"), default="all", help="the device to compile for")
    parser.add_argument("--all", action="store_true", help="every registered weight, not one a kind and the tails")
    parser.add_argument("--tokens", default="1,16,1024", help="numbers of tokens, comma separated")
    options = parser.parse_args(arguments)
    reason = dispatch.missing_reason()
    if reason is not None:
        raise SystemExit(f"nothing can be compiled here: {reason}")
    print(versions())
    for gpu in DEVICES if options.gpu == "all" else [options.gpu]:
        print(f"{gpu}\n{_HEADER}", flush=True)
        for case in table_cases(options.all):
            for m in map(int, options.tokens.split(",")):
                report = compile_matmul(case.kind, m, case.n, case.k, gpu)
                print(_line("triton_matmul", case.kind, m, case.n, case.k, report), flush=True)
            report = compile_gather(case.kind, case.n, case.k, gpu)
            print(_line("triton_gather", case.kind, 64, case.n, case.k, report), flush=True)


if __name__ == "__main__":
    main()
