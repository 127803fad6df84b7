// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "simgrid/message_transport.h"

#include <mpi.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace anabranch {
namespace {

constexpr int64_t kWord = 4;

}  // namespace

MessageTransport::MessageTransport() {
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  written_.resize(size_);
  received_.resize(size_);
  sent_.resize(size_);
}

MessageTransport::~MessageTransport() { DropCopies(); }

Status MessageTransport::AllGather(const Call& call, const void* mine, int64_t bytes, void* all) {
  static_cast<void>(call);
  const int count = static_cast<int>(bytes);
  const int code = MPI_Allgather(mine, count, MPI_BYTE, all, count, MPI_BYTE, MPI_COMM_WORLD);
  if (code == MPI_SUCCESS) return Status::Ok();
  return MakeStatus(StatusCode::kInternal, "messages: MPI_Allgather failed with code ", code);
}

Status MessageTransport::Share(const Call& call, std::span<const Window> windows, Access access,
                               const Body& body) {
  const std::vector<int64_t> before = window_bytes_;
  ANABRANCH_RETURN_IF_ERROR(MakeCopies(windows));
  std::fill(sent_.begin(), sent_.end(), 0);
  if (access == Access::kPeersRead) {
    if (before != window_bytes_) {
      return MakeStatus(StatusCode::kUnimplemented, "messages: ", call.operation,
                        " reads windows that were not written");
    }
    Exchange(/*back=*/true);
  }
  std::vector<Window> peers;
  for (size_t i = 0; i < views_.size(); ++i) peers.push_back({views_[i], window_bytes_[i]});
  const Status status = body(peers);
  if (access == Access::kPeersWrite) {
    for (int peer = 0; peer < size_; ++peer) written_[peer] = FindWritten(peer);
    ExchangePieces();
    Exchange(/*back=*/false);
  }
  DropCopies();
  return status;
}

// Untouched memory of a fresh mapping is zero and takes no room.
Status MessageTransport::MakeCopies(std::span<const Window> windows) {
  num_windows_ = static_cast<int64_t>(windows.size());
  std::vector<int64_t> mine;
  for (const Window& window : windows) mine.push_back(window.bytes);
  window_bytes_.resize(size_ * num_windows_);
  ANABRANCH_RETURN_IF_ERROR(
      AllGather(Call{}, mine.data(), num_windows_ * sizeof(int64_t), window_bytes_.data()));
  views_.assign(window_bytes_.size(), nullptr);
  for (int64_t i = 0; i < static_cast<int64_t>(views_.size()); ++i) {
    if (i / num_windows_ == rank_) {
      views_[i] = windows[i % num_windows_].data;
    } else if (window_bytes_[i] > 0) {
      views_[i] = mmap(nullptr, window_bytes_[i], PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (views_[i] == MAP_FAILED) {
        views_[i] = nullptr;
        return MakeStatus(StatusCode::kResourceExhausted, "messages: no room for copies");
      }
    }
  }
  return Status::Ok();
}

void MessageTransport::DropCopies() {
  for (int64_t i = 0; i < static_cast<int64_t>(views_.size()); ++i) {
    if (i / num_windows_ != rank_ && views_[i] != nullptr) munmap(views_[i], window_bytes_[i]);
  }
  views_.clear();
}

MessageTransport::Pieces MessageTransport::FindWritten(int peer) const {
  Pieces pieces;
  if (peer == rank_) return pieces;
  for (int64_t window = 0; window < num_windows_; ++window) {
    const int64_t index = peer * num_windows_ + window;
    const auto* words = static_cast<const uint32_t*>(views_[index]);
    const auto* end = words + window_bytes_[index] / kWord;
    const auto is_set = [](uint32_t word) { return word != 0; };
    for (const auto* at = std::find_if(words, end, is_set); at != end;) {
      const auto* last = std::find(at, end, 0u);
      pieces.push_back({window, (at - words) * kWord, (last - at) * kWord});
      at = std::find_if(last, end, is_set);
    }
  }
  return pieces;
}

// Tells every peer which pieces of its windows come.
void MessageTransport::ExchangePieces() {
  std::vector<int64_t> counts(size_);
  for (int peer = 0; peer < size_; ++peer) {
    const int64_t count = static_cast<int64_t>(written_[peer].size());
    MPI_Gather(&count, 1, MPI_INT64_T, counts.data(), 1, MPI_INT64_T, peer, MPI_COMM_WORLD);
  }
  std::vector<MPI_Request> requests;
  for (int peer = 0; peer < size_; ++peer) {
    received_[peer].resize(counts[peer]);
    const auto bytes = [](const Pieces& pieces) {
      return static_cast<int>(pieces.size() * sizeof(Piece));
    };
    sent_[peer] += bytes(written_[peer]);
    if (!received_[peer].empty()) {
      MPI_Irecv(received_[peer].data(), bytes(received_[peer]), MPI_BYTE, peer, 1, MPI_COMM_WORLD,
                &requests.emplace_back());
    }
    if (!written_[peer].empty()) {
      MPI_Isend(written_[peer].data(), bytes(written_[peer]), MPI_BYTE, peer, 1, MPI_COMM_WORLD,
                &requests.emplace_back());
    }
  }
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
}

// Sends what this rank wrote to where it belongs, or back what the peers wrote here, packed into
// one message a peer.
void MessageTransport::Exchange(bool back) {
  const std::vector<Pieces>& out = back ? received_ : written_;
  const std::vector<Pieces>& in = back ? written_ : received_;
  std::vector<std::vector<char>> leaving(size_);
  std::vector<std::vector<char>> coming(size_);
  // A piece of this rank's windows lies in its own memory, one of a peer's in the copy of that.
  const auto at = [&](int peer, bool mine, const Piece& piece) {
    return static_cast<char*>(views_[(mine ? rank_ : peer) * num_windows_ + piece.window]) +
           piece.offset;
  };
  std::vector<MPI_Request> requests;
  for (int peer = 0; peer < size_; ++peer) {
    int64_t bytes = 0;
    for (const Piece& piece : in[peer]) bytes += piece.bytes;
    coming[peer].resize(bytes);
    for (const Piece& piece : out[peer]) {
      const char* from = at(peer, back, piece);
      leaving[peer].insert(leaving[peer].end(), from, from + piece.bytes);
    }
    sent_[peer] += static_cast<int64_t>(leaving[peer].size());
    if (bytes > 0) {
      MPI_Irecv(coming[peer].data(), static_cast<int>(bytes), MPI_BYTE, peer, 2, MPI_COMM_WORLD,
                &requests.emplace_back());
    }
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (leaving[peer].empty()) continue;
    MPI_Isend(leaving[peer].data(), static_cast<int>(leaving[peer].size()), MPI_BYTE, peer, 2,
              MPI_COMM_WORLD, &requests.emplace_back());
  }
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  for (int peer = 0; peer < size_; ++peer) {
    const char* from = coming[peer].data();
    for (const Piece& piece : in[peer]) {
      std::memcpy(at(peer, !back, piece), from, piece.bytes);
      from += piece.bytes;
    }
  }
}

}  // namespace anabranch
