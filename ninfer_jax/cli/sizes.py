"""Byte sizes on the command line and in tables: `2GiB` in, `1.35 GB` out."""

import re
from typing import Any

import click

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)}
_UNITS |= {f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)}
_PATTERN = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([A-Za-z]{0,3})")


class ByteSize(click.ParamType):
    """A number of bytes: `65536`, `64KiB`, `16MB`, `2GiB`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a size, or fail with a usage error."""
        if isinstance(value, int):
            return value
        match = _PATTERN.fullmatch(str(value).strip())
        unit = _UNITS.get(match.group(2).upper()) if match else None
        if match is None or unit is None:
            self.fail(f"{value!r} is not a size; write bytes or a number with KB, MB, GB, KiB, MiB or GiB", param, ctx)
        nbytes = int(float(match.group(1)) * unit)
        if nbytes < 1:
            self.fail(f"{value!r} is no bytes at all; give a size of at least one byte", param, ctx)
        return nbytes


def human(nbytes: int | float) -> str:
    """A size for people, in powers of 1000: `999 B`, `1.35 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"
