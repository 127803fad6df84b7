# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Byte and Hugging Face tokenizers, and stores and baselines made with them."""

import builtins
import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.data import (
    BatchReader,
    ByteTokenizer,
    HuggingFaceTokenizer,
    build_store,
    load_store,
    load_tokenizer,
    open_store,
)
from anabranch.data.baselines import byte_model_baselines
from anabranch.errors import UsageError

TEXT = "def naïve(x):\n    return '日本 🦀' + x  # the quick brown fox\n"


@pytest.fixture
def text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i:02}.txt").write_text(f"{i} " + TEXT * (i % 5 + 1), encoding="utf-8")
    return folder


@pytest.fixture
def bpe(tmp_path):
    """A byte-level BPE of 300 entries, trained here, without special tokens."""
    return _train_bpe(tmp_path / "bpe" / "tokenizer.json", [])


def _train_bpe(path, special):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        show_progress=False,
        special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    path.parent.mkdir(exist_ok=True)
    tokenizer.save(str(path))
    return path


@given(st.binary())
def test_bytes_round_trip(data):
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(data)
    assert ids.dtype == np.int32 and ids.tolist() == list(data)
    assert tokenizer.decode_bytes(ids) == data
    assert tokenizer.decode(ids) == data.decode("utf-8", "replace")


@given(st.text())
def test_text_round_trips(text):
    tokenizer = ByteTokenizer()
    special = [tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.vocab_size - 1]
    assert tokenizer.decode([*special, *tokenizer.encode(text), *special]) == text


def test_byte_vocabulary_is_320():
    tokenizer = load_tokenizer("byte")
    ids = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.vocab_size)
    assert ids == (256, 257, 258, 320)
    assert tokenizer.encode("a\ud800").tolist() == [97, 63]


def test_bpe_round_trips_and_gets_special_ids_after_its_vocabulary(bpe):
    tokenizer = load_tokenizer(bpe)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (300, 301, 302)
    assert tokenizer.vocab_size == 320
    ids = tokenizer.encode(TEXT)
    assert ids.dtype == np.int32 and len(ids) < len(TEXT.encode())
    assert tokenizer.decode([300, *ids, 301, 302, 302]) == TEXT
    assert tokenizer.decode_bytes(ids) == TEXT.encode()
    assert load_tokenizer(bpe.parent).encode(TEXT.encode()).tolist() == ids.tolist()


def test_special_ids_by_well_known_name(tmp_path):
    path = _train_bpe(tmp_path / "t" / "tokenizer.json", ["<s>", "</s>", "<pad>"])
    tokenizer = load_tokenizer(path)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (0, 1, 2)


def test_special_ids_by_tokenizer_config(tmp_path):
    path = _train_bpe(tmp_path / "t" / "tokenizer.json", ["<s>", "</s>", "<stop>"])
    config = {"eos_token": {"content": "<stop>"}, "pad_token": "<stop>", "bos_token": None}
    (path.parent / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(path)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (0, 2)
    assert tokenizer.pad_id == 300  # never the id of EOS, which is trained on


def test_bad_tokenizers_are_usage_errors(tmp_path, bpe, monkeypatch):
    with pytest.raises(UsageError, match="No such file"):
        load_tokenizer(tmp_path / "missing.json")
    with pytest.raises(UsageError, match="No such file"):
        load_tokenizer(tmp_path)  # a folder without a tokenizer.json
    for content in (b"", b"{}", b"not json", b"\xff\xfe"):
        (tmp_path / "bad.json").write_bytes(content)
        with pytest.raises(UsageError, match="is not a tokenizer.json"):
            load_tokenizer(tmp_path / "bad.json")
    real_import = builtins.__import__

    def no_tokenizers(name, *args, **kwargs):
        if name == "tokenizers":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_tokenizers)
    with pytest.raises(UsageError, match="pip install tokenizers"):
        load_tokenizer(bpe)


