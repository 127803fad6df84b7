# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Batches: every token once per epoch, exact resume, one order whatever the batch size."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.data import BatchReader, build_store
from anabranch.data.reader import golden_stride, permute
from anabranch.errors import UsageError

KEYS = ("tokens", "labels", "segment_ids", "positions")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(5)
    for i in range(600):
        text = rng.integers(32, 127, int(rng.integers(1, 60)), np.uint8).tobytes()
        (folder / f"{i:04}.txt").write_bytes(text)
    return build_store([folder], tmp_path_factory.mktemp("out") / "store")


def _concatenate(batches):
    return {key: np.concatenate([batch[key] for batch in batches]) for key in KEYS}


def _assert_equal(left, right):
    for key in KEYS:
        np.testing.assert_array_equal(left[key], right[key], err_msg=key)


def _expected_pairs(split):
    """All (token, label) pairs of a split, straight from its documents; EOS has no label."""
    pairs = []
    for begin, end in zip(split.offsets[:-1], split.offsets[1:], strict=True):
        document = split.tokens[begin:end].tolist()
        pairs += zip(document, [*document[1:], -1], strict=True)
    return sorted(pairs)


def _pairs(batch):
    valid = batch["segment_ids"] > 0
    return sorted(
        zip(batch["tokens"][valid].tolist(), batch["labels"][valid].tolist(), strict=True)
    )


@pytest.mark.parametrize("split", ["train", "held_out"])
@pytest.mark.parametrize("length", [1, 2, 7, 64, 100_000])
def test_every_token_is_input_and_label_once_per_epoch(store, split, length):
    reader = BatchReader(store, split, 5, length, seed=11)
    epoch = _concatenate(list(reader.one_pass()))
    assert _pairs(epoch) == _expected_pairs(store.split(split))
    assert reader.cursor["sequence"] == 0
    assert epoch["tokens"].shape == (5 * reader.batches_per_epoch, length)


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_each_epoch_of_next_reads_every_window_once(store, split):
    reader = BatchReader(store, split, 1, 32, seed=5)
    epochs = []
    for _ in range(3):
        rows = _concatenate([reader.next() for _ in range(reader.sequences_per_epoch)])
        assert _pairs(rows) == _expected_pairs(store.split(split))
        epochs.append(rows["tokens"])
    assert reader.epoch == 3.0
    same = [np.array_equal(epochs[0], later) for later in epochs[1:]]
    assert same == [split == "held_out"] * 2


def test_batches_have_the_documented_types_and_padding(store):
    reader = BatchReader(store, "train", 3, 50)
    for batch in reader.one_pass():
        for key in KEYS:
            assert batch[key].dtype == np.int32 and batch[key].shape == (3, 50)
            assert batch[key].flags.c_contiguous
        padding = batch["segment_ids"] == 0
        assert (batch["tokens"][padding] == store.tokenizer.pad_id).all()
        assert (batch["labels"][padding] == -1).all() and (batch["positions"][padding] == 0).all()
        assert (np.diff(padding.astype(int), axis=1) >= 0).all()  # padding only at the end


def test_segments_and_positions_follow_documents(store):
    bos, eos = store.tokenizer.bos_id, store.tokenizer.eos_id
    for batch in BatchReader(store, "train", 4, 97).one_pass():
        for row in range(4):
            tokens, labels = batch["tokens"][row], batch["labels"][row]
            segments, positions = batch["segment_ids"][row], batch["positions"][row]
            segment, position = 1, 0
            for i in range(97):
                if segments[i] == 0:
                    break
                if i and tokens[i] == bos:
                    segment, position = segment + 1, 0
                assert (segments[i], positions[i]) == (segment, position)
                assert (labels[i] == -1) == (tokens[i] == eos)
                position += 1


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_order_does_not_depend_on_batch_size(store, split):
    def read(size, count):
        reader = BatchReader(store, split, size, 16, seed=2)
        return _concatenate([reader.next() for _ in range(count)])

    whole = read(840, 1)
    for size in (1, 2, 4, 7, 8, 420):
        _assert_equal(read(size, 840 // size), whole)


@pytest.mark.parametrize("split", ["train", "held_out"])
@pytest.mark.parametrize("stop", [0, 1, 17, 500])
def test_resume_continues_exactly(store, split, stop):
    reader = BatchReader(store, split, 3, 24, seed=9)
    for _ in range(stop):
        reader.next()
    cursor = json.loads(json.dumps(reader.cursor))
    resumed = BatchReader(store, split, 3, 24, seed=9, cursor=cursor)
    for _ in range(40):
        _assert_equal(resumed.next(), reader.next())
    assert resumed.cursor == reader.cursor


def test_resume_with_another_batch_size_keeps_the_order(store):
    reader = BatchReader(store, "train", 4, 24, seed=9)
    reader.next()
    other = BatchReader(store, "train", 2, 24, seed=9, cursor=reader.cursor)
    _assert_equal(_concatenate([other.next(), other.next()]), reader.next())


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"sequence_length": 25}, {"split": "held_out"}], ids=str
)
def test_cursor_of_other_data_is_refused(store, change):
    arguments = {"split": "train", "batch_size": 2, "sequence_length": 24, "seed": 0}
    cursor = BatchReader(store, **arguments).cursor
    with pytest.raises(UsageError, match=next(iter(change))):
        BatchReader(store, **{**arguments, **change}, cursor=cursor)


