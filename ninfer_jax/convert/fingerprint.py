"""What a conversion depends on, as digests: so that a resumed run refuses another recipe or another source.

Reading whole checkpoints to resume would cost more than it protects, so sources are identified by name, size, time of
change and samples of their contents. Full SHA-256 digests go into reports (`ninfer_jax.convert.hashing`).
"""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from ninfer_jax.container import ArtifactPlan
from ninfer_jax.convert.journal import Fingerprint
from ninfer_jax.errors import ConversionError
from ninfer_jax.recipes import Resolution, ResourceSpec
from ninfer_jax.sources import SourceFile

_SAMPLE_BYTES = 1 << 16
_SAMPLES = 16


def fingerprint(plan: ArtifactPlan, resolution: Resolution, files: Iterable[SourceFile]) -> Fingerprint:
    """Digests of the plan, of how every object is made, and of the source files."""
    paths = [(file.name, file.path) for file in files]
    paths += [(spec.file, spec.path) for spec in resolution.resources if spec.path is not None]
    return Fingerprint(plan.digest, _recipe_digest(resolution), _sources_digest(paths))


def _recipe_digest(resolution: Resolution) -> str:
    """A digest of every object's making: two recipes that do the same are the same."""
    made = [
        [spec.name, spec.file]
        if isinstance(spec, ResourceSpec)
        else [
            spec.name,
            spec.format,
            spec.encoder,
            spec.cast,
            spec.rows.dtype,
            list(spec.rows.sources),
            repr(spec.rows),
        ]
        for spec in resolution.objects
    ]
    return hashlib.sha256(json.dumps(made).encode()).hexdigest()


def _sources_digest(paths: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for name, path in paths:
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                digest.update(json.dumps([name, status.st_size, status.st_mtime_ns]).encode())
                for index in range(_SAMPLES):
                    file.seek(status.st_size * index // _SAMPLES)
                    digest.update(file.read(_SAMPLE_BYTES))
        except OSError as error:
            raise ConversionError(f"the source file {name} cannot be read: {error.strerror}") from error
    return digest.hexdigest()
