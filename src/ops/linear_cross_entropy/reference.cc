// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// What linear_cross_entropy computes, one token at a time.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/element.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

namespace anabranch {
namespace {

template <typename Args>
std::vector<double> Logits(const Args& args, int64_t token) {
  const int64_t hidden = args.x.size(1), vocabulary = args.w.size(1);
  std::vector<double> logits(vocabulary, 0.0);
  for (int64_t h = 0; h < hidden; ++h) {
    for (int64_t v = 0; v < vocabulary; ++v) {
      logits[v] += Load(args.x, token * hidden + h) *
                   Round(args.x.dtype(), Load(args.w, h * vocabulary + v));
    }
  }
  return logits;
}

}  // namespace

Status LinearCrossEntropyReference(const LinearCrossEntropyArgs& args) {
  for (int64_t t = 0; t < args.x.size(0); ++t) {
    const int32_t label = args.labels.as<int32_t>()[t];
    Store(args.loss, t, 0);
    Store(args.normaliser, t, 0);
    if (label == args.ignore_index) continue;
    const std::vector<double> logits = Logits(args, t);
    const double top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (double logit : logits) sum += std::exp(logit - top);
    const double normaliser = top + std::log(sum);
    Store(args.normaliser, t, normaliser);
    Store(args.loss, t, normaliser - logits[label] + args.z_loss * normaliser * normaliser);
  }
  return Status::Ok();
}

Status LinearCrossEntropyGradReference(const LinearCrossEntropyGradArgs& args) {
  const DType type = args.x.dtype();
  const int64_t tokens = args.x.size(0), hidden = args.x.size(1), vocabulary = args.w.size(1);
  std::vector<double> w_grad(args.w.num_elements(), 0.0);
  for (int64_t t = 0; t < tokens; ++t) {
    const int32_t label = args.labels.as<int32_t>()[t];
    const bool ignored = label == args.ignore_index;
    std::vector<double> grad(vocabulary, 0.0);
    if (!ignored) grad = Logits(args, t);
    const double normaliser = args.normaliser.as<float>()[t];
    const double cotangent = args.loss_grad.as<float>()[t];
    for (int64_t v = 0; v < vocabulary && !ignored; ++v) {
      const double share = (1 + 2 * args.z_loss * normaliser) * std::exp(grad[v] - normaliser);
      grad[v] = Round(type, cotangent * (share - (v == label ? 1 : 0)));
    }
    for (int64_t h = 0; h < hidden; ++h) {
      double x_grad = 0;
      for (int64_t v = 0; v < vocabulary && !ignored; ++v) {
        const int64_t at = h * vocabulary + v;
        x_grad += grad[v] * Round(type, Load(args.w, at));
        w_grad[at] += grad[v] * Load(args.x, t * hidden + h);
      }
      Store(args.x_grad, t * hidden + h, x_grad);
    }
  }
  for (int64_t i = 0; i < args.w.num_elements(); ++i) Store(args.w_grad, i, w_grad[i]);
  return Status::Ok();
}

}  // namespace anabranch
