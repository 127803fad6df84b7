// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// The planner's answer as JSON. Numbers are printed with 17 digits: they read back to the same
// bits.
#include <cstdio>

#include "sim/planner/planner.h"

namespace anabranch::sim {
namespace {

class Json {
 public:
  void Open(const char* name, char bracket) {
    Name(name);
    text_ += bracket;
    first_ = true;
  }
  void Close(char bracket) {
    text_ += bracket;
    first_ = false;
  }
  void Number(const char* name, double value) {
    Name(name);
    char digits[40];
    std::snprintf(digits, sizeof(digits), "%.17g", value);
    text_ += digits;
  }
  std::string Take() { return std::move(text_); }

 private:
  void Name(const char* name) {
    if (!first_) text_ += ',';
    first_ = false;
    if (name == nullptr) return;
    text_ += '"';
    text_ += name;
    text_ += "\":";
  }
  std::string text_;
  bool first_ = true;
};

void Write(const StageTime& time, Json* json) {
  json->Open(nullptr, '{');
  json->Number("compute", time.compute);
  json->Number("ep", time.ep);
  json->Number("tp", time.tp);
  json->Number("dp", time.dp);
  json->Number("pp", time.pp);
  json->Number("offload", time.offload);
  json->Number("bubble", time.bubble);
  json->Number("recompute", time.recompute);
  json->Number("optimizer", time.optimizer);
  json->Close('}');
}

void Write(const Activations& saved, Json* json) {
  json->Open("activations", '{');
  json->Number("residual", saved.residual);
  json->Number("norm", saved.norm);
  json->Number("latent", saved.latent);
  json->Number("attention", saved.attention);
  json->Number("dense_ffn", saved.dense_ffn);
  json->Number("shared_expert", saved.shared_expert);
  json->Number("router", saved.router);
  json->Number("expert_input", saved.expert_input);
  json->Number("expert_hidden", saved.expert_hidden);
  json->Number("expert_activation", saved.expert_activation);
  json->Close('}');
}

void Write(const StageMemory& memory, Json* json) {
  json->Open(nullptr, '{');
  json->Number("total", memory.Sum());
  json->Number("peak_seconds", memory.peak_seconds);
  json->Number("parameters", memory.parameters);
  json->Number("weights", memory.weights);
  json->Number("gradients", memory.gradients);
  json->Number("optimizer", memory.optimizer);
  json->Number("gathered", memory.gathered);
  json->Number("workspace", memory.workspace);
  json->Number("dispatch", memory.dispatch);
  json->Number("communication", memory.communication);
  Write(memory.activations, json);
  json->Close('}');
}

void WriteTasks(const Answer& answer, Json* json) {
  json->Open("tasks", '[');
  for (size_t i = 0; i < answer.program.tasks.size(); ++i) {
    const Task& task = answer.program.tasks[i];
    const Label& label = answer.program.labels[i];
    if (answer.schedule.end[i] <= answer.schedule.start[i]) continue;
    json->Open(nullptr, '[');
    json->Number(nullptr, task.rank_class);
    json->Number(nullptr, static_cast<double>(task.stream));
    json->Number(nullptr, static_cast<double>(label.kind));
    json->Number(nullptr, label.layer);
    json->Number(nullptr, label.microbatch);
    json->Number(nullptr, answer.schedule.start[i]);
    json->Number(nullptr, answer.schedule.end[i]);
    json->Number(nullptr, answer.schedule.cause[i] < 0 ? -1 : answer.schedule.cause[i]);
    json->Close(']');
  }
  json->Close(']');
}

}  // namespace

std::string ToJson(const Request& request, const Answer& answer) {
  Json json;
  json.Open(nullptr, '{');
  json.Number("step_seconds", answer.step_seconds);
  json.Number("simulated_seconds", answer.schedule.seconds);
  json.Number("simulated_microbatches", static_cast<double>(answer.simulated_microbatches));
  json.Number("microbatches", static_cast<double>(request.layout.microbatches()));
  json.Number("data_parallel", static_cast<double>(request.layout.dp()));
  json.Number("expert_data_parallel", static_cast<double>(request.layout.edp()));
  json.Number("imbalance_seconds", answer.imbalance_seconds);
  json.Number("rank_load", answer.rank_load);
  json.Number("tasks_simulated", static_cast<double>(answer.program.tasks.size()));
  json.Open("stages", '[');
  for (const StageTime& time : answer.stages) Write(time, &json);
  json.Close(']');
  json.Open("memory", '[');
  for (const StageMemory& memory : answer.memory) Write(memory, &json);
  json.Close(']');
  json.Open("chunks", '[');
  for (const Chunk& chunk : answer.chunks) {
    json.Open(nullptr, '[');
    json.Number(nullptr, static_cast<double>(chunk.first));
    json.Number(nullptr, static_cast<double>(chunk.last));
    json.Close(']');
  }
  json.Close(']');
  if (request.trace) WriteTasks(answer, &json);
  json.Close('}');
  return json.Take();
}

}  // namespace anabranch::sim
