"""Two runs side by side: `python -m benchmarks.compare A.json B.json`.

Machines and their load differ between runs, so next to the ratio of times stands the share of its own run's floor, and
of its own run's peer: those travel. Leaves out judging; it prints what differs.
"""

from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from benchmarks.records import OURS, Record, Results, read_results

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class Pair(NamedTuple):
    """A record of both runs.

    Attributes:
        key: benchmark, case, implementation.
        ratio: seconds of the first over seconds of the second; above 1, the second is faster.
        floors: share of the floor in each run; 0 where no floor is known.
        peers: times faster than the peer of the same run, by peer, for records of our own.
    """

    key: tuple[str, str, str]
    ratio: float
    floors: tuple[float, float]
    peers: dict[str, tuple[float, float]]


def pair_up(a: Results, b: Results) -> list[Pair]:
    """What both runs measured, in the order of the first."""
    first, second = ({record.key: record for record in run.records} for run in (a, b))
    return [_pair(key, a, b, first, second) for key in first if key in second]


def only_in(a: Results, b: Results) -> list[tuple[str, str, str]]:
    """Keys of the records of the first run that the second lacks."""
    there = {record.key for record in b.records}
    return [record.key for record in a.records if record.key not in there]


def differences(a: Results, b: Results) -> list[str]:
    """Where the environments and machines of the two runs differ, in words."""
    names = sorted(a.environment.keys() | b.environment.keys())
    lines = [f"{n}: {a.environment.get(n)} -> {b.environment.get(n)}" for n in names]
    lines = [line for line, n in zip(lines, names, strict=True) if a.environment.get(n) != b.environment.get(n)]
    return lines + [f"{n}: {a.machine[n]:.3g} -> {b.machine[n]:.3g}" for n in a.machine if n in b.machine]


def _pair(key: tuple[str, str, str], a: Results, b: Results, first: dict, second: dict) -> Pair:
    one, other = first[key], second[key]
    floors = a.share_of_floor(one), b.share_of_floor(other)
    peers = {}
    if one.implementation == OURS:
        both = [record for k, record in first.items() if k[:2] == key[:2] and k[2] != OURS and k in second]
        peers = {p.implementation: (_faster(one, p), _faster(other, second[p.key])) for p in both}
    return Pair(key, one.best_seconds / other.best_seconds, floors, peers)


def _faster(record: Record, peer: Record) -> float:
    return peer.best_seconds / record.best_seconds


def _table(pairs: list[Pair]) -> Table:
    table = Table("benchmark", "case", "implementation", title="B against A, shortest rounds")
    for heading in ("B is faster by", "share of floor A -> B", "times its peer A -> B"):
        table.add_column(heading, justify="right")
    for pair in pairs:
        floor = "" if not all(pair.floors) else f"{pair.floors[0]:.1%} -> {pair.floors[1]:.1%}"
        peers = ", ".join(f"{name} {x:.2f} -> {y:.2f}" for name, (x, y) in pair.peers.items())
        table.add_row(*pair.key, f"x{pair.ratio:.3f}", floor, peers)
    return table


@click.command()
@click.argument("a", type=_FILE)
@click.argument("b", type=_FILE)
def main(a: Path, b: Path) -> None:
    """Compare the results file B with A."""
    try:
        first, second = read_results(a), read_results(b)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    console = Console(width=170)
    for line in differences(first, second):
        console.print(line, highlight=False)
    pairs = pair_up(first, second)
    if not pairs:
        raise click.ClickException("the two files have no record in common; run the same benchmarks for both")
    console.print(_table(pairs))
    for title, keys in (("only in A", only_in(first, second)), ("only in B", only_in(second, first))):
        for key in keys:
            console.print(f"{title}: {' · '.join(key)}", highlight=False)


if __name__ == "__main__":
    main()
