"""Other projects that take part in a run where they are installed, and the reasons of those that do not.

A peer is never required: one that is missing, does not import or refuses a case is left out and named in the output.
Leaves out what the peers are asked to do (matmul_records, encode_records, bench_load).
"""

import dataclasses
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class Peer:
    """A project to compare with.

    Attributes:
        name: how it is called in records; also the package to install.
        module: what is imported.
    """

    name: str
    module: str


PEERS: Mapping[str, Peer] = MappingProxyType({name: Peer(name, name) for name in ("gguf", "qwix", "tokamax", "torch")})


def load(name: str) -> Any:
    """The module of a peer, which nothing here may import at its top."""
    return importlib.import_module(PEERS[name].module)


def missing_peers(names: Iterable[str]) -> dict[str, str]:
    """Peer -> why it cannot take part; empty where all can.

    Args:
        names: keys of `PEERS`.
    """
    reasons = {name: _reason(PEERS[name]) for name in names}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def accepted(
    candidates: Mapping[str, Callable[[], Any]], where: str, refusals: dict[str, str]
) -> dict[str, Callable[[], Any]]:
    """The candidates that get through one call; the others are noted in `refusals`.

    Args:
        candidates: peers' calls by name.
        where: the case, for the note.
        refusals: gets "NAME, WHERE" -> the exception.
    """
    kept = {}
    for name, call in candidates.items():
        try:
            jax.block_until_ready(call())
        except Exception as error:  # another project's code may raise anything; the run goes on without it
            refusals[f"{name}, {where}"] = first_line(error)
        else:
            kept[name] = call
    return kept


def _reason(peer: Peer) -> str | None:
    try:
        importlib.import_module(peer.module)
        _parse_no_flags()
    except ModuleNotFoundError as error:
        if error.name == peer.module:
            return f"not installed: python3 -m pip install {peer.name}"
        return f"does not import: {first_line(error)}"
    except Exception as error:  # a package built for another machine or jax fails in any way it likes
        return f"does not import: {first_line(error)}"
    return None


def _parse_no_flags() -> None:
    """Tell absl, where a peer brought it, that there is no command line; else tokamax parses this program's."""
    flags = sys.modules.get("absl.flags")
    if flags is not None and not flags.FLAGS.is_parsed():
        flags.FLAGS(["benchmarks"])


def first_line(error: Exception) -> str:
    """Kind and first line of an exception."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
