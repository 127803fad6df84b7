# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Turns folders of text into documents, each with a place in a fixed order, a hash and a split.

The order of documents is: roots as given, in a root by relative path (as bytes), in a file from its
start. It depends on nothing else, neither the file system's order nor the locale.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from anabranch.errors import RunError, UsageError

TRAIN = "train"
HELD_OUT = "held_out"
SPLITS = (TRAIN, HELD_OUT)

# One document of a hundred is held out.
HELD_OUT_ONE_IN = 100

# Larger files are cut at line ends into documents of at most this many bytes, so that one huge file
# is divided between the splits too, and so that memory while building does not grow with the size
# of a file.
MAX_DOCUMENT_BYTES = 1 << 20

# A file with more malformed UTF-8 than this is in another encoding and is skipped; in others, each
# malformed sequence becomes U+FFFD. (A 40 MB dictionary with three stray bytes is worth keeping.)
MALFORMED_ONE_IN = 1000

_SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages", "dist-packages"})


@dataclass(frozen=True)
class Document:
    """A file of text, or a part of one larger than `MAX_DOCUMENT_BYTES`.

    Attributes:
      root: index of its root folder in `Corpus.roots`.
      path: path relative to that root, with forward slashes.
      start: first byte of the part in the file.
      stop: one past its last byte.
      sha256: of the bytes [start, stop), in hex. For a whole file it is what `sha256sum` prints.
      split: "train" or "held_out".
    """

    root: int
    path: str
    start: int
    stop: int
    sha256: str
    split: str


@dataclass
class SkipCounts:
    """Files left out while scanning, by reason."""

    binary: int = 0
    not_utf8: int = 0
    empty: int = 0
    symlink: int = 0
    special: int = 0
    unreadable: int = 0


@dataclass(frozen=True)
class Corpus:
    """Documents in their fixed order.

    Attributes:
      roots: folders (or single files) the documents' paths are relative to.
      documents: all documents of both splits.
      skipped: number of files left out.
      num_repaired: number of files kept with malformed UTF-8 replaced by U+FFFD.
    """

    roots: tuple[Path, ...]
    documents: tuple[Document, ...]
    skipped: SkipCounts = field(compare=False)
    num_repaired: int = 0

    def digest(self) -> str:
        """Returns the SHA-256 in hex of order, paths, hashes and splits."""
        state = hashlib.sha256()
        for d in self.documents:
            line = f"{d.root}\0{d.path}\0{d.start}\0{d.stop}\0{d.sha256}\0{d.split}\n"
            state.update(line.encode("utf-8", "surrogateescape"))
        return state.hexdigest()

    def read(self, document: Document) -> bytes:
        """Returns the text of `document` in valid UTF-8.

        Raises:
          RunError: the file changed after the scan.
        """
        data = self.read_raw(document)
        return data if _is_utf8(data) else data.decode("utf-8", "replace").encode()

    def read_raw(self, document: Document) -> bytes:
        """Returns the bytes of `document` as they are in its file; raises as `read` does."""
        root = self.roots[document.root]
        try:
            with open(root if root.is_file() else root / document.path, "rb") as file:
                file.seek(document.start)
                data = file.read(document.stop - document.start)
        except OSError as error:
            raise RunError(f"cannot read {document.path!r}: {error.strerror}") from error
        if hashlib.sha256(data).hexdigest() != document.sha256:
            raise RunError(f"{document.path!r} changed while the token store was being built")
        return data


def scan(
    roots: Sequence[str | Path],
    *,
    keep: Callable[[str], bool] = lambda path: True,
) -> Corpus:
    """Finds the text under `roots`.

    Hidden names, `__pycache__`, `site-packages`, `dist-packages`, symbolic links, empty files,
    binary files (those holding a zero byte) and files with more than one malformed UTF-8 sequence
    per 1,000 bytes are left out. A document is held out when the first 32 bits of its SHA-256 are
    divisible by 100: its side depends on its content alone, so it stays when files are renamed,
    added or removed, and equal files are always on one side. If that leaves a split empty,
    everything is train but the last 1 % of the largest document.

    Args:
      roots: folders, or single files.
      keep: which relative paths are looked at.

    Raises:
      UsageError: a root does not exist, lies in another root, or nothing under the roots is text.
    """
    paths = _check_roots(roots)
    skipped = SkipCounts()
    num_repaired = 0
    documents: list[Document] = []
    for index, root in enumerate(paths):
        for relative, path in _files(root, skipped):
            if keep(relative):
                found, malformed = _documents_of(index, relative, path, skipped)
                documents += found
                num_repaired += malformed
    corpus = Corpus(tuple(paths), tuple(documents), skipped, num_repaired)
    if not documents:
        where = ", ".join(repr(str(p)) for p in paths)
        raise UsageError(f"no text under {where}: {_describe(skipped)}")
    return _ensure_both_splits(corpus)


