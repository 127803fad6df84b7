// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Every product is a linear (ops/linear): x x^T is the gradient of its rows, x^T x that of its
// matrix, so that nothing is transposed. With at least two matrices a worker, each is one worker's;
// with fewer, all workers share the products of one after the other. The bits are the same.
#include "ops/muon/muon.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/linear/linear.h"
#include "tile/tile.h"

namespace anabranch {
namespace {

struct Shape {
  explicit Shape(const MuonArgs& args)
      : matrices(args.gradient.size(0)), m(args.gradient.size(1)), n(args.gradient.size(2)) {}
  bool tall() const { return m > n; }
  int64_t side() const { return std::min(m, n); }
  int64_t matrices, m, n;
};

Status CheckArray(const char* name, const ConstTensorView& view, const ConstTensorView& gradient) {
  if (view.dtype() == DType::kF32 && view.rank() == 3 && gradient.rank() == 3 &&
      view.HasShape({gradient.size(0), gradient.size(1), gradient.size(2)})) {
    return Status::Ok();
  }
  return InvalidArgument("muon: ", name, " is ", view.ToString(), " and gradient ",
                         gradient.ToString(), "; both must be f32 [E, M, N] of one shape");
}

Status Validate(const MuonArgs& args) {
  if (args.scalars.dtype() != DType::kF32 || !args.scalars.HasShape({kMuonScalars})) {
    return InvalidArgument("muon: scalars is ", args.scalars.ToString(), "; must be f32[",
                           kMuonScalars, "]");
  }
  if (args.iterations < 1 ||
      (args.multiplicand != DType::kBF16 && args.multiplicand != DType::kF32)) {
    return InvalidArgument("muon: iterations is ", args.iterations, ", multiplicand ",
                           Name(args.multiplicand), "; must be positive, and bf16 or f32");
  }
  ANABRANCH_RETURN_IF_ERROR(CheckArray("gradient", args.gradient, args.gradient));
  ANABRANCH_RETURN_IF_ERROR(CheckArray("parameter", args.parameter, args.gradient));
  ANABRANCH_RETURN_IF_ERROR(CheckArray("m", args.m, args.gradient));
  ANABRANCH_RETURN_IF_ERROR(CheckArray("new_parameter", args.new_parameter, args.gradient));
  return CheckArray("new_m", args.new_m, args.gradient);
}

// to[i] = from[i] in `type`, count elements.
void Convert(const float* from, int64_t count, DType type, void* to) {
  if (type == DType::kF32) {
    std::copy_n(from, count, static_cast<float*>(to));
    return;
  }
  // The kernel tables' vectors round faster than this file's baseline instructions could.
  const auto store = tile::Kernels().epilogue_bf16.store;
  for (int64_t i = 0; i < count; i += tile::kPanelColumns) {
    void* row = static_cast<BF16*>(to) + i;
    store(from + i, 1, static_cast<int>(std::min<int64_t>(tile::kPanelColumns, count - i)), &row);
  }
}

// The arrays of one matrix on its way.
class Workspace {
 public:
  Workspace(void* block, const Shape& shape, DType type, int num_workers)
      : shape_(shape), type_(type), arena_(block) {
    const int64_t size = shape.m * shape.n, square = shape.side() * shape.side();
    x_ = arena_.Take<float>(size);
    product_ = arena_.Take<float>(size);
    gram_ = arena_.Take<float>(square);
    factor_ = arena_.Take<float>(square);
    rounded_x_ = arena_.Take<float>(size);  // room for either type
    rounded_square_ = arena_.Take<float>(square);
    linear_bytes_ = std::max({LinearWgradScratchBytes(Gram<LinearWgradArgs>(), num_workers),
                              LinearDgradScratchBytes(Gram<LinearDgradArgs>(), num_workers),
                              LinearScratchBytes(Square(), num_workers),
                              LinearScratchBytes(Moved(), num_workers)});
    linear_ = arena_.Take<std::byte>(linear_bytes_);
  }
  int64_t bytes() const { return arena_.used_bytes(); }
  float* x() const { return x_; }

  // x = Orthogonalize(x).
  Status Run(int64_t iterations, Executor* executor) {
    const Context context{executor, linear_, linear_bytes_};
    const int64_t size = shape_.m * shape_.n, square = shape_.side() * shape_.side();
    Normalise(size);
    const auto [a, b, c] = kMuonCoefficients;
    for (int64_t i = 0; i < iterations; ++i) {
      Convert(x_, size, type_, rounded_x_);
      ANABRANCH_RETURN_IF_ERROR(shape_.tall() ? LinearWgrad(Gram<LinearWgradArgs>(), context)
                                              : LinearDgrad(Gram<LinearDgradArgs>(), context));
      Convert(gram_, square, type_, rounded_square_);
      ANABRANCH_RETURN_IF_ERROR(Linear(Square(), context));
      for (int64_t j = 0; j < square; ++j) factor_[j] = b * gram_[j] + c * factor_[j];
      Convert(factor_, square, type_, rounded_square_);
      ANABRANCH_RETURN_IF_ERROR(Linear(Moved(), context));
      for (int64_t j = 0; j < size; ++j) x_[j] = a * x_[j] + product_[j];
    }
    return Status::Ok();
  }

 private:
  void Normalise(int64_t size) {
    double squares = 0;
    for (int64_t i = 0; i < size; ++i) squares += static_cast<double>(x_[i]) * x_[i];
    const auto factor = static_cast<float>(1 / (std::sqrt(squares) + kMuonEpsilon));
    for (int64_t i = 0; i < size; ++i) x_[i] *= factor;
  }

