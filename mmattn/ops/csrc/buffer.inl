// Scratch memory, of zeros at first, that starts at a multiple of 64 bytes. The standard
// library's containers would be instances that instruction sets share.
template <class X>
class Buffer {
 public:
  explicit Buffer(int64_t size)
      : size_(size), items_(new (std::align_val_t(64)) X[size]()) {}
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    operator delete[](items_, std::align_val_t(64));
  }
  operator X*() {
    return items_;
  }
  operator const X*() const {
    return items_;
  }
  void fill(X x) {
    for (int64_t i = 0; i < size_; ++i) {
      items_[i] = x;
    }
  }

 private:
  const int64_t size_;
  X* const items_;
};
