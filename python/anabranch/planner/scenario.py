# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""One question to the planner: model, accelerators, number format, layout, batch and imbalance."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from pathlib import Path

from anabranch.errors import UsageError
from anabranch.planner import calibration, hardware, layout, subject
from anabranch.recipes import Recipe


@dataclasses.dataclass(frozen=True)
class Imbalance:
    """How uneven routing is: Zipf's exponent, or measured tokens of each expert, layer by layer.

    `name` is what was asked for. `jitter` is the standard deviation of a rank's relative speed;
    `jitter_reference` is the size of machine whose jitter the calibration holds already.
    """

    name: str = "balanced"
    zipf: float = 0.0
    load: tuple[float, ...] = ()
    jitter: float = 0.0
    jitter_reference: int = 0
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What is simulated. `batch` is sequences of one step over all accelerators."""

    model: Recipe
    hardware: hardware.Hardware
    ranks: int
    recipe: str
    layout: layout.Layout
    batch: int
    sequence: int
    imbalance: Imbalance = Imbalance()
    calibration: calibration.Calibration = calibration.Calibration("none", "none")

    def request(self, *, microbatch_limit: int = 0, trace: bool = False) -> str:
        """The text form of the engine's request."""
        sections = {
            "hardware": self.hardware.fields(),
            "model": subject.fields(self.model.model, self.layout.mtp),
            "layout": layout.fields(
                self.layout, self.ranks, self.recipe, self.batch, self.sequence
            ),
            "imbalance": {
                "zipf": self.imbalance.zipf,
                "jitter": self.imbalance.jitter,
                "jitter_reference": self.imbalance.jitter_reference,
                "random": int(self.imbalance.zipf == 0 and not self.imbalance.load),
                "seed": self.imbalance.seed,
            },
            "run": {"microbatch_limit": microbatch_limit, "trace": int(trace)},
        }
        lines = [f"{s}.{k} {float(v)!r}" for s, part in sections.items() for k, v in part.items()]
        lines += [f"imbalance.load {value!r}" for value in self.imbalance.load]
        return "\n".join(lines) + "\n"


def make(
    *,
    model: str,
    hw: str,
    recipe: str = "bf16",
    layout_text: str = "",
    options: str = "",
    batch: int = 0,
    sequence: int = 0,
    imbalance: str = "",
    what_if: str = "",
    stack: str = "",
) -> Scenario:
    """Builds a scenario from the words of the command line; UsageError names what is wrong.

    `batch` 0 takes the recipe's if it divides, else eight microbatches a pipeline stage; `sequence` 0
    the recipe's. A calibration of (hw, stack) replaces constants of the hardware file.
    """
    if recipe not in layout.FORMATS:
        raise UsageError(f"--recipe {recipe}: must be one of {', '.join(layout.FORMATS)}")
    found = subject.get(model)
    kind, ranks = hardware.parse(hw)
    known = calibration.load(kind.name, stack)
    if known.parameters:
        kind = kind.replace(known.parameters, f"calibration {known.id}")
    plan = layout.parse(layout_text, options)
    kind, plan = apply_what_if(kind, plan, what_if)
    layout.check(plan, ranks)
    if not plan.optimizer:
        plan = dataclasses.replace(plan, optimizer=found.train.optimizer)
    if batch < 0 or sequence < 0:
        raise UsageError("--gbs and --seq must be positive")
    plan, batch = _batch(plan, ranks, batch, found.train.batch_size)
    return Scenario(
        model=found,
        hardware=kind,
        ranks=ranks,
        recipe=recipe,
        layout=plan,
        batch=batch,
        sequence=sequence or found.train.sequence_length,
        imbalance=parse_imbalance(imbalance, found),
        calibration=known,
    )


