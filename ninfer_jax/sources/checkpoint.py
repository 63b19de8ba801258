"""Open a checkpoint: a safetensors file, a Hugging Face folder, a GGUF file, or only its config.json.

Leaves out what a tensor becomes (`ninfer_jax.recipes`). Specification: checkpoint-sources.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from ninfer_jax.errors import SourceError
from ninfer_jax.sources import directory, gguf_file, safetensors_file
from ninfer_jax.sources.dialects import apply_dialect
from ninfer_jax.sources.json_file import read_json_object
from ninfer_jax.sources.tensor import PositionedFile, SourceFile, SourceTensor


class Checkpoint:
    """An open checkpoint; a context manager. Tensors are read lazily and only while it is open.

    Attributes:
        name: name of its folder, or of a file that is not `model.safetensors` without the suffix.
        tensors: logical tensors by name, in stored order.
        files: the weight files.
        config: config.json, or None.
        declared: True where only config.json was opened and no tensor can be read.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        tensors: Mapping[str, SourceTensor],
        handles: tuple[PositionedFile, ...],
        config: Mapping[str, Any] | None,
        *,
        declared: bool = False,
    ):
        self.name = name
        self.tensors = MappingProxyType(dict(tensors))
        self.files = tuple(SourceFile(handle.name, handle.nbytes, handle.path) for handle in handles)
        self.config = config
        self.declared = declared
        self._folder = folder
        self._handles = handles

    def __repr__(self) -> str:
        return f"Checkpoint({self.name!r}, {len(self.tensors)} tensors in {len(self.files)} files)"

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, name: str) -> SourceTensor:
        """The tensor of that name.

        Raises:
            SourceError: there is none.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            raise SourceError(f"checkpoint {self.name} has no tensor {name!r} among its {len(self.tensors)} tensors")
        return tensor

    def close(self) -> None:
        """Close the weight files; later reads raise SourceError."""
        for handle in self._handles:
            handle.close()

    def resource_path(self, filename: str) -> Path:
        """Path of a file beside the weights, such as tokenizer.json.

        Raises:
            SourceError: not a plain file name, or no such file.
        """
        if not directory.is_plain_filename(filename):
            raise SourceError(f"resource {filename!r} is no plain file name; it must lie beside the weights")
        path = self._folder / filename
        if not path.is_file():
            raise SourceError(f"checkpoint {self.name} has no file {filename}")
        return path


def open_checkpoint(path: str | Path, *, dialect: str | None = None) -> Checkpoint:
    """Open a checkpoint for reading.

    Args:
        path: a `.safetensors` file, a `.gguf` file (extra `gguf`), or a folder with `model.safetensors`, with
            `model.safetensors.index.json` and its shards, or with one other `.safetensors` file.
        dialect: None to follow config.json, or `none`, `compressed-tensors`, `modelopt`, `fp8-block`.

    Returns:
        The checkpoint; close it, or use it as a context manager.

    Raises:
        SourceError: anything that keeps it from being read, in one sentence.
    """
    try:
        return _open(Path(path), dialect)
    except OSError as error:  # a folder whose files cannot be looked at
        file = Path(error.filename or path).name
        raise SourceError(f"cannot read {file}: {error.strerror or error}") from None


def _open(path: Path, dialect: str | None) -> Checkpoint:
    if path.is_dir():
        mapping = directory.weight_map(path)
        folder, name = path, directory.checkpoint_name(path)
        names = [directory.single_weight_file(path).name] if mapping is None else list(dict.fromkeys(mapping.values()))
    elif path.suffix in (".safetensors", ".gguf"):
        mapping, folder, names = None, path.parent, [path.name]
        name = directory.checkpoint_name(folder) if path.name == directory.SINGLE_FILE else path.stem
    else:
        kind = f"a {path.suffix} file" if path.is_file() else "neither a file nor a folder"
        raise SourceError(f"{path.name} is {kind}; a folder, a .safetensors or a .gguf file is needed")
    handles: dict[str, PositionedFile] = {}
    try:
        for file in names:
            handles[file] = PositionedFile(folder / file)
        if path.suffix == ".gguf" and path.is_file():
            return Checkpoint(name, folder, gguf_file.read_tensors(handles[path.name]), tuple(handles.values()), None)
        stored = (
            directory.read_shards(handles, mapping) if mapping else safetensors_file.read_tensors(handles[names[0]])
        )
        config = _config(folder)
        tensors = apply_dialect(stored, config, dialect, (folder / "hf_quant_config.json").is_file())
        return Checkpoint(name, folder, tensors, tuple(handles.values()), config)
    except BaseException:
        for handle in handles.values():
            handle.close()
        raise


def open_config(path: str | Path) -> Checkpoint:
    """Open only a config.json, to plan a conversion without weights.

    Args:
        path: the config file, or the folder that holds it. Resources are looked for beside it.

    Returns:
        A checkpoint with `declared` set and no tensors.

    Raises:
        SourceError: the config cannot be read.
    """
    path = Path(path)
    file = path / "config.json" if path.is_dir() else path
    return Checkpoint(
        directory.checkpoint_name(file.parent), file.parent, {}, (), read_json_object(file), declared=True
    )


def _config(folder: Path) -> Mapping[str, Any] | None:
    file = folder / "config.json"
    return read_json_object(file) if file.is_file() else None
