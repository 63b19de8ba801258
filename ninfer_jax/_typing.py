"""Array types used in annotations: most functions on words and planes take NumPy and JAX arrays alike."""

from typing import TypeAlias

import jax
import numpy as np

AnyArray: TypeAlias = jax.Array | np.ndarray