def test_cursor_of_another_store_is_refused(store, tmp_path):
    (tmp_path / "a.txt").write_text("another text\n" * 9)
    other = build_store([tmp_path / "a.txt"], tmp_path / "store")
    with pytest.raises(UsageError, match="store is"):
        BatchReader(other, cursor=BatchReader(store).cursor)


def test_seeds_give_different_orders(store):
    rows = [BatchReader(store, "train", 64, 16, seed=s).next()["tokens"] for s in (0, 1, -1, 2**63)]
    assert len({row.tobytes() for row in rows}) == 4
    held_out = [BatchReader(store, "held_out", 9, 16, seed=s).next()["tokens"] for s in (0, 1)]
    np.testing.assert_array_equal(*held_out)


def test_sizes_must_be_positive(store):
    with pytest.raises(ValueError, match="batch_size=0"):
        BatchReader(store, batch_size=0)
    with pytest.raises(ValueError, match="sequence_length=-1"):
        BatchReader(store, sequence_length=-1)
    with pytest.raises(ValueError, match="split 'test'"):
        BatchReader(store, "test")


def test_a_corpus_shorter_than_one_sequence_is_one_padded_row(tmp_path):
    (tmp_path / "a.txt").write_text("ab")
    store = build_store([tmp_path / "a.txt"], tmp_path / "store")
    reader = BatchReader(store, "train", 2, 8)
    bos, eos, pad = store.tokenizer.bos_id, store.tokenizer.eos_id, store.tokenizer.pad_id
    batch = reader.next()
    for row in range(2):  # two epochs of one window each
        assert batch["tokens"][row].tolist() == [bos, ord("a"), eos] + [pad] * 5
        assert batch["labels"][row].tolist() == [ord("a"), eos] + [-1] * 6
        assert batch["segment_ids"][row].tolist() == [1] * 3 + [0] * 5
        assert batch["positions"][row].tolist() == [0, 1, 2] + [0] * 5


@settings(deadline=None, max_examples=200)
@given(
    count=st.integers(1, 5000),
    seed=st.integers(-(2**65), 2**65),
    epoch=st.integers(0, 2**40),
)
def test_permute_is_a_bijection(count, seed, epoch):
    images = permute(np.arange(count), count, seed, epoch)
    assert np.array_equal(np.sort(images), np.arange(count))
    half = permute(np.arange(count // 2, count), count, seed, epoch)
    assert np.array_equal(half, images[count // 2 :])


def test_permute_is_frozen():
    """The order is part of a checkpoint's meaning: these values must never change."""
    assert permute(np.arange(10), 10, 0, 0).tolist() == [3, 8, 2, 7, 0, 6, 5, 9, 4, 1]
    assert permute(np.arange(10), 10, 1, 3).tolist() == [0, 1, 8, 7, 3, 4, 5, 9, 2, 6]


def test_permute_spreads_neighbours():
    """Mean |image(i + 1) - image(i)| of a random permutation is n / 3, its deviation under 1 %."""
    count = 100_000
    steps = np.abs(np.diff(permute(np.arange(count), count, 7, 0)))
    assert abs(steps.mean() / count - 1 / 3) < 0.01


@given(count=st.integers(1, 3000))
def test_golden_stride_visits_everything(count):
    visited = np.arange(count) * golden_stride(count) % count
    assert np.array_equal(np.sort(visited), np.arange(count))


def test_first_held_out_windows_sample_the_whole_split():
    count = 1000
    first = np.arange(50) * golden_stride(count) % count
    gaps = np.diff(np.sort(np.append(first, [0, count])))
    assert gaps.max() <= 3 * count / 50
