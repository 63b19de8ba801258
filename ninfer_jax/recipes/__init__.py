"""Recipes: which source tensors become which stored objects, in which formats."""

from ninfer_jax.recipes.elements import (
    IntegerRows as IntegerRows,
    decode as decode,
    reshape as reshape,
    squeeze as squeeze,
    transpose as transpose,
    widen as widen,
)
from ninfer_jax.recipes.library import BUILTIN_RECIPES as BUILTIN_RECIPES, Recipe as Recipe, load_recipe as load_recipe
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
from ninfer_jax.recipes.placement import store as store
from ninfer_jax.recipes.resolve import resolution as resolution, resolve as resolve
from ninfer_jax.recipes.rows import (
    concat as concat,
    deinterleave as deinterleave,
    gather_rows as gather_rows,
    slice_rows as slice_rows,
)
from ninfer_jax.sources import SourceRef as SourceRef
