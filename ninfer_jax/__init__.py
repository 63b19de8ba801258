"""NInfer's nine persistent tensor formats, exact, in JAX."""

from ninfer_jax.formats import FORMATS as FORMATS, get_format as get_format
