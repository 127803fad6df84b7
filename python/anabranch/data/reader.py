# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Batches of a token store, in an order that is a pure function of (seed, position).

A split's token stream is cut into windows of `sequence_length` tokens; document boundaries may fall
inside one. One epoch reads every window once, so every token is an input exactly once and every
token but BOS is a label exactly once.

The order of train windows in epoch e is a keyed bijection of 0..n-1 (key: seed and e), evaluated at
the wanted positions only: no generator has state, resuming costs nothing, and the sequence of
windows does not depend on the batch size (two batches of 4 are one batch of 8). The held-out split
is read in one fixed order that no seed changes; it steps through the split by the golden ratio, so
that also the first few batches sample all of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from anabranch.data.corpus import TRAIN
from anabranch.data.store import Split, TokenStore
from anabranch.errors import UsageError

IGNORED_LABEL = -1

_CURSOR_VERSION = 1
_FEISTEL_ROUNDS = 6


class BatchReader:
    """An endless iterator over batches of one split.

    A batch is a dict of i32 [B, S] arrays:
      tokens: inputs; PAD past the end of the split.
      labels: the next token of the same document; -1 at a document's last token (EOS) and at
        padding. The label of a window's last token is the first token of the following window.
      segment_ids: 1, 2, ... by document inside the row; 0 is padding.
      positions: 0, 1, ... restarting with each document and each row; 0 at padding.
    """

    def __init__(
        self,
        store: TokenStore,
        split: str = TRAIN,
        batch_size: int = 8,
        sequence_length: int = 256,
        seed: int = 0,
        cursor: dict[str, Any] | None = None,
    ) -> None:
        """Opens a reader at the start, or where `cursor` says.

        Args:
          store: an opened token store.
          split: "train" (shuffled) or "held_out" (fixed order).
          batch_size: B, rows of a batch.
          sequence_length: S, tokens of a row.
          seed: any integer (taken modulo 2^64); selects the order of the train split.
          cursor: a value of `.cursor`; batch size may differ from the one it was taken with.

        Raises:
          ValueError: a size that is not positive.
          UsageError: `cursor` belongs to another store, split, seed or sequence length.
        """
        if batch_size < 1 or sequence_length < 1:
            raise ValueError(
                f"batch_size={batch_size}, sequence_length={sequence_length}: both must be positive"
            )
        self.batch_size = batch_size
        self.sequence_length = sequence_length
        self._pad_id = store.tokenizer.pad_id
        self._split = store.split(split)
        self._seed = seed
        self._identity = {
            "version": _CURSOR_VERSION,
            "store": store.fingerprint,
            "split": split,
            "sequence_length": sequence_length,
            "seed": seed,
        }
        self._next_sequence = 0 if cursor is None else self._check_cursor(cursor)

    @property
    def sequences_per_epoch(self) -> int:
        """Number of windows n = ceil(N / S); the last one is padded."""
        return -(-self._split.num_tokens // self.sequence_length)

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches of one `one_pass`."""
        return -(-self.sequences_per_epoch // self.batch_size)

    @property
    def epoch(self) -> float:
        """Passes over the split so far."""
        return self._next_sequence / self.sequences_per_epoch

    @property
    def cursor(self) -> dict[str, Any]:
        """Where the next batch starts, as a JSON-able dict; `sequence` counts windows from the start."""
        return {**self._identity, "sequence": self._next_sequence}

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        """Returns itself."""
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        """Returns the next batch; a batch may straddle two epochs."""
        return self.next()

    def next(self) -> dict[str, np.ndarray]:
        """Returns the next batch and moves the cursor by `batch_size` windows."""
        first = self._next_sequence
        windows = self._windows(np.arange(first, first + self.batch_size, dtype=np.int64))
        self._next_sequence = first + self.batch_size
        return read_windows(self._split, windows, self.sequence_length, self._pad_id)

    def one_pass(self) -> Iterator[dict[str, np.ndarray]]:
        """Yields every window once, the last rows padded; the cursor neither matters nor moves."""
        count = self.sequences_per_epoch
        for first in range(0, count, self.batch_size):
            positions = np.arange(first, first + self.batch_size, dtype=np.int64)
            windows = self._windows(np.minimum(positions, count - 1))
            windows[positions >= count] = count  # past the end: all padding
            yield read_windows(self._split, windows, self.sequence_length, self._pad_id)

    def _windows(self, sequences: np.ndarray) -> np.ndarray:
        """Maps global sequence numbers i64 [B] to windows i64 [B]."""
        count = self.sequences_per_epoch
        if self._split.name != TRAIN:
            return (sequences % count) * golden_stride(count) % count
        windows = np.empty_like(sequences)
        epochs = sequences // count
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            rows = epochs == epoch
            windows[rows] = permute(sequences[rows] % count, count, self._seed, epoch)
        return windows

    def _check_cursor(self, cursor: dict[str, Any]) -> int:
        for name, value in self._identity.items():
            if cursor.get(name) != value:
                raise UsageError(
                    f"data cursor: {name} is {cursor.get(name)!r} in the checkpoint and {value!r} "
                    "now; a run resumes only with the data it began with"
                )
        return int(cursor["sequence"])


def read_windows(
    split: Split, windows: np.ndarray, sequence_length: int, pad_id: int
) -> dict[str, np.ndarray]:
    """Returns the batch (see `BatchReader`) of the given windows.

    Args:
      split: the tokens to read.
      windows: i64 [B]; window w holds tokens [w * S, (w + 1) * S); one past the end is all padding.
      sequence_length: S.
      pad_id: token id of padding.
    """
    length = sequence_length
    starts = windows * length  # [B]
    stream = np.full(
        (len(windows), length + 1), pad_id, np.int32
    )  # [B, S + 1]: inputs and one more for the labels
    for row, start in enumerate(starts.tolist()):
        piece = split.tokens[start : start + length + 1]
        stream[row, : len(piece)] = piece
    batch = {
        "tokens": stream[:, :-1].copy(),
        "labels": stream[:, 1:].copy(),
        "segment_ids": np.ones((len(windows), length), np.int32),
        "positions": np.tile(np.arange(length, dtype=np.int32), (len(windows), 1)),
    }
    first = np.searchsorted(split.offsets, starts, side="right")
    last = np.searchsorted(split.offsets, starts + length, side="right")
    for row in np.flatnonzero(first < last).tolist():
        boundaries = split.offsets[first[row] : last[row]] - starts[row]  # in [1, S]
        _mark_documents(batch, row, boundaries)
    for row in np.flatnonzero(starts + length > split.num_tokens).tolist():
        _mark_padding(batch, row, max(0, split.num_tokens - int(starts[row])), pad_id)
    return batch


def _mark_documents(batch: dict[str, np.ndarray], row: int, boundaries: np.ndarray) -> None:
    """Starts a new segment at each of `boundaries`, i64 [n] ascending positions in [1, S]."""
    batch["labels"][row, boundaries - 1] = IGNORED_LABEL
    length = batch["tokens"].shape[1]
    inside = boundaries[boundaries < length]
    begins = np.concatenate(([0], inside, [length]))
    sizes = np.diff(begins)
    batch["segment_ids"][row] = np.repeat(np.arange(1, len(sizes) + 1), sizes)
    batch["positions"][row] -= np.repeat(begins[:-1], sizes).astype(np.int32)


def _mark_padding(batch: dict[str, np.ndarray], row: int, valid: int, pad_id: int) -> None:
    """Turns everything from position `valid` of a row into padding."""
    batch["tokens"][row, valid:] = pad_id
    batch["labels"][row, max(0, valid - 1) :] = IGNORED_LABEL
    batch["segment_ids"][row, valid:] = 0
    batch["positions"][row, valid:] = 0


def golden_stride(count: int) -> int:
    """Returns the first number from `count` / golden ratio on that is coprime to `count`.

    Its multiples modulo `count` visit all of 0..count-1, evenly spread at every moment.
    """
    stride = max(1, round(count * 0.6180339887498949))
    while math.gcd(stride, count) != 1:
        stride += 1
    return stride


def permute(positions: np.ndarray, count: int, seed: int, epoch: int) -> np.ndarray:
    """Returns the images of `positions` under a bijection of 0..count-1 that (seed, epoch) selects.

    A generalised Feistel network over pairs of digits in base m = ceil(sqrt(count)) permutes
    0..m*m-1; values that fall on or above `count` are sent through it again until they fall below
    ("cycle walking", Black and Rogaway, "Ciphers with arbitrary finite domains", 2002), which keeps
    it a bijection. Integers alone: equal on every machine and library.

    Args:
      positions: i64 [n] in [0, count).
      count: size of the domain, at least 1.
      seed: any integer (taken modulo 2^64).
      epoch: any integer.

    Returns:
      i64 [n].
    """
    base = math.isqrt(count - 1) + 1
    keys = _round_keys(seed, epoch)
    values = _feistel(positions, base, keys)
    outside = np.flatnonzero(values >= count)
    while len(outside):
        values[outside] = _feistel(values[outside], base, keys)
        outside = outside[values[outside] >= count]
    return values


def _feistel(values: np.ndarray, base: int, keys: np.ndarray) -> np.ndarray:
    left, right = values // base, values % base
    for key in keys:
        mixed = (_mix(right.astype(np.uint64) ^ key) % np.uint64(base)).astype(np.int64)
        left, right = right, (left + mixed) % base
    return left * base + right


def _round_keys(seed: int, epoch: int) -> np.ndarray:
    """Returns u64 [rounds] keys that depend on all of seed and epoch."""
    words = np.array([seed % (1 << 64), epoch % (1 << 64)], np.uint64)
    state = _mix(_mix(words[:1]) + words[1:])
    return _mix(state + np.arange(1, _FEISTEL_ROUNDS + 1, dtype=np.uint64))


def _mix(values: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64 (Steele, Lea, Flood, 2014) on u64 arrays."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
