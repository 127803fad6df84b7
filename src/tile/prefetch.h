// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_TILE_PREFETCH_H_
#define ANABRANCH_TILE_PREFETCH_H_

#include <cstdint>

namespace anabranch::tile {

// Asks for one line, into the second cache level. GCC takes a function that does nothing but
// prefetch for one without effects and drops calls of it; the empty statement is an effect.
inline void PrefetchLine(const void* at) {
  __builtin_prefetch(at, 0, 2);
  asm volatile("");
}

// Asks for the lines of bytes [0, bytes) at `at`, to be there when a product has been computed that
// is started now. What an epilogue reads or writes is otherwise fetched line after line, with the
// multipliers idle.
inline void PrefetchLines(const void* at, int64_t bytes) {
  const char* first = static_cast<const char*>(at);
  for (int64_t i = 0; i < bytes; i += 64) PrefetchLine(first + i);
}

// Brings the weights of the next panel into the second-level cache while the current panel is being
// multiplied. A panel's columns are 128 bytes of each of many rows that lie kilobytes apart: no
// hardware prefetcher follows that, and packing them cold runs at 11 GB/s, half of what the memory
// gives. Spread over the tiles of a product it costs a few instructions per tile. A guess of what
// comes next may be wrong: nothing but time depends on it.
class PanelPrefetch {
 public:
  PanelPrefetch() = default;
  // Bytes [0, bytes) of each of num_rows rows; row i starts at first + i * pitch_bytes.
  PanelPrefetch(const void* first, int64_t pitch_bytes, int64_t num_rows, int64_t bytes)
      : first_(static_cast<const char*>(first)),
        pitch_bytes_(pitch_bytes),
        num_rows_(num_rows),
        bytes_(bytes) {}

  // The share that belongs to parts [first, last) of a product in `parts` parts.
  void Step(int64_t first, int64_t last, int64_t parts) const {
    const int64_t begin = num_rows_ * first / parts, end = num_rows_ * last / parts;
    for (int64_t row = begin; row < end; ++row) {
      const char* line = first_ + row * pitch_bytes_;
      for (int64_t at = 0; at < bytes_; at += 64) PrefetchLine(line + at);
    }
  }

 private:
  const char* first_ = nullptr;
  int64_t pitch_bytes_ = 0;
  int64_t num_rows_ = 0;
  int64_t bytes_ = 0;
};

// The same for rows that lie anywhere: bytes [first_byte, first_byte + bytes) of each.
class GatherPrefetch {
 public:
  GatherPrefetch() = default;
  GatherPrefetch(const void* const* rows, int64_t num_rows, int64_t first_byte, int64_t bytes)
      : rows_(rows), num_rows_(num_rows), first_byte_(first_byte), bytes_(bytes) {}

  void Step(int64_t first, int64_t last, int64_t parts) const {
    const int64_t begin = num_rows_ * first / parts, end = num_rows_ * last / parts;
    for (int64_t row = begin; row < end; ++row) {
      const char* line = static_cast<const char*>(rows_[row]) + first_byte_;
      for (int64_t at = 0; at < bytes_; at += 64) PrefetchLine(line + at);
    }
  }

 private:
  const void* const* rows_ = nullptr;
  int64_t num_rows_ = 0;
  int64_t first_byte_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace anabranch::tile

#endif  // ANABRANCH_TILE_PREFETCH_H_
