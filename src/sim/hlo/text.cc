// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/hlo/text.h"

#include <cctype>

namespace anabranch::sim::hlo {
namespace {

constexpr int64_t kLargestInteger = int64_t{1} << 62;

bool IsOpen(char c) { return c == '(' || c == '[' || c == '{'; }
bool IsClose(char c) { return c == ')' || c == ']' || c == '}'; }

// Position after the quoted string that begins at `at`.
size_t SkipQuoted(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return at + 1;
}

// Position after the comment that begins at `at`, or `at`.
size_t SkipComment(std::string_view text, size_t at) {
  if (text.substr(at, 2) != "/*") return at;
  const size_t end = text.find("*/", at + 2);
  return end == std::string_view::npos ? text.size() : end + 2;
}

}  // namespace

void SkipBlanks(std::string_view* text) {
  while (!text->empty()) {
    const size_t after = SkipComment(*text, 0);
    if (after > 0) {
      text->remove_prefix(after);
    } else if (std::isspace(static_cast<unsigned char>(text->front())) != 0) {
      text->remove_prefix(1);
    } else {
      return;
    }
  }
}

std::string_view Trim(std::string_view text) {
  SkipBlanks(&text);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) {
    text.remove_suffix(1);
  }
  return text;
}

bool Consume(std::string_view* text, std::string_view prefix) {
  SkipBlanks(text);
  if (text->substr(0, prefix.size()) != prefix) return false;
  text->remove_prefix(prefix.size());
  return true;
}

std::string_view ReadName(std::string_view* text) {
  SkipBlanks(text);
  Consume(text, "%");
  size_t end = 0;
  while (end < text->size()) {
    const char c = (*text)[end];
    const bool part = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' ||
                      c == '-' || c == ':';
    if (!part) break;
    ++end;
  }
  const std::string_view name = text->substr(0, end);
  text->remove_prefix(end);
  return name;
}

bool ReadInteger(std::string_view* text, int64_t* value) {
  SkipBlanks(text);
  const bool negative = Consume(text, "-");
  int64_t result = 0;
  size_t end = 0;
  for (; end < text->size() && std::isdigit(static_cast<unsigned char>((*text)[end])) != 0; ++end) {
    result = result * 10 + ((*text)[end] - '0');
    if (result > kLargestInteger / 16) return false;
  }
  if (end == 0) return false;
  text->remove_prefix(end);
  *value = negative ? -result : result;
  return true;
}

size_t CloseBracket(std::string_view text) {
  int64_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t after = SkipComment(text, i);
    if (after > i) {
      i = after - 1;
    } else if (text[i] == '"') {
      i = SkipQuoted(text, i) - 1;
    } else if (IsOpen(text[i])) {
      ++depth;
    } else if (IsClose(text[i]) && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

std::vector<std::string_view> SplitTopLevel(std::string_view text) {
  std::vector<std::string_view> parts;
  int64_t depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') {
      i = SkipQuoted(text, i) - 1;
    } else if (IsOpen(text[i])) {
      ++depth;
    } else if (IsClose(text[i])) {
      --depth;
    } else if (text[i] == ',' && depth == 0) {
      parts.push_back(Trim(text.substr(begin, i - begin)));
      begin = i + 1;
    }
  }
  const std::string_view last = Trim(text.substr(begin));
  if (!last.empty() || !parts.empty()) parts.push_back(last);
  return parts;
}

int64_t OpenBrackets(std::string_view text) {
  int64_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') {
      i = SkipQuoted(text, i) - 1;
    } else if (IsOpen(text[i])) {
      ++depth;
    } else if (IsClose(text[i])) {
      --depth;
    }
  }
  return depth;
}

}  // namespace anabranch::sim::hlo
