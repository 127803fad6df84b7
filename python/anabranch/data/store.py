# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The token store: a folder of flat, memory-mapped arrays and a manifest of what is in them.

    manifest.json       what was read and what was written; every size and SHA-256 below is in it
    train.tokens        u16 or u32 (little-endian) [N]: per document BOS, its tokens, EOS
    train.offsets       i64 [D + 1]: document d is tokens[offsets[d] : offsets[d + 1]]
    held_out.tokens, held_out.offsets
    tokenizer.json      only if the tokens are not bytes

Equal text, tokenizer and options give equal bytes in every file. A store appears whole or not at
all: it is written into a temporary folder beside its place, synced, and renamed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anabranch.data.corpus import SPLITS
from anabranch.data.tokenizer import ByteTokenizer, HuggingFaceTokenizer, Tokenizer
from anabranch.errors import RunError, UsageError

FORMAT_VERSION = 1
MANIFEST = "manifest.json"

# Stores up to this size are hashed whole when opened (about 0.2 s); larger ones only when asked.
_VERIFY_BELOW_BYTES = 256 << 20


@dataclass(frozen=True)
class Split:
    """One side of a store.

    Attributes:
      name: "train" or "held_out".
      tokens: memory-mapped u16 or u32 [N].
      offsets: i64 [D + 1], starts of the documents; offsets[0] = 0, offsets[D] = N.
      num_bytes: bytes of UTF-8 text, without special tokens.
    """

    name: str
    tokens: np.ndarray
    offsets: np.ndarray
    num_bytes: int

    @property
    def num_tokens(self) -> int:
        """Number of tokens N, special ones included."""
        return int(self.offsets[-1])

    @property
    def num_documents(self) -> int:
        """Number of documents D."""
        return len(self.offsets) - 1

    @property
    def num_labels(self) -> int:
        """Number of predictions in one pass: every token but the BOS of each document."""
        return self.num_tokens - self.num_documents

    @property
    def bytes_per_token(self) -> float:
        """Bytes of text per predicted token: bits/byte = loss in nats per label / ln 2 / this."""
        return self.num_bytes / self.num_labels


@dataclass(frozen=True)
class TokenStore:
    """An opened store.

    Attributes:
      path: its folder.
      manifest: the parsed manifest.json.
      tokenizer: what made the tokens.
      train: the train split.
      held_out: the held-out split.
    """

    path: Path
    manifest: dict[str, Any]
    tokenizer: Tokenizer
    train: Split
    held_out: Split

    def split(self, name: str) -> Split:
        """Returns the split called "train" or "held_out"."""
        if name not in SPLITS:
            raise ValueError(f"split {name!r}: must be one of {SPLITS}")
        return self.train if name == "train" else self.held_out

    @property
    def train_tokens(self) -> np.ndarray:
        """Memory-mapped u16 or u32 [N] tokens of the train split."""
        return self.train.tokens

    @property
    def held_out_tokens(self) -> np.ndarray:
        """Memory-mapped u16 or u32 [N] tokens of the held-out split."""
        return self.held_out.tokens

    @property
    def vocab_size(self) -> int:
        """Padded vocabulary size: a model for this store needs at least as many rows."""
        return self.tokenizer.vocab_size

    @property
    def bytes_per_token(self) -> float:
        """Bytes of text per predicted token of the train split; see `Split.bytes_per_token`."""
        return self.train.bytes_per_token

    @property
    def fingerprint(self) -> str:
        """SHA-256 in hex of tokens, boundaries and tokenizer: what makes training data equal."""
        return self.manifest["fingerprint"]


def is_store(path: str | Path) -> bool:
    """Tells whether `path` is a folder with a store's manifest in it."""
    return (Path(path) / MANIFEST).is_file()


def open_store(path: str | Path, *, verify: bool | None = None) -> TokenStore:
    """Opens the store in the folder `path`; the tokens are mapped, not read.

    Args:
      path: a folder that `build_store` made.
      verify: whether to compare every SHA-256; None does so up to 256 MiB. Sizes are always
        compared.

    Raises:
      UsageError: there is no store at `path`, or a newer program wrote it.
      RunError: the store is truncated or corrupt.
    """
    path = Path(path)
    manifest = _read_manifest(path)
    try:
        return _open(path, manifest, verify)
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"token store {str(path)!r}: {MANIFEST} is corrupt") from error


def _open(path: Path, manifest: dict[str, Any], verify: bool | None) -> TokenStore:
    byte_level = manifest["tokenizer"]["kind"] == ByteTokenizer.kind
    names = [f"{split}.{kind}" for split in SPLITS for kind in ("tokens", "offsets")]
    names += [] if byte_level else ["tokenizer.json"]
    entries = {name: manifest["files"][name] for name in names}
    if verify is None:
        verify = sum(entry["bytes"] for entry in entries.values()) <= _VERIFY_BELOW_BYTES
    for name, entry in entries.items():
        _check_file(path / name, entry, verify)
    special = {role: manifest["tokenizer"][f"{role}_id"] for role in ("bos", "eos", "pad")}
    tokenizer = ByteTokenizer() if byte_level else HuggingFaceTokenizer(path, special)
    train, held_out = (_open_split(path, name, manifest) for name in SPLITS)
    return TokenStore(path, manifest, tokenizer, train, held_out)


def _read_manifest(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise UsageError(f"{str(path)!r}: no such folder")
    if not is_store(path):
        raise UsageError(f"{str(path)!r} is not a token store: it has no {MANIFEST}")
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        version = manifest["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"token store {str(path)!r}: {MANIFEST} is corrupt") from error
    if version != FORMAT_VERSION:
        raise UsageError(
            f"token store {str(path)!r} has format version {version}; this program reads "
            f"{FORMAT_VERSION}"
        )
    return manifest


def _check_file(path: Path, entry: dict[str, Any], verify: bool) -> None:
    size = path.stat().st_size if path.is_file() else None
    if size is None:
        raise RunError(f"token store file {str(path)!r} is missing; build the store again")
    if size != entry["bytes"]:
        raise RunError(
            f"token store file {str(path)!r} has {size} bytes, its manifest says {entry['bytes']}; "
            "build the store again"
        )
    if verify and hash_file(path) != entry["sha256"]:
        raise RunError(f"token store file {str(path)!r} fails its SHA-256; build the store again")


def _open_split(path: Path, name: str, manifest: dict[str, Any]) -> Split:
    entry = manifest["splits"][name]
    mapped = np.memmap(path / f"{name}.tokens", np.dtype("<" + entry["dtype"]), mode="r")
    tokens = mapped.view(np.ndarray)  # slices of the subclass cost microseconds each
    offsets = np.fromfile(path / f"{name}.offsets", "<i8").astype(np.int64)
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(tokens):
        raise RunError(
            f"token store {str(path)!r}: {name}.offsets does not span the {len(tokens)} tokens"
        )
    return Split(name, tokens, offsets, entry["bytes"])


def hash_file(path: Path) -> str:
    """Returns the SHA-256 of a file in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
