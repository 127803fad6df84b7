// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// What attention computes, one query of one head at a time.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/element.h"
#include "ops/attention/attention.h"

namespace anabranch {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Index of the first element of row (b, s, head) of a [B,S,heads,size] array.
int64_t Row(ConstTensorView view, int64_t b, int64_t s, int64_t head) {
  return ((b * view.size(1) + s) * view.size(2) + head) * view.size(3);
}
double Dot(ConstTensorView x, int64_t i, ConstTensorView y, int64_t j) {
  double sum = 0;
  for (int64_t d = 0; d < x.size(3); ++d) sum += Load(x, i + d) * Load(y, j + d);
  return sum;
}

template <typename Args>
bool Sees(const Args& args, int64_t b, int64_t s, int64_t t) {
  if (args.causal && t > s) return false;
  if (args.segment_ids.num_elements() == 0) return true;
  const int32_t* ids = args.segment_ids.template as<int32_t>() + b * args.query.size(1);
  return ids[s] == ids[t] && ids[s] != 0;
}

// The softmax of one query over all keys, 0 where it sees nothing. Returns the log-sum-exp.
template <typename Args>
double Softmax(const Args& args, int64_t b, int64_t s, int64_t n, std::vector<double>* shares) {
  const int64_t m = n / (args.query.size(2) / args.key.size(2));
  double top = -kInfinity, sum = 0;
  for (int64_t t = 0; t < args.query.size(1); ++t) {
    (*shares)[t] = -kInfinity;
    if (!Sees(args, b, s, t)) continue;
    (*shares)[t] =
        args.scale * Dot(args.query, Row(args.query, b, s, n), args.key, Row(args.key, b, t, m));
    top = std::max(top, (*shares)[t]);
  }
  for (double& share : *shares) {
    share = top == -kInfinity ? 0 : std::exp(share - top);
    sum += share;
  }
  if (sum == 0) return -kInfinity;
  for (double& share : *shares) share /= sum;
  return top + std::log(sum);
}

// Calls visit(b, s, n, m) for every query of every head.
template <typename Args, typename Visit>
void ForEachQuery(const Args& args, const Visit& visit) {
  const int64_t heads = args.query.size(2), members = heads / args.key.size(2);
  for (int64_t b = 0; b < args.query.size(0); ++b) {
    for (int64_t n = 0; n < heads; ++n) {
      for (int64_t s = 0; s < args.query.size(1); ++s) visit(b, s, n, n / members);
    }
  }
}

}  // namespace

Status AttentionReference(const AttentionArgs& args) {
  const int64_t length = args.query.size(1), heads = args.query.size(2);
  std::vector<double> shares(length);
  ForEachQuery(args, [&](int64_t b, int64_t s, int64_t n, int64_t m) {
    Store(args.log_sum_exp, (b * heads + n) * length + s, Softmax(args, b, s, n, &shares));
    for (int64_t d = 0; d < args.value.size(3); ++d) {
      double sum = 0;
      for (int64_t t = 0; t < length; ++t) {
        if (shares[t] != 0) sum += shares[t] * Load(args.value, Row(args.value, b, t, m) + d);
      }
      Store(args.output, Row(args.output, b, s, n) + d, sum);
    }
  });
  return Status::Ok();
}

Status AttentionGradReference(const AttentionGradArgs& args) {
  const int64_t length = args.query.size(1);
  std::vector<double> shares(length), share_grads(length);
  std::vector<double> query_grad(args.query.num_elements()), key_grad(args.key.num_elements());
  std::vector<double> value_grad(args.value.num_elements());
  ForEachQuery(args, [&](int64_t b, int64_t s, int64_t n, int64_t m) {
    Softmax(args, b, s, n, &shares);
    const int64_t out = Row(args.output_grad, b, s, n), query = Row(args.query, b, s, n);
    double mean = 0;
    for (int64_t t = 0; t < length; ++t) {
      share_grads[t] = Dot(args.output_grad, out, args.value, Row(args.value, b, t, m));
      mean += shares[t] * share_grads[t];
    }
    for (int64_t t = 0; t < length; ++t) {
      const double grad = args.scale * shares[t] * (share_grads[t] - mean);
      const int64_t key = Row(args.key, b, t, m), value = Row(args.value, b, t, m);
      for (int64_t d = 0; d < args.query.size(3); ++d) {
        query_grad[query + d] += grad * Load(args.key, key + d);
        key_grad[key + d] += grad * Load(args.query, query + d);
      }
      for (int64_t d = 0; d < args.value.size(3); ++d) {
        value_grad[value + d] += shares[t] * Load(args.output_grad, out + d);
      }
    }
  });
  for (size_t i = 0; i < query_grad.size(); ++i) Store(args.query_grad, i, query_grad[i]);
  for (size_t i = 0; i < key_grad.size(); ++i) Store(args.key_grad, i, key_grad[i]);
  for (size_t i = 0; i < value_grad.size(); ++i) Store(args.value_grad, i, value_grad[i]);
  return Status::Ok();
}

}  // namespace anabranch
