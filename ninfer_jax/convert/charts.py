"""Bar charts as inline SVG whose bars show their name and value under the pointer. Needs matplotlib (extra `report`).

Tooltips are SVG `<title>` elements, so a page needs neither scripts nor a network. This module leaves out what is
charted (`ninfer_jax.convert.html`).
"""

import io
import re
from collections.abc import Sequence
from typing import NamedTuple
from xml.etree import ElementTree

from ninfer_jax.errors import UnsupportedError

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
PALETTE = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e")
"""Colours of formats, in order of first appearance."""


class Bar(NamedTuple):
    """One bar: its label on the axis, its value, its tooltip and its colour."""

    label: str
    value: float
    tooltip: str
    color: str


def bar_chart(key: str, title: str, axis: str, bars: Sequence[Bar], *, labelled: bool) -> str:
    """Draw a chart.

    Args:
        key: prefix of element ids, unique in the page.
        title: heading of the chart.
        axis: what the values are, with their unit.
        bars: in drawing order.
        labelled: horizontal bars with labels; many narrow vertical bars without where False.

    Returns:
        An `<svg>` element.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedError(
            "charts need matplotlib, which is not installed; run: python3 -m pip install 'ninfer-jax[report]'"
        ) from error
    height = 1.2 + 0.32 * len(bars) if labelled else 3.6
    with matplotlib.rc_context({"svg.hashsalt": key, "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(8.5, height), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        positions, values, colors = range(len(bars)), [bar.value for bar in bars], [bar.color for bar in bars]
        if labelled:
            drawn = axes.barh(positions, values, color=colors)
            axes.set_yticks(list(positions), [bar.label for bar in bars])
            axes.invert_yaxis()
            axes.set_xlabel(axis)
        else:
            drawn = axes.bar(positions, values, width=1.0, color=colors)
            axes.set_xticks([])
            axes.set_ylabel(axis)
        axes.set_title(title, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        for index, patch in enumerate(drawn):
            patch.set_gid(f"{key}-{index}")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _with_tooltips(buffer.getvalue(), {f"{key}-{index}": bar.tooltip for index, bar in enumerate(bars)})


def _with_tooltips(svg: bytes, tooltips: dict[str, str]) -> str:
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    root = ElementTree.fromstring(svg)
    # Several charts share a page: only ids that something refers to may stay, and those are unique.
    used = set(re.findall(r"#([\w-]+)", svg.decode()))
    for element in root.iter():
        tooltip = tooltips.get(element.get("id", ""))
        if tooltip is not None:
            title = ElementTree.Element(f"{{{_SVG}}}title")
            title.text = tooltip
            element.insert(0, title)
        if element.get("id") not in used:
            element.attrib.pop("id", None)
    return ElementTree.tostring(root, encoding="unicode")
