"""A thread that flushes subnormals, as libraries built with unsafe floating-point options leave it."""

import ctypes
import ctypes.util
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_ENVIRONMENT_NBYTES, _MXCSR = 32, slice(28, 32)  # glibc's fenv_t on x86-64
_FLUSH_RESULTS_AND_OPERANDS = 0x8040


@contextmanager
def flushed_subnormals() -> Iterator[None]:
    """Flush subnormal operands and results to zero in this thread; skips the test on other machines."""
    name = ctypes.util.find_library("m")
    if platform.machine() != "x86_64" or sys.platform != "linux" or name is None:
        pytest.skip("the floating-point environment is only known on x86-64 with glibc")
    library = ctypes.CDLL(name)
    before = ctypes.create_string_buffer(_ENVIRONMENT_NBYTES)
    library.fegetenv(before)
    changed = bytearray(before.raw)
    control = int.from_bytes(changed[_MXCSR], "little") | _FLUSH_RESULTS_AND_OPERANDS
    changed[_MXCSR] = control.to_bytes(4, "little")
    library.fesetenv((ctypes.c_char * _ENVIRONMENT_NBYTES).from_buffer(changed))
    try:
        yield
    finally:
        library.fesetenv(before)
