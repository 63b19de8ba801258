"""A conversion report as one self-contained HTML page: sizes, bits per weight, error by tensor, stages.

Reads the JSON that `ConversionReport.write` wrote, so it needs neither the artifact nor its source.
"""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ninfer_jax.convert.charts import PALETTE, Bar, bar_chart
from ninfer_jax.convert.outputs import check_output, write_text
from ninfer_jax.convert.report import REPORT_VERSION
from ninfer_jax.convert.settings import PathLike
from ninfer_jax.errors import ConversionError

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1b1e23; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
svg { max-width: 100%; height: auto; } svg path:hover { opacity: 0.7; }
table { border-collapse: collapse; font-size: 13px; width: 100%; }
th, td { text-align: left; padding: 0.2rem 0.6rem; border-bottom: 1px solid #d9dce1; overflow-wrap: anywhere; }
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.key { display: inline-block; width: 0.8em; height: 0.8em; margin: 0 0.3em 0 1em; }
"""


def write_html(report: PathLike, out: PathLike, *, overwrite: bool = False) -> None:
    """Draw a JSON report as an HTML page.

    Args:
        report: the JSON file.
        out: the page.
        overwrite: replace an existing file.

    Raises:
        ConversionError: the report cannot be read or is none, or the page cannot be written.
        UnsupportedError: matplotlib is not installed.
    """
    source, target = Path(report), Path(out)
    check_output(target, "page", overwrite=overwrite, inputs=(source,))
    body = _load(source)
    try:
        page = render(body)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConversionError(f"{source.name} is not a complete conversion report: {error!r}") from error
    write_text(target, page, "page")


def _load(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConversionError(f"{path.name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConversionError(f"{path.name} is not JSON: {error}") from error
    if not isinstance(body, dict) or body.get("report") != REPORT_VERSION:
        raise ConversionError(f"{path.name} is not a conversion report of version {REPORT_VERSION}")
    return body


def render(body: Mapping[str, Any]) -> str:
    """The page of a report.

    Args:
        body: the report as plain JSON values.

    Returns:
        HTML text.
    """
    totals = body["totals"]
    colors = {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(totals)}
    title = f"{'/'.join(body['identity'])}: {body['artifact']}"
    sections = [
        f"<h1>{escape(title)}</h1>",
        _facts(body),
        "<h2>Formats</h2>",
        _size_chart(totals, colors),
        _bits_chart(totals, colors),
        "<h2>Error by tensor</h2>",
        _error_chart(body["tensors"], colors),
        "<h2>Stages</h2>",
        _stage_chart(body["stage_seconds"]),
        "<h2>Tensors</h2>",
        _tensor_table(body["tensors"]),
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(sections)}</body></html>\n"


def _facts(body: Mapping[str, Any]) -> str:
    lines = [
        f"Recipe {escape(body['recipe'])}; {body['artifact_bytes']:,} bytes from {body['source_bytes']:,} bytes of "
        f"weights in {body['elapsed_seconds']:.1f} s ({body['source_bytes_per_second'] / 1e6:,.0f} MB/s), "
        f"{body['processes']} process(es), {body['devices']} device(s)."
    ]
    lines += [f"Dropped: {escape(name)}" for name in body["dropped"]]
    lines += [f"Note: {escape(note)}" for note in body["notes"]]
    return "".join(f"<p>{line}</p>" for line in lines)


def _size_chart(totals: Mapping[str, Any], colors: Mapping[str, str]) -> str:
    bars = [
        Bar(
            name,
            entry["nbytes"] / 1e6,
            f"{name}: {entry['nbytes']:,} bytes in {entry['tensors']} tensors",
            colors[name],
        )
        for name, entry in totals.items()
    ]
    return bar_chart("size", "Size by format", "MB", bars, labelled=True)


def _bits_chart(totals: Mapping[str, Any], colors: Mapping[str, str]) -> str:
    bars = [
        Bar(name, entry["bits_per_weight"], f"{name}: {entry['bits_per_weight']:.3f} bits per weight", colors[name])
        for name, entry in totals.items()
    ]
    return bar_chart("bits", "Bits per weight, scales and padding included", "bits", bars, labelled=True)


def _error_chart(tensors: Sequence[Mapping[str, Any]], colors: Mapping[str, str]) -> str:
    measured = sorted((entry for entry in tensors if entry["sqnr_db"] is not None), key=lambda entry: entry["sqnr_db"])
    if not measured:
        return "<p>No tensor was rounded by an encoder.</p>"
    bars = [
        Bar(
            entry["name"],
            entry["sqnr_db"],
            f"{entry['name']} ({entry['format']}): {entry['sqnr_db']:.2f} dB, largest error {entry['max_error']:.3g}",
            colors[entry["format"]],
        )
        for entry in measured
    ]
    used = dict.fromkeys(entry["format"] for entry in measured)
    key = "".join(f"<span class='key' style='background:{colors[name]}'></span>{escape(name)}" for name in used)
    chart = bar_chart("error", "Signal to quantization noise, lowest first", "SQNR, dB", bars, labelled=False)
    return f"{chart}<p>{key}</p>"


def _stage_chart(seconds: Mapping[str, float]) -> str:
    names = sorted((name for name in seconds if name != "wall"), key=lambda name: -seconds[name])
    bars = [Bar(name, seconds[name], f"{name}: {seconds[name]:.2f} s busy", PALETTE[0]) for name in names]
    title = f"Busy time by stage, slowest first (wall time {seconds.get('wall', 0.0):.1f} s, stages overlap)"
    return bar_chart("stage", title, "seconds", bars, labelled=True)


def _tensor_table(tensors: Sequence[Mapping[str, Any]]) -> str:
    names = ("name", "shape", "format", "bytes", "bits/weight", "SQNR dB", "largest error")
    head = "".join(f"<th{_number(index)}>{name}</th>" for index, name in enumerate(names))
    rows = []
    for entry in tensors:
        cells = (
            escape(entry["name"]),
            "×".join(map(str, entry["shape"])) or "scalar",
            escape(entry["format"]),
            f"{entry['nbytes']:,}",
            f"{entry['bits_per_weight']:.3f}",
            "" if entry["sqnr_db"] is None else f"{entry['sqnr_db']:.2f}",
            "" if not entry["max_error"] else f"{entry['max_error']:.3g}",
        )
        rows.append("".join(f"<td{_number(index)}>{cell}</td>" for index, cell in enumerate(cells)))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _number(index: int) -> str:
    return " class='number'" if index >= 3 else ""
