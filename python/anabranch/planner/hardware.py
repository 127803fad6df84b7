# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Accelerators as the planner knows them: TOML files, one constant a line, each with its source."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.resources
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anabranch.errors import UsageError

# Name in the file -> (name of the engine's field, what one unit of the file is in SI units).
FIELDS: dict[str, tuple[str, float]] = {
    "bf16_tflops": ("bf16_flops", 1e12),
    "fp8_tflops": ("fp8_flops", 1e12),
    "fp4_tflops": ("fp4_flops", 1e12),
    "sms": ("sms", 1),
    "collective_sms": ("collective_sms", 1),
    "hbm_gib": ("hbm_capacity", 2.0**30),
    "hbm_gb_per_s": ("hbm_bandwidth", 1e9),
    "scale_up_domain": ("scale_up_domain", 1),
    "torus_axes": ("torus_axes", 1),
    "scale_up_gb_per_s": ("scale_up_bandwidth", 1e9),
    "scale_up_latency_us": ("scale_up_latency", 1e-6),
    "scale_out_gb_per_s": ("scale_out_bandwidth", 1e9),
    "scale_out_latency_us": ("scale_out_latency", 1e-6),
    "scale_up_hop_us": ("scale_up_hop", 1e-6),
    "scale_out_hop_us": ("scale_out_hop", 1e-6),
    "host_gb_per_s": ("host_bandwidth", 1e9),
    "host_memory_gb_per_s": ("host_memory_bandwidth", 1e9),
    "launch_us": ("launch_seconds", 1e-6),
    "graph_launch_us": ("graph_launch_seconds", 1e-6),
    "layer_host_us": ("layer_host_seconds", 1e-6),
    "reserved_gib": ("reserved_bytes", 2.0**30),
    "gemm_half_rows": ("gemm_half_rows", 1),
    "gemm_half_depth": ("gemm_half_depth", 1),
    "elementwise_passes": ("elementwise_passes", 1),
    "allocator_slack": ("allocator_slack", 1),
    "gemm_efficiency": ("gemm_efficiency", 1),
    "gemm_low_efficiency": ("gemm_low_efficiency", 1),
    "grouped_efficiency": ("grouped_efficiency", 1),
    "wgrad_efficiency": ("wgrad_efficiency", 1),
    "attention_efficiency": ("attention_efficiency", 1),
    "attention_grad_efficiency": ("attention_grad_efficiency", 1),
    "hbm_efficiency": ("hbm_efficiency", 1),
    "scale_up_efficiency": ("scale_up_efficiency", 1),
    "scale_out_efficiency": ("scale_out_efficiency", 1),
    "host_efficiency": ("host_efficiency", 1),
}
_MAY_BE_ZERO = (
    "latency",
    "_us",
    "collective_sms",
    "half",
    "slack",
    "reserved",
    "fp8",
    "fp4",
    "host",
    "torus_axes",
)
# Constants that a file may leave out, which are then 0, and what that means.
_OPTIONAL = {
    "torus_axes": "not given: a switch",
    "scale_up_hop_us": "not given: in scale_up_latency_us",
    "scale_out_hop_us": "not given: in scale_out_latency_us",
}
MACHINE = "machine"


@dataclasses.dataclass(frozen=True)
class Hardware:
    """One kind of accelerator: `constants` in the units of the file, `sources` by the same names."""

    name: str
    description: str
    constants: Mapping[str, float]
    sources: Mapping[str, str]

    def fields(self) -> dict[str, float]:
        """The constants under the engine's names, in SI units."""
        return {FIELDS[k][0]: v * FIELDS[k][1] for k, v in self.constants.items()}

    def replace(self, changes: Mapping[str, float], source: str) -> Hardware:
        """A copy with other values; UsageError for an unknown name or an impossible value."""
        for name, value in changes.items():
            _check(f"{self.name}: {name}", name, value)
        return dataclasses.replace(
            self,
            constants={**self.constants, **changes},
            sources={**self.sources, **dict.fromkeys(changes, source)},
        )


def names() -> list[str]:
    """Names of the accelerators that ship with Anabranch."""
    folder = importlib.resources.files("anabranch.planner") / "hardware_files"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith("toml"))


def get(name: str) -> Hardware:
    """The accelerator called `name`, from a TOML file of that path, or "machine": this one, measured.

    UsageError for an unknown name (listing the nearest), a file that is no TOML, an unknown or
    missing constant, one without source, or an impossible value.
    """
    if name == MACHINE:
        return measure_machine()
    if name.endswith(".toml") or "/" in name:
        path = Path(name)
        if not path.is_file():
            raise UsageError(f"--hw {name}: no such file")
        return _read(name, path.read_text(encoding="utf-8"))
    key = name.lower().replace("-", "_")
    if key not in names():
        near = difflib.get_close_matches(key, names(), n=3, cutoff=0.3) or names()
        raise UsageError(
            f"--hw {name}: unknown accelerator; nearest: {', '.join(near)}, or machine"
        )
    file = importlib.resources.files("anabranch.planner") / "hardware_files" / f"{key}.toml"
    return _read(key, file.read_text(encoding="utf-8"))


