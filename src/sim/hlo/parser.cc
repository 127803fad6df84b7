// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <unordered_map>

#include "sim/hlo/module.h"
#include "sim/hlo/text.h"

namespace anabranch::sim::hlo {
namespace {

// Attributes that name computations which run on the device as part of the instruction.
constexpr std::array<std::string_view, 6> kCalls = {
    "calls", "body", "condition", "branch_computations", "true_computation", "false_computation"};
// Large, and of no use here.
constexpr std::array<std::string_view, 3> kDropped = {"metadata", "sharding", "original_value"};

template <typename Names>
bool Contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

class Parser {
 public:
  Parser(std::string_view text, HloModule* module) : rest_(text), module_(module) {}

  Status Run() {
    std::string_view line;
    while (NextLine(&line)) {
      if (Status status = ParseLine(line); !status.ok()) {
        return InvalidArgument("hlo: line ", line_number_, ": ", status.message());
      }
    }
    if (!seen_module_) return InvalidArgument("hlo: no line begins with HloModule");
    if (inside_) return InvalidArgument("hlo: the text ends inside ", current().name);
    if (module_->entry < 0) return InvalidArgument("hlo: no computation is marked ENTRY");
    return Status::Ok();
  }

 private:
  Computation& current() { return module_->computations.back(); }

  bool NextPhysicalLine(std::string_view* line) {
    if (rest_.empty()) return false;
    const size_t end = std::min(rest_.find('\n'), rest_.size());
    *line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    ++line_number_;
    return true;
  }

  // A line, or several where a literal is broken over them.
  bool NextLine(std::string_view* line) {
    const char* begin = rest_.data();
    if (!NextPhysicalLine(line)) return false;
    if (!inside_) return true;
    while (OpenBrackets(*line) > 0 && !rest_.empty()) {
      std::string_view more;
      NextPhysicalLine(&more);
      *line = std::string_view(begin, more.data() + more.size() - begin);
    }
    return true;
  }

  Status ParseLine(std::string_view line) {
    line = Trim(line);
    if (line.empty()) return Status::Ok();
    if (!seen_module_) return ParseModuleLine(line);
    if (inside_ && line.front() == '}') {
      inside_ = false;
      if (current().root < 0 && !current().instructions.empty()) {
        current().root = static_cast<int>(current().instructions.size()) - 1;
      }
      return Status::Ok();
    }
    if (inside_) return ParseInstruction(line);
    // Between computations stand tables of file names and stack frames; a header ends with {.
    return line.back() == '{' ? ParseHeader(line) : Status::Ok();
  }

  Status ParseModuleLine(std::string_view line) {
    if (!Consume(&line, "HloModule ")) return Status::Ok();
    seen_module_ = true;
    module_->name = std::string(ReadName(&line));
    module_->is_scheduled = line.find("is_scheduled=true") != std::string_view::npos;
    return Status::Ok();
  }

  Status ParseHeader(std::string_view line) {
    const bool entry = Consume(&line, "ENTRY ");
    const std::string name(ReadName(&line));
    if (name.empty()) return InvalidArgument("a computation has no name");
    const auto number = static_cast<int>(module_->computations.size());
    if (!computation_numbers_.emplace(name, number).second) {
      return InvalidArgument("computation ", name, " is defined twice");
    }
    module_->computations.emplace_back();
    current().name = name;
    if (entry) module_->entry = number;
    instruction_numbers_.clear();
    inside_ = true;
    return Status::Ok();
  }

  Status ParseInstruction(std::string_view line) {
    const bool root = Consume(&line, "ROOT ");
    Instruction instruction;
    instruction.line = line_number_;
    instruction.name = std::string(ReadName(&line));
    if (instruction.name.empty() || !Consume(&line, "=")) {
      return InvalidArgument("no instruction: '", line.substr(0, 60), "'");
    }
    SkipBlanks(&line);
    ANABRANCH_RETURN_IF_ERROR(ReadShape(&line, &instruction.shape));
    instruction.opcode = std::string(ReadName(&line));
    SkipBlanks(&line);
    const size_t end =
        line.empty() || line.front() != '(' ? std::string_view::npos : CloseBracket(line);
    if (instruction.opcode.empty() || end == std::string_view::npos) {
      return InvalidArgument(instruction.name, " has no opcode with operands in brackets");
    }
    ANABRANCH_RETURN_IF_ERROR(ParseOperands(line.substr(1, end - 2), &instruction));
    ANABRANCH_RETURN_IF_ERROR(ParseAttributes(line.substr(end), &instruction));
    const auto number = static_cast<int>(current().instructions.size());
    if (!instruction_numbers_.emplace(instruction.name, number).second) {
      return InvalidArgument(instruction.name, " is defined twice in ", current().name);
    }
    if (root) current().root = number;
    current().instructions.push_back(std::move(instruction));
    return Status::Ok();
  }

