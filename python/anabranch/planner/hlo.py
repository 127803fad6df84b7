# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Time lines of compiled steps: HLO text, costs from its shapes, XLA's scheduling rules."""

from __future__ import annotations

import ctypes
import dataclasses
import difflib
import functools
import json
import re
from collections.abc import Sequence
from typing import Any

from anabranch import _register
from anabranch.errors import UsageError
from anabranch.planner import calibration, hardware, trace

STREAMS = {
    "compute": "compute",
    "ep": "all-to-all",
    "dp": "gather, scatter, reduce",
    "pp": "permute, send",
    "async": "asynchronous kernels",
    "h2d": "host to device",
    "d2h": "device to host",
}
_SINK = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_char), ctypes.c_int64)
_JSON, _TRACE, _PROFILE = 0, 1, 2
_LARGEST_LIMIT = 64


@dataclasses.dataclass(frozen=True)
class Options:
    """How a module is run.

    `schedule` "given" keeps the text's order, "xla" orders it anew by XLA's rules from our costs,
    "xla-default" from XLA's built-in guesses. Limits are numbers of operations in flight:
    `overlap_limit` collectives (xla_gpu_experimental_parallel_collective_overlap_limit),
    `scale_up_limit` those inside a scale-up domain (0: no resource of their own), `async_limit`
    host copies and asynchronous kernels. `multi_stream` gives collectives more than one stream and
    forbids overlap of two that share more than one device. `overlap` False waits for each start.
    """

    schedule: str = "given"
    overlap_limit: int = 1
    scale_up_limit: int = 0
    async_limit: int = 2
    multi_stream: bool = False
    overlap: bool = True

    def encode(self, num_devices: int) -> Any:
        """The options as src/ffi/hlo_api.cc reads them."""
        values = (
            num_devices,
            self.schedule != "given",
            self.schedule == "xla-default",
            self.scale_up_limit > 0,
            self.overlap_limit,
            max(self.scale_up_limit, 1),
            self.async_limit,
            self.multi_stream,
            self.overlap,
        )
        return (ctypes.c_int64 * len(values))(*map(int, values))


SCHEDULES = ("given", "xla", "xla-default")
_SWITCHES = {"multi_stream": "multi_stream", "streams": "multi_stream", "overlap": "overlap"}
_LIMITS = {
    "limit": "overlap_limit",
    "overlap_limit": "overlap_limit",
    "scale_up_limit": "scale_up_limit",
    "async_limit": "async_limit",
}
# Short names for constants, the same as in the other planner commands.
_CONSTANTS = {
    "nic": "scale_out_gb_per_s",
    "nvlink": "scale_up_gb_per_s",
    "hbm": "hbm_gb_per_s",
    "host": "host_gb_per_s",
    "sm": "collective_sms",
    "domain": "scale_up_domain",
    "flops": "bf16_tflops",
}


def what_if(
    kind: hardware.Hardware, options: Options, text: str
) -> tuple[hardware.Hardware, Options]:
    """Applies "nic=2x,sm=16,overlap=off,limit=2,multi_stream=on,schedule=xla"."""
    constants: dict[str, float] = {}
    changes: dict[str, Any] = {}
    for word in filter(None, re.split(r"[,\s]+", text)):
        name, separator, value = word.partition("=")
        constant = _CONSTANTS.get(name, name)
        if name == "schedule" and value in SCHEDULES:
            changes["schedule"] = value
        elif name in _SWITCHES and value in ("on", "off"):
            changes[_SWITCHES[name]] = value == "on"
        elif name in _LIMITS and re.fullmatch(r"\d{1,2}", value):
            changes[_LIMITS[name]] = int(value)
        elif separator and constant in hardware.FIELDS:
            constants[constant] = _amount(word, value, kind.constants[constant])
        else:
            raise UsageError(f"--what-if {word}: {_rule(name)}")
    options = dataclasses.replace(options, **changes)
    lowest = min(options.overlap_limit, options.async_limit)
    if lowest < 1 or max(options.overlap_limit, options.scale_up_limit) > _LARGEST_LIMIT:
        raise UsageError(f"--what-if {text}: limits are 1 to {_LARGEST_LIMIT}")
    return (kind.replace(constants, "what-if") if constants else kind), options


