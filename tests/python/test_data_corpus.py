# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Which files become documents, in which order, on which side."""

import hashlib
import io
import os
import random
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.data import corpus as corpus_module
from anabranch.data import scan, scan_standard_library
from anabranch.data.corpus import HELD_OUT, TRAIN
from anabranch.errors import RunError, UsageError


def _write(folder, files):
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())


def _paths(corpus):
    return [d.path for d in corpus.documents]


def test_order_is_by_relative_path_whatever_the_file_system(tmp_path):
    names = ["b/a", "b.txt", "B", "a/z/q", "a-", "a/b", "ä", "10", "9"]
    orders = []
    for turn in range(3):
        folder = tmp_path / str(turn)
        random.Random(turn).shuffle(names)
        _write(folder, {name: f"text of {name}" for name in names})
        orders.append([(d.path, d.sha256, d.split, d.stop) for d in scan([folder]).documents])
    assert orders[0] == orders[1] == orders[2]
    whole = list(dict.fromkeys(path for path, *_ in orders[0]))
    assert whole == sorted(names, key=os.fsencode)


def test_what_is_left_out_is_counted(tmp_path):
    _write(tmp_path, {
        "good.txt": "text\n",
        "empty": "",
        "image": b"\x89PNG\0\1",
        "late_zero": b"a" * 2_000_000 + b"\0",
        "latin1": "Füße".encode("latin-1"),
        ".hidden": "no",
        ".git/config": "no",
        "__pycache__/x.py": "no",
        "site-packages/x.py": "no",
    })  # fmt: skip
    (tmp_path / "link").symlink_to("good.txt")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    corpus = scan([tmp_path])
    assert set(_paths(corpus)) == {"good.txt"}
    counts = {name: count for name, count in vars(corpus.skipped).items() if count}
    assert counts == {"binary": 2, "not_utf8": 1, "empty": 1, "symlink": 2, "special": 1}


def test_a_few_malformed_bytes_are_replaced(tmp_path):
    text = b"x" * 2000 + b"\x92" + "\ufffd".encode() + b"y" * 2000
    _write(tmp_path, {"a": text, "b": "other"})
    corpus = scan([tmp_path])
    assert corpus.num_repaired == 1
    read = b"".join(corpus.read(d) for d in corpus.documents if d.path == "a")
    assert read == text.replace(b"\x92", "\ufffd".encode())


def test_unicode_survives(tmp_path):
    text = "naïve – 日本語 🦀 \u0000".replace("\0", "") + "\r\n\ufeffend"
    _write(tmp_path, {"日本.txt": text * 50, "b": "other"})
    corpus = scan([tmp_path])
    read = b"".join(corpus.read(d) for d in corpus.documents if d.path != "b")
    assert read.decode() == text * 50


def test_a_name_that_is_not_utf8(tmp_path):
    path = os.fsencode(tmp_path) + b"/n\xff.txt"
    with open(path, "wb") as file:
        file.write(b"some text")
    corpus = scan([tmp_path])
    assert corpus.read(corpus.documents[0])
    assert len(corpus.digest()) == 64


@given(limit=st.integers(8, 40), text=st.text(st.sampled_from("ab\n é日🦀"), max_size=300))
def test_parts_join_to_the_whole(limit, text):
    parts = list(corpus_module.parts(io.BytesIO(text.encode()), limit))
    assert b"".join(parts) == text.encode()
    assert all(0 < len(part) <= limit for part in parts)
    for part in parts:
        part.decode()  # no character is cut


@given(limit=st.integers(8, 40), data=st.binary(max_size=300))
def test_parts_of_any_bytes_join_to_the_whole(limit, data):
    parts = list(corpus_module.parts(io.BytesIO(data), limit))
    assert b"".join(parts) == data
    assert all(0 < len(part) <= limit for part in parts)


def test_large_files_are_cut_after_lines(tmp_path):
    line = b"0123456789 some line of text\n"
    _write(tmp_path, {"large": line * 90_000})
    documents = scan([tmp_path]).documents
    assert len(documents) >= 3
    for left, right in zip(documents, documents[1:], strict=False):
        assert left.stop == right.start and right.start % len(line) == 0
    assert documents[-1].stop == 90_000 * len(line)


def test_split_depends_on_content_alone(tmp_path):
    files = {f"{i}.txt": f"document {i}\n" * 5 for i in range(1000)}
    _write(tmp_path / "a", files)
    before = {d.sha256: d.split for d in scan([tmp_path / "a"]).documents}
    for sha256, split in before.items():
        assert (split == HELD_OUT) == (int(sha256[:8], 16) % 100 == 0)
    # Renamed, with half of the files gone, others added, and a copy of everything.
    kept = {f"x/{name}": text for name, text in list(files.items())[::2]}
    _write(tmp_path / "b", {**kept, **{f"copy/{n}": t for n, t in kept.items()}, "new": "new\n"})
    for document in scan([tmp_path / "b"]).documents:
        assert document.split == before.get(document.sha256, document.split)