def scan_standard_library() -> Corpus:
    """Finds the sources of the running interpreter's standard library, tests included.

    This is the default corpus. Left out are `encodings/` (its 1.4 MB are nearly all tables of code
    points, see docs/data.md) and `site-packages`.

    Raises:
      UsageError: this interpreter has no sources on disk.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    try:
        return scan(
            [folder], keep=lambda path: path.endswith(".py") and not path.startswith("encodings/")
        )
    except UsageError as error:
        raise UsageError(
            f"no standard library sources in {str(folder)!r}; name folders of text instead"
        ) from error


def _check_roots(roots: Sequence[str | Path]) -> list[Path]:
    paths = [Path(root) for root in roots]
    if not paths:
        raise UsageError("no folder of text was named")
    resolved = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"{str(path)!r}: no such folder")
        real = path.resolve()
        for other in resolved:
            if real == other or real in other.parents or other in real.parents:
                raise UsageError(f"{str(path)!r} and {str(other)!r} overlap: name each text once")
        resolved.append(real)
    return paths


def _files(root: Path, skipped: SkipCounts) -> Iterator[tuple[str, Path]]:
    """Yields (relative path, path) of the regular files under `root`, sorted by relative path."""
    if root.is_file():
        yield root.name, root
        return
    found: list[str] = []

    def count_unreadable(_: OSError) -> None:
        skipped.unreadable += 1

    for folder, folders, files in os.walk(root, onerror=count_unreadable):
        relative = os.path.relpath(folder, root)
        prefix = "" if relative == "." else relative.replace(os.sep, "/") + "/"
        skipped.symlink += sum(os.path.islink(os.path.join(folder, name)) for name in folders)
        folders[:] = [n for n in folders if not n.startswith(".") and n not in _SKIPPED_FOLDERS]
        found += [prefix + name for name in files if not name.startswith(".")]
    for relative in sorted(found, key=os.fsencode):
        path = root / relative
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode):
            yield relative, path
        elif stat.S_ISLNK(mode):
            skipped.symlink += 1
        else:
            skipped.special += 1


def _documents_of(
    root: int, relative: str, path: Path, skipped: SkipCounts
) -> tuple[list[Document], bool]:
    """Returns the documents of one file, none if it is left out, and whether it needs repair."""
    documents: list[Document] = []
    start = num_malformed = 0
    try:
        with open(path, "rb") as file:
            for part in parts(file, MAX_DOCUMENT_BYTES):
                if b"\0" in part:
                    skipped.binary += 1
                    return [], False
                num_malformed += _count_malformed(part)
                sha256 = hashlib.sha256(part).hexdigest()
                stop = start + len(part)
                documents.append(Document(root, relative, start, stop, sha256, _split_of(sha256)))
                start = stop
    except OSError:
        skipped.unreadable += 1
        return [], False
    if num_malformed * MALFORMED_ONE_IN > start:
        skipped.not_utf8 += 1
        return [], False
    skipped.empty += not documents
    return documents, num_malformed > 0


def parts(file: BinaryIO, limit: int) -> Iterator[bytes]:
    """Yields the bytes of `file` in parts of at most `limit`, cut after a line if it can be."""
    data = file.read(limit)
    while len(data) == limit:
        cut = data.rfind(b"\n") + 1 or _character_start(data, len(data) - 1)
        yield data[:cut]
        data = data[cut:] + file.read(cut)
    if data:
        yield data


def _character_start(data: bytes, position: int) -> int:
    """Returns where the UTF-8 character at data[position] starts; `position` in malformed text."""
    for start in range(position, max(position - 4, -1), -1):
        if data[start] & 0xC0 != 0x80:
            return start
    return position


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _count_malformed(data: bytes) -> int:
    """Returns the number of malformed sequences in UTF-8 text."""
    if _is_utf8(data):
        return 0
    return data.decode("utf-8", "replace").count("\ufffd") - data.count("\ufffd".encode())


def _split_of(sha256: str) -> str:
    return HELD_OUT if int(sha256[:8], 16) % HELD_OUT_ONE_IN == 0 else TRAIN


def _ensure_both_splits(corpus: Corpus) -> Corpus:
    if {d.split for d in corpus.documents} == set(SPLITS):
        return corpus
    documents = [replace(d, split=TRAIN) for d in corpus.documents]
    largest = max(range(len(documents)), key=lambda i: documents[i].stop - documents[i].start)
    document = documents[largest]
    raw = corpus.read_raw(document)
    cut = _tail_start(raw)
    if cut == 0:
        raise UsageError(
            f"{len(raw)} bytes of text cannot be divided into a train and a held-out part"
        )
    middle = document.start + cut
    head = replace(document, stop=middle, sha256=hashlib.sha256(raw[:cut]).hexdigest())
    tail_hash = hashlib.sha256(raw[cut:]).hexdigest()
    tail = replace(document, start=middle, sha256=tail_hash, split=HELD_OUT)
    documents[largest : largest + 1] = [head, tail]
    return replace(corpus, documents=tuple(documents))


def _tail_start(data: bytes) -> int:
    """Returns where the last 1 % of `data` starts (a line's start if one is near); 0 if it cannot."""
    last = len(data) - max(1, len(data) // HELD_OUT_ONE_IN)
    line = data.rfind(b"\n", max(0, last - len(data) // HELD_OUT_ONE_IN), last) + 1
    return line or _character_start(data, last) if last > 0 else 0


def _describe(skipped: SkipCounts) -> str:
    counts = [f"{count} {reason}" for reason, count in vars(skipped).items() if count]
    return "skipped " + ", ".join(counts) if counts else "the folder is empty"
