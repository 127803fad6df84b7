// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/ragged_all_to_all/ragged_all_to_all.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/stream_copy.h"

namespace anabranch {
namespace {

constexpr const char* kOp = "ragged_all_to_all";
// About 100 us at 10 GB/s: well above the cost of handing it out, and many to a core.
constexpr int64_t kBytesPerUnit = 1 << 20;

struct Piece {
  int64_t source, target;
  int64_t from_row, to_row, rows;
};

Status CheckShapes(const RaggedAllToAllArgs& args, int64_t rank, int64_t ranks) {
  const struct {
    const char* name;
    const ConstTensorView& view;
  } vectors[] = {{"input_offsets", args.input_offsets},
                 {"send_sizes", args.send_sizes},
                 {"output_offsets", args.output_offsets},
                 {"recv_sizes", args.recv_sizes}};
  for (const auto& vector : vectors) {
    const bool fits = vector.view.rank() == 1 && vector.view.dtype() == DType::kI32 &&
                      vector.view.size(0) % ranks == 0 &&
                      vector.view.size(0) == args.send_sizes.size(0);
    if (fits) continue;
    return InvalidArgument(kOp, ": rank ", rank, ": ", vector.name, " is ", vector.view.ToString(),
                           "; must be i32[N m] for N=", ranks, " ranks, as long as send_sizes ",
                           args.send_sizes.ToString());
  }
  return Status::Ok();
}

// [offset, offset + rows) must lie in an array of `limit` rows.
Status CheckRange(const char* name, const Piece& piece, int64_t index, int64_t offset,
                  int64_t limit) {
  if (piece.rows >= 0 && (piece.rows == 0 || (offset >= 0 && offset + piece.rows <= limit))) {
    return Status::Ok();
  }
  return OutOfRange(kOp, ": rank ", piece.source, ": piece ", index, " to rank ", piece.target,
                    " is rows [", offset, ", ", offset + piece.rows, ") of ", name, ", which has ",
                    limit);
}

// All pieces that carry rows, in the order of (source, piece).
Status Collect(const std::vector<const RaggedAllToAllArgs*>& ranks, std::vector<Piece>* pieces) {
  const int64_t count = static_cast<int64_t>(ranks.size());
  for (int64_t rank = 0; rank < count; ++rank) {
    ANABRANCH_RETURN_IF_ERROR(CheckShapes(*ranks[rank], rank, count));
    if (ranks[rank]->row_bytes != ranks[0]->row_bytes ||
        ranks[rank]->send_sizes.size(0) != ranks[0]->send_sizes.size(0)) {
      return InvalidArgument(kOp, ": rank ", rank, " has rows of ", ranks[rank]->row_bytes,
                             " bytes in ", ranks[rank]->send_sizes.size(0), " pieces, rank 0 of ",
                             ranks[0]->row_bytes, " bytes in ", ranks[0]->send_sizes.size(0));
    }
  }
  const int64_t per_rank = ranks[0]->send_sizes.size(0) / count;
  for (int64_t source = 0; source < count; ++source) {
    const RaggedAllToAllArgs& args = *ranks[source];
    for (int64_t i = 0; i < count * per_rank; ++i) {
      const int64_t target = i / per_rank;
      const RaggedAllToAllArgs& receiver = *ranks[target];
      const Piece piece = {source, target, args.input_offsets.as<int32_t>()[i],
                           args.output_offsets.as<int32_t>()[i], args.send_sizes.as<int32_t>()[i]};
      const int32_t expected = receiver.recv_sizes.as<int32_t>()[source * per_rank + i % per_rank];
      if (expected != piece.rows) {
        return InvalidArgument(kOp, ": rank ", source, " sends ", piece.rows, " rows to rank ",
                               target, ", which expects ", expected);
      }
      ANABRANCH_RETURN_IF_ERROR(CheckRange("operand", piece, i, piece.from_row, args.operand_rows));
      ANABRANCH_RETURN_IF_ERROR(
          CheckRange("the receiver's output", piece, i, piece.to_row, receiver.output_rows));
      if (piece.rows > 0 && args.row_bytes > 0) pieces->push_back(piece);
    }
  }
  return Status::Ok();
}

// Copies of at most kBytesPerUnit bytes.
struct Copy {
  char* to;
  const char* from;
  int64_t bytes;
};

void AddCopies(char* to, const char* from, int64_t bytes, std::vector<Copy>* copies) {
  for (int64_t at = 0; at < bytes; at += kBytesPerUnit) {
    copies->push_back({to + at, from + at, std::min(kBytesPerUnit, bytes - at)});
  }
}

void RunCopies(const std::vector<Copy>& copies, Executor& executor) {
  int64_t payload = 0;
  for (const Copy& copy : copies) payload += copy.bytes;
  const CopyRow run = Copier(payload);
  executor.ParallelFor(static_cast<int64_t>(copies.size()), [&](int64_t index, int) {
    run(copies[index].to, copies[index].from, copies[index].bytes);
    StreamFence();
  });
}

template <typename T>
void Add(char* sum, const char* row, int64_t bytes) {
  T* to = reinterpret_cast<T*>(sum);
  const T* from = reinterpret_cast<const T*>(row);
  for (int64_t h = 0; h < bytes / static_cast<int64_t>(sizeof(T)); ++h) {
    to[h] = FromFloat<T>(ToFloat(to[h]) + ToFloat(from[h]));
  }
}

// One rank's gradients: what it sent comes back, what it received is not its own.
void RankGradient(std::span<const RaggedAllToAllGradArgs* const> ranks,
                  const std::vector<Piece>& pieces, int64_t rank) {
  const RaggedAllToAllGradArgs& mine = *ranks[rank];
  const int64_t bytes = mine.args.row_bytes;
  if (bytes == 0) return;
  char* d_operand = static_cast<char*>(mine.d_operand);
  char* d_output = static_cast<char*>(mine.d_output);
  if (mine.args.operand_rows > 0) std::memset(d_operand, 0, mine.args.operand_rows * bytes);
  if (mine.args.output_rows > 0) {
    std::memcpy(d_output, mine.args.output, mine.args.output_rows * bytes);
  }
  for (const Piece& piece : pieces) {
    if (piece.target == rank) std::memset(d_output + piece.to_row * bytes, 0, piece.rows * bytes);
    if (piece.source != rank) continue;
    const char* from =
        static_cast<const char*>(ranks[piece.target]->args.output) + piece.to_row * bytes;
    char* to = d_operand + piece.from_row * bytes;
    if (mine.dtype == DType::kBF16) {
      Add<BF16>(to, from, piece.rows * bytes);
    } else {
      Add<float>(to, from, piece.rows * bytes);
    }
  }
}

}  // namespace

Status RaggedAllToAllTogether(std::span<const RaggedAllToAllArgs* const> ranks,
                              Executor& executor) {
  const std::vector<const RaggedAllToAllArgs*> all(ranks.begin(), ranks.end());
  std::vector<Piece> pieces;
  ANABRANCH_RETURN_IF_ERROR(Collect(all, &pieces));
  std::vector<Copy> copies;
  for (const Piece& piece : pieces) {
    const int64_t bytes = all[piece.source]->row_bytes;
    AddCopies(static_cast<char*>(all[piece.target]->output) + piece.to_row * bytes,
              static_cast<const char*>(all[piece.source]->operand) + piece.from_row * bytes,
              piece.rows * bytes, &copies);
  }
  RunCopies(copies, executor);
  return Status::Ok();
}

Status RaggedAllToAllGradTogether(std::span<const RaggedAllToAllGradArgs* const> ranks,
                                  Executor& executor) {
  std::vector<const RaggedAllToAllArgs*> all;
  for (const RaggedAllToAllGradArgs* rank : ranks) all.push_back(&rank->args);
  std::vector<Piece> pieces;
  ANABRANCH_RETURN_IF_ERROR(Collect(all, &pieces));
  executor.ParallelFor(static_cast<int64_t>(ranks.size()),
                       [&](int64_t rank, int) { RankGradient(ranks, pieces, rank); });
  return Status::Ok();
}

}  // namespace anabranch
