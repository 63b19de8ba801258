"""Recipes: which source tensors become which stored objects, in which formats."""

from ninfer_jax.recipes.objects import (
    Cast as Cast,
    ObjectSpec as ObjectSpec,
    RecipeIdentity as RecipeIdentity,
    Resolution as Resolution,
    ResourceSpec as ResourceSpec,
    RowSource as RowSource,
    TensorSpec as TensorSpec,
    WordSource as WordSource,
)
from ninfer_jax.sources import SourceRef as SourceRef
