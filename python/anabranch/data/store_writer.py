# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Writes token stores (their files are described in store.py), whole or not at all.

A store is written into a temporary folder beside its place, synced, and renamed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from anabranch.data.corpus import SPLITS, Corpus, Document, scan
from anabranch.data.store import (
    FORMAT_VERSION,
    MANIFEST,
    TokenStore,
    hash_file,
    is_store,
    open_store,
)
from anabranch.data.tokenizer import HuggingFaceTokenizer, Tokenizer, load_tokenizer
from anabranch.errors import RunError, UsageError

# Text handed to the tokenizer at once: enough for its threads, little beside a model.
_BATCH_BYTES = 8 << 20


def build_store(
    roots: Sequence[str | Path],
    out_dir: str | Path,
    tokenizer: str | Path | Tokenizer = "byte",
) -> TokenStore:
    """Reads the text under `roots`, writes a token store to `out_dir`, and opens it.

    Args:
      roots: folders of text, or single files.
      out_dir: the folder to make; an older store there is replaced, anything else is left alone.
      tokenizer: "byte", a path to a tokenizer.json (or its folder), or a tokenizer.

    Raises:
      UsageError: no text, no such folder, a bad tokenizer, or `out_dir` holds something else.
    """
    if isinstance(tokenizer, str | Path):
        tokenizer = load_tokenizer(tokenizer)
    return write_store(scan(roots), out_dir, tokenizer)


def write_store(corpus: Corpus, out_dir: str | Path, tokenizer: Tokenizer) -> TokenStore:
    """Writes the store of `corpus` and opens it.

    Any number of processes may write one place at once: each builds on its own, and a good store
    with the same content that is already there stays.

    Args:
      corpus: what to write.
      out_dir: the folder to make; another store there is replaced.
      tokenizer: makes the tokens.

    Raises:
      UsageError: `out_dir` cannot be written or is neither empty nor a store.
      RunError: a file changed while it was being read.
    """
    out_dir = Path(out_dir)
    if out_dir.exists() and not is_store(out_dir):
        if not out_dir.is_dir() or any(out_dir.iterdir()):
            raise UsageError(f"{str(out_dir)!r} exists and is not a token store; it is left alone")
    try:
        out_dir.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.", dir=out_dir.parent))
    except OSError as error:
        raise UsageError(f"cannot write {str(out_dir)!r}: {error.strerror}") from error
    try:
        _write_files(corpus, temporary, tokenizer)
        temporary.chmod(0o755)
        with _locked(out_dir.parent):
            _publish(temporary, out_dir)
            _sync_folder(out_dir.parent)
            return open_store(out_dir, verify=False)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class _SplitWriter:
    """Appends documents to the two files of one split."""

    def __init__(self, folder: Path, name: str, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")
        self._file = open(folder / f"{name}.tokens", "wb")  # noqa: SIM115 (closed by `close`)
        self._offsets_path = folder / f"{name}.offsets"
        self._offsets = [0]
        self._num_bytes = 0

    def append(self, ids: np.ndarray, num_bytes: int) -> None:
        document = np.empty(len(ids) + 2, self._dtype)
        document[0], document[-1] = self._tokenizer.bos_id, self._tokenizer.eos_id
        document[1:-1] = ids
        self._file.write(document)
        self._offsets.append(self._offsets[-1] + len(document))
        self._num_bytes += num_bytes

    def close(self) -> dict[str, int | str]:
        """Syncs both files and returns the split's entry of the manifest."""
        _sync_and_close(self._file)
        with open(self._offsets_path, "wb") as file:
            file.write(np.array(self._offsets, "<i8"))
            _sync_and_close(file)
        return {
            "dtype": self._dtype.str[1:],
            "documents": len(self._offsets) - 1,
            "tokens": self._offsets[-1],
            "bytes": self._num_bytes,
        }


def _write_files(corpus: Corpus, folder: Path, tokenizer: Tokenizer) -> None:
    writers = {name: _SplitWriter(folder, name, tokenizer) for name in SPLITS}
    for documents in _batches(corpus.documents):
        texts = [corpus.read(document) for document in documents]
        for document, text, ids in zip(
            documents, texts, tokenizer.encode_batch(texts), strict=True
        ):
            writers[document.split].append(ids, len(text))
    splits = {name: writer.close() for name, writer in writers.items()}
    if isinstance(tokenizer, HuggingFaceTokenizer):
        with open(folder / "tokenizer.json", "wb") as file:
            file.write(tokenizer.source)
            _sync_and_close(file)
    manifest = _manifest(corpus, folder, tokenizer, splits)
    with open(folder / MANIFEST, "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1, sort_keys=True)
        _sync_and_close(file)


def _batches(documents: Sequence[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += document.stop - document.start
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _manifest(
    corpus: Corpus, folder: Path, tokenizer: Tokenizer, splits: dict[str, Any]
) -> dict[str, Any]:
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": hash_file(path)}
        for path in sorted(folder.iterdir())
    }
    identity = json.dumps([files, tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id])
    return {
        "format": "anabranch token store",
        "version": FORMAT_VERSION,
        "fingerprint": hashlib.sha256(identity.encode()).hexdigest(),
        "corpus": corpus.digest(),
        "tokenizer": {
            "kind": tokenizer.kind,
            "vocab_size": tokenizer.vocab_size,
            "bos_id": tokenizer.bos_id,
            "eos_id": tokenizer.eos_id,
            "pad_id": tokenizer.pad_id,
        },
        "splits": splits,
        "files": files,
        "skipped": vars(corpus.skipped),
        "repaired": corpus.num_repaired,
        "documents": [asdict(document) for document in corpus.documents],
    }


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds an advisory lock on `folder` itself, so that no lock file is left."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems lock no folders
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _publish(temporary: Path, out_dir: Path) -> None:
    """Renames the finished folder into place, unless a good store of the same content is there."""
    _sync_folder(temporary)
    if is_store(out_dir):
        with contextlib.suppress(RunError, UsageError):
            there = open_store(out_dir, verify=True)
            if there.manifest == open_store(temporary, verify=False).manifest:
                return
        # Who has the old store mapped keeps a valid view.
        old = tempfile.mkdtemp(prefix=f".{out_dir.name}.", dir=out_dir.parent)
        os.rename(out_dir, old)
        os.rename(temporary, out_dir)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(temporary, out_dir)


def _sync_and_close(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