def parse(text: str) -> tuple[Hardware, int]:
    """Reads NAME:COUNT."""
    name, separator, count = text.rpartition(":")
    if not separator or not count.isdigit() or int(count) < 1:
        raise UsageError(f"--hw {text}: must be NAME:COUNT with a positive COUNT, as gb200:256")
    return get(name), int(count)


def measure_machine() -> Hardware:
    """This machine as one accelerator: the peaks and the copy rate that `doctor` measures."""
    from anabranch import engine
    from anabranch.train import machine

    bf16 = engine.measure_peak_gflops("bfloat16") / 1e3
    copy = engine.measure_copy_gb_per_s()
    measured = {
        "bf16_tflops": bf16,
        "hbm_gib": machine.memory_gib(),
        "hbm_gb_per_s": copy,
        "scale_up_gb_per_s": copy / 2,
        "host_gb_per_s": copy / 2,
        "host_memory_gb_per_s": copy,
        "scale_up_domain": 8,
    }
    assumed = {
        "scale_out_gb_per_s": 1.25,
        "scale_out_latency_us": 50.0,
        "scale_up_latency_us": 2.0,
        "scale_up_hop_us": 0.0,
        "scale_out_hop_us": 0.0,
        "torus_axes": 0,
        "sms": max(engine.num_threads(), 1),
        "collective_sms": 0,
        "fp8_tflops": bf16,
        "fp4_tflops": bf16,
        "launch_us": 2.0,
        "graph_launch_us": 2.0,
        "layer_host_us": 0.0,
        "reserved_gib": 0.5,
        "gemm_half_rows": 8,
        "gemm_half_depth": 64,
        "elementwise_passes": 1.0,
        "allocator_slack": 0.05,
        "gemm_efficiency": 0.9,
        "gemm_low_efficiency": 0.8,
        "grouped_efficiency": 1.0,
        "wgrad_efficiency": 0.95,
        "attention_efficiency": 0.5,
        "attention_grad_efficiency": 0.5,
        "hbm_efficiency": 1.0,
        "scale_up_efficiency": 0.9,
        "scale_out_efficiency": 0.9,
        "host_efficiency": 0.9,
    }
    sources = dict.fromkeys(measured, "measured now, as `anabranch doctor` does")
    sources |= dict.fromkeys(
        assumed, "assumed: docs/performance.md for the kernels, 10 Gb Ethernet"
    )
    return Hardware(MACHINE, "this machine's CPU", {**measured, **assumed}, sources)


def _read(name: str, text: str) -> Hardware:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"hardware {name}: not valid TOML: {error}") from error
    base = get(data.pop("base")) if "base" in data else None
    description = str(data.pop("description", name))
    citations = data.pop("sources", {})
    constants = dict(base.constants) if base else dict.fromkeys(_OPTIONAL, 0.0)
    sources = dict(base.sources) if base else dict(_OPTIONAL)
    for key, entry in data.items():
        if key not in FIELDS:
            near = difflib.get_close_matches(key, FIELDS, n=3, cutoff=0.4)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            raise UsageError(f"hardware {name}: unknown constant {key}{hint}")
        constants[key], sources[key] = _entry(f"hardware {name}: {key}", key, entry, citations)
    missing = [key for key in FIELDS if key not in constants]
    if missing:
        raise UsageError(f"hardware {name}: missing {', '.join(missing)}")
    return Hardware(name, description, constants, sources)


def _entry(where: str, key: str, entry: Any, citations: Mapping[str, str]) -> tuple[float, str]:
    if not isinstance(entry, dict) or set(entry) != {"value", "source"}:
        raise UsageError(f"{where}: must be {{ value = NUMBER, source = TEXT }}")
    value = entry["value"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{where}: value={value!r} is no number")
    _check(where, key, float(value))
    return float(value), str(citations.get(entry["source"], entry["source"]))


def _check(where: str, key: str, value: float) -> None:
    if key not in FIELDS:
        near = difflib.get_close_matches(key, FIELDS, n=3, cutoff=0.4)
        raise UsageError(f"{where}: unknown constant; nearest: {', '.join(near) or 'none'}")
    zero = any(part in key for part in _MAY_BE_ZERO)
    if not value >= 0 or (value == 0 and not zero):
        raise UsageError(f"{where}={value:g}: must be {'at least 0' if zero else 'positive'}")
    if key.endswith("_efficiency") and value > 1.5:
        raise UsageError(f"{where}={value:g}: an efficiency is a share of the peak")
