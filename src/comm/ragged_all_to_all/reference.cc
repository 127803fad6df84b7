// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "comm/ragged_all_to_all/ragged_all_to_all.h"

namespace anabranch {
namespace {

// Calls row(source, operand row, target, output row) for every row that is sent, in the order of
// (source, piece, row).
template <typename Row>
void ForEachRow(std::span<const RaggedAllToAllArgs* const> ranks, const Row& row) {
  for (size_t source = 0; source < ranks.size(); ++source) {
    const RaggedAllToAllArgs& args = *ranks[source];
    const int64_t pieces = args.send_sizes.num_elements();
    const int64_t pieces_a_rank = pieces / static_cast<int64_t>(ranks.size());
    for (int64_t i = 0; i < pieces; ++i) {
      for (int64_t j = 0; j < args.send_sizes.as<int32_t>()[i]; ++j) {
        row(source, args.input_offsets.as<int32_t>()[i] + j, i / pieces_a_rank,
            args.output_offsets.as<int32_t>()[i] + j);
      }
    }
  }
}

template <typename T>
void AddRow(void* sum, const void* row, int64_t bytes) {
  T* to = static_cast<T*>(sum);
  const T* from = static_cast<const T*>(row);
  for (int64_t h = 0; h < bytes / static_cast<int64_t>(sizeof(T)); ++h) {
    to[h] = FromFloat<T>(ToFloat(to[h]) + ToFloat(from[h]));
  }
}

}  // namespace

void RaggedAllToAllReference(std::span<const RaggedAllToAllArgs* const> ranks) {
  ForEachRow(ranks, [&](size_t source, int64_t from, int64_t target, int64_t to) {
    const int64_t bytes = ranks[source]->row_bytes;
    if (bytes == 0) return;
    std::memcpy(static_cast<char*>(ranks[target]->output) + to * bytes,
                static_cast<const char*>(ranks[source]->operand) + from * bytes, bytes);
  });
}

void RaggedAllToAllGradReference(std::span<const RaggedAllToAllGradArgs* const> ranks) {
  std::vector<const RaggedAllToAllArgs*> args;
  for (const RaggedAllToAllGradArgs* rank : ranks) {
    args.push_back(&rank->args);
    const int64_t bytes = rank->args.row_bytes;
    if (rank->args.operand_rows * bytes > 0) {
      std::memset(rank->d_operand, 0, rank->args.operand_rows * bytes);
    }
    if (rank->args.output_rows * bytes > 0) {
      std::memcpy(rank->d_output, rank->args.output, rank->args.output_rows * bytes);
    }
  }
  ForEachRow(args, [&](size_t source, int64_t from, int64_t target, int64_t to) {
    const int64_t bytes = args[source]->row_bytes;
    char* sum = static_cast<char*>(ranks[source]->d_operand) + from * bytes;
    const char* gradient = static_cast<const char*>(args[target]->output) + to * bytes;
    if (ranks[source]->dtype == DType::kBF16) {
      AddRow<BF16>(sum, gradient, bytes);
    } else {
      AddRow<float>(sum, gradient, bytes);
    }
    if (bytes > 0) std::memset(static_cast<char*>(ranks[target]->d_output) + to * bytes, 0, bytes);
  });
}

}  // namespace anabranch
