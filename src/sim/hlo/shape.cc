// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/hlo/shape.h"

#include <algorithm>
#include <array>

#include "sim/hlo/text.h"

namespace anabranch::sim::hlo {
namespace {

struct TypeBits {
  std::string_view name;
  int64_t bits;
};
constexpr std::array<TypeBits, 34> kTypes = {{
    {"pred", 8},
    {"s2", 2},
    {"u2", 2},
    {"s4", 4},
    {"u4", 4},
    {"s8", 8},
    {"u8", 8},
    {"s16", 16},
    {"u16", 16},
    {"s32", 32},
    {"u32", 32},
    {"s64", 64},
    {"u64", 64},
    {"f16", 16},
    {"bf16", 16},
    {"f32", 32},
    {"f64", 64},
    {"c64", 64},
    {"c128", 128},
    {"f4e2m1fn", 4},
    {"f8e4m3fn", 8},
    {"f8e4m3", 8},
    {"f8e4m3b11fnuz", 8},
    {"f8e4m3fnuz", 8},
    {"f8e5m2", 8},
    {"f8e5m2fnuz", 8},
    {"f8e3m4", 8},
    {"f8e8m0fnu", 8},
    {"token", 0},
    {"opaque", 0},
    {"buffer", 0},
    {"s1", 1},
    {"u1", 1},
    {"f6e2m3fn", 6},
}};
// Dimensions multiply in double precision: sizes stay exact up to 2^53 bytes, 8 PiB.
constexpr int64_t kLargestDimension = int64_t{1} << 40;

Status ReadDimensions(std::string_view* text, Shape* shape) {
  if (!Consume(text, "[")) {
    return InvalidArgument("a shape's type '", shape->type, "' is not followed by [");
  }
  while (!Consume(text, "]")) {
    Consume(text, "<=");  // a dynamic dimension gives its bound
    int64_t dim = 0;
    if (!ReadInteger(text, &dim) || dim < 0 || dim > kLargestDimension) {
      return InvalidArgument("a dimension of ", shape->type, "[...] is no count: '",
                             text->substr(0, 16), "'");
    }
    shape->dims.push_back(dim);
    Consume(text, ",");
  }
  return Status::Ok();
}

// The layout: minor-to-major order, then after a colon tiles T(..), memory space S(n) and others.
Status SkipLayout(std::string_view* text, Shape* shape) {
  if (text->empty() || text->front() != '{') return Status::Ok();
  const size_t end = CloseBracket(*text);
  if (end == std::string_view::npos) return InvalidArgument("a layout's { is not closed");
  const std::string_view layout = text->substr(0, end);
  const size_t colon = layout.find(':');
  const size_t space = colon == std::string_view::npos ? colon : layout.find("S(", colon);
  if (space != std::string_view::npos) {
    std::string_view number = layout.substr(space + 2);
    if (!ReadInteger(&number, &shape->memory_space)) {
      return InvalidArgument("a layout's memory space is no number: ", layout);
    }
  }
  text->remove_prefix(end);
  return Status::Ok();
}

// Tuples in tuples; XLA nests them two or three deep. The bound keeps nonsense off the stack.
constexpr int kDeepestTuple = 64;

Status ReadNested(std::string_view* text, int depth, Shape* shape);

Status ReadTuple(std::string_view* text, int depth, Shape* shape) {
  if (depth > kDeepestTuple) return InvalidArgument("tuples nest deeper than ", kDeepestTuple);
  shape->type = "tuple";
  while (!Consume(text, ")")) {
    shape->elements.emplace_back();
    ANABRANCH_RETURN_IF_ERROR(ReadNested(text, depth + 1, &shape->elements.back()));
    if (!Consume(text, ",")) {
      if (!Consume(text, ")")) return InvalidArgument("a tuple's ( is not closed");
      break;
    }
  }
  return Status::Ok();
}

Status ReadNested(std::string_view* text, int depth, Shape* shape) {
  *shape = Shape();
  if (Consume(text, "(")) return ReadTuple(text, depth, shape);
  shape->type = std::string(ReadName(text));
  if (ElementBits(shape->type) < 0) {
    return InvalidArgument("'", shape->type, "' is no element type");
  }
  ANABRANCH_RETURN_IF_ERROR(ReadDimensions(text, shape));
  return SkipLayout(text, shape);
}

}  // namespace

int64_t ElementBits(std::string_view type) {
  const auto found =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeBits& t) { return t.name == type; });
  return found == kTypes.end() ? -1 : found->bits;
}

double ElementCount(const Shape& shape) {
  double total = 0;
  for (const Shape& element : shape.elements) total += ElementCount(element);
  if (shape.type == "tuple" || shape.type == "token") return total;
  double count = 1;
  for (const int64_t dim : shape.dims) count *= static_cast<double>(dim);
  return count;
}

double ByteSize(const Shape& shape) {
  double total = 0;
  for (const Shape& element : shape.elements) total += ByteSize(element);
  if (shape.type == "tuple") return total;
  return ElementCount(shape) * static_cast<double>(ElementBits(shape.type)) / 8;
}

bool IsOnHost(const Shape& shape) {
  return shape.memory_space == kHostMemorySpace ||
         std::any_of(shape.elements.begin(), shape.elements.end(), IsOnHost);
}

Status ReadShape(std::string_view* text, Shape* shape) { return ReadNested(text, 0, shape); }

}  // namespace anabranch::sim::hlo
