# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Text to token stores to batches; numpy only, no JAX."""

from anabranch.data.cache import (
    cached_store,
    default_cache_dir,
    load_store,
    standard_library_name,
    standard_library_store,
)
from anabranch.data.corpus import Corpus, Document, scan, scan_standard_library
from anabranch.data.reader import BatchReader
from anabranch.data.store import Split, TokenStore, is_store, open_store
from anabranch.data.store_writer import build_store, write_store
from anabranch.data.tokenizer import (
    ByteTokenizer,
    HuggingFaceTokenizer,
    Tokenizer,
    load_tokenizer,
)

__all__ = [
    "BatchReader",
    "ByteTokenizer",
    "Corpus",
    "Document",
    "HuggingFaceTokenizer",
    "Split",
    "TokenStore",
    "Tokenizer",
    "build_store",
    "cached_store",
    "default_cache_dir",
    "is_store",
    "load_store",
    "load_tokenizer",
    "open_store",
    "scan",
    "scan_standard_library",
    "standard_library_name",
    "standard_library_store",
    "write_store",
]
