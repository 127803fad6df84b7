// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/planner/request.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace anabranch::sim {
namespace {

// One line of the text form: a name and where its value goes.
struct Field {
  const char* name;
  double* real = nullptr;
  int64_t* integer = nullptr;
  Field(const char* field, double* value) : name(field), real(value) {}
  Field(const char* field, int64_t* value) : name(field), integer(value) {}
};

#define ANABRANCH_FIELD(section, member) \
  { #section "." #member, &request->section.member }

std::vector<Field> HardwareFields(Request* request) {
  return {
      ANABRANCH_FIELD(hardware, bf16_flops),
      ANABRANCH_FIELD(hardware, fp8_flops),
      ANABRANCH_FIELD(hardware, fp4_flops),
      ANABRANCH_FIELD(hardware, hbm_capacity),
      ANABRANCH_FIELD(hardware, hbm_bandwidth),
      ANABRANCH_FIELD(hardware, scale_up_bandwidth),
      ANABRANCH_FIELD(hardware, scale_up_latency),
      ANABRANCH_FIELD(hardware, scale_up_domain),
      ANABRANCH_FIELD(hardware, torus_axes),
      ANABRANCH_FIELD(hardware, scale_out_bandwidth),
      ANABRANCH_FIELD(hardware, scale_out_latency),
      ANABRANCH_FIELD(hardware, scale_up_hop),
      ANABRANCH_FIELD(hardware, scale_out_hop),
      ANABRANCH_FIELD(hardware, host_bandwidth),
      ANABRANCH_FIELD(hardware, host_memory_bandwidth),
      ANABRANCH_FIELD(hardware, sms),
      ANABRANCH_FIELD(hardware, collective_sms),
      ANABRANCH_FIELD(hardware, gemm_efficiency),
      ANABRANCH_FIELD(hardware, gemm_low_efficiency),
      ANABRANCH_FIELD(hardware, grouped_efficiency),
      ANABRANCH_FIELD(hardware, wgrad_efficiency),
      ANABRANCH_FIELD(hardware, gemm_half_rows),
      ANABRANCH_FIELD(hardware, gemm_half_depth),
      ANABRANCH_FIELD(hardware, attention_efficiency),
      ANABRANCH_FIELD(hardware, attention_grad_efficiency),
      ANABRANCH_FIELD(hardware, hbm_efficiency),
      ANABRANCH_FIELD(hardware, scale_up_efficiency),
      ANABRANCH_FIELD(hardware, scale_out_efficiency),
      ANABRANCH_FIELD(hardware, host_efficiency),
      ANABRANCH_FIELD(hardware, elementwise_passes),
      ANABRANCH_FIELD(hardware, launch_seconds),
      ANABRANCH_FIELD(hardware, graph_launch_seconds),
      ANABRANCH_FIELD(hardware, layer_host_seconds),
      ANABRANCH_FIELD(hardware, reserved_bytes),
      ANABRANCH_FIELD(hardware, allocator_slack),
  };
}

std::vector<Field> ModelFields(Request* request) {
  return {
      ANABRANCH_FIELD(model, vocabulary),     ANABRANCH_FIELD(model, hidden),
      ANABRANCH_FIELD(model, layers),         ANABRANCH_FIELD(model, dense_layers),
      ANABRANCH_FIELD(model, dense_width),    ANABRANCH_FIELD(model, experts),
      ANABRANCH_FIELD(model, topk),           ANABRANCH_FIELD(model, expert_width),
      ANABRANCH_FIELD(model, shared_experts), ANABRANCH_FIELD(model, groups),
      ANABRANCH_FIELD(model, group_topk),     ANABRANCH_FIELD(model, mla),
      ANABRANCH_FIELD(model, heads),          ANABRANCH_FIELD(model, kv_heads),
      ANABRANCH_FIELD(model, head_size),      ANABRANCH_FIELD(model, q_rank),
      ANABRANCH_FIELD(model, kv_rank),        ANABRANCH_FIELD(model, nope_size),
      ANABRANCH_FIELD(model, rope_size),      ANABRANCH_FIELD(model, value_size),
      ANABRANCH_FIELD(model, qk_norm),        ANABRANCH_FIELD(model, tied),
      ANABRANCH_FIELD(model, mtp_layers),
  };
}

std::vector<Field> LayoutFields(Request* request) {
  return {
      ANABRANCH_FIELD(layout, ranks),
      ANABRANCH_FIELD(layout, tp),
      ANABRANCH_FIELD(layout, cp),
      ANABRANCH_FIELD(layout, pp),
      ANABRANCH_FIELD(layout, vp),
      ANABRANCH_FIELD(layout, ep),
      ANABRANCH_FIELD(layout, sharding),
      ANABRANCH_FIELD(layout, batch),
      ANABRANCH_FIELD(layout, microbatch),
      ANABRANCH_FIELD(layout, sequence),
      ANABRANCH_FIELD(layout, pipeline),
      ANABRANCH_FIELD(layout, format),
      ANABRANCH_FIELD(layout, fp8_attention),
      ANABRANCH_FIELD(layout, overlap),
      ANABRANCH_FIELD(layout, shared_overlap),
      ANABRANCH_FIELD(layout, split_wgrad),
      ANABRANCH_FIELD(layout, fused_dispatch),
      ANABRANCH_FIELD(layout, dedup),
      ANABRANCH_FIELD(layout, node_limit),
      ANABRANCH_FIELD(layout, low_wire),
      ANABRANCH_FIELD(layout, single_stream),
      ANABRANCH_FIELD(layout, graph),
      ANABRANCH_FIELD(layout, recompute),
      ANABRANCH_FIELD(layout, offload),
      ANABRANCH_FIELD(layout, gradient_bytes),
      ANABRANCH_FIELD(layout, optimizer_bytes),
      ANABRANCH_FIELD(layout, optimizer),
      ANABRANCH_FIELD(layout, dispatch_factor),
      ANABRANCH_FIELD(imbalance, zipf),
      ANABRANCH_FIELD(imbalance, jitter),
      ANABRANCH_FIELD(imbalance, random),
      ANABRANCH_FIELD(imbalance, jitter_reference),
      ANABRANCH_FIELD(imbalance, seed),
      {"run.microbatch_limit", &request->microbatch_limit},
      {"run.trace", &request->trace},
  };
}

#undef ANABRANCH_FIELD

Status SetField(const std::vector<Field>& fields, const std::string& name, double value) {
  for (const Field& field : fields) {
    if (name != field.name) continue;
    if (field.real != nullptr) {
      *field.real = value;
      return Status::Ok();
    }
    if (value != std::floor(value) || std::abs(value) > 9e15) {
      return InvalidArgument("plan: ", name, "=", value, " must be an integer");
    }
    *field.integer = static_cast<int64_t>(value);
    return Status::Ok();
  }
  return InvalidArgument("plan: ", name, " is no known name");
}

Status Require(bool holds, const char* name, int64_t value, const std::string& rule) {
  if (holds) return Status::Ok();
  return InvalidArgument(name, "=", value, ": ", rule);
}

Status ValidateSizes(const Request& request) {
  const Model& model = request.model;
  const Layout& layout = request.layout;
  const std::pair<const char*, int64_t> positive[] = {
      {"hidden", model.hidden},
      {"vocabulary", model.vocabulary},
      {"ranks", layout.ranks},
      {"tp", layout.tp},
      {"cp", layout.cp},
      {"pp", layout.pp},
      {"vp", layout.vp},
      {"ep", layout.ep},
      {"batch", layout.batch},
      {"microbatch", layout.microbatch},
      {"sequence", layout.sequence},
      {"sms", request.hardware.sms},
      {"scale_up_domain", request.hardware.scale_up_domain},
  };
  for (const auto& [name, value] : positive) {
    ANABRANCH_RETURN_IF_ERROR(Require(value >= 1, name, value, "must be at least 1"));
  }
  ANABRANCH_RETURN_IF_ERROR(Require(model.layers >= 0, "layers", model.layers, "is negative"));
  const Hardware& hardware = request.hardware;
  ANABRANCH_RETURN_IF_ERROR(Require(hardware.torus_axes >= 0 && hardware.torus_axes <= 3,
                                    "torus_axes", hardware.torus_axes, "must be 0 to 3"));
  for (const double rate : {hardware.bf16_flops, hardware.hbm_bandwidth}) {
    if (!(rate > 0)) return InvalidArgument("hardware: peaks and bandwidths must be positive");
  }
  return Status::Ok();
}

}  // namespace

Status ParseRequest(std::string_view text, Request* request) {
  std::vector<Field> fields = HardwareFields(request);
  for (const Field& field : ModelFields(request)) fields.push_back(field);
  for (const Field& field : LayoutFields(request)) fields.push_back(field);
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string line(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    if (space == std::string::npos) {
      return InvalidArgument("plan: line \"", line, "\" must be: name value");
    }
    const std::string name = line.substr(0, space);
    char* rest = nullptr;
    const double value = std::strtod(line.c_str() + space, &rest);
    if (*rest != '\0' || std::isnan(value)) {
      return InvalidArgument("plan: ", name, "=", line.substr(space + 1), " is no number");
    }
    if (name == "imbalance.load") {
      request->imbalance.load.push_back(value);
      continue;
    }
    ANABRANCH_RETURN_IF_ERROR(SetField(fields, name, value));
  }
  return Status::Ok();
}

Status Validate(const Request& request) {
  ANABRANCH_RETURN_IF_ERROR(ValidateSizes(request));
  const Layout& layout = request.layout;
  const Model& model = request.model;
  const int64_t block = layout.tp * layout.cp * layout.pp;
  ANABRANCH_RETURN_IF_ERROR(Require(layout.ranks % block == 0, "tp * cp * pp", block,
                                    "must divide the " + std::to_string(layout.ranks) + " ranks"));
  const int64_t stage = layout.ranks / layout.pp;
  ANABRANCH_RETURN_IF_ERROR(
      Require(stage % layout.ep == 0, "ep", layout.ep,
              "must divide the " + std::to_string(stage) + " ranks of a pipeline stage"));
  const bool has_moe = model.layers > model.dense_layers || model.mtp_layers > 0;
  ANABRANCH_RETURN_IF_ERROR(
      Require(layout.ep == 1 || has_moe, "ep", layout.ep, "the model has no expert layers"));
  ANABRANCH_RETURN_IF_ERROR(
      Require(!has_moe || (model.experts > 0 && model.experts % layout.ep == 0), "ep", layout.ep,
              "must divide the " + std::to_string(model.experts) + " experts"));
  ANABRANCH_RETURN_IF_ERROR(
      Require(model.heads % layout.tp == 0, "tp", layout.tp,
              "must divide the " + std::to_string(model.heads) + " attention heads"));
  const int64_t share = layout.dp() * layout.microbatch;
  ANABRANCH_RETURN_IF_ERROR(Require(layout.batch % share == 0, "batch", layout.batch,
                                    "must be a multiple of dp * mbs = " + std::to_string(share)));
  ANABRANCH_RETURN_IF_ERROR(Require(layout.sequence % (layout.tp * layout.cp) == 0, "sequence",
                                    layout.sequence, "must be a multiple of tp * cp"));
  const int64_t items = model.layers + model.mtp_layers;
  ANABRANCH_RETURN_IF_ERROR(Require(layout.pp * layout.vp <= std::max<int64_t>(items, 1), "pp * vp",
                                    layout.pp * layout.vp,
                                    "exceeds the " + std::to_string(items) + " layers"));
  const bool dual = layout.pipeline == static_cast<int64_t>(Pipeline::kDualPipe);
  ANABRANCH_RETURN_IF_ERROR(
      Require(!dual || layout.vp == 1, "vp", layout.vp, "DualPipe has no virtual stages"));
  ANABRANCH_RETURN_IF_ERROR(Require(!dual || layout.pp % 2 == 0, "pp", layout.pp,
                                    "DualPipe needs an even number of stages"));
  ANABRANCH_RETURN_IF_ERROR(Require(!dual || layout.microbatches() % 2 == 0, "microbatches",
                                    layout.microbatches(), "DualPipe needs an even number"));
  const bool interleaved = layout.vp > 1;
  ANABRANCH_RETURN_IF_ERROR(
      Require(!interleaved || layout.pp > 1, "vp", layout.vp, "virtual stages need pp > 1"));
  return Require(!interleaved || layout.microbatches() % layout.pp == 0, "microbatches",
                 layout.microbatches(),
                 "interleaving needs a multiple of pp = " + std::to_string(layout.pp));
}

Ports MakePorts(const Hardware& hardware, int64_t ranks) {
  Ports ports;
  ports.scale_up = hardware.scale_up_bandwidth * hardware.scale_up_efficiency;
  ports.scale_out = hardware.scale_out_bandwidth * hardware.scale_out_efficiency;
  ports.scale_up_latency = hardware.scale_up_latency;
  ports.scale_out_latency = hardware.scale_out_latency;
  ports.domain = hardware.scale_up_domain;
  ports.scale_up_hop = hardware.scale_up_hop;
  ports.scale_out_hop = hardware.scale_out_hop;
  ports.torus = TorusShape(std::min(ranks, ports.domain), hardware.torus_axes);
  return ports;
}

}  // namespace anabranch::sim