def test_a_bpe_store_carries_its_tokenizer(text, bpe, tmp_path):
    built = build_store([text], tmp_path / "store", bpe)
    source = bpe.read_bytes()
    bpe.unlink()
    store = open_store(tmp_path / "store")
    assert (tmp_path / "store" / "tokenizer.json").read_bytes() == source
    assert isinstance(store.tokenizer, HuggingFaceTokenizer)
    assert store.fingerprint == built.fingerprint and store.vocab_size == 320
    split = store.train
    for i in range(split.num_documents):
        tokens = split.tokens[split.offsets[i] : split.offsets[i + 1]]
        assert tokens[0] == store.tokenizer.bos_id and tokens[-1] == store.tokenizer.eos_id
    decoded = store.tokenizer.decode_bytes(split.tokens)
    assert len(decoded) == split.num_bytes
    assert store.bytes_per_token > 1.5
    batch = BatchReader(store, "train", 4, 32).next()
    assert batch["tokens"].max() < store.vocab_size


def test_special_ids_survive_in_the_store(text, tmp_path):
    path = _train_bpe(tmp_path / "t" / "tokenizer.json", ["<s>", "</s>", "<stop>"])
    (path.parent / "tokenizer_config.json").write_text('{"eos_token": "<stop>"}')
    build_store([text], tmp_path / "store", path)
    assert open_store(tmp_path / "store").tokenizer.eos_id == 2


def test_a_large_vocabulary_is_stored_in_32_bits(text, tmp_path):
    class Wide(ByteTokenizer):
        vocab_size = 1 << 17
        eos_id = 100_000

    store = build_store([text], tmp_path / "store", Wide())
    assert store.train_tokens.dtype == np.uint32
    assert store.train_tokens[store.train.offsets[1] - 1] == 100_000


def test_load_store_checks_the_tokenizer(text, bpe, tmp_path):
    store = load_store(text, bpe, tmp_path / "cache")
    assert load_store(store.path, bpe).fingerprint == store.fingerprint
    assert load_store(store.path).fingerprint == store.fingerprint
    assert load_store(text, "byte", tmp_path / "cache").path != store.path
    other = build_store([text], tmp_path / "bytes")
    with pytest.raises(UsageError, match="another tokenizer"):
        load_store(other.path, bpe)


def _reference_baselines(store):
    """The two models symbol by symbol, from their definitions."""

    def documents(split):
        for begin, end in zip(split.offsets[:-1], split.offsets[1:], strict=True):
            yield [256, *store.tokenizer.decode_bytes(split.tokens[begin:end]), 257]

    unigrams, bigrams = Counter(), Counter()
    for document in documents(store.train):
        unigrams.update(document[1:])
        bigrams.update(zip(document, document[1:], strict=False))
    total = sum(unigrams.values())
    contexts, successors = Counter(), Counter()
    for (a, _), count in bigrams.items():
        contexts[a] += count
        successors[a] += 1
    bits, num_bytes = Counter(), 0
    for document in documents(store.held_out):
        num_bytes += len(document) - 2
        for a, b in zip(document, document[1:], strict=False):
            p = (unigrams[b] + 0.5) / (total + 257 / 2)
            bits["unigram"] -= math.log2(p)
            weight = max(successors[a], 1)
            bits["bigram"] -= math.log2((bigrams[a, b] + weight * p) / (contexts[a] + weight))
    return {name: value / num_bytes for name, value in bits.items()}


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_baselines_match_their_definition(text, bpe, tmp_path, kind):
    (text / "zz.txt").write_text("\x01 bytes never seen in train ÿþ \x02\x03" + "q" * 40)
    store = build_store([text], tmp_path / "store", "byte" if kind == "byte" else bpe)
    assert byte_model_baselines(store) == pytest.approx(_reference_baselines(store), rel=1e-12)


def test_baselines_do_not_depend_on_the_tokenizer(text, bpe, tmp_path):
    by_byte = byte_model_baselines(build_store([text], tmp_path / "a"))
    by_bpe = byte_model_baselines(build_store([text], tmp_path / "b", bpe))
    assert by_byte == by_bpe


def test_chunks_of_the_baselines_do_not_show(text, tmp_path, monkeypatch):
    store = build_store([text], tmp_path / "store")
    whole = byte_model_baselines(store)
    for size in (1, 7, 1000):
        monkeypatch.setattr("anabranch.data.baselines._CHUNK", size)
        assert byte_model_baselines(store) == whole
