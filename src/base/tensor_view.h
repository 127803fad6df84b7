// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_BASE_TENSOR_VIEW_H_
#define ANABRANCH_BASE_TENSOR_VIEW_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "base/dtype.h"

namespace anabranch {

// A row-major, contiguous array that somebody else owns: pointer, type and up to four sizes.
//   Empty     a view with a zero size may have a null pointer; an absent optional argument is a
//             default-constructed view (has_value() is false).
//   Threads   a value; copying copies no element.
template <bool kConst>
class BasicTensorView {
 public:
  static constexpr int kMaxRank = 4;
  using Pointer = std::conditional_t<kConst, const void*, void*>;
  template <typename T>
  using Typed = std::conditional_t<kConst, const T*, T*>;

  BasicTensorView() = default;
  BasicTensorView(Pointer data, DType dtype, std::initializer_list<int64_t> shape)
      : data_(data), dtype_(dtype), rank_(static_cast<int>(shape.size())) {
    int axis = 0;
    for (int64_t size : shape) {
      if (axis < kMaxRank) shape_[axis++] = size;
    }
  }
  template <typename T>
  BasicTensorView(T* data, std::initializer_list<int64_t> shape)
      : BasicTensorView(data, kDTypeOf<std::remove_const_t<T>>, shape) {}
  // A mutable view converts to a const one.
  template <bool kOther, typename = std::enable_if_t<kConst && !kOther>>
  BasicTensorView(const BasicTensorView<kOther>& other)  // NOLINT(google-explicit-constructor)
      : data_(other.data()), dtype_(other.dtype()), rank_(other.rank()) {
    for (int axis = 0; axis < rank_; ++axis) shape_[axis] = other.size(axis);
  }

  bool has_value() const { return rank_ > 0; }
  DType dtype() const { return dtype_; }
  int rank() const { return rank_; }
  int64_t size(int axis) const { return shape_[axis]; }
  int64_t num_elements() const {
    int64_t count = 1;
    for (int axis = 0; axis < rank_; ++axis) count *= shape_[axis];
    return rank_ == 0 ? 0 : count;
  }
  Pointer data() const { return data_; }
  template <typename T>
  Typed<T> as() const {
    return static_cast<Typed<T>>(data_);
  }

  bool HasShape(std::initializer_list<int64_t> shape) const {
    if (static_cast<int>(shape.size()) != rank_) return false;
    int axis = 0;
    for (int64_t size : shape) {
      if (shape_[axis++] != size) return false;
    }
    return true;
  }
  // For messages: "bf16[64,2048]".
  std::string ToString() const {
    std::string text = rank_ == 0 ? "absent" : Name(dtype_);
    for (int axis = 0; axis < rank_; ++axis) {
      text += (axis == 0 ? "[" : ",") + std::to_string(shape_[axis]);
    }
    return rank_ == 0 ? text : text + "]";
  }

 private:
  Pointer data_ = nullptr;
  DType dtype_ = DType::kF32;
  int rank_ = 0;
  int64_t shape_[kMaxRank] = {};
};

using TensorView = BasicTensorView<false>;
using ConstTensorView = BasicTensorView<true>;

}  // namespace anabranch

#endif  // ANABRANCH_BASE_TENSOR_VIEW_H_
