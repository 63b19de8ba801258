"""Set-up shared by every suite: annotation checks, threads for interpreted kernels, hypothesis profile.

The import hook checks every jaxtyping annotation of `ninfer_jax` with beartype, in tests only; it has to be installed
before the first import of the package. `pallas_kernels` is left out: its kernel bodies take references, not arrays.
The environment variable NINFER_JAX_CHECK_ANNOTATIONS=0 leaves the checks out, which saves a fifth of the time.

The interpreter of GPU kernels runs every warpgroup and warp in a thread that blocks while it waits at a barrier. Some
of those threads belong to the CPU client's pool, which has one a core: on a small machine a kernel with many roles
would wait for ever. NPROC sizes the pool. It is set here: a test of any suite may be the one that makes the client.
"""

import os

import hypothesis
from jaxtyping import install_import_hook

if os.environ.get("NINFER_JAX_CHECK_ANNOTATIONS", "1") != "0":
    install_import_hook("ninfer_jax", "beartype.beartype")

os.environ.setdefault("NPROC", "16")

hypothesis.settings.register_profile("quick", deadline=None, max_examples=20, derandomize=True)
hypothesis.settings.load_profile("quick")
