# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Byte models every trained model must beat: order 0 and order 1, fitted on train, tested on held-out.

They predict exactly what the language model predicts: each byte of a document and its end (EOS), the
first byte from BOS; the code length is divided by the bytes of text. So the figures compare directly
with `loss in nats per label / ln 2 / bytes_per_token`, whatever the tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anabranch.data.store import Split, TokenStore
from anabranch.data.tokenizer import ByteTokenizer

# The alphabet of predictions is 256 bytes and the end; the context alphabet also has the beginning.
_BOS = ByteTokenizer.bos_id
_EOS = ByteTokenizer.eos_id
_CONTEXTS = 258
_OUTCOMES = 257

# Pairs counted at once: 16 MiB of temporaries.
_CHUNK = 1 << 20


def byte_model_baselines(store: TokenStore) -> dict[str, float]:
    """Returns the held-out bits per byte of two byte models fitted on the train split.

    unigram: p(b) = (n(b) + 1/2) / (n + 257/2), add-half (Krichevsky and Trofimov, 1981).
    bigram: p(b | a) = (n(ab) + t(a) p(b)) / (n(a) + t(a)), t(a) the number of distinct successors of
      a; Witten-Bell interpolation with the unigram (Witten and Bell, 1991, method C).

    Args:
      store: an opened store; tokens that are not bytes are decoded first.

    Returns:
      {"unigram": bits per byte, "bigram": bits per byte}.
    """
    unigram, bigram = fit(pair_counts(store, store.train))
    held_out = pair_counts(store, store.held_out)  # [contexts, outcomes]
    num_bytes = held_out[:, :256].sum()
    return {
        "unigram": float(-(held_out.sum(axis=0) * np.log2(unigram)).sum() / num_bytes),
        "bigram": float(-(held_out * np.log2(bigram)).sum() / num_bytes),
    }


def pair_counts(store: TokenStore, split: Split) -> np.ndarray:
    """Returns i64 [258, 257]: how often each byte (or the end, 256) follows each byte (or BOS, 256).

    Row 257, the end as a context, stays zero.
    """
    counts = np.zeros(_CONTEXTS * _CONTEXTS, np.int64)
    for symbols in _symbol_chunks(store, split):
        pairs = symbols[:-1].astype(np.int32) * _CONTEXTS + symbols[1:]
        counts += np.bincount(pairs, minlength=len(counts))
    counts = counts.reshape(_CONTEXTS, _CONTEXTS)
    counts[_EOS] = 0  # the end of one document and the beginning of the next
    return np.delete(counts, _BOS, axis=1)


def fit(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns f64 probabilities of the unigram [257] and the bigram model [258, 257] of `counts`."""
    outcomes = counts.sum(axis=0)
    unigram = (outcomes + 0.5) / (outcomes.sum() + 0.5 * _OUTCOMES)
    distinct = np.count_nonzero(counts, axis=1)[:, None]
    weight = np.maximum(distinct, 1)  # a context never seen falls back on the unigram
    bigram = (counts + weight * unigram) / (counts.sum(axis=1, keepdims=True) + weight)
    return unigram, bigram


def _symbol_chunks(store: TokenStore, split: Split) -> Iterator[np.ndarray]:
    """Yields the split as bytes with BOS and EOS, in chunks that overlap by one symbol."""
    if store.tokenizer.kind == ByteTokenizer.kind:
        for start in range(0, split.num_tokens - 1, _CHUNK):
            yield split.tokens[start : start + _CHUNK + 1]
        return
    for begin, end in zip(split.offsets[:-1], split.offsets[1:], strict=True):
        text = store.tokenizer.decode_bytes(split.tokens[begin:end])
        yield np.concatenate(([_BOS], np.frombuffer(text, np.uint8), [_EOS])).astype(np.uint16)
