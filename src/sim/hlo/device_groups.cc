// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/hlo/device_groups.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "sim/hlo/text.h"

namespace anabranch::sim::hlo {
namespace {

// More devices than any machine has; bounds the memory that a nonsense count may ask for.
constexpr int64_t kMostDevices = int64_t{1} << 20;

int64_t Product(const std::vector<int64_t>& dims) {
  int64_t product = 1;
  for (const int64_t dim : dims) {
    if (dim < 1 || product > kMostDevices / dim) return -1;
    product *= dim;
  }
  return product;
}

Status ReadList(std::string_view* text, char close, std::vector<int64_t>* list) {
  while (!Consume(text, std::string_view(&close, 1))) {
    int64_t value = 0;
    if (!ReadInteger(text, &value)) {
      return InvalidArgument("'", text->substr(0, 24), "' is no list of numbers");
    }
    list->push_back(value);
    Consume(text, ",");
  }
  return Status::Ok();
}

// The numbers 0.. of an array of shape `dims`, its axes in the order `axes`, flattened.
std::vector<int64_t> TransposedIota(const std::vector<int64_t>& dims,
                                    const std::vector<int64_t>& axes) {
  std::vector<int64_t> strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  std::vector<int64_t> result(static_cast<size_t>(Product(dims)));
  std::vector<int64_t> index(dims.size(), 0);
  for (int64_t& value : result) {
    value = 0;
    for (size_t i = 0; i < axes.size(); ++i) value += index[i] * strides[axes[i]];
    for (size_t i = axes.size(); i-- > 0;) {
      if (++index[i] < dims[axes[i]]) break;
      index[i] = 0;
    }
  }
  return result;
}

void Cut(const std::vector<int64_t>& devices, int64_t group_size, DeviceGroups* groups) {
  for (size_t at = 0; at < devices.size(); at += static_cast<size_t>(group_size)) {
    groups->emplace_back(devices.begin() + static_cast<int64_t>(at),
                         devices.begin() + static_cast<int64_t>(at) + group_size);
  }
}

bool IsPermutation(std::vector<int64_t> axes, size_t count) {
  std::sort(axes.begin(), axes.end());
  if (axes.size() != count) return false;
  for (size_t i = 0; i < count; ++i) {
    if (axes[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

// [groups,size]<=[dims]T(axes)
Status ReadIota(std::string_view text, DeviceGroups* groups) {
  std::vector<int64_t> shape;
  std::vector<int64_t> dims;
  Consume(&text, "[");
  ANABRANCH_RETURN_IF_ERROR(ReadList(&text, ']', &shape));
  if (!Consume(&text, "<=") || !Consume(&text, "[")) {
    return InvalidArgument("<=[ expected before '", text.substr(0, 24), "'");
  }
  ANABRANCH_RETURN_IF_ERROR(ReadList(&text, ']', &dims));
  std::vector<int64_t> axes(dims.size());
  std::iota(axes.begin(), axes.end(), 0);
  if (Consume(&text, "T(")) {
    axes.clear();
    ANABRANCH_RETURN_IF_ERROR(ReadList(&text, ')', &axes));
  }
  const int64_t total = Product(dims);
  if (shape.size() != 2 || total < 1 || Product(shape) != total ||
      !IsPermutation(axes, dims.size())) {
    return InvalidArgument("the groups' shape does not hold the devices");
  }
  Cut(TransposedIota(dims, axes), shape[1], groups);
  return Status::Ok();
}

// mesh['d'=8,'e'=8] {'e'}: one group for every choice of the axes that are not named, an axis may
// be written 'e':(1)2, a part of it, which is not served.
Status ReadMesh(std::string_view text, DeviceGroups* groups) {
  std::vector<std::string> names;
  std::vector<int64_t> dims;
  Consume(&text, "mesh");
  if (!Consume(&text, "[")) return InvalidArgument("mesh is not followed by [");
  while (!Consume(&text, "]")) {
    Consume(&text, "'");
    names.emplace_back(ReadName(&text));
    Consume(&text, "'");
    int64_t size = 0;
    if (!Consume(&text, "=") || !ReadInteger(&text, &size)) {
      return InvalidArgument("a mesh axis is not written 'name'=size");
    }
    dims.push_back(size);
    Consume(&text, ",");
  }
  Consume(&text, ",");
  if (Product(dims) < 1) return InvalidArgument("a mesh axis is no positive size");
  if (!Consume(&text, "{")) return InvalidArgument("the axes of the groups are not in {}");
  std::vector<bool> named(names.size(), false);
  while (!Consume(&text, "}")) {
    Consume(&text, "'");
    const std::string name(ReadName(&text));
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end() || !Consume(&text, "'")) {
      return InvalidArgument("'", name, "' is no axis of the mesh");
    }
    named[static_cast<size_t>(found - names.begin())] = true;
    Consume(&text, ",");
  }
  std::vector<int64_t> axes;
  int64_t group_size = 1;
  for (const bool inside : {false, true}) {
    for (size_t i = 0; i < names.size(); ++i) {
      if (named[i] != inside) continue;
      axes.push_back(static_cast<int64_t>(i));
      if (inside) group_size *= dims[i];
    }
  }
  Cut(TransposedIota(dims, axes), group_size, groups);
  return Status::Ok();
}

// {{0,1},{2,3}}
Status ReadBraces(std::string_view text, DeviceGroups* groups) {
  Consume(&text, "{");
  while (!Consume(&text, "}")) {
    if (!Consume(&text, "{")) return InvalidArgument("a group is not in {}");
    groups->emplace_back();
    ANABRANCH_RETURN_IF_ERROR(ReadList(&text, '}', &groups->back()));
    Consume(&text, ",");
  }
  return Status::Ok();
}

Status CheckDevices(const Instruction& instruction, int64_t num_devices,
                    const DeviceGroups& groups) {
  for (const std::vector<int64_t>& group : groups) {
    for (const int64_t device : group) {
      if (device < 0 || device >= num_devices) {
        return InvalidArgument("hlo: line ", instruction.line, ": ", instruction.name,
                               " names device ", device, ", but there are ", num_devices);
      }
    }
  }
  return Status::Ok();
}

}  // namespace

Status CollectiveGroups(const Instruction& instruction, int64_t num_devices, DeviceGroups* groups) {
  groups->clear();
  const std::string_view pairs = instruction.attribute("source_target_pairs");
  const std::string_view text = pairs.empty() ? instruction.attribute("replica_groups") : pairs;
  Status status;
  if (text.starts_with("mesh")) {
    status = ReadMesh(text, groups);
  } else if (text.starts_with("[")) {
    status = ReadIota(text, groups);
  } else if (!text.empty()) {
    status = ReadBraces(text, groups);
  }
  if (!status.ok()) {
    return InvalidArgument("hlo: line ", instruction.line, ": groups of ", instruction.name, ": ",
                           status.message());
  }
  ANABRANCH_RETURN_IF_ERROR(CheckDevices(instruction, num_devices, *groups));
  if (groups->empty()) {
    groups->emplace_back(static_cast<size_t>(num_devices));
    std::iota(groups->front().begin(), groups->front().end(), 0);
  }
  return Status::Ok();
}

GroupExtent ExtentOf(const DeviceGroups& groups, int64_t domain) {
  GroupExtent extent;
  for (const std::vector<int64_t>& group : groups) {
    const auto size = static_cast<int64_t>(group.size());
    if (size <= 1 || size < extent.size) continue;
    const int64_t near = std::count_if(group.begin(), group.end(), [&](int64_t device) {
      return device / domain == group.front() / domain;
    });
    if (size == extent.size && near >= extent.in_domain) continue;
    extent = {size, near, std::abs(group[1] - group[0])};
  }
  return extent;
}

}  // namespace anabranch::sim::hlo
