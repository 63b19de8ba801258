"""Run the prefill kernel with one synchronization left out, in a process of its own: it may never come back.

`python -m tests.pallas_kernels.mutants NAME` prints what the race detector says and the relative error. A mutation is
an operation of the kernel's that does nothing when called from one of its functions.
"""

import sys

#: name -> (operation, function it is called from)
MUTATIONS = {
    "nothing": (None, None),
    "the producer does not wait for an empty stage": ("barrier_wait", "_wait_for_consumers"),
    "the consumers do not wait for a full stage": ("barrier_wait", "k_step"),
    "the consumers never release a stage": ("barrier_arrive", "k_step"),
    "the result is not committed before it is copied out": ("commit_smem", "_store"),
    "a slot is reused before it was copied out": ("wait_smem_to_gmem", "_store"),
}


class _Mutated:
    """A module in which one function does nothing when called from the given one."""

    def __init__(self, module, operation, caller):
        self._module, self._operation, self._caller = module, operation, caller

    def __getattr__(self, name):
        original = getattr(self._module, name)
        if name != self._operation:
            return original

        def maybe(*args, **kwargs):
            if sys._getframe(1).f_code.co_name != self._caller:
                return original(*args, **kwargs)

        return maybe


def main(name: str) -> None:
    """Run the mutation of that name on one small problem."""
    import jax.experimental.pallas.mosaic_gpu as plgpu
    import jax.numpy as jnp

    from pallas_kernels.hardware import H100
    from pallas_kernels.mosaic_gpu import prefill_sm90
    from pallas_kernels.tiling import PrefillConfig
    from tests.pallas_kernels.interpreted import run, with_sms
    from tests.pallas_kernels.weights import relative_l2

    prefill_sm90.plgpu = _Mutated(plgpu, *MUTATIONS[name])  # pyright: ignore[reportAttributeAccessIssue]
    config = PrefillConfig(256, 64, 2, consumers=1)
    y, product = run(prefill_sm90, "q4", 128, 64, 384, config, hardware=with_sms(H100, 1), out_dtype=jnp.float32)
    print("relative error", relative_l2(y, product))


if __name__ == "__main__":
    main(sys.argv[1])
