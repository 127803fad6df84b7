# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The page: headline, figures, a sample of text, and all there is to know to repeat the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import resources

import numpy as np

from anabranch.train.report import curves, heat_map, quantized, repeat, units
from anabranch.train.report.markup import flatten, safe, section, table
from anabranch.train.report.run_log import Record, RunLog, number
from anabranch.train.report.summary import Summary, summarise

_MARK = (
    '<svg class="logo" viewBox="0 0 64 32" aria-hidden="true"><path d="M2 16H14C24 16 24 5 34 5'
    "S42 16 50 16H62M14 16C24 16 26 27 36 27S44 16 50 16M20 12C28 12 30 19 40 19"
    '"/></svg>'
)
_ACTIVITIES = {
    "step": "training step",
    "data": "waiting for data",
    "other": "evaluation, checkpoints, logging",
}
_HANDLED = ("event", "recipe", "peak_tflops", "baselines", "parameters", "command")


def render(log: RunLog) -> str:
    """Returns the whole document."""
    summary = summarise(log)
    title = f"{summary.recipe} · Anabranch training report"
    parts = [_header(log, summary), _headline(summary)]
    if log.steps or log.evals:
        speed = curves.speed(log, summary) + _time_split(log)
        experts = heat_map.draw(log) + curves.balance(log)
        parts += [
            section("Learning", curves.learning(log, summary), _skipped(log)),
            section("Expert load", experts, _balance(summary)),
            section("Speed and memory", speed),
            section("Low precision", curves.precision(log) + quantized.draw(log)),
        ]
    parts += [
        section("Generated text", _samples(log)),
        section("Repeat this run", _repeat(log, summary)),
        section("Configuration", _configuration(log)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{safe(title)}</title><style>{_asset('style.css')}</style></head>"
        f"<body><main>{''.join(parts)}</main><script>{_asset('readout.js')}</script></body></html>\n"
    )


def _asset(name: str) -> str:
    text = resources.files(__package__).joinpath(name).read_text("utf-8")
    return text.split("*/\n", 1)[-1].strip()  # without the licence line


def _header(log: RunLog, summary: Summary) -> str:
    done = summary.status == "finished"
    status = summary.status if done else f"{summary.status}, {_progress(summary)}"
    warnings = "".join(f'<p class="warning">{safe(text)}</p>' for text in log.warnings)
    lead = f'<p class="lead">{safe(summary.description)}</p>' if summary.description else ""
    return (
        f'<header><div class="brand">{_MARK}<span>Anabranch</span> training report'
        f'<span class="status {"good" if done else "open"}">{safe(status)}</span></div>'
        f"<h1>{safe(summary.recipe)}</h1>{lead}"
        f'<p class="facts">{_facts(log, summary)}</p>{warnings}</header>'
    )


def _progress(summary: Summary) -> str:
    if math.isnan(summary.last_step):
        return "no step logged yet"
    total = units.grouped(summary.total_steps)
    return f"at step {units.grouped(summary.last_step)} of {total}"


def _facts(log: RunLog, summary: Summary) -> str:
    """Returns one line: what was trained, for how long, and on what."""
    experts = number(log.setting("model", "num_experts"))
    topk = number(log.setting("model", "topk"))
    facts = []
    if math.isfinite(experts) and math.isfinite(topk):
        facts.append(f"{experts:.0f} experts, {topk:.0f} per token")
    if math.isfinite(summary.last_step):
        facts.append(units.counted(summary.last_step, "step"))
    if math.isfinite(summary.seconds):
        facts.append(f"trained for {units.duration(summary.seconds)}")
    machine = log.started.get("machine")
    name = machine.get("cpu") if isinstance(machine, Mapping) else machine
    facts += [str(item) for item in (name, log.started.get("isa")) if item]
    if log.started.get("threads"):
        facts.append(units.counted(number(log.started["threads"]), "thread"))
    return " · ".join(f"<span>{safe(fact)}</span>" for fact in facts)


def _headline(summary: Summary) -> str:
    active = units.scaled(summary.parameters_active)
    peak = units.fixed(summary.peak_tflops, 3)
    dropped = summary.dropped_tokens
    reached = "every token reached its experts" if dropped == 0 else "missed an expert"
    tiles = (
        ("Parameters", units.scaled(summary.parameters_total), f"{active} active per token"),
        ("Tokens", units.scaled(summary.tokens), units.counted(summary.last_step, "step")),
        ("Throughput", units.scaled(summary.tokens_per_second), "tokens / s, median"),
        ("MFU", units.percent(summary.mfu), f"of {peak} TFLOP/s, measured here"),
        ("Peak memory", units.with_unit(units.fixed(summary.peak_gib), "GiB"), "resident set"),
        ("Dropped tokens", units.grouped(dropped), reached),
        ("Skipped steps", units.grouped(summary.skipped_steps), "non-finite, state untouched"),
        ("Dead experts", units.grouped(summary.dead_experts), "at the last step, all layers"),
    )
    tiles = [(name, value, note if value != units.MISSING else "") for name, value, note in tiles]
    items = "".join(
        f"<div><dt>{name}</dt><dd>{value}</dd><p>{note}</p></div>" for name, value, note in tiles
    )
    return f'<div class="headline">{_comparison(summary)}<dl class="tiles">{items}</dl></div>'


def _comparison(summary: Summary) -> str:
    """Returns the bits per byte of this model as bars beside the byte models."""
    rows = [
        ("unigram byte model", summary.unigram, "base"),
        ("bigram byte model", summary.bigram, "base"),
        ("training, last step", summary.train_bits_per_byte, "c1"),
        ("held out", summary.held_out_bits_per_byte, "c2"),
    ]
    rows = [row for row in rows if math.isfinite(row[1])]
    longest = max([1e-9, *(value for _, value, _ in rows)])
    bars = "".join(
        f'<div class="bar"><span>{name}</span><i class="{colour}" '
        f'style="width:{max(0.0, 100 * value / longest):.1f}%"></i><b>{value:.3f}</b></div>'
        for name, value, colour in rows
    )
    best = summary.held_out_bits_per_byte
    kind = "held out" if math.isfinite(best) else "training"
    best = best if math.isfinite(best) else summary.train_bits_per_byte
    if math.isnan(best):
        waiting = '<p class="verdict">No step has been logged yet.</p>'
        return f'<div class="hero">{waiting}{bars}</div>'
    return (
        f'<div class="hero"><p class="big"><b>{units.fixed(best, 3)}</b> bits / byte, {kind}</p>'
        f'<p class="verdict">{_verdict(summary, best)}</p>{bars}</div>'
    )


def _verdict(summary: Summary, best: float) -> str:
    if not (math.isfinite(best) and summary.bigram > 0):
        return "Lower is better; a byte holds eight bits."
    saved = 1 - best / summary.bigram
    word = "fewer" if saved >= 0 else "more"
    same = math.isfinite(summary.held_out_bits_per_byte)
    text = "on the same text" if same else "on held-out text"
    return f"{units.percent(abs(saved))} {word} bits than a bigram byte model {text}."


def _skipped(log: RunLog) -> str:
    """Returns why steps were skipped, or nothing."""
    told = [
        f"step {units.grouped(number(record.get('step')))} (first non-finite: "
        f"{safe(record.get('first_non_finite') or 'unknown', 120)})"
        for record in log.skipped[:5]
    ]
    more = f" and {len(log.skipped) - 5} more" if len(log.skipped) > 5 else ""
    return f"Skipped, with the state left untouched: {', '.join(told)}{more}." if told else ""


def _balance(summary: Summary) -> str:
    if math.isnan(summary.max_violation):
        return ""
    busiest = units.fixed(1 + summary.max_violation)
    dead = summary.dead_experts
    tail = "; no expert was dead" if dead == 0 else ""
    return f"At the last step the busiest expert of any layer had {busiest} × the mean load{tail}."


def _time_split(log: RunLog) -> str:
    totals: dict[str, float] = {}
    for record in log.steps:
        split = record.get("time_split")
        for name, seconds in split.items() if isinstance(split, Mapping) else ():
            seconds = number(seconds)
            totals[name] = totals.get(name, 0.0) + (seconds if seconds > 0 else 0.0)
    whole = sum(totals.values())
    if not (whole > 0 and np.isfinite(whole)):
        return ""
    parts, keys = [], []
    for i, (name, seconds) in enumerate(sorted(totals.items(), key=lambda item: -item[1])):
        share, colour = seconds / whole, f"c{i % 6 + 1}"
        parts.append(f'<i class="{colour}" style="flex-grow:{share:.5f}"></i>')
        label = f"{safe(_ACTIVITIES.get(name, name))} {units.percent(share)}"
        keys.append(f'<li><i class="key block {colour}"></i>{label}</li>')
    return (
        '<figure class="wide"><figcaption><h3>Time split</h3><span class="unit">share of wall '
        f'time over the logged steps</span><ul class="legend">{"".join(keys)}</ul></figcaption>'
        f'<div class="split">{"".join(parts)}</div></figure>'
    )


def _samples(log: RunLog) -> str:
    """Returns the samples of the last step, and folded away those of two earlier ones."""
    by_step: dict[str, str] = {}
    for record in log.samples:
        step = units.grouped(number(record.get("step")))
        by_step[step] = by_step.get(step, "") + _sample(record, step)
    if not by_step:
        return ""
    *earlier, last = by_step.values()
    chosen = [earlier[i] for i in sorted({0, len(earlier) // 2})] if earlier else []
    folded = "<details><summary>Earlier in training</summary>{}</details>"
    return last + (folded.format("".join(chosen)) if chosen else "")


def _sample(record: Record, step: str) -> str:
    prompt, text = str(record.get("prompt") or ""), str(record.get("text") or "")
    how = "continues the prompt, set bold" if prompt else "without a prompt"
    return (
        f'<figure class="sample"><figcaption>after step {step}, {how}</figcaption>'
        f"<pre><b>{safe(prompt)}</b>{safe(text.removeprefix(prompt))}</pre></figure>"
    )


def _repeat(log: RunLog, summary: Summary) -> str:
    command = safe(repeat.command(log, summary.recipe))
    told = ((k, v) for k, v in flatten(log.started) if k.split(".")[0] not in _HANDLED)
    rows = [(_label(name), value) for name, value in told if value is not None]
    if math.isfinite(summary.peak_tflops):
        rows.append(("measured peak, TFLOP/s", summary.peak_tflops))
    return f'<pre class="command">{command}</pre><div class="tables">{table(rows)}</div>'


def _label(path: str) -> str:
    return path.removeprefix("machine.").replace("_gib", ", GiB").replace("_", " ")


def _configuration(log: RunLog) -> str:
    loose = [(key, value) for key, value in log.config.items() if not isinstance(value, Mapping)]
    tables = [table(loose, "run")] if loose else []
    for key, value in log.config.items():
        if isinstance(value, Mapping):
            tables.append(table(flatten(value), key))
    return f'<div class="tables">{"".join(tables)}</div>' if tables else ""
