"""Recipes: which source tensors become which stored objects, in which formats."""

from ninfer_jax.recipes.objects import Cast as Cast
from ninfer_jax.recipes.objects import ObjectSpec as ObjectSpec
from ninfer_jax.recipes.objects import RecipeIdentity as RecipeIdentity
from ninfer_jax.recipes.objects import Resolution as Resolution
from ninfer_jax.recipes.objects import ResourceSpec as ResourceSpec
from ninfer_jax.recipes.objects import RowSource as RowSource
from ninfer_jax.recipes.objects import SourceRef as SourceRef
from ninfer_jax.recipes.objects import TensorSpec as TensorSpec
from ninfer_jax.recipes.objects import WordSource as WordSource
