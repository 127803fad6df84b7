// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// A user's own header of the same name as one of the engine's.
#ifndef CONSUMER_BASE_STATUS_H_
#define CONSUMER_BASE_STATUS_H_

inline constexpr int kConsumerStatus = 3;

#endif  // CONSUMER_BASE_STATUS_H_
