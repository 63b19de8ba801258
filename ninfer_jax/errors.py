"""Every exception that ninfer_jax raises on purpose.

Bad data is a `ValueError`; a combination that is well formed but not implemented is a `NotImplementedError`. Each
message says what was given, what is allowed and what to do. Exit codes are in `ninfer_jax.cli`.
"""


class NinferError(Exception):
    """Base of all errors raised by ninfer_jax; the command line prints its text without a traceback."""


class FormatError(NinferError, ValueError):
    """A numeric format is misused: wrong words type, wrong rank or wrong dtype for it."""


class UnknownFormatError(FormatError):
    """A name is not one of the nine canonical format names (tensor-formats §1)."""


class EncodeError(NinferError, ValueError):
    """A source cannot be quantized: a non-finite value or an unrepresentable scale (tensor-formats §7)."""


class CastError(NinferError, ValueError):
    """A direct conversion named by a recipe does not hold for some value (tensor-formats §3.1)."""


class InvalidWordsError(NinferError, ValueError):
    """Stored codes, scales or divisors are outside the valid language of their format (tensor-formats §3, §5, §6)."""


class LayoutError(NinferError, ValueError):
    """A layout cannot hold a format or a shape, or a payload has the wrong size (storage-layouts)."""


class ArtifactError(NinferError, ValueError):
    """A file is not a valid `.ninfer` artifact, or an artifact cannot be written as asked (container)."""


class SourceError(NinferError, ValueError):
    """A checkpoint cannot be read: missing, truncated or inconsistent files (checkpoint-sources)."""


class SourceChangedError(SourceError):
    """A file of a checkpoint changed between two reads, so that what was read of it does not belong together."""


class RecipeError(NinferError, ValueError):
    """A recipe is malformed or does not fit its checkpoint."""


class ConversionError(NinferError, RuntimeError):
    """A conversion stopped: full disk, read error, lost process; nothing was published."""


class LostProcessError(ConversionError):
    """Another process of a group that converts together died or left; what it said itself tells why."""


class VerifyError(NinferError, ValueError):
    """An artifact differs from what its source and recipe give."""


class UnsupportedError(NinferError, NotImplementedError):
    """A well-formed combination of format, shape, dtype and device that no implementation supports."""
