// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/ragged_all_to_all/ragged_all_to_all.h"

#include <algorithm>
#include <cstring>
#include <utility>
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

// What a rank can see by itself: its vectors, and that it sends rows that it has.
Status CheckMine(const RaggedAllToAllArgs& args, int64_t rank, int64_t ranks) {
  ANABRANCH_RETURN_IF_ERROR(CheckShapes(args, rank, ranks));
  const int64_t count = args.send_sizes.size(0);
  for (int64_t i = 0; i < count; ++i) {
    const Piece piece = {rank, i * ranks / count, args.input_offsets.as<int32_t>()[i], 0,
                         args.send_sizes.as<int32_t>()[i]};
    ANABRANCH_RETURN_IF_ERROR(CheckRange("operand", piece, i, piece.from_row, args.operand_rows));
  }
  return Status::Ok();
}

// What a rank shows: sizes, the four vectors, and its operand or the gradient of its output.
struct Sizes {
  int64_t operand_rows, output_rows, row_bytes;
};
constexpr size_t kVectors = 4;
constexpr size_t kWindows = kVectors + 2;

// The rows of the operand that no other rank receives, as bytes; of checked arguments.
std::vector<ByteRange> RowsForNobodyElse(const RaggedAllToAllArgs& args, int64_t rank,
                                         int64_t ranks) {
  const int64_t count = args.send_sizes.size(0);
  std::vector<std::pair<int64_t, int64_t>> sent;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = args.input_offsets.as<int32_t>()[i];
    const int64_t rows = args.send_sizes.as<int32_t>()[i];
    if (rows > 0 && i * ranks / count != rank) sent.emplace_back(first, first + rows);
  }
  std::sort(sent.begin(), sent.end());
  sent.emplace_back(args.operand_rows, args.operand_rows);
  std::vector<ByteRange> kept;
  int64_t reached = 0;
  for (const auto& [first, end] : sent) {
    if (first > reached) kept.push_back({reached * args.row_bytes, first * args.row_bytes});
    reached = std::max(reached, end);
  }
  return kept;
}

// Shows this rank's arguments and `data`, its operand or its output, and calls body(all) with those
// of all ranks: of the others that array alone can be read, nothing can be written.
template <typename Body>
Status ShareArgs(const RaggedAllToAllArgs& args, bool is_operand, const Call& call,
                 Transport& transport, const Body& body) {
  const int64_t rank = transport.rank(), ranks = transport.size();
  const Status fault = CheckMine(args, rank, ranks);
  // A rank whose arguments are wrong must still come, or the others would wait for it.
  const Window nothing[kWindows] = {};
  if (!fault.ok()) {
    return transport.Share(call, nothing, Access::kPeersRead,
                           [&](std::span<const Window>) { return fault; });
  }
  Sizes sizes = {args.operand_rows, args.output_rows, args.row_bytes};
  std::vector<Window> windows = {{&sizes, sizeof(sizes)}};
  for (const ConstTensorView* vector :
       {&args.input_offsets, &args.send_sizes, &args.output_offsets, &args.recv_sizes}) {
    windows.push_back({const_cast<void*>(vector->data()), vector->size(0) * 4});
  }
  std::vector<ByteRange> kept;
  if (is_operand) {
    kept = RowsForNobodyElse(args, rank, ranks);
    windows.push_back({const_cast<void*>(args.operand), args.operand_rows * args.row_bytes, kept});
  } else {
    windows.push_back({args.output, args.output_rows * args.row_bytes});
  }
  return transport.Share(call, windows, Access::kPeersRead, [&](std::span<const Window> peers) {
    std::vector<RaggedAllToAllArgs> all(ranks);
    for (int64_t other = 0; other < ranks; ++other) {
      const Window* shown = &peers[other * kWindows];
      if (shown[0].bytes == 0) return Status::Ok();  // that rank says what is wrong
      Sizes theirs;
      std::memcpy(&theirs, shown[0].data, sizeof(theirs));
      const auto vector = [&](size_t which) {
        const Window& window = shown[1 + which];
        return ConstTensorView(static_cast<const int32_t*>(window.data), {window.bytes / 4});
      };
      void* const data = shown[1 + kVectors].data;
      all[other] = {is_operand ? data : nullptr,
                    theirs.operand_rows,
                    is_operand ? nullptr : data,
                    theirs.output_rows,
                    theirs.row_bytes,
                    vector(0),
                    vector(1),
                    vector(2),
                    vector(3)};
    }
    all[rank] = args;
    return body(all);
  });
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
void RankGradient(const RaggedAllToAllGradArgs& mine, const std::vector<RaggedAllToAllArgs>& all,
                  const std::vector<Piece>& pieces, int64_t rank) {
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
    const char* from = static_cast<const char*>(all[piece.target].output) + piece.to_row * bytes;
    char* to = d_operand + piece.from_row * bytes;
    if (mine.dtype == DType::kBF16) {
      Add<BF16>(to, from, piece.rows * bytes);
    } else {
      Add<float>(to, from, piece.rows * bytes);
    }
  }
}

std::vector<const RaggedAllToAllArgs*> Pointers(const std::vector<RaggedAllToAllArgs>& all) {
  std::vector<const RaggedAllToAllArgs*> pointers;
  pointers.reserve(all.size());
  for (const RaggedAllToAllArgs& one : all) pointers.push_back(&one);
  return pointers;
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

Status RaggedAllToAll(const RaggedAllToAllArgs& args, const Call& call, Transport& transport,
                      Executor& executor) {
  return ShareArgs(
      args, /*is_operand=*/true, call, transport, [&](const std::vector<RaggedAllToAllArgs>& all) {
        std::vector<Piece> pieces;
        ANABRANCH_RETURN_IF_ERROR(Collect(Pointers(all), &pieces));
        std::vector<Copy> copies;
        for (const Piece& piece : pieces) {
          if (piece.target != transport.rank()) continue;
          const int64_t bytes = args.row_bytes;
          AddCopies(static_cast<char*>(args.output) + piece.to_row * bytes,
                    static_cast<const char*>(all[piece.source].operand) + piece.from_row * bytes,
                    piece.rows * bytes, &copies);
        }
        RunCopies(copies, executor);
        return Status::Ok();
      });
}

Status RaggedAllToAllGrad(const RaggedAllToAllGradArgs& args, const Call& call,
                          Transport& transport) {
  return ShareArgs(args.args, /*is_operand=*/false, call, transport,
                   [&](const std::vector<RaggedAllToAllArgs>& all) {
                     std::vector<Piece> pieces;
                     ANABRANCH_RETURN_IF_ERROR(Collect(Pointers(all), &pieces));
                     RankGradient(args, all, pieces, transport.rank());
                     return Status::Ok();
                   });
}

Status RaggedAllToAllGradTogether(std::span<const RaggedAllToAllGradArgs* const> ranks,
                                  Executor& executor) {
  std::vector<RaggedAllToAllArgs> all;
  all.reserve(ranks.size());
  for (const RaggedAllToAllGradArgs* rank : ranks) all.push_back(rank->args);
  std::vector<Piece> pieces;
  ANABRANCH_RETURN_IF_ERROR(Collect(Pointers(all), &pieces));
  executor.ParallelFor(static_cast<int64_t>(ranks.size()),
                       [&](int64_t rank, int) { RankGradient(*ranks[rank], all, pieces, rank); });
  return Status::Ok();
}

}  // namespace anabranch
