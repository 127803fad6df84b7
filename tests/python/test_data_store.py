# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Token stores: deterministic bytes, whole or absent, damage noticed, safe caching."""

import hashlib
import json
import multiprocessing
import os

import numpy as np
import pytest

from anabranch.data import (
    ByteTokenizer,
    build_store,
    cached_store,
    default_cache_dir,
    load_store,
    open_store,
    scan,
    standard_library_store,
    store_writer,
)
from anabranch.data.corpus import SPLITS
from anabranch.errors import RunError, UsageError


@pytest.fixture
def text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(300):
        (folder / f"{i:03}.txt").write_text(f"document {i}, naïve 日本\n" * (i % 7 + 1))
    return folder


def _files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_store_holds_every_document_in_order(text, tmp_path):
    store = build_store([text], tmp_path / "store")
    corpus = scan([text])
    for name in SPLITS:
        split = store.split(name)
        documents = [d for d in corpus.documents if d.split == name]
        assert split.num_documents == len(documents) > 0
        for i, document in enumerate(documents):
            tokens = split.tokens[split.offsets[i] : split.offsets[i + 1]].tolist()
            assert tokens == [256, *corpus.read(document), 257]
        assert split.num_bytes == sum(d.stop - d.start for d in documents)
        assert split.num_labels == split.num_bytes + split.num_documents
        assert split.bytes_per_token == split.num_bytes / split.num_labels
    assert store.train_tokens.dtype == np.uint16 and not store.train_tokens.flags.writeable
    assert store.held_out_tokens is store.held_out.tokens
    assert store.vocab_size == ByteTokenizer.vocab_size == 320
    with pytest.raises(ValueError, match="'test'"):
        store.split("test")


def test_equal_text_gives_equal_bytes(text, tmp_path):
    first = build_store([text], tmp_path / "one")
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in sorted(text.iterdir(), reverse=True):
        (copy / path.name).write_bytes(path.read_bytes())
    second = build_store([copy], tmp_path / "two")
    assert _files(tmp_path / "one") == _files(tmp_path / "two")
    assert first.fingerprint == second.fingerprint
    (copy / "000.txt").write_text("changed")
    assert build_store([copy], tmp_path / "two").fingerprint != first.fingerprint


def test_batches_of_the_tokenizer_do_not_show(text, tmp_path, monkeypatch):
    build_store([text], tmp_path / "one")
    monkeypatch.setattr(store_writer, "_BATCH_BYTES", 50)
    build_store([text], tmp_path / "two")
    assert _files(tmp_path / "one") == _files(tmp_path / "two")


def test_manifest_says_what_is_in_the_store(text, tmp_path):
    (text / "empty").touch()
    (text / "binary").write_bytes(b"\0")
    store = build_store([text], tmp_path / "store")
    manifest = json.loads((tmp_path / "store" / "manifest.json").read_text())
    assert manifest == store.manifest
    assert manifest["skipped"]["empty"] == manifest["skipped"]["binary"] == 1
    for name, entry in manifest["files"].items():
        data = (tmp_path / "store" / name).read_bytes()
        assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    whole = [d for d in manifest["documents"] if d["path"] == "001.txt"]
    assert whole[0]["sha256"] == hashlib.sha256((text / "001.txt").read_bytes()).hexdigest()


def test_no_trace_of_the_build_is_left(text, tmp_path):
    build_store([text], tmp_path / "out" / "store")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["store"]


def test_a_failed_build_leaves_nothing_and_keeps_the_old_store(text, tmp_path, monkeypatch):
    build_store([text], tmp_path / "out" / "store")
    before = _files(tmp_path / "out" / "store")

    def fail(*_):
        raise RunError("disk full")

    monkeypatch.setattr(store_writer, "_manifest", fail)
    with pytest.raises(RunError, match="disk full"):
        build_store([text], tmp_path / "out" / "store")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["store"]
    assert _files(tmp_path / "out" / "store") == before


def test_a_store_is_replaced_but_nothing_else_is(text, tmp_path):
    out = tmp_path / "out"
    out.mkdir()  # an empty folder is fine
    old = build_store([text], out)
    old_tokens = old.train_tokens[:50].copy()
    (text / "000.txt").write_text("changed\n")
    assert build_store([text], out).fingerprint != old.fingerprint
    np.testing.assert_array_equal(old.train_tokens[:50], old_tokens)  # the old map stays valid
    for name in ("folder", "file"):
        other = tmp_path / name
        if name == "folder":
            other.mkdir()
            (other / "precious").write_text("data")
        else:
            other.write_text("data")
        with pytest.raises(UsageError, match="is not a token store; it is left alone"):
            build_store([text], other)
    assert (tmp_path / "folder" / "precious").read_text() == "data"


