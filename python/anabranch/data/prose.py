# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""About 120 MB of English from Debian's documentation packages: `anabranch data --prose`.

Needs `apt-get` and `dpkg-deb`, no root, and a mirror that answers. Nothing is installed: packages
are downloaded into a temporary folder, unpacked there, and only their text is kept, in the cache.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from anabranch.data.cache import default_cache_dir
from anabranch.data.corpus import parts
from anabranch.errors import RunError, UsageError

SOURCES = "sources.json"
TEXT = "text"

# Larger texts are kept in several files: a dictionary's entries are independent of one another, and
# so the held-out split, which is chosen by file, has a share of each.
MAX_FILE_BYTES = 128 << 10


@dataclass(frozen=True)
class Package:
    """Where the text of one package lies.

    Attributes:
      domain: label of the text, the folder it is kept in.
      names: package names by preference (they differ between Debian's releases).
      patterns: globs of its text files; `.gz` and `.dz` are unpacked.
    """

    domain: str
    names: tuple[str, ...]
    patterns: tuple[str, ...]


_PYTHON_DOCS = tuple(f"python3.{minor}-doc" for minor in (11, 13, 12, 14, 10, 9))

# In the order of their sizes; together 122 MB of text from 65 MB of downloads (Debian 12).
PACKAGES = (
    Package("dictionary", ("dict-gcide",), ("usr/share/dictd/*.dict.dz",)),
    Package("dictionary", ("dict-wn",), ("usr/share/dictd/*.dict.dz",)),
    Package("essays", ("anarchism",), ("usr/share/doc/anarchism/markdown/*.md*",)),
    Package("technical", _PYTHON_DOCS, ("usr/share/doc/*/html/_sources/**/*.rst.txt",)),
    Package("technical", ("vim-runtime",), ("usr/share/vim/*/doc/*.txt",)),
    Package("technical", ("perl-doc",), ("usr/share/perl/*/pod/*.pod",)),
    Package("dictionary", ("dict-foldoc",), ("usr/share/dictd/*.dict.dz",)),
    Package("technical", ("git-doc",), ("usr/share/doc/git*/**/*.txt*",)),
    Package("essays", ("jargon-text",), ("usr/share/doc/jargon-text/*.txt.gz",)),
)


def prose_folder(
    cache_dir: str | Path | None = None, report: Callable[[str], None] = lambda line: None
) -> Path:
    """Returns the folder of the prose corpus; downloads it the first time (some 15 s).

    Args:
      cache_dir: where it is kept; None means `default_cache_dir()`.
      report: called with a line about what is being waited for.

    Raises:
      UsageError: this machine has no apt, or the cache cannot be written.
      RunError: no package could be had.
    """
    cache = Path(cache_dir) if cache_dir is not None else default_cache_dir()
    folder = cache / "prose"
    if (folder / SOURCES).is_file():
        return folder / TEXT
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise UsageError(
                f"--prose needs '{program}', which only Debian and its relatives have; "
                "name folders of text instead"
            )
    try:
        cache.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".prose.", dir=cache))
    except OSError as error:
        raise UsageError(f"cannot write {str(cache)!r}: {error.strerror}") from error
    try:
        _build(temporary, report)
        try:
            os.rename(temporary / "prose", folder)
        except OSError:  # another process was first
            if not (folder / SOURCES).is_file():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder / TEXT


def _build(work: Path, report: Callable[[str], None]) -> None:
    """Makes work/prose: the text, and the list of its sources."""
    sources = []
    archives = _download(work, report)
    for package, archive in archives:
        report(f"unpacking {archive.name}")
        tree = work / "tree"
        _run(["dpkg-deb", "-x", str(archive), str(tree)], work)
        size = _keep_text(package, tree, work / "prose" / TEXT / package.domain / package.names[0])
        shutil.rmtree(tree)
        sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
        entry = {**asdict(package), "archive": archive.name, "sha256": sha256, "text_bytes": size}
        sources.append(entry)
        archive.unlink()
    (work / "prose" / SOURCES).write_text(json.dumps(sources, indent=1) + "\n")


def _download(work: Path, report: Callable[[str], None]) -> list[tuple[Package, Path]]:
    """Fetches every package that this release has; returns them with their archives."""
    options: list[str] = []
    available = _available(options)
    if not available:  # no lists yet, as in a fresh container: fetch them into a folder of our own
        report("fetching Debian's package lists")
        options = _private_lists(work)
        available = _available(options)
    if not available:
        names = ", ".join(package.names[0] for package in PACKAGES)
        raise RunError(f"--prose: apt knows none of the packages {names}")
    archives = []
    for package, name in available:
        report(f"downloading {name}")
        folder = work / "archives" / name
        folder.mkdir(parents=True)
        _run(["apt-get", *options, "-q", "download", name], folder)
        archives.append((package, next(folder.glob("*.deb"))))
    return archives


def _available(options: Sequence[str]) -> list[tuple[Package, str]]:
    """Returns the packages apt knows, each under the first of its names that exists."""
    names = [name for package in PACKAGES for name in package.names]
    command = ["apt-cache", *options, "show", "--no-all-versions", *names]
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    known = {line.split()[1] for line in shown.splitlines() if line.startswith("Package: ")}
    found = [(package, [n for n in package.names if n in known]) for package in PACKAGES]
    return [(package, matches[0]) for package, matches in found if matches]


def _private_lists(work: Path) -> list[str]:
    """Runs `apt-get update` with state and cache in `work`; returns the options that use them."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (work / "apt" / folder).mkdir(parents=True)
    options = [
        f"-oDir::State={work}/apt/state",
        "-oDir::State::status=/var/lib/dpkg/status",
        f"-oDir::Cache={work}/apt/cache",
        "-oAPT::Sandbox::User=",
    ]
    _run(["apt-get", *options, "-q", "update"], work)
    return options


def _keep_text(package: Package, tree: Path, target: Path) -> int:
    """Copies the text files of an unpacked package to `target`, large ones in parts."""
    size = 0
    for source in _text_files(package, tree):
        compressed = source.suffix in (".gz", ".dz")
        relative = source.relative_to(tree)
        name = relative.with_suffix("") if compressed else relative
        base = target.joinpath(*name.parts[3:])
        base.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(source) if compressed else open(source, "rb") as file:
            for index, part in enumerate(parts(file, MAX_FILE_BYTES)):
                path = base.with_name(f"{base.stem}.{index:03}{base.suffix}")
                path.write_bytes(part)
                size += len(part)
    return size


def _text_files(package: Package, tree: Path) -> Iterator[Path]:
    """Yields each file once: documentation folders often link to one another."""
    for pattern in package.patterns:
        for path in sorted(tree.glob(pattern)):
            if path.is_file() and path.resolve() == tree.resolve() / path.relative_to(tree):
                yield path


def _run(command: list[str], folder: Path) -> None:
    try:
        subprocess.run(
            command, cwd=folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stdout.decode("utf-8", "replace").splitlines() if line]
        cause = next(
            (line for line in lines if line.startswith("E:")), (lines or ["no output"])[-1]
        )
        raise RunError(f"--prose: '{command[0]}' failed: {cause}") from error
