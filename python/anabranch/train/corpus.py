# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The text of a recipe, and the one-line warnings of commands that read a run."""

import sys

from anabranch import data
from anabranch.errors import UsageError
from anabranch.recipes.recipe import Recipe


def open_corpus(recipe: Recipe) -> data.TokenStore:
    """The recipe's token store; UsageError when its vocabulary is larger than the model's."""
    store = data.load_store(recipe.data.path, recipe.data.tokenizer)
    if store.vocab_size > recipe.model.vocab_size:
        raise UsageError(
            f"model.vocab_size={recipe.model.vocab_size} is below the {store.vocab_size} tokens of "
            f"{recipe.data.path or 'the corpus'}; add --set model.vocab_size={store.vocab_size}"
        )
    return store


def warn(text: str) -> None:
    """Prints one warning line."""
    print(f"anabranch: warning: {text}", file=sys.stderr, flush=True)
