"""Errors of the kernels: what was given, what is allowed, what to do.

Bad values are `ValueError`s; combinations no kernel handles are `NotImplementedError`s, so that a caller may fall back
to another implementation on the second and must not on the first.
"""


class KernelConfigError(ValueError):
    """A tile configuration that no launch could satisfy."""


class PlaneShapeError(ValueError):
    """A packed plane whose shape or dtype is not what its kind, rows and columns require."""


class UnsupportedKernelError(NotImplementedError):
    """A kind, shape, dtype, device or jax version that no kernel covers; the message is `unsupported_reason`'s."""