def _batch(plan: layout.Layout, ranks: int, batch: int, usual: int) -> tuple[layout.Layout, int]:
    """Settles batch and microbatch where they were left open."""
    data = ranks // (plan.tp * plan.cp * plan.pp)
    share = data * max(plan.mbs, 1)
    if not batch:
        batch = usual if usual % share == 0 else 8 * plan.pp * share
    if batch % share:
        raise UsageError(f"--gbs {batch}: must be a multiple of dp * mbs = {share}")
    if not plan.mbs:
        whole = plan.sharding == "fsdp" and plan.pp == 1
        plan = dataclasses.replace(plan, mbs=batch // data if whole else 1)
    return plan, batch


def parse_imbalance(text: str, model: Recipe) -> Imbalance:
    """Reads "balanced", "zipf:0.2", or a file: a run's metrics.jsonl, or JSON rows of loads."""
    if text in ("", "balanced", "0"):
        return Imbalance()
    if match := re.fullmatch(r"zipf[:=](\S+)", text):
        try:
            exponent = float(match[1])
        except ValueError:
            exponent = -1.0
        if not 0 <= exponent <= 4:
            raise UsageError(f"--imbalance {text}: the exponent must be 0 to 4")
        return Imbalance(name=text, zipf=exponent)
    path = Path(text)
    if not path.is_file():
        raise UsageError(f"--imbalance {text}: must be balanced, zipf:EXPONENT or an existing file")
    return Imbalance(name=path.name, load=_read_loads(path, model.model.num_experts))


def _read_loads(path: Path, experts: int) -> tuple[float, ...]:
    """Tokens of each expert: of the last logged step that has them, or of a plain JSON file."""
    rows: list[list[float]] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines if line.strip()] if lines else []
    except ValueError:
        try:
            records = [json.loads(path.read_text(encoding="utf-8"))]
        except ValueError as error:
            raise UsageError(f"--imbalance {path}: not valid JSON ({error})") from error
    for record in records:
        if isinstance(record, dict):
            record = record.get("expert_load") or record.get("load")
        if record:
            rows = record if isinstance(record[0], list) else [*rows, record]
    if not rows:
        raise UsageError(f"--imbalance {path}: no expert_load in it")
    for row in rows:
        if len(row) != experts:
            raise UsageError(
                f"--imbalance {path}: {len(row)} loads, the model has {experts} experts"
            )
        if min(row) < 0 or sum(row) <= 0:
            raise UsageError(f"--imbalance {path}: loads must not be negative, nor all zero")
    return tuple(float(value) for row in rows for value in row)


# What-if names that are shorter than the constant they change.
_WHAT_IF = {
    "nic": "scale_out_gb_per_s",
    "nvlink": "scale_up_gb_per_s",
    "ici": "scale_up_gb_per_s",
    "hbm": "hbm_gb_per_s",
    "memory": "hbm_gib",
    "host": "host_gb_per_s",
    "sm": "collective_sms",
    "domain": "scale_up_domain",
    "flops": "bf16_tflops",
}


def apply_what_if(
    kind: hardware.Hardware, plan: layout.Layout, text: str
) -> tuple[hardware.Hardware, layout.Layout]:
    """Applies "nic=2x,sm=16,overlap=off": constants (a number, or a factor with x) and layout words."""
    constants: dict[str, float] = {}
    for word in filter(None, re.split(r"[,\s]+", text)):
        name, separator, value = word.partition("=")
        name = _WHAT_IF.get(name, name)
        if name in hardware.FIELDS:
            number = value.removesuffix("x")
            try:
                amount = float(number)
            except ValueError as error:
                raise UsageError(
                    f"--what-if {word}: must be a number, or a factor as {word.split('=')[0]}=2x"
                ) from error
            constants[name] = amount * kind.constants[name] if value.endswith("x") else amount
            continue
        if not re.match(f"({'|'.join(layout.WORDS)})", name):
            known = [*_WHAT_IF, *hardware.FIELDS, *layout.WORDS]
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or [*_WHAT_IF, "overlap"]
            raise UsageError(f"--what-if {word}: unknown name; nearest: {', '.join(near)}")
        try:
            plan = layout.parse(word, base=plan)
        except UsageError as error:
            raise UsageError(str(error).replace("--layout", "--what-if", 1)) from error
    return (kind.replace(constants, "what-if") if constants else kind), plan
