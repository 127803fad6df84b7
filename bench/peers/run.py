# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Compares our training step with other programs' on the same model, tokens and machine.

  run.py compare [--peers A,B] [--steps N] [--quick]   measure ours and theirs in turn; prints the table
  run.py measure PEER [--steps N] [--pair NAME]        one peer in one process, for one sample
  run.py table                                         join the samples so far
  run.py install, run.py list

The interpreter that runs this script runs ours too, unless --ours-python names another; it must have the package
`anabranch`. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import environments
import table
from catalogue import ALL, PEERS, QUICK, Peer

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


class Failure(Exception):
    """A worker failed, or what it measured cannot be compared."""


def tokens_of(batch: int, length: int, vocabulary: int) -> list[list[int]]:
    """Token ids [batch, length + 1] with the frequencies of words in text (Zipf's law, exponent 1)."""
    weights = [1 / (rank + 1) for rank in range(vocabulary)]
    generator = random.Random(0)
    return [generator.choices(range(vocabulary), weights, k=length + 1) for _ in range(batch)]


def make_job(peer: Peer, model: dict[str, Any], steps: int) -> dict[str, Any]:
    """What a worker is told: model, tokens, type, steps, and the peer's own options."""
    job = {"kind": peer.kind, "dtype": peer.dtype, "warmup": peer.warmup, "steps": steps}
    if peer.kind == "ffn":
        return job | {"shape": peer.options, "loop": peer.loop}
    length = model["sequence_length"]
    return job | {
        "model": model["model"],
        "batch_size": peer.sequences,
        "sequence_length": length,
        "tokens": tokens_of(peer.sequences, length, model["model"]["vocab_size"]),
        "learning_rate": model["learning_rate"],
        "options": peer.options,
    }


def run_worker(args: argparse.Namespace, environment: str, worker: str, job: Any) -> dict[str, Any]:
    """Runs a worker in its environment and returns what it wrote; its own talk goes to a log."""
    ours = environment == "ours"
    python = args.ours_python if ours else environments.python_of(args.env_dir, environment)
    variables = {k: v for k, v in os.environ.items() if ours or k != "PYTHONPATH"}
    args.out.mkdir(parents=True, exist_ok=True)
    log = args.out / f"{worker.removesuffix('.py')}.log"
    with tempfile.TemporaryDirectory() as folder, log.open("w", encoding="utf-8") as talk:
        paths = [str(Path(folder) / name) for name in ("job.json", "result.json")]
        Path(paths[0]).write_text(json.dumps(job), encoding="utf-8")
        command = [str(python), str(HERE / worker), *paths]
        code = subprocess.run(
            command, cwd=folder, env=variables, stdout=talk, stderr=talk, check=False
        ).returncode
        if code:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            causes = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
            raise Failure(
                f"{worker} ended with {code}: {(causes or lines or [''])[-1]} (log: {log})"
            )
        return json.loads(Path(paths[1]).read_text(encoding="utf-8"))


def measure(args: argparse.Namespace, name: str, model: dict[str, Any], pair: str) -> None:
    """Takes one sample of a peer and writes it under the output folder."""
    peer = PEERS[name]
    job = make_job(peer, model, args.steps or peer.steps)
    started = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    sample = run_worker(args, peer.environment, peer.worker, job)
    if peer.kind == "step":
        verify(name, sample, model)
        tokens = json.dumps(job["tokens"]).encode()
        sample["tokens_sha256"] = hashlib.sha256(tokens).hexdigest()
        sample["tokens_per_step"] = peer.sequences * model["sequence_length"]
    else:
        sample["tokens_per_step"] = peer.options["T"]
    sample |= {"peer": name, "pair": pair, "started": started, "commit": commit()}
    sample["command"] = f"python bench/peers/run.py measure {name} --steps {job['steps']}"
    path = args.out / f"{started}-{name}.json"
    path.write_text(json.dumps(sample, indent=1) + "\n", encoding="utf-8")
    seconds = sorted(sample["step_seconds"])
    idle = "" if table.is_idle(sample) else "  (machine not idle)"
    print(
        f"{name:44} {seconds[len(seconds) // 2]:8.3f} s  loss {sample['losses'][0]:.3f} to "
        f"{sample['losses'][-1]:.3f}  {sample['peak_rss_bytes'] * 1e-9:.2f} GB{idle}",
        flush=True,
    )


def verify(name: str, sample: dict[str, Any], model: dict[str, Any]) -> None:
    """Refuses a sample of another model, or of one that does not learn."""
    losses, parameters = sample["losses"], sample["parameters"]
    # Selection biases are parameters for some and not for others: 64 a layer.
    if abs(parameters / model["parameters"] - 1) > 1e-4:
        raise Failure(f"{name}: {parameters} parameters, ours has {model['parameters']}")
    if not losses[-1] < losses[0] or not sample["updated"]:
        raise Failure(f"{name}: one batch again and again must lower its loss: {losses}")


def commit() -> str:
    """The commit measured; "-dirty" when sources of the package differ from it."""
    git = ["git", "-C", str(ROOT)]
    head = [*git, "rev-parse", "--short=12", "HEAD"]
    changes = [*git, "status", "--porcelain", "--", "src", "include", "python"]
    outputs = [
        subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        for command in (head, changes)
    ]
    return (outputs[0] or "unknown") + ("-dirty" if outputs[1] else "")