def _amount(word: str, value: str, base: float) -> float:
    try:
        number = float(value.removesuffix("x"))
    except ValueError as error:
        raise UsageError(f"--what-if {word}: must be a number, or a factor as 2x") from error
    return number * base if value.endswith("x") else number


def _rule(name: str) -> str:
    if name == "schedule":
        return f"must be one of {', '.join(SCHEDULES)}"
    if name in _SWITCHES:
        return "must be on or off"
    if name in _LIMITS:
        return f"must be a whole number up to {_LARGEST_LIMIT}"
    known = ["schedule", *_SWITCHES, *_LIMITS, *_CONSTANTS, *hardware.FIELDS]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[:8]
    return f"unknown name; nearest: {', '.join(near)}"


@functools.cache
def _function() -> Any:
    path = _register.library_path()
    if not path.exists():
        raise ImportError(f"anabranch: engine library not found at {path}; run `make build`")
    function = ctypes.CDLL(str(path)).anabranch_analyze_hlo
    text = (ctypes.c_char_p, ctypes.c_int64)
    function.argtypes = (*text, *text, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64, _SINK)
    function.restype = ctypes.c_int64
    return function


def _run(text: bytes, kind: hardware.Hardware, count: int, options: Options, output: int) -> str:
    lines = [f"hardware.{name} {float(value)!r}" for name, value in kind.fields().items()]
    request = ("\n".join(lines) + "\n").encode()
    texts: list[bytes] = []
    sink = _SINK(lambda data, size: texts.append(ctypes.string_at(data, size)))
    encoded = options.encode(count)
    failed = _function()(text, len(text), request, len(request), encoded, output, sink)
    result = texts[0].decode(errors="replace")
    if failed:
        raise UsageError(result)
    return result


def analyze(
    text: bytes,
    kind: hardware.Hardware,
    count: int,
    options: Options = Options(),  # noqa: B008 - frozen
    *,
    events: bool = False,
) -> dict[str, Any]:
    """Runs one step of HLO `text` on `count` accelerators.

    Returns the seconds of the step; busy and exposed seconds and number of operations of each stream;
    every collective and copy with its seconds, those exposed, bytes, and whether it stays inside a
    scale-up domain; with `events` every operation as [name, stream, start, seconds].

    Raises:
      UsageError: the text is no HLO, names more devices than there are, or cannot be scheduled.
    """
    return json.loads(_run(text, kind, count, options, _TRACE if events else _JSON))


def profile(text: bytes, kind: hardware.Hardware, count: int) -> str:
    """Our cost of every operation as a profile for XLA's scheduler, in text form.

    Pass it to the compiler as --xla_gpu_pgle_profile_file_or_directory_path=FILE.pbtxt.
    """
    return _run(text, kind, count, Options(), _PROFILE)


def calibrated(
    kind: hardware.Hardware, stack: str = ""
) -> tuple[hardware.Hardware, dict[str, Any]]:
    """The accelerator with its calibration's constants, and what the calibration says of itself."""
    known = calibration.load(kind.name, stack)
    if known.parameters:
        kind = kind.replace(known.parameters, f"calibration {known.id}")
    return kind, dict(known.describe())


def perfetto(events: Sequence[Sequence[Any]], result: dict[str, Any]) -> str:
    """The events as a Chrome trace: one thread per stream, and a counter of collectives in flight."""
    numbers = {name: number for number, name in enumerate(STREAMS)}
    trace_events = trace.names(0, result["module"], dict(enumerate(STREAMS.values())))
    collectives = []
    for name, stream, start, seconds in sorted(events, key=lambda event: event[2]):
        trace_events.append(trace.span(0, numbers[stream], name, start, start + seconds))
        if stream in ("ep", "dp", "pp"):
            collectives.append((start, start + seconds))
    trace_events += trace.counter(0, "collectives", collectives)
    return trace.document(trace_events, {k: result[k] for k in ("module", "seconds")})
