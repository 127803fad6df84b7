// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_BASE_STREAM_COPY_H_
#define ANABRANCH_BASE_STREAM_COPY_H_

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace anabranch {

// Copies `bytes` bytes from `from` to `to`, which do not overlap.
using CopyRow = void (*)(char* to, const char* from, int64_t bytes);

inline void CopyCached(char* to, const char* from, int64_t bytes) { std::memcpy(to, from, bytes); }

// Past the caches: a line that is written whole is not read first, and evicts nothing. The stores
// are ordered by StreamFence.
inline void CopyStreaming(char* to, const char* from, int64_t bytes) {
#if defined(__x86_64__)
  constexpr int64_t kLine = 64;
  // Whole lines alone are streamed: a part of one would be written twice.
  const int64_t head = -static_cast<int64_t>(reinterpret_cast<uintptr_t>(to)) & (kLine - 1);
  if (bytes >= head + kLine) {
    std::memcpy(to, from, head);
    const int64_t end = head + ((bytes - head) & ~(kLine - 1));
    for (int64_t at = head; at < end; at += kLine) {
      const auto* source = reinterpret_cast<const __m128i*>(from + at);
      auto* target = reinterpret_cast<__m128i*>(to + at);
      const __m128i a = _mm_loadu_si128(source);
      const __m128i b = _mm_loadu_si128(source + 1);
      const __m128i c = _mm_loadu_si128(source + 2);
      const __m128i d = _mm_loadu_si128(source + 3);
      _mm_stream_si128(target, a);
      _mm_stream_si128(target + 1, b);
      _mm_stream_si128(target + 2, c);
      _mm_stream_si128(target + 3, d);
    }
    std::memcpy(to + end, from + end, bytes - end);
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

// Makes streamed bytes visible to whoever synchronises with this thread afterwards.
inline void StreamFence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// The better of the two for a payload: below this the reader still finds the rows in a cache (a
// share of a server's last level), above it they would only evict each other.
inline constexpr int64_t kStreamedPayloadBytes = 4 << 20;
inline CopyRow Copier(int64_t payload_bytes) {
  return payload_bytes >= kStreamedPayloadBytes ? CopyStreaming : CopyCached;
}

}  // namespace anabranch

#endif  // ANABRANCH_BASE_STREAM_COPY_H_