  Status ParseOperands(std::string_view text, Instruction* instruction) {
    const std::string& opcode = instruction->opcode;
    if (opcode == "parameter" || opcode == "constant" || opcode == "iota") {
      constexpr size_t kKept = 64;
      instruction->argument = std::string(text.substr(0, kKept));
      return Status::Ok();
    }
    for (std::string_view part : SplitTopLevel(text)) {
      // The long form puts the operand's shape before its name.
      const size_t percent = part.rfind('%');
      const size_t blank = part.rfind(' ');
      if (percent != std::string_view::npos) {
        part.remove_prefix(percent);
      } else if (blank != std::string_view::npos) {
        part.remove_prefix(blank + 1);
      }
      ANABRANCH_RETURN_IF_ERROR(AddReference(part, instruction->name, &instruction->operands));
    }
    return Status::Ok();
  }

  Status AddReference(std::string_view text, const std::string& user, std::vector<int>* list) {
    const std::string name(ReadName(&text));
    const auto found = instruction_numbers_.find(name);
    if (found == instruction_numbers_.end()) {
      return InvalidArgument(user, " uses ", name, ", which is not defined before it");
    }
    list->push_back(found->second);
    return Status::Ok();
  }

  Status ParseAttributes(std::string_view text, Instruction* instruction) {
    if (!Consume(&text, ",")) {
      if (!Trim(text).empty()) {
        return InvalidArgument(instruction->name, ": unexpected '", Trim(text).substr(0, 40), "'");
      }
      return Status::Ok();
    }
    for (std::string_view part : SplitTopLevel(text)) {
      const size_t equals = part.find('=');
      const std::string_view key = Trim(part.substr(0, std::min(equals, part.size())));
      if (Contains(kDropped, key)) continue;
      const std::string_view value =
          equals == std::string_view::npos ? std::string_view() : Trim(part.substr(equals + 1));
      if (key == "control-predecessors") {
        ANABRANCH_RETURN_IF_ERROR(ParseControl(value, instruction));
      } else if (Contains(kCalls, key) || (instruction->opcode == "call" && key == "to_apply")) {
        ANABRANCH_RETURN_IF_ERROR(ParseCalls(value, instruction));
      }
      instruction->attributes.emplace(std::string(key), std::string(value));
    }
    return Status::Ok();
  }

  Status ParseControl(std::string_view value, Instruction* instruction) {
    if (value.size() < 2) return InvalidArgument(instruction->name, ": control-predecessors=?");
    for (const std::string_view part : SplitTopLevel(value.substr(1, value.size() - 2))) {
      ANABRANCH_RETURN_IF_ERROR(
          AddReference(part, instruction->name, &instruction->control_predecessors));
    }
    return Status::Ok();
  }

  Status ParseCalls(std::string_view value, Instruction* instruction) {
    if (!value.empty() && value.front() == '{') value = value.substr(1, value.size() - 2);
    for (std::string_view part : SplitTopLevel(value)) {
      const std::string name(ReadName(&part));
      const auto found = computation_numbers_.find(name);
      // The computation that is being read has its number already.
      if (found == computation_numbers_.end() ||
          found->second + 1 == static_cast<int>(module_->computations.size())) {
        return InvalidArgument(instruction->name, " calls ", name,
                               ", which is not defined before it");
      }
      instruction->called.push_back(found->second);
    }
    return Status::Ok();
  }

  std::string_view rest_;
  HloModule* module_;
  int64_t line_number_ = 0;
  bool seen_module_ = false;
  bool inside_ = false;
  std::unordered_map<std::string, int> computation_numbers_;
  std::unordered_map<std::string, int> instruction_numbers_;
};

}  // namespace

Status ParseHlo(std::string_view text, HloModule* module) {
  *module = HloModule();
  return Parser(text, module).Run();
}

}  // namespace anabranch::sim::hlo
