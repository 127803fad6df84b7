# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Text of a run made safe to stand in a page, and the few HTML shapes that recur."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from typing import Any

from anabranch.train.report import units

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def safe(value: object, limit: int = 6000) -> str:
    """Returns `value` as HTML text: escaped, control characters visible, cut at `limit`."""
    text = str(value).replace("\r\n", "\n")
    text = text if len(text) <= limit else text[:limit] + " …"
    return html.escape(_UNPRINTABLE.sub("\ufffd", text), quote=True)


def flatten(value: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, object]]:
    """Yields the dotted path and the value of every leaf."""
    for key, item in value.items():
        path = f"{prefix}{key}"
        if isinstance(item, Mapping) and item:
            yield from flatten(item, path + ".")
        else:
            yield path, item


def setting_text(value: object) -> str:
    """Returns a configured value as people write it."""
    if value is None or value == "" or value == {}:
        return units.MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return units.general(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, list):
        return ", ".join(setting_text(item) for item in value) or units.MISSING
    return str(value)


def table(rows: Iterable[tuple[str, object]], title: str = "") -> str:
    """Returns a table of two columns; rows hold plain text and configured values."""
    caption = f"<caption>{safe(title)}</caption>" if title else ""
    body = "".join(
        f'<tr><th scope="row">{safe(name)}</th><td>{safe(setting_text(value))}</td></tr>'
        for name, value in rows
    )
    return f"<table>{caption}<tbody>{body}</tbody></table>"


def section(title: str, body: str, intro: str = "") -> str:
    """Returns a titled section around HTML, or nothing around nothing."""
    if not body:
        return ""
    lead = f'<p class="intro">{intro}</p>' if intro else ""
    return f"<section><h2>{safe(title)}</h2>{lead}{body}</section>"