def test_an_output_that_cannot_be_written_is_a_usage_error(text, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write"):
        build_store([text], tmp_path / "file" / "store")


def test_opening_what_is_no_store_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        open_store(tmp_path / "missing")
    with pytest.raises(UsageError, match="is not a token store"):
        open_store(tmp_path)


@pytest.mark.parametrize("name", ["train.tokens", "held_out.tokens", "train.offsets"])
def test_damage_is_noticed(text, tmp_path, name):
    store = tmp_path / "store"
    build_store([text], store)
    good = (store / name).read_bytes()
    (store / name).write_bytes(good[:-1])
    with pytest.raises(RunError, match=f"{name}' has {len(good) - 1} bytes"):
        open_store(store)
    (store / name).write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(RunError, match="SHA-256"):
        open_store(store)
    (store / name).unlink()
    with pytest.raises(RunError, match="is missing"):
        open_store(store)
    (store / name).write_bytes(good)
    open_store(store)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"version": 1}', "\udc80"])
def test_a_corrupt_manifest_is_noticed(text, tmp_path, content):
    build_store([text], tmp_path / "store")
    manifest = tmp_path / "store" / "manifest.json"
    manifest.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(RunError, match="manifest.json"):
        open_store(tmp_path / "store")


def test_a_manifest_whose_entries_are_broken_is_noticed(text, tmp_path):
    build_store([text], tmp_path / "store")
    path = tmp_path / "store" / "manifest.json"
    good = json.loads(path.read_text())
    for key in ("files", "splits", "tokenizer"):
        path.write_text(json.dumps({**good, key: {}}))
        with pytest.raises(RunError, match="corrupt"):
            open_store(tmp_path / "store")


def test_another_format_version_is_a_usage_error(text, tmp_path):
    build_store([text], tmp_path / "store")
    path = tmp_path / "store" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99}))
    with pytest.raises(UsageError, match="version 99"):
        open_store(tmp_path / "store")


def test_cache_dir_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("ANABRANCH_CACHE", str(tmp_path / "own"))
    assert default_cache_dir() == tmp_path / "own"
    monkeypatch.delenv("ANABRANCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "anabranch"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert default_cache_dir().parts[-2:] == (".cache", "anabranch")


def test_cache_is_built_once_and_repaired(text, tmp_path):
    cache = tmp_path / "cache"
    store = cached_store("name", scan([text]), "byte", cache)
    built = store.path.stat().st_mtime_ns, store.path.stat().st_ino
    again = cached_store("name", scan([text]), "byte", cache)
    assert (again.path.stat().st_mtime_ns, again.path.stat().st_ino) == built
    (store.path / "train.tokens").write_bytes(b"")
    assert cached_store("name", scan([text]), "byte", cache).fingerprint == store.fingerprint
    (text / "000.txt").write_text("changed\n")
    assert cached_store("name", scan([text]), "byte", cache).path != store.path
    assert len(list(cache.iterdir())) == 2


def test_a_cache_that_cannot_be_written_names_the_variable(text, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="ANABRANCH_CACHE"):
        cached_store("name", scan([text]), "byte", tmp_path / "file")


def _build_in_process(text, cache, replace, results):
    for _ in range(5):
        if replace:
            results.put(build_store([text], cache / "store").fingerprint)
        else:
            results.put(cached_store("name", scan([text]), "byte", cache).fingerprint)


@pytest.mark.parametrize("replace", [False, True])
def test_concurrent_builders_agree(text, tmp_path, replace):
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    cache = tmp_path / "cache"
    arguments = (text, cache, replace, results)
    workers = [context.Process(target=_build_in_process, args=arguments) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert len({results.get() for _ in range(15)}) == 1
    assert len(os.listdir(cache)) == 1


def test_load_store_takes_text_a_store_or_nothing(text, tmp_path, monkeypatch):
    monkeypatch.setenv("ANABRANCH_CACHE", str(tmp_path / "cache"))
    from_text = load_store(text)
    assert from_text.path.parent == tmp_path / "cache"
    from_file = load_store(text / "001.txt")
    assert from_file.fingerprint != from_text.fingerprint
    assert load_store(from_text.path).fingerprint == from_text.fingerprint
    with pytest.raises(UsageError, match="no such folder"):
        load_store(tmp_path / "missing")
    standard = load_store("")
    assert standard.fingerprint == standard_library_store().fingerprint
    assert standard.path.name.startswith("stdlib-3.")
    assert standard.train.num_bytes > 100 * standard.held_out.num_bytes / 2
