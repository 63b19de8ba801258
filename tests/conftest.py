"""Set-up shared by every suite: annotation checks, hypothesis profile. No JAX option is set here.

The import hook checks every jaxtyping annotation of `ninfer_jax` with beartype, in tests only; it has to be installed
before the first import of the package. `pallas_kernels` is left out: its kernel bodies take references, not arrays.
The environment variable NINFER_JAX_CHECK_ANNOTATIONS=0 leaves the checks out, which saves a fifth of the time.
"""

import os

import hypothesis
from jaxtyping import install_import_hook

if os.environ.get("NINFER_JAX_CHECK_ANNOTATIONS", "1") != "0":
    install_import_hook("ninfer_jax", "beartype.beartype")

hypothesis.settings.register_profile("quick", deadline=None, max_examples=20, derandomize=True)
hypothesis.settings.load_profile("quick")