def compare(args: argparse.Namespace) -> None:
    """Measures ours before and after each peer, then joins everything."""
    names = args.peers or list(QUICK if args.quick else ALL)
    install(args, names)
    model = run_worker(args, "ours", "anabranch_worker.py", {"kind": "describe"})
    for name in names:
        peer = PEERS[name]
        pair = f"{name}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
        turns = [peer.ours, name, peer.like] if peer.ours else [name]
        for turn in turns:
            measure(args, turn, model, pair)
    write_table(args, model)


def install(args: argparse.Namespace, names: list[str]) -> None:
    """Makes the environments that the named peers need."""
    for environment in dict.fromkeys(PEERS[name].environment for name in names):
        if environment != "ours":
            environments.install(args.env_dir, environment, args.python)


def write_table(args: argparse.Namespace, model: dict[str, Any]) -> None:
    """Joins the samples in the output folder to peers.md and peers.json (peers-quick.*) in the results folder."""
    files = sorted(args.out.glob("*-*.json"))
    samples = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    found = table.rows(samples)
    peak = max((s.get("peak_bf16_gflops", 0) for s in samples), default=0)
    if not found or not peak:
        raise Failure(f"no samples of ours in {args.out}: measure first")
    sets = sorted({sample["isa"] for sample in samples if "isa" in sample})
    if len(sets) > 1:
        raise Failure(f"samples of {' and '.join(sets)} in {args.out}: one machine a table")
    machine = {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)), "memory_gb": memory_gb()}
    machine |= {"system": platform.platform(), "isa": sets[0], "peak_bf16_gflops": peak}
    document = {"machine": machine, "model": model, "rows": found, "bars": table.bars(found)}
    text = table.markdown(found, model["flops_per_token"], peak)
    args.results.mkdir(parents=True, exist_ok=True)
    whole = json.dumps(document | {"samples": samples}, indent=1) + "\n"
    stem = args.name or ("peers-quick" if args.quick else "peers")
    (args.results / f"{stem}.json").write_text(whole, encoding="utf-8")
    (args.results / f"{stem}.md").write_text(heading(machine, samples) + text, encoding="utf-8")
    print(text)


def heading(machine: dict[str, Any], samples: list[dict[str, Any]]) -> str:
    """Says where, when and with which versions the table was measured."""
    versions: dict[str, dict[str, str]] = {}
    for sample in samples:
        where = PEERS[sample["peer"]].environment
        versions.setdefault(where, {}).update(sample["versions"])
    days = sorted({sample["started"][:8] for sample in samples})
    lines = [
        "# Ours and others' on one machine",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['isa']}, "
        f"bf16 peak {machine['peak_bf16_gflops']:.0f} GFLOP/s; measured on {', '.join(days)} at commit "
        f"{samples[-1]['commit']} by `python bench/peers/run.py compare`.",
        "",
        *(
            f"- {where}: " + ", ".join(f"{name} {version}" for name, version in packages.items())
            for where, packages in sorted(versions.items())
        ),
        "",
    ]
    return "\n".join(lines) + "\n"


def cpu_model() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def memory_gb() -> float:
    """Memory of the machine in 1e9 bytes."""
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 1e-9, 1)


def peer_names(text: str) -> list[str]:
    """Splits and checks a list of peers."""
    names = text.split(",")
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"no peer {name!r}; `run.py list` names them")
    return names


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("action", choices=("compare", "measure", "table", "install", "list"))
    top.add_argument("peer", nargs="?", metavar="PEER", type=peer_names, help="for measure")
    top.add_argument("--peers", type=peer_names, metavar="A,B", help="which; all of them if absent")
    top.add_argument("--steps", type=int, metavar="N", help="timed steps of each sample")
    top.add_argument("--quick", action="store_true", help="only the fastest peers; peers-quick.md")
    top.add_argument("--name", metavar="STEM", help="of the tables, in place of peers[-quick]")
    top.add_argument("--pair", default="", help="samples of one pair are compared with each other")
    top.add_argument("--out", type=Path, default=ROOT / "build" / "peers", help="samples' folder")
    results = ROOT / "bench" / "results"
    top.add_argument("--results", type=Path, default=results, help="folder of the tables")
    top.add_argument("--env-dir", type=Path, default=environments.default_folder())
    top.add_argument("--python", help="makes the environments; 3.12 or later")
    top.add_argument("--ours-python", default=sys.executable, help="has the package anabranch")
    return top


def main() -> int:
    """Runs the command: 0, 1 on failure, 2 on a usage error."""
    top = parser()
    args = top.parse_args()
    args.env_dir, args.out = args.env_dir.resolve(), args.out.resolve()
    if (args.peer is None) == (args.action == "measure") or len(args.peer or [1]) != 1:
        top.error("measure takes one PEER, and nothing else does")
    if args.steps is not None and args.steps < 1:
        top.error("--steps must be at least 1")
    try:
        if args.action == "list":
            for name, peer in PEERS.items():
                print(f"{name:44} {peer.what}")
        elif args.action == "install":
            install(args, args.peers or list(ALL))
        elif args.action == "compare":
            compare(args)
        else:
            model = run_worker(args, "ours", "anabranch_worker.py", {"kind": "describe"})
            if args.action == "measure":
                measure(args, args.peer[0], model, args.pair)
            else:
                write_table(args, model)
    except (Failure, environments.MissingEnvironment) as error:
        print(f"peers: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
