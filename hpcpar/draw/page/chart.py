"""The timeline of the page as a Bokeh figure: axes, legend, tools and a renderer a kind, all empty; the page's script fills them.

y   -strip      the numbers of the steps
    0 .. 1      rank 0: receives above, compute, collectives, sends below, as draw/timeline.py places them
    1 .. 2      rank 1
x   ms since the first event
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hpcpar.draw.timeline import STYLES
from hpcpar.trace.schema import Kind

FIELDS = ("left", "right", "bottom", "top", "text")
STRIP_PX = 18
MOST_PX, LEAST_PX = 64, 13  # height of a rank, where there are few and many
HIGHEST_PX = 1600  # of the figure; more ranks are thinner, and a box of them can be enlarged


def timeline(
    ranks: int, missing: Collection[int], length_ms: float, first_ms: float, last_ms: float, kinds: Collection[int]
) -> dict[str, Any]:
    """The figure of `ranks` lanes that shows first_ms to last_ms of length_ms, as JSON that Bokeh's script embeds in #timeline.

    `missing` ranks are marked.
    A renderer of `kinds` is filled through its data source, which bears the name of the kind; "steps" and "numbers" likewise.
    """
    from bokeh.embed import json_item
    from bokeh.models import (
        BoxZoomTool,
        ColumnDataSource,
        FixedTicker,
        HoverTool,
        NumeralTickFormatter,
        PanTool,
        Range1d,
        ResetTool,
        WheelZoomTool,
        ZoomInTool,
        ZoomOutTool,
    )
    from bokeh.plotting import figure

    lane = max(LEAST_PX, min(MOST_PX, 700 // ranks))
    height = min(HIGHEST_PX, lane * ranks + STRIP_PX)
    strip = STRIP_PX * ranks / max(1, height - STRIP_PX)
    margin = 0.02 * max(length_ms, 1e-6)
    across = Range1d(first_ms, last_ms, bounds=(-margin, length_ms + margin), min_interval=1e-5, name="time")
    down = Range1d(ranks, -strip, bounds=(-strip, ranks), name="ranks")
    zoom = WheelZoomTool(dimensions="width")
    plot = figure(
        name="plot",
        x_range=across,
        y_range=down,
        frame_height=height,
        sizing_mode="stretch_width",
        min_width=280,
        tools=[
            PanTool(dimensions="width"),
            zoom,
            BoxZoomTool(),
            ZoomInTool(dimensions="width"),
            ZoomOutTool(dimensions="width"),
            ResetTool(),
        ],
        active_scroll=zoom,
        toolbar_location="above",
        lod_threshold=None,  # what is in view is never too much
        output_backend="canvas",
    )
    plot.toolbar.logo = None
    drawn = []
    for kind, style in STYLES.items():
        if kind not in kinds:
            continue
        source = ColumnDataSource({**{name: [float("nan")] for name in FIELDS[:-1]}, "text": [""]}, name=kind.name)  # see page.js
        edge = None if kind is Kind.WAIT else "#222222"
        hatch: dict[str, Any] = (
            {"hatch_pattern": style.hatch[0], "hatch_scale": 14, "hatch_weight": 0.6, "hatch_color": "#444444"} if style.hatch else {}
        )
        look = {"fill_color": style.fill, "line_color": edge, "line_width": 0.5, **hatch}
        drawn.append(plot.quad("left", "right", "top", "bottom", source=source, legend_label=style.label, **look))
    steps = ColumnDataSource({"x": [], "text": []}, name="steps")
    plot.vspan("x", source=steps, line_color="#555555", line_dash="dotted", line_width=1)
    plot.text("x", -strip, "text", source=steps, text_color="#111111", text_font_size="11px", text_baseline="top", x_offset=3)
    numbers = ColumnDataSource({"x": [], "y": [], "text": []}, name="numbers")
    plot.text(
        "x", "y", "text", source=numbers, text_color="#111111", text_font_size="11px", text_align="center", text_baseline="middle",
        background_fill_color="white", background_fill_alpha=0.8,
    )  # fmt: skip
    plot.add_tools(
        HoverTool(
            renderers=drawn,
            tooltips='<div style="white-space: pre-wrap; max-width: min(360px, 38vw); color: #111">@text</div>',
            point_policy="follow_mouse",
        )
    )
    every = max(1, round(14 / (height / ranks)))
    plot.yaxis.ticker = FixedTicker(ticks=[r + 0.5 for r in range(0, ranks, every)])
    plot.yaxis.major_label_overrides = {r + 0.5: f"{r} missing" if r in missing else str(r) for r in range(0, ranks, every)}
    plot.yaxis.axis_label, plot.xaxis.axis_label = "rank", "ms since the first event"
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0.[000000]")
    plot.xaxis.ticker.desired_num_ticks = 5
    for axis in (plot.xaxis, plot.yaxis):
        axis.axis_label_text_color = axis.major_label_text_color = "#111111"
        axis.axis_label_text_font_style = "normal"
    plot.grid.visible = False
    if drawn:
        plot.legend.ncols, plot.legend.click_policy = 3, "hide"
        plot.legend.label_text_font_size, plot.legend.label_text_color = "11px", "#111111"
        plot.legend.border_line_color, plot.legend.padding, plot.legend.spacing = None, 2, 2
        plot.legend.location = "top_left"
        plot.add_layout(plot.legend[0], "below")
    return json_item(plot, "timeline")  # type: ignore[return-value]
