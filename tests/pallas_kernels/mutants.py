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
    import numpy as np

    from pallas_kernels.mosaic_gpu import prefill_sm90
    from pallas_kernels.tiling import PrefillConfig
    from tests.pallas_kernels.weights import random_weight, random_x, relative_l2

    m, n, k = 128, 64, 384
    planes, weight = random_weight("q4", n, k)
    x = random_x(m, k)
    prefill_sm90.plgpu = _Mutated(plgpu, *MUTATIONS[name])  # pyright: ignore[reportAttributeAccessIssue]
    y = prefill_sm90.run(
        jnp.asarray(x),
        planes,
        kind="q4",
        n=n,
        k=k,
        out_dtype=jnp.float32,
        config=PrefillConfig(256, 64, 2, consumers=1),
        sms=1,
        interpret=plgpu.InterpretGPUParams(detect_races=True),  # pyright: ignore[reportAttributeAccessIssue]
    )
    print("relative error", relative_l2(np.asarray(y), x.astype(np.float64) @ weight.T))


if __name__ == "__main__":
    main(sys.argv[1])
