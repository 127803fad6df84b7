# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The prose corpus, from packages made here: apt is stood in for by programs of the same names."""

import gzip
import json
import os
import subprocess
import sys

import pytest

from anabranch.data import prose
from anabranch.errors import RunError, UsageError

# A package archive is a folder's path in a file; the stand-in for dpkg-deb copies that folder.
_APT_GET = """
import sys, os, pathlib
packages = pathlib.Path({packages!r})
if os.environ.get("FAKE_APT_FAILS"):
    print("Reading lists..."); print("E: the mirror does not answer"); sys.exit(100)
if sys.argv[-1] == "update":
    (packages / "updated").touch()
else:
    name = sys.argv[-1]
    pathlib.Path(f"{{name}}_1.0_all.deb").write_text(str(packages / name))
"""
_APT_CACHE = """
import sys, pathlib
packages = pathlib.Path({packages!r})
if "-oAPT::Sandbox::User=" in sys.argv or not (packages / "needs_update").exists():
    for name in sys.argv:
        if (packages / name).is_dir() and "/" not in name:
            print(f"Package: {{name}}\\nVersion: 1.0\\n")
"""
_DPKG_DEB = """
import sys, shutil
shutil.copytree(open(sys.argv[2]).read(), sys.argv[3], symlinks=True)
"""


@pytest.fixture
def packages(tmp_path, monkeypatch):
    folder = tmp_path / "packages"
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, source in (
        ("apt-get", _APT_GET),
        ("apt-cache", _APT_CACHE),
        ("dpkg-deb", _DPKG_DEB),
    ):
        path = programs / name
        path.write_text(f"#!{sys.executable}\n" + source.format(packages=str(folder)))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    _write(folder, "dict-gcide/usr/share/dictd/gcide.dict.dz", gzip.compress(b"entry\n" * 50_000))
    _write(folder, "python3.13-doc/usr/share/doc/python3.13/html/_sources/a/b.rst.txt", b"Text.\n")
    other = folder / "python3.13-doc/usr/share/doc/python3.13-doc"
    other.mkdir()
    (other / "html").symlink_to("../python3.13/html")
    _write(folder, "perl-doc/usr/share/perl/5.40/pod/perl.pod", b"=pod\n")
    _write(folder, "perl-doc/usr/share/man/man1/perl.1.gz", b"not wanted")
    return folder


def _write(folder, name, data):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_text_of_known_packages_is_kept(packages, tmp_path):
    lines = []
    folder = prose.prose_folder(tmp_path / "cache", lines.append)
    files = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }
    entries = {name: size for name, size in files.items() if name.startswith("dictionary/")}
    assert sum(entries.values()) == 300_000 and len(entries) == 3
    assert max(entries.values()) <= prose.MAX_FILE_BYTES
    assert {name for name in files if name not in entries} == {
        "technical/python3.11-doc/python3.13/html/_sources/a/b.rst.000.txt",
        "technical/perl-doc/5.40/pod/perl.000.pod",
    }
    assert any("dict-gcide" in line for line in lines)
    sources = json.loads((folder.parent / prose.SOURCES).read_text())
    assert [entry["archive"] for entry in sources] == [
        "dict-gcide_1.0_all.deb",
        "python3.13-doc_1.0_all.deb",
        "perl-doc_1.0_all.deb",
    ]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["prose"]


def test_the_second_call_needs_no_apt(packages, tmp_path, monkeypatch):
    folder = prose.prose_folder(tmp_path / "cache")
    monkeypatch.setenv("PATH", "")
    assert prose.prose_folder(tmp_path / "cache") == folder


def test_package_lists_are_fetched_when_there_are_none(packages, tmp_path):
    (packages / "needs_update").touch()
    prose.prose_folder(tmp_path / "cache")
    assert (packages / "updated").exists()


def test_without_apt_the_error_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="--prose needs 'apt-get'"):
        prose.prose_folder(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_failing_mirror_is_one_line_and_leaves_nothing(packages, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_APT_FAILS", "1")
    with pytest.raises(RunError, match="'apt-get' failed: E: the mirror does not answer"):
        prose.prose_folder(tmp_path / "cache")
    assert os.listdir(tmp_path / "cache") == []


def test_no_known_package_is_an_error(packages, tmp_path):
    for package in ("dict-gcide", "python3.13-doc", "perl-doc"):
        (packages / package).rename(packages / f"x-{package}")
    with pytest.raises(RunError, match="apt knows none of the packages dict-gcide, "):
        prose.prose_folder(tmp_path / "cache")


def test_command_prints_what_was_built(packages, tmp_path):
    """`anabranch data DIR --prose --out DIR --json FILE`, as a process."""
    _write(tmp_path, "more/file.txt", b"more text\n" * 30)
    command = [sys.executable, "-m", "anabranch", "data", str(tmp_path / "more"), "--prose"]
    command += ["--out", str(tmp_path / "store"), "--json", str(tmp_path / "out.json")]
    environment = {**os.environ, "ANABRANCH_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    facts = json.loads((tmp_path / "out.json").read_text())
    assert facts["path"] == str(tmp_path / "store") in done.stdout
    assert facts["files"] == 6 and "6 read" in done.stdout
    total = sum(split["bytes"] for split in facts["splits"].values())
    assert total == 300_000 + 6 + 5 + 300
    assert set(facts["baselines_bits_per_byte"]) == {"unigram", "bigram"}
    assert "unpacking" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing"], "'missing': no such folder"),
        (["empty"], "no text under 'empty': the folder is empty"),
        (["empty", "--tokenizer", "missing.json"], "tokenizer 'missing.json': No such file"),
    ],
)
def test_usage_errors_of_the_command_exit_with_2(tmp_path, arguments, message):
    (tmp_path / "empty").mkdir()
    command = [sys.executable, "-m", "anabranch", "data", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and message in done.stderr
