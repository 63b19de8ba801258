"""Triton kernels on the CPU: numpy arrays in the clothes of the tensors that Triton's interpreter takes.

Run as `python -m tests.pallas_kernels.triton_host` with TRITON_INTERPRET=1 set, which has to be there before a kernel
is defined: it reads arrays and constants of one call from a file and writes the kernel's output to another.
"""

import pathlib
import pickle
import sys
from typing import Any

import numpy as np


class HostTensor:
    """What the interpreter asks of a tensor, over a contiguous numpy array; a copy to the host is the array itself."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = np.ascontiguousarray(array)
        self.dtype = self.array.dtype.name

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def untyped_storage(self) -> "HostTensor":
        return self

    def cpu(self) -> "HostTensor":
        return self

    def new_empty(self, size: int, device: str) -> "HostTensor":
        return HostTensor(np.empty(size, self.array.dtype))

    def set_(self, storage: "HostTensor", *placement: Any) -> None:
        self.array, self.dtype = storage.array, storage.dtype

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def copy_(self, other: "HostTensor") -> None:
        if other.array is not self.array:
            self.array[...] = other.array


def interpret(kernel: Any, arrays: list[np.ndarray], out: np.ndarray, grid: tuple[int, ...], **constants: Any):
    """out, filled by the interpreted kernel."""
    result = HostTensor(out)
    kernel[grid](*map(HostTensor, arrays), result, **constants)
    return result.array


def main(source: str, target: str) -> None:
    """Every call of the pickled list in `source`: (kernel, arrays, shape of the result, grid, constants)."""
    import triton.language as tl  # pyright: ignore[reportMissingImports]

    from pallas_kernels.triton import _kernels

    results = []
    for name, arrays, shape, grid, constants in pickle.loads(pathlib.Path(source).read_bytes()):
        dtypes = {"DOT": tl.float32} if name == "matmul_kernel" else {}
        out = np.full(shape, np.nan, np.float32)
        results.append(interpret(getattr(_kernels, name), arrays, out, grid, **constants, **dtypes))
    pathlib.Path(target).write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