  ConstTensorView RoundedX() const { return {rounded_x_, type_, {shape_.m, shape_.n}}; }
  ConstTensorView RoundedSquare() const {
    return {rounded_square_, type_, {shape_.side(), shape_.side()}};
  }
  // The Gram matrix of the smaller side.
  template <typename Args>
  Args Gram() const {
    return {RoundedX(), RoundedX(), TensorView(gram_, {shape_.side(), shape_.side()})};
  }
  LinearArgs Square() const {
    return {RoundedSquare(), RoundedSquare(), TensorView(factor_, {shape_.side(), shape_.side()})};
  }
  LinearArgs Moved() const {
    const TensorView product(product_, {shape_.m, shape_.n});
    if (shape_.tall()) return {RoundedX(), RoundedSquare(), product};
    return {RoundedSquare(), RoundedX(), product};
  }

  const Shape shape_;
  const DType type_;
  ScratchArena arena_;
  float* x_;
  float* product_;
  float* gram_;
  float* factor_;
  float* rounded_x_;
  float* rounded_square_;
  std::byte* linear_;
  int64_t linear_bytes_;
};

// Whether each worker takes whole matrices.
bool IsSpread(const Shape& shape, int num_workers) { return shape.matrices >= 2 * num_workers; }

// Workspaces side by side, and the size of one.
int64_t WorkspaceBytes(const MuonArgs& args, const Shape& shape, int num_workers) {
  return Workspace(nullptr, shape, args.multiplicand, num_workers).bytes();
}

Status RunMatrix(const MuonArgs& args, const MuonScalars& s, int64_t index, Workspace* workspace,
                 Executor* executor) {
  const int64_t size = args.gradient.size(1) * args.gradient.size(2), first = index * size;
  const float* gradient = args.gradient.as<float>() + first;
  const float* parameter = args.parameter.as<float>() + first;
  const float* m = args.m.as<float>() + first;
  float* new_m = args.new_m.as<float>() + first;
  float* new_parameter = args.new_parameter.as<float>() + first;
  float* x = workspace->x();
  for (int64_t i = 0; i < size; ++i) {
    const float part = s.one_minus_beta * (s.clip_factor * gradient[i]);
    new_m[i] = s.beta * m[i] + part;
    x[i] = s.beta * new_m[i] + part;
  }
  ANABRANCH_RETURN_IF_ERROR(workspace->Run(args.iterations, executor));
  for (int64_t i = 0; i < size; ++i) {
    const float update = -s.learning_rate * (s.scale * x[i] + s.weight_decay * parameter[i]);
    new_parameter[i] = args.emit_update ? update : parameter[i] + update;
  }
  return Status::Ok();
}

void Keep(const MuonArgs& args) {
  const int64_t bytes = args.gradient.num_elements() * static_cast<int64_t>(sizeof(float));
  if (args.new_m.data() != args.m.data()) std::memcpy(args.new_m.data(), args.m.data(), bytes);
  if (args.emit_update) {
    std::memset(args.new_parameter.data(), 0, bytes);
  } else if (args.new_parameter.data() != args.parameter.data()) {
    std::memcpy(args.new_parameter.data(), args.parameter.data(), bytes);
  }
}

}  // namespace

int64_t MuonScratchBytes(const MuonArgs& args, int num_workers) {
  if (args.gradient.rank() != 3) return 0;  // refused later
  const Shape shape(args);
  if (!IsSpread(shape, num_workers)) return WorkspaceBytes(args, shape, num_workers);
  return WorkspaceBytes(args, shape, 1) * num_workers;
}

Status Muon(const MuonArgs& args, const Context& context) {
  ANABRANCH_RETURN_IF_ERROR(Validate(args));
  const int num_workers = context.executor->num_workers();
  const int64_t needed = MuonScratchBytes(args, num_workers);
  if (needed > 0 && (context.scratch == nullptr || needed > context.scratch_bytes)) {
    return MakeStatus(StatusCode::kResourceExhausted, "muon: scratch is ", context.scratch_bytes,
                      " bytes; needs ", needed);
  }
  const Shape shape(args);
  if (args.gradient.num_elements() == 0) return Status::Ok();
  MuonScalars scalars;
  std::memcpy(&scalars, args.scalars.data(), sizeof(scalars));
  if (scalars.applied == 0) {
    Keep(args);
    return Status::Ok();
  }
  if (!IsSpread(shape, num_workers)) {
    Workspace workspace(context.scratch, shape, args.multiplicand, num_workers);
    for (int64_t index = 0; index < shape.matrices; ++index) {
      ANABRANCH_RETURN_IF_ERROR(RunMatrix(args, scalars, index, &workspace, context.executor));
    }
    return Status::Ok();
  }
  const int64_t bytes = WorkspaceBytes(args, shape, 1);
  context.executor->ParallelFor(shape.matrices, [&](int64_t index, int worker) {
    SerialExecutor serial;
    Workspace workspace(static_cast<std::byte*>(context.scratch) + worker * bytes, shape,
                        args.multiplicand, 1);
    // Cannot fail: the products' shapes, types and scratch follow from what was checked.
    const Status status = RunMatrix(args, scalars, index, &workspace, &serial);
    static_cast<void>(status);
  });
  return Status::Ok();
}

}  // namespace anabranch
