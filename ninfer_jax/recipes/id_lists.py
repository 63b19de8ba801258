"""Lists of row ids: read from a file, or ranked from token counts (target qwen3.6-27b, draft head).

Leaves out gathering rows by them (`ninfer_jax.recipes.rows`).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from ninfer_jax.errors import RecipeError, SourceError
from ninfer_jax.sources import Checkpoint, read_json_object


def read_ids(path: Path, size: int) -> np.ndarray:
    """Read ids from a `.npy` file of integers or a `.json` list.

    Args:
        path: the file.
        size: number of ids that it must hold.

    Raises:
        RecipeError: another kind of file, another number of ids, or ids that are not integers.
    """
    try:
        if path.suffix == ".npy":
            ids = np.load(path, allow_pickle=False)
        elif path.suffix == ".json":
            ids = np.asarray(json.loads(path.read_text(encoding="utf-8")))
        else:
            raise RecipeError(f"id list {path.name} has suffix {path.suffix!r}; .npy or .json is needed")
    except (OSError, ValueError, EOFError, RecursionError) as error:
        if isinstance(error, RecipeError):
            raise
        raise RecipeError(f"id list {path.name} cannot be read: {error}") from None
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer) or ids.size != size:
        raise RecipeError(f"id list {path.name} is {ids.dtype} {list(ids.shape)}; {size} integers are needed")
    return ids


def read_counts(path: Path, width: int) -> Int64[np.ndarray, " width"]:
    """Read row 0 of an I64 little-endian counts file whose rows are `width` long.

    Raises:
        RecipeError: a size that is no positive multiple of the row, or a negative count.
    """
    try:
        size = path.stat().st_size
        if size == 0 or width == 0 or size % (8 * width):
            raise RecipeError(f"counts file {path.name} has {size} bytes; a multiple of {8 * width} is needed")
        counts = np.fromfile(path, "<i8", width)
    except OSError as error:
        raise RecipeError(f"counts file {path.name} cannot be read: {error.strerror or error}") from None
    if (counts < 0).any():
        raise RecipeError(f"counts file {path.name} has a negative count at id {int(np.argmax(counts < 0))}")
    return counts


def rank_tokens(
    counts: Int64[np.ndarray, " ids"], candidates: int, forced: Int64[np.ndarray, " forced"], size: int
) -> Int64[np.ndarray, " size"]:
    """The `size` candidates to keep: all forced ones and the most frequent others, by count descending.

    Others are taken by (count descending, id ascending); the forced follow in id order; a stable sort by count
    descending orders the whole.

    Args:
        counts: count of each id, int64 [ids >= candidates].
        candidates: ids below this may be kept.
        forced: ids that are kept in any case.
        size: number of ids to keep.

    Returns:
        int64 [size].

    Raises:
        RecipeError: more ids are asked for than there are candidates, or more are forced than asked for.
    """
    forced = np.unique(forced[(forced >= 0) & (forced < candidates)])
    if not forced.size <= size <= candidates <= counts.size:
        raise RecipeError(
            f"cannot keep {size} tokens: {forced.size} are forced, {candidates} candidates, {counts.size} are counted"
        )
    order = np.argsort(-counts[:candidates], kind="stable")
    others = order[~np.isin(order, forced)][: size - forced.size]
    kept = np.concatenate((others, forced))
    return kept[np.argsort(-counts[kept], kind="stable")]


def tokenizer_ids(checkpoint: Checkpoint) -> tuple[int, np.ndarray]:
    """Number of token ids (the largest plus one), and the ids of special tokens.

    Added tokens of tokenizer.json come first, `added_tokens_decoder` of tokenizer_config.json replaces them id by id.

    Raises:
        SourceError: a file is missing or does not list its tokens as expected.
    """
    tokenizer = read_json_object(checkpoint.resource_path("tokenizer.json"))
    config = read_json_object(checkpoint.resource_path("tokenizer_config.json"))
    try:
        vocabulary = tokenizer["model"]["vocab"]
        ids = list(vocabulary.values()) if isinstance(vocabulary, Mapping) else list(range(len(vocabulary)))
        special = {int(token["id"]): _is_special(token) for token in tokenizer.get("added_tokens", [])}
        special |= {int(id): _is_special(token) for id, token in config.get("added_tokens_decoder", {}).items()}
        count = max([*ids, *special], default=-1) + 1
    except (KeyError, TypeError, ValueError, AttributeError):
        raise SourceError("tokenizer.json and tokenizer_config.json do not list vocabulary and added tokens") from None
    return count, np.asarray(sorted(id for id, flag in special.items() if flag), np.int64)


def _is_special(token: Mapping[str, Any]) -> bool:
    return bool(token.get("special", False))
