# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Text from a trained model, one token at a time."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anabranch import models
from anabranch.data.tokenizer import Tokenizer
from anabranch.models import Config


class Generator:
    """Samples from a model through one compiled forward pass over a window of W tokens.

    The window is recomputed for every token: simple, and the same arithmetic as in training. When text outgrows
    it, the oldest half is forgotten.
    """

    def __init__(self, params: Any, config: Config, tokenizer: Tokenizer, window: int) -> None:
        """`window` is W, at least 2; the context a model was trained on is its natural value."""
        if window < 2:
            raise ValueError(f"window={window}: must be at least 2")
        self._params, self._tokenizer, self._window = params, tokenizer, window
        # The model's vocabulary is padded, and no text holds BOS or PAD: neither may be sampled.
        allowed = np.arange(config.vocab_size) < tokenizer.vocab_size
        allowed[[tokenizer.bos_id, tokenizer.pad_id]] = False

        def next_token(
            params: Any, tokens: jax.Array, length: jax.Array, key: jax.Array,
            temperature: jax.Array, top_k: jax.Array,
        ) -> jax.Array:  # fmt: skip
            logits = models.logits(params, tokens[None], config)[0, length - 1]  # [V]
            logits = jnp.where(allowed, logits.astype(jnp.float32), -jnp.inf)
            order = jnp.argsort(-logits)  # best first, ties by lowest id
            kept = jnp.where(jnp.arange(logits.size) < top_k, logits[order], -jnp.inf)
            drawn = jax.random.categorical(key, kept / jnp.maximum(temperature, 1e-6))
            return order[jnp.where(temperature > 0, drawn, 0)]

        self._next_token = jax.jit(next_token)

    def stream(
        self,
        prompt: str,
        max_tokens: int,
        *,
        temperature: float = 0.8,
        top_k: int = 40,
        seed: int = 0,
    ) -> Iterator[int]:
        """Yields up to `max_tokens` ids that follow `prompt`; ends early at the end of a document.

        temperature 0 is greedy; top_k 0 samples from the whole vocabulary. Equal arguments give equal text.
        """
        if max_tokens < 0 or temperature < 0 or top_k < 0:
            raise ValueError(
                f"max_tokens={max_tokens}, temperature={temperature}, top_k={top_k}: none may be negative"
            )
        start = np.asarray(self._tokenizer.encode(prompt), np.int32)
        context = [self._tokenizer.bos_id, *start.tolist()][-self._window :]
        keys = jax.random.split(jax.random.key(seed), max(max_tokens, 1))
        for key in keys[:max_tokens]:
            if len(context) == self._window:
                context = context[-(self._window // 2) :]
            tokens = np.full(self._window, self._tokenizer.pad_id, np.int32)
            tokens[: len(context)] = context
            token = int(
                self._next_token(
                    self._params,
                    tokens,
                    len(context),
                    key,
                    jnp.float32(temperature),
                    top_k or np.iinfo(np.int32).max,
                )  # fmt: skip
            )
            if token == self._tokenizer.eos_id:
                return
            context.append(token)
            yield token

    def text(self, prompt: str, max_tokens: int, **sampling: Any) -> str:
        """What `stream` yields, decoded; bytes that are not UTF-8 become U+FFFD."""
        return self._tokenizer.decode(list(self.stream(prompt, max_tokens, **sampling)))
