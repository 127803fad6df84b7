# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Tokenizers: raw bytes by default, a Hugging Face `tokenizer.json` by option.

Both kinds offer `encode`, `encode_batch`, `decode`, `decode_bytes`, `vocab_size`, `bos_id`,
`eos_id`, `pad_id`. `encode` adds no special tokens: the store puts BOS before and EOS after each
document.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from anabranch.errors import UsageError

# The vocabulary is padded to a multiple of this, so that the head's columns fill whole 64-wide
# matrix tiles.
VOCAB_MULTIPLE = 64

# Names under which published tokenizers keep their special tokens, the most specific first; used
# when no tokenizer_config.json lies beside tokenizer.json.
_SPECIAL_NAMES = {
    "bos": ("<|begin_of_text|>", "<｜begin▁of▁sentence｜>", "<s>", "<bos>", "[BOS]", "[CLS]"),
    "eos": (
        "<|end_of_text|>",
        "<|endoftext|>",
        "<｜end▁of▁sentence｜>",
        "</s>",
        "<eos>",
        "[EOS]",
        "[SEP]",
    ),
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<｜▁pad▁｜>"),
}


class Tokenizer(Protocol):
    """What a token store needs of a tokenizer; ids are in [0, `vocab_size`)."""

    kind: str
    vocab_size: int
    bos_id: int
    eos_id: int
    pad_id: int

    def encode(self, text: str | bytes) -> np.ndarray:
        """Returns the i32 ids [n] of `text` (bytes are UTF-8), without special tokens."""
        ...

    def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Returns `encode` of every text, in order."""
        ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text of `ids`; special and padding ids give nothing."""
        ...

    def decode_bytes(self, ids: Sequence[int] | np.ndarray) -> bytes:
        """Returns the UTF-8 bytes of `ids`; special and padding ids give nothing."""
        ...


def padded_vocab_size(size: int) -> int:
    """Returns `size` rounded up to a multiple of 64 (`VOCAB_MULTIPLE`)."""
    return -(-size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


class ByteTokenizer:
    """One token per byte: ids 0..255, then BOS 256, EOS 257, PAD 258; vocabulary padded to 320."""

    kind = "byte"
    bos_id = 256
    eos_id = 257
    pad_id = 258
    vocab_size = padded_vocab_size(259)

    def encode(self, text: str | bytes) -> np.ndarray:
        """Returns the bytes of `text` (UTF-8) as i32 [n]; a lone surrogate becomes '?'."""
        data = text.encode("utf-8", "replace") if isinstance(text, str) else text
        return np.frombuffer(data, np.uint8).astype(np.int32)

    def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Returns the bytes of every text as u8 arrays (views, no copy)."""
        return [np.frombuffer(text, np.uint8) for text in texts]

    def decode_bytes(self, ids: Sequence[int] | np.ndarray) -> bytes:
        """Returns the ids below 256 as bytes and drops the others."""
        ids = np.asarray(ids)
        return ids[ids < 256].astype(np.uint8).tobytes()

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text of `ids`; bytes that are not UTF-8 show as U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")


class HuggingFaceTokenizer:
    """A `tokenizer.json` run by the `tokenizers` library.

    BOS, EOS and PAD are those that `tokenizer_config.json` beside the file names, else the
    well-known names found in the vocabulary, else new ids after its end. `vocab_size` is then
    padded to a multiple of 64.

    Attributes:
      source: bytes of the tokenizer.json, which a token store keeps beside its tokens.
    """

    kind = "tokenizer.json"

    def __init__(self, path: str | Path, special_ids: dict[str, int] | None = None) -> None:
        """Reads `path` (a tokenizer.json or its folder).

        Args:
          path: the file or the folder that holds it.
          special_ids: {"bos", "eos", "pad"} as a store recorded them; None looks them up.

        Raises:
          UsageError: the file is missing or is no tokenizer.json, or `tokenizers` is not installed.
        """
        path = Path(path)
        path = path / "tokenizer.json" if path.is_dir() else path
        self.source = _read_source(path)
        self._tokenizer = _parse(self.source, path)
        ids = special_ids or _find_special_ids(self._tokenizer, path)
        self.bos_id, self.eos_id, self.pad_id = ids["bos"], ids["eos"], ids["pad"]
        largest = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self.vocab_size = padded_vocab_size(max(largest, *ids.values()) + 1)

    def encode(self, text: str | bytes) -> np.ndarray:
        """Returns i32 ids [n]; bytes are read as UTF-8, malformed ones as U+FFFD."""
        return self.encode_batch([text.encode() if isinstance(text, str) else text])[0]

    def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Returns i32 ids of every text; the library uses all cores."""
        strings = [text.decode("utf-8", "replace") for text in texts]
        encoded = self._tokenizer.encode_batch(strings, add_special_tokens=False)
        return [np.array(one.ids, np.int32) for one in encoded]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text of `ids`; special and unknown ids give nothing."""
        drop = {self.bos_id, self.eos_id, self.pad_id}
        return self._tokenizer.decode([int(i) for i in ids if int(i) not in drop])

    def decode_bytes(self, ids: Sequence[int] | np.ndarray) -> bytes:
        """Returns `decode(ids)` in UTF-8."""
        return self.decode(ids).encode("utf-8", "replace")


def load_tokenizer(spec: str | Path) -> Tokenizer:
    """Returns the tokenizer that `spec` names: "byte" or a path to a tokenizer.json or its folder."""
    return ByteTokenizer() if str(spec) == "byte" else HuggingFaceTokenizer(spec)


def _read_source(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"tokenizer {str(path)!r}: {error.strerror or error}") from error


def _parse(source: bytes, path: Path) -> Any:
    try:
        from tokenizers import Tokenizer as Library
    except ImportError as error:
        raise UsageError(
            f"tokenizer {str(path)!r} needs the package 'tokenizers': pip install tokenizers"
        ) from error
    try:
        tokenizer = Library.from_str(source.decode("utf-8"))
    except Exception as error:  # the library raises bare Exception for any malformed file
        raise UsageError(f"tokenizer {str(path)!r} is not a tokenizer.json: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _find_special_ids(tokenizer: Any, path: Path) -> dict[str, int]:
    named = _configured_names(path.parent / "tokenizer_config.json")
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    next_id = max(vocab.values(), default=-1) + 1
    ids: dict[str, int] = {}
    for role, names in _SPECIAL_NAMES.items():
        candidates = [named[role]] if role in named else names
        found = [vocab[name] for name in candidates if name in vocab]
        found = [i for i in found if i not in ids.values()]  # one id never plays two roles
        ids[role] = found[0] if found else next_id
        next_id += not found
    return ids


def _configured_names(path: Path) -> dict[str, str]:
    """Returns the names that tokenizer_config.json, if any, gives to "bos", "eos" and "pad"."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    names = {}
    for role in _SPECIAL_NAMES:
        value = config.get(f"{role}_token") if isinstance(config, dict) else None
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            names[role] = value
    return names
