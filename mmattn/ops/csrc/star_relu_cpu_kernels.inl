// StarReLU and its gradients for one instruction set.
namespace {

constexpr int64_t kPiece = 1024;

template <class T>
void star_relu_of(const StarReLUCall& call, int64_t begin, int64_t end, float* sums) {
  const T* const x = static_cast<const T*>(call.x);
  const T* const grad = static_cast<const T*>(call.grad);
  T* const out = static_cast<T*>(call.out);
  Buffer<float> inputs(kPiece), grads(kPiece), outputs(kPiece);
  Floats dscale{}, dbias{};
  for (int64_t i = begin; i < end; i += kPiece) {
    const int64_t count = end - i < kPiece ? end - i : kPiece;
    read_row(x + i, 1, count, inputs);
    if (grad != nullptr) {
      read_row(grad + i, 1, count, grads);
    }
    for (int64_t j = 0; j < count; j += kLanes) {
      const Floats r = maximum(Floats{}, load(inputs + j));  // a NaN stays
      const Floats g = load(grads + j), product = r * g;
      dscale += product * r;
      dbias += g;
      const Floats value = r * r * call.scale + call.bias;
      store(outputs + j, grad == nullptr ? value : product * (2 * call.scale));
    }
    write_row(outputs, count, out + i);
  }
  sums[0] = sum_lanes(dscale);
  sums[1] = sum_lanes(dbias);
}

}  // namespace

// Computes some numbers, and their share of the gradients of scale and bias.
void star_relu(const StarReLUCall& call, int64_t begin, int64_t end, float* sums) {
  with_type_of(
      call.storage, [&](auto x) { star_relu_of<decltype(x)>(call, begin, end, sums); });
}