def test_about_one_document_of_a_hundred_is_held_out(tmp_path):
    _write(tmp_path, {f"{i}": f"{i}" for i in range(4000)})
    held_out = sum(d.split == HELD_OUT for d in scan([tmp_path]).documents)
    assert abs(held_out - 40) <= 4 * (4000 * 0.01 * 0.99) ** 0.5  # four standard deviations


@pytest.mark.parametrize("size", [2, 3, 50, 99, 100, 101, 5000])
def test_one_document_is_divided_near_its_end(tmp_path, size):
    text = (b"a line of text\n" * 400)[:size]
    _write(tmp_path, {"only": text})
    head, tail = scan([tmp_path]).documents
    assert (head.split, tail.split) == (TRAIN, HELD_OUT)
    assert (head.start, head.stop, tail.stop) == (0, tail.start, size)
    assert 1 <= tail.stop - tail.start <= max(1, size // 100 * 2)
    assert tail.sha256 == hashlib.sha256(text[tail.start :]).hexdigest()


def test_dividing_never_cuts_a_character(tmp_path):
    _write(tmp_path, {"only": "é日🦀"})
    corpus = scan([tmp_path])
    assert [corpus.read(d).decode() for d in corpus.documents] == ["é日", "🦀"]


def test_one_character_cannot_be_divided(tmp_path):
    for text in ("a", "🦀"):
        _write(tmp_path, {"only": text})
        with pytest.raises(UsageError, match="cannot be divided"):
            scan([tmp_path])


def test_a_single_file_is_a_root(tmp_path):
    _write(tmp_path, {"input.txt": "text\n" * 100})
    corpus = scan([tmp_path / "input.txt"])
    assert set(_paths(corpus)) == {"input.txt"}
    assert b"".join(corpus.read(d) for d in corpus.documents) == b"text\n" * 100


def test_bad_roots_are_usage_errors(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a" / "b").mkdir(parents=True)
    _write(tmp_path, {"a/b/file": "text", "zero/x": b"\0"})
    with pytest.raises(UsageError, match="no such folder"):
        scan([tmp_path / "missing"])
    with pytest.raises(UsageError, match="the folder is empty"):
        scan([tmp_path / "empty"])
    with pytest.raises(UsageError, match="1 binary"):
        scan([tmp_path / "zero"])
    with pytest.raises(UsageError, match="no folder of text"):
        scan([])
    for pair in (("a", "a/b"), ("a/b", "a"), ("a", "a")):
        with pytest.raises(UsageError, match="overlap"):
            scan([tmp_path / name for name in pair])


def test_a_file_that_changes_during_the_build_stops_it(tmp_path):
    _write(tmp_path, {"a": "text of a", "b": "text of b, longer"})
    corpus = scan([tmp_path])
    _write(tmp_path, {"a": "other text"})
    with pytest.raises(RunError, match="'a' changed"):
        [corpus.read(d) for d in corpus.documents]
    (tmp_path / "a").unlink()
    with pytest.raises(RunError, match="cannot read 'a'"):
        [corpus.read(d) for d in corpus.documents]


def test_digest_tells_corpora_apart(tmp_path):
    _write(tmp_path, {"a": "text of a", "b": "text of b, longer"})
    first = scan([tmp_path]).digest()
    assert scan([tmp_path]).digest() == first
    shutil.copytree(tmp_path, tmp_path.parent / "elsewhere")
    assert scan([tmp_path.parent / "elsewhere"]).digest() == first
    (tmp_path / "a").rename(tmp_path / "c")
    assert scan([tmp_path]).digest() != first


def test_standard_library_is_found():
    corpus = scan_standard_library()
    paths = _paths(corpus)
    assert "argparse.py" in paths and "json/decoder.py" in paths
    assert not any(p.startswith(("encodings/", "site-packages/")) for p in paths)
    assert all(p.endswith(".py") for p in paths)
    assert sum(d.stop - d.start for d in corpus.documents) > 5_000_000


def test_standard_library_without_sources_is_a_usage_error(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_module.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(UsageError, match="name folders of text"):
        scan_standard_library()
    (tmp_path / "tiny.py").write_text("x = 1\n" * 20)  # an interpreter with next to nothing works
    assert len(scan_standard_library().documents) == 2
