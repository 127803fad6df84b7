# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""`anabranch data`: makes a token store of folders of text."""

import argparse
import sys
from pathlib import Path
from typing import Any

from anabranch.commands import output

HELP = "make a token store of folders of text (without any: of Python's standard library)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("roots", metavar="DIR", nargs="*", type=Path, help="a folder of text")
    parser.add_argument(
        "--prose",
        action="store_true",
        help="add 120 MB of English from Debian's documentation packages (needs apt-get, no root)",
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="where to put the store (default: the cache)"
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        default="byte",
        help="a Hugging Face tokenizer.json or its folder (default: byte)",
    )
    output.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from anabranch.data import cached_store, load_tokenizer, write_store

    tokenizer = load_tokenizer(args.tokenizer)  # its errors come before the work on the text
    name, corpus = _scan(args)
    if args.out is not None:
        store = write_store(corpus, args.out, tokenizer)
    else:
        store = cached_store(name, corpus, tokenizer, None)
    facts = _facts(store)
    print(output.table(_rows(facts)))
    output.write_json(args, facts)
    return 0


def _scan(args: argparse.Namespace) -> tuple[str, Any]:
    """Returns a name for the cache and the corpus that the arguments stand for."""
    from anabranch.data import scan, scan_standard_library, standard_library_name
    from anabranch.data.prose import prose_folder

    if not args.roots and not args.prose:
        return standard_library_name(), scan_standard_library()
    roots = list(args.roots)
    name = roots[0].resolve().name or "root" if roots else "prose"
    if args.prose:
        roots.append(prose_folder(report=lambda line: print(line, file=sys.stderr, flush=True)))
    return name, scan(roots)


def _facts(store: Any) -> dict[str, Any]:
    from anabranch.data.baselines import byte_model_baselines

    manifest = store.manifest
    return {
        "path": str(store.path),
        "fingerprint": store.fingerprint,
        "tokenizer": manifest["tokenizer"],
        "files": len({(d["root"], d["path"]) for d in manifest["documents"]}),
        "skipped": manifest["skipped"],
        "repaired": manifest["repaired"],
        "splits": {
            split.name: {
                "documents": split.num_documents,
                "bytes": split.num_bytes,
                "tokens": split.num_tokens,
                "bytes_per_token": split.bytes_per_token,
            }
            for split in (store.train, store.held_out)
        },
        "baselines_bits_per_byte": byte_model_baselines(store),
    }


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    tokenizer, baselines = facts["tokenizer"], facts["baselines_bits_per_byte"]
    skipped = [f"{n:,} {why.replace('_', ' ')}" for why, n in facts["skipped"].items() if n]
    rows = [
        ("store", facts["path"]),
        ("files", f"{facts['files']:,} read"),
        ("skipped", ", ".join(skipped) or "none"),
        ("tokenizer", f"{tokenizer['kind']}, vocabulary {tokenizer['vocab_size']:,}"),
    ]
    if facts["repaired"]:
        rows.insert(3, ("repaired", f"{facts['repaired']:,} files with stray bytes"))
    for name, split in facts["splits"].items():
        text = f"{split['bytes']:,} bytes in {split['documents']:,} documents"
        rows.append((name, f"{text}, {split['tokens']:,} tokens"))
    rows.append(
        (
            "byte models",
            f"unigram {baselines['unigram']:.3f}, bigram {baselines['bigram']:.3f} "
            "bits/byte on held_out",
        )
    )
    rows.append(("to train", f"anabranch train --set data.path={facts['path']}"))
    return rows
