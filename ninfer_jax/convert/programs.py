"""Device programs of conversion and verification, compiled once per format, block shape and source type.

Row counts are padded to a few sizes (`ninfer_jax.convert.devices.padded_rows`), because compiling costs far more than
encoding some rows of zeros. This module leaves out host memory
and files. Specification: tensor-formats §3, §5, §7; storage-layouts.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from jaxtyping import Array

from ninfer_jax.codecs import count_violations, dequantize, matrix_amax, try_quantize
from ninfer_jax.convert.devices import DeviceMesh
from ninfer_jax.convert.error_sums import ErrorSums, error_sums
from ninfer_jax.formats import get_format
from ninfer_jax.layouts import pack, unpack
from ninfer_jax.planes import NVFP4Planes
from ninfer_jax.words import NVFP4Words


@lru_cache(maxsize=64)
def quantize_program(mesh: DeviceMesh, name: str) -> Callable[..., Any]:
    """Program `x [rows, k] -> (words, ok [devices])` of a grouped or row-scaled format."""

    def run(values: Array) -> Any:
        words, ok = try_quantize(values, name)
        return words, ok[None]

    return mesh.compile(run)


@lru_cache(maxsize=8)
def block_scaled_quantize_program(mesh: DeviceMesh, name: str) -> Callable[..., Any]:
    """Program `(x [rows, k], divisor) -> ((codes, scales), ok [devices])`; the divisor is that of the whole matrix."""

    def run(values: Array, divisor: Array) -> Any:
        words, ok = try_quantize(values, name, divisor=divisor)
        return (words[0], words[1]), ok[None]

    return mesh.compile(run, replicated=1)


@lru_cache(maxsize=64)
def errors_program(mesh: DeviceMesh, name: str) -> Callable[..., Any]:
    """Program `(x [rows, k], words) -> ErrorSums` of a grouped or row-scaled format.

    A program of its own: inside that of the encoder XLA computes scales and codes again for every sum.
    """

    def run(values: Array, words: Any) -> ErrorSums:
        return error_sums(values, dequantize(words, name))

    return mesh.compile(run, sharded=2)


@lru_cache(maxsize=8)
def block_scaled_errors_program(mesh: DeviceMesh, name: str) -> Callable[..., Any]:
    """Program `(x [rows, k], (codes, scales), divisor) -> ErrorSums` of NVFP4."""

    def run(values: Array, parts: tuple[Array, Array], divisor: Array) -> ErrorSums:
        return error_sums(values, dequantize(NVFP4Words(*parts, divisor), name))

    return mesh.compile(run, sharded=2, replicated=1)


@lru_cache(maxsize=4)
def amax_program(mesh: DeviceMesh) -> Callable[..., Any]:
    """Program `x [rows, k] -> amax [devices]` of the finite-or-not largest magnitude of each share."""

    def run(values: Array) -> Array:
        return matrix_amax(values)[None]

    return mesh.compile(run)


@lru_cache(maxsize=64)
def pack_program(mesh: DeviceMesh, name: str) -> Callable[..., Any]:
    """Program `words -> planes` of a grouped format, for words copied from a quantized checkpoint."""

    def run(words: Any) -> Any:
        return pack(words, name)

    return mesh.compile(run)


@lru_cache(maxsize=8)
def block_scaled_pack_program(mesh: DeviceMesh, name: str) -> Callable[..., Any]:
    """Program `(codes, scales, divisor) -> (codes, scales)` planes of NVFP4 words."""

    def run(codes: Array, scales: Array, divisor: Array) -> Any:
        return tuple(pack(NVFP4Words(codes, scales, divisor), name))[:2]

    return mesh.compile(run, sharded=2, replicated=1)


@lru_cache(maxsize=64)
def violations_program(mesh: DeviceMesh, name: str, columns: int) -> Callable[..., Any]:
    """Program over planes of `columns` weights a row `-> {rule: count [devices]}` (tensor-formats §3, §5, §6)."""

    def run(planes: Any) -> Any:
        counts = count_violations(unpack(planes, name, columns), name)
        return {rule: count[None] for rule, count in counts.items()}

    return _over_planes(mesh, name, run)


@lru_cache(maxsize=64)
def decode_program(mesh: DeviceMesh, name: str, columns: int) -> Callable[..., Any]:
    """Program over planes of `columns` weights a row `-> float32 [rows, columns]`."""

    def run(planes: Any) -> Any:
        return dequantize(unpack(planes, name, columns), name)

    return _over_planes(mesh, name, run)


def _over_planes(mesh: DeviceMesh, name: str, run: Callable[[Any], Any]) -> Callable[..., Any]:
    """Compile a function of planes; the divisor of NVFP4 planes is whole on every device."""
    if get_format(name).category != "block-scaled":
        program = mesh.compile(run)
        return lambda planes: program(mesh.put(planes))

    def run_parts(codes: Array, scales: Array, divisor: Array) -> Any:
        return run(NVFP4Planes(codes, scales, divisor))

    parts = mesh.compile(run_parts, sharded=2, replicated=1)
    return lambda planes: parts(mesh.put(planes.codes), mesh.put(planes.scales), mesh.replicate(planes.divisor))
