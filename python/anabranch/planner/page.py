# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page for an answer of `sim`, `plan` or `scale`."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from anabranch.planner import flags, plots, present

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff; }
pre { overflow-x: auto; background: #f6f6f6; padding: .8rem; font-size: 13px; }
svg { max-width: 100%; height: auto; }
.note { color: #666; }
"""


def simulation(result: Mapping[str, Any]) -> str:
    """The page of `anabranch sim`."""
    parts = [
        _plot(plots.time_shares([result], [result["layout"]])),
        _text(present.step(result)),
        "<h2>Memory</h2>",
        _plot(plots.memory(result)),
        _text(present.memory(result)),
        "<h2>Flags to paste</h2>",
        _text(flags.maxtext(result)),
    ]
    return _page(f"{result['model']} on {result['hardware']}", parts, result["calibration"])


def ranking(answer: Mapping[str, Any], title: str) -> str:
    """The page of `anabranch plan`."""
    ranked = answer["ranked"]
    parts = [f"<p>{answer['possible']} of {answer['tried']} layouts are possible.</p>"]
    if ranked:
        parts += [
            _plot(plots.time_shares(ranked, [result["layout"] for result in ranked])),
            _text(present.ranking(ranked)),
            "<h2>Memory of the first</h2>",
            _plot(plots.memory(ranked[0])),
            _text(present.memory(ranked[0])),
            "<h2>Flags of the first</h2>",
            _text(flags.maxtext(ranked[0])),
        ]
    parts += ["<h2>Refused</h2>", _text(present.columns(
        [(str(n), reason) for reason, n in answer["refused"].items()] or [("0", "none")]))]  # fmt: skip
    return _page(title, parts, answer["calibration"])


def scaling(answer: Mapping[str, Any]) -> str:
    """The page of `anabranch scale`."""
    parts = [
        f"<p>Layout {html.escape(answer['layout'])}, jitter {answer['jitter']:.1%} over"
        f" {answer['seeds']} seeds, routing {html.escape(answer['imbalance'])}.</p>",
        _plot(plots.scaling(answer)),
        _text(present.scaling(answer)),
    ]
    title = f"{answer['model']} on more and more {answer['hardware']}"
    return _page(title, parts, answer["calibration"])


def _plot(figure: Any) -> str:
    return f"<figure>{plots.svg(figure)}</figure>"


def _text(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"


def _page(title: str, parts: list[str], calibration: Mapping[str, Any]) -> str:
    body = "\n".join(parts)
    return (
        f"<!doctype html>\n<html lang=en><head><meta charset=utf-8><title>{html.escape(title)}</title>"
        f"<style>{_STYLE}</style></head>\n<body><h1>{html.escape(title)}</h1>\n"
        f"<p class=note>Every figure on this page is simulated; {html.escape(present.trust(calibration))}."
        f"</p>\n{body}\n</body></html>\n"
    )
