"""The roofline of a results file as PNG and SVG: `python -m benchmarks.roofline results.json [--output STEM]`.

Roof: copy bandwidth and matrix rate measured in the same run. Each record with bytes and operations is a point at its
operations a byte and its achieved rate; a thin line leads up to the roof over it, which is its floor in time. Needs
matplotlib (extra `report`). Leaves out records that only move bytes.
"""

from pathlib import Path
from typing import Any

import click

from benchmarks.records import OURS, Record, Results, read_results

_MARKERS = "osD^vPX*<>"


def points(results: Results) -> list[Record]:
    """The records that have a place in the plot."""
    return [record for record in results.records if record.nbytes and record.flops]


def roof(results: Results, intensity: float) -> float:
    """Operations per second the machine can do at so many operations a byte."""
    return min(results.machine["matrix_flops"], intensity * results.machine["copy_bytes_per_second"])


def plot(results: Results, stem: Path) -> tuple[Path, Path]:
    """Draw the plot.

    Args:
        results: a run.
        stem: path of the images without suffix.

    Returns:
        The PNG and the SVG.

    Raises:
        ValueError: no record has both bytes and operations.
        ImportError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = points(results)
    if not found:
        raise ValueError("no record has both bytes and operations; run python -m benchmarks matmul --json FILE")
    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw_roof(axes, results, [record.flops / record.nbytes for record in found])
    for index, name in enumerate(dict.fromkeys(record.implementation for record in found)):
        _draw_points(axes, results, [record for record in found if record.implementation == name], index)
    environment = results.environment
    axes.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="operations per second")
    axes.set_title(
        f"{environment.get('device')} · jax {environment.get('jax')} · commit {str(environment.get('commit'))[:9]}"
    )
    axes.legend(loc="lower right", fontsize="small")
    axes.grid(alpha=0.3, which="both")
    images = stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".svg")
    for image in images:
        figure.savefig(image, dpi=150)
    return images


def _draw_roof(axes: Any, results: Results, intensities: list[float]) -> None:
    bandwidth, rate = results.machine["copy_bytes_per_second"], results.machine["matrix_flops"]
    ridge = rate / bandwidth
    span = [min(*intensities, ridge) / 2, ridge, max(*intensities, ridge) * 2]
    label = f"copy {bandwidth / 1e9:.0f} GB/s, matrix {rate / 1e9:.0f} GFLOP/s"
    axes.plot(span, [roof(results, x) for x in span], color="black", label=label)


def _draw_points(axes: Any, results: Results, records: list[Record], index: int) -> None:
    name = records[0].implementation
    color = "C3" if name == OURS else f"C{index + (index >= 3)}"
    xs = [record.flops / record.nbytes for record in records]
    ys = [record.flops / record.best_seconds for record in records]
    tops = [record.flops / results.floor_seconds(record) for record in records]
    axes.vlines(xs, ys, tops, color=color, alpha=0.25, linewidth=1)
    axes.scatter(xs, ys, color=color, label=name, marker=_MARKERS[index % len(_MARKERS)], s=22, zorder=3)


@click.command()
@click.argument("results", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), help="images without suffix; by default beside the results")
def main(results: Path, output: Path | None) -> None:
    """Plot a results file."""
    try:
        images = plot(read_results(results), output or results.with_suffix(""))
    except ImportError as error:
        raise click.ClickException(f"{error}: python3 -m pip install 'ninfer-jax[report]'") from error
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    for image in images:
        click.echo(image)


if __name__ == "__main__":
    main()
