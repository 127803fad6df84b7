# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Where built stores are kept, and the store that a `data.path` stands for."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from pathlib import Path

from anabranch.data.corpus import Corpus, scan, scan_standard_library
from anabranch.data.store import FORMAT_VERSION, TokenStore, is_store, open_store
from anabranch.data.store_writer import write_store
from anabranch.data.tokenizer import HuggingFaceTokenizer, Tokenizer, load_tokenizer
from anabranch.errors import RunError, UsageError


def default_cache_dir() -> Path:
    """Returns $ANABRANCH_CACHE, else $XDG_CACHE_HOME/anabranch, else ~/.cache/anabranch."""
    if own := os.environ.get("ANABRANCH_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anabranch"


def standard_library_store(
    cache_dir: str | Path | None = None, tokenizer: str | Path | Tokenizer = "byte"
) -> TokenStore:
    """Opens the store of the running interpreter's standard library; builds it the first time.

    Args:
      cache_dir: where stores are kept; None means `default_cache_dir()`.
      tokenizer: see `build_store`.

    Raises:
      UsageError: the interpreter has no sources on disk, or the cache cannot be written.
    """
    return cached_store(standard_library_name(), scan_standard_library(), tokenizer, cache_dir)


def standard_library_name() -> str:
    """Returns what the standard library's store is called in the cache, such as "stdlib-3.11"."""
    return f"stdlib-{sys.version_info.major}.{sys.version_info.minor}"


def load_store(
    path: str | Path = "",
    tokenizer: str | Path | Tokenizer = "byte",
    cache_dir: str | Path | None = None,
) -> TokenStore:
    """Opens the store that a recipe's `data.path` and `data.tokenizer` stand for.

    Args:
      path: "" for the standard library, a store's folder, or a folder (or file) of text, whose
        store is then built in the cache.
      tokenizer: for text; a store brings its own, and naming another one is an error.
      cache_dir: where stores are kept; None means `default_cache_dir()`.

    Raises:
      UsageError: no such folder, no text in it, or a store made with another tokenizer.
      RunError: the store is truncated or corrupt.
    """
    if not str(path):
        return standard_library_store(cache_dir, tokenizer)
    path = Path(path)
    if not is_store(path):
        return cached_store(path.resolve().name or "root", scan([path]), tokenizer, cache_dir)
    store = open_store(path)
    if not isinstance(tokenizer, str) or tokenizer != "byte":
        wanted = _as_tokenizer(tokenizer)
        if _tokenizer_key(wanted) != _tokenizer_key(store.tokenizer):
            raise UsageError(f"token store {str(path)!r} was made with another tokenizer")
    return store


def cached_store(
    name: str, corpus: Corpus, tokenizer: str | Path | Tokenizer, cache_dir: str | Path | None
) -> TokenStore:
    """Opens the cached store of `corpus`, or builds it; a damaged one is built again.

    Any number of processes may do so at once; see `write_store`.

    Args:
      name: readable first part of the folder's name; the rest is a hash of everything the store
        depends on.
      corpus: what it holds.
      tokenizer: see `build_store`.
      cache_dir: where stores are kept; None means `default_cache_dir()`.
    """
    tokenizer = _as_tokenizer(tokenizer)
    key = f"{FORMAT_VERSION} {corpus.digest()} {_tokenizer_key(tokenizer)}"
    folder = Path(cache_dir) if cache_dir is not None else default_cache_dir()
    path = folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if is_store(path):
        with contextlib.suppress(RunError):  # damaged: build it again
            return open_store(path)
    try:
        return write_store(corpus, path, tokenizer)
    except UsageError as error:
        raise UsageError(f"{error} (the variable ANABRANCH_CACHE names another folder)") from error


def _as_tokenizer(tokenizer: str | Path | Tokenizer) -> Tokenizer:
    return load_tokenizer(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer


def _tokenizer_key(tokenizer: Tokenizer) -> str:
    source = tokenizer.source if isinstance(tokenizer, HuggingFaceTokenizer) else b""
    ids = f"{tokenizer.kind} {tokenizer.bos_id} {tokenizer.eos_id} {tokenizer.pad_id} "
    return ids + hashlib.sha256(source).hexdigest()
