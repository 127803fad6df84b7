// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/planner/imbalance.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/philox.h"

namespace anabranch::sim {
namespace {

// Uniform in (0, 1).
double Uniform(int64_t seed, int64_t stream, int64_t index) {
  const auto words = Philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                             static_cast<uint32_t>(stream), 0x53494du},
                            {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (static_cast<uint64_t>(words[0]) << 20) ^ (words[1] >> 12);
  return (static_cast<double>(bits) + 0.5) / 4503599627370496.0;  // 2^52
}

// Inverse of the normal distribution, by bisection of erfc: exact to the last bits, and rarely
// called.
double NormalQuantile(double share) {
  double low = -40;
  double high = 40;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    if (0.5 * std::erfc(-middle / std::sqrt(2.0)) < share) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return (low + high) / 2;
}

// Fisher-Yates over `values`.
void Shuffle(std::vector<double>* values, int64_t seed, int64_t stream) {
  for (size_t i = values->size(); i > 1; --i) {
    const double draw = Uniform(seed, stream, static_cast<int64_t>(i));
    const auto other = std::min(static_cast<size_t>(draw * static_cast<double>(i)), i - 1);
    std::swap((*values)[i - 1], (*values)[other]);
  }
}

double LargestPart(const std::vector<double>& values, size_t parts, std::vector<double>* sums) {
  sums->assign(parts, 0);
  for (size_t i = 0; i < values.size(); ++i) (*sums)[i * parts / values.size()] += values[i];
  const double total = std::accumulate(values.begin(), values.end(), 0.0);
  if (total <= 0) {
    sums->assign(parts, 1);
    return 1;
  }
  for (double& sum : *sums) sum *= static_cast<double>(parts) / total;
  return *std::max_element(sums->begin(), sums->end());
}

}  // namespace

std::vector<double> InclusionShares(int64_t experts, int64_t topk, double zipf) {
  std::vector<double> weights(experts);
  for (int64_t e = 0; e < experts; ++e) {
    weights[e] = std::pow(static_cast<double>(e + 1), -zipf);
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= total;
  double low = 0;
  double high = 1;
  const auto chosen = [&](double x) {
    double sum = 0;
    for (const double weight : weights) sum += 1 - std::exp(-x * weight);
    return sum;
  };
  const double wanted = std::min(static_cast<double>(topk), static_cast<double>(experts) * 0.999);
  while (chosen(high) < wanted && high < 1e12) high *= 2;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (chosen(middle) < wanted ? low : high) = middle;
  }
  for (double& weight : weights) weight = 1 - std::exp(-high * weight);
  return weights;
}

std::vector<LayerLoad> MakeLoads(const Request& request, int64_t layers) {
  const Model& model = request.model;
  const Layout& layout = request.layout;
  const Imbalance& imbalance = request.imbalance;
  std::vector<LayerLoad> loads(static_cast<size_t>(std::max<int64_t>(layers, 0)));
  if (model.experts <= 0) return loads;
  const Group group = MakeGroup(MakePorts(request.hardware, layout.ranks), layout.ep, 1);
  const auto experts = static_cast<size_t>(model.experts);
  const size_t measured = imbalance.load.size() / experts;
  const bool skewed = measured > 0 || imbalance.zipf > 0;
  const std::vector<double> shares =
      skewed ? InclusionShares(model.experts, model.topk, imbalance.zipf) : std::vector<double>();
  const double ranks = static_cast<double>(layout.ep);
  const double tokens = static_cast<double>(layout.microbatch * layout.sequence * model.topk) /
                        static_cast<double>(layout.cp * layout.tp);  // rows a rank gets on average
  const double noise = imbalance.random > 0 && layout.ep > 1
                           ? MedianMaximum(ranks) * std::sqrt((1 - 1 / ranks) / tokens)
                           : 0;
  std::vector<double> sums;
  for (size_t layer = 0; layer < loads.size(); ++layer) {
    LayerLoad& load = loads[layer];
    load.ranks.assign(static_cast<size_t>(layout.ep), 1);
    if (skewed) {
      std::vector<double> values = shares;
      if (measured > 0) {
        const auto from =
            imbalance.load.begin() + static_cast<std::ptrdiff_t>((layer % measured) * experts);
        values.assign(from, from + static_cast<std::ptrdiff_t>(experts));
      } else {
        Shuffle(&values, imbalance.seed, static_cast<int64_t>(layer));
      }
      load.domain = LargestPart(values, static_cast<size_t>(group.ranks / group.local), &sums);
      load.rank = LargestPart(values, static_cast<size_t>(layout.ep), &load.ranks);
    }
    load.rank += noise;
  }
  return loads;
}

double Normal(int64_t seed, int64_t stream, int64_t index) {
  return NormalQuantile(Uniform(seed, stream, index));
}

double NormalMaximum(int64_t seed, int64_t stream, double count) {
  return NormalQuantile(std::pow(Uniform(seed, stream, 0), 1 / std::max(count, 1.0)));
}

double MedianMaximum(double count) {
  return NormalQuantile(std::pow(0.5, 1 / std::max(count, 1.0)));
}

}  // namespace anabranch::sim
