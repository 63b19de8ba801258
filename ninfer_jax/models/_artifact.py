"""What the models read from an artifact besides tensors: configuration and tokenizer resources.

A resource is found by its last path component, so `config.json` and `frontend/config.json` both serve.
"""

import json
from pathlib import PurePosixPath
from typing import Any

from ninfer_jax.arrays import load
from ninfer_jax.container import ResourceObject, open_artifact
from ninfer_jax.errors import ArtifactError, UnsupportedError


def load_weights(path: Any) -> dict[str, Any]:
    """All tensors of an artifact by stored name: QuantizedTensor or jax.Array."""
    return load(path)


def read_resource(path: Any, filename: str) -> bytes:
    """Bytes of the resource whose name ends in `filename`.

    Raises:
        ArtifactError: no such resource; the message lists those present.
    """
    with open_artifact(path) as artifact:
        names = [item.name for item in artifact.objects if isinstance(item, ResourceObject)]
        for name in names:
            if PurePosixPath(name).name == filename:
                return bytes(artifact.payload(name))
    raise ArtifactError(
        f"the artifact has no resource {filename!r} (it has {', '.join(names) or 'none'}); "
        "convert with a recipe that stores it, such as the built-in ones"
    )


def read_json(path: Any, filename: str) -> dict[str, Any]:
    """A resource parsed as a JSON object.

    Raises:
        ArtifactError: missing, or not a JSON object.
    """
    try:
        value = json.loads(read_resource(path, filename))
    except ValueError as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"resource {filename!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ArtifactError(f"resource {filename!r} holds a JSON {type(value).__name__}; an object is needed")
    return value


def read_tokenizer(path: Any) -> Any:
    """The `tokenizers.Tokenizer` stored as resource `tokenizer.json`.

    Raises:
        UnsupportedError: the package `tokenizers` is not installed.
        ArtifactError: no such resource, or it does not parse.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UnsupportedError(
            "reading text needs the package 'tokenizers': python3 -m pip install 'ninfer-jax[models]'"
        ) from error
    raw = read_resource(path, "tokenizer.json")
    try:
        return Tokenizer.from_str(raw.decode("utf-8"))
    except Exception as error:  # tokenizers raises bare Exception
        raise ArtifactError(f"resource 'tokenizer.json' is not a tokenizer: {error}") from error
