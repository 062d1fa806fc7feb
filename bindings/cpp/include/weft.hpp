// Runs models that Weft compiled: the functions of weft.h for C++17.
//
//     weft::Library library("libweft.so");              // or an export: weft::Library library("model.so")
//     weft::Program program = library.open("model.weft"); //                program = library.open()
//     std::vector<float> x(8 * 64);
//     std::vector<weft::Tensor> y = program.run({{x.data(), {8, 64}}});
//     for (float v : y[0].values<float>()) ...
//
// Functions that fail throw weft::Error. Objects may be used by several threads at once, as far as they are const.
#ifndef WEFT_HPP
#define WEFT_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft_library.h"

namespace weft {

// What went wrong, by kind; the numbers are those of weft.h.
enum class Code : std::int32_t {
  argument = WEFT_ERROR_ARGUMENT,        // a number of tensors, an index, a path where none is taken
  input = WEFT_ERROR_INPUT,              // an input of another dtype, rank or size
  output = WEFT_ERROR_OUTPUT,            // storage for an output that does not fit
  memory = WEFT_ERROR_MEMORY,            // no memory
  file = WEFT_ERROR_FILE,                // a file cannot be read, or a library loaded
  archive = WEFT_ERROR_ARCHIVE,          // no archive, or a damaged one, or not the expected one
  version = WEFT_ERROR_VERSION,          // written by another version of Weft
  machine = WEFT_ERROR_MACHINE,          // compiled for another processor
  unsupported = WEFT_ERROR_UNSUPPORTED,  // a step of the model runs where Python is
  run = WEFT_ERROR_RUN,                  // the run itself failed
  system = WEFT_ERROR_SYSTEM,            // the system refuses
};

// what() is the message: what, then lines "where: ", "why: ", "hint: " as far as they are known.
class Error : public std::runtime_error {
 public:
  Error(Code code, const std::string &message) : std::runtime_error(message), code_(code) {}
  Code code() const noexcept { return code_; }

 private:
  Code code_;
};

// An element type, as DLPack has it.
struct DType {
  std::uint8_t code;  // WEFT_INT, WEFT_UINT, WEFT_FLOAT, WEFT_BFLOAT, WEFT_BOOL, ...
  std::uint8_t bits;
  // Bytes of one element.
  std::size_t bytes() const noexcept { return bits <= 8 ? 1 : bits / 8u; }
  friend bool operator==(DType a, DType b) noexcept { return a.code == b.code && a.bits == b.bits; }
  friend bool operator!=(DType a, DType b) noexcept { return !(a == b); }
};

// Elements of types that C++ lacks, as bits.
struct float16 {
  std::uint16_t bits;
};
struct bfloat16 {
  std::uint16_t bits;
};

// The element type of a C++ type: integers, float, double, bool, weft::float16 and weft::bfloat16.
template <class T>
constexpr DType dtype_of() noexcept {
  using U = std::remove_cv_t<T>;
  static_assert(std::is_arithmetic_v<U> || std::is_same_v<U, float16> || std::is_same_v<U, bfloat16>,
                "no element type has this C++ type: give a DType");
  constexpr auto bits = static_cast<std::uint8_t>(8 * sizeof(U));
  if constexpr (std::is_same_v<U, bool>) return {WEFT_BOOL, bits};
  if constexpr (std::is_same_v<U, float16> || std::is_floating_point_v<U>) return {WEFT_FLOAT, bits};
  if constexpr (std::is_same_v<U, bfloat16>) return {WEFT_BFLOAT, bits};
  return {static_cast<std::uint8_t>(std::is_signed_v<U> ? WEFT_INT : WEFT_UINT), bits};
}

// Elements that lie one behind another, in memory of somebody else.
template <class T>
class Span {
 public:
  Span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
  T *data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  T &operator[](std::size_t i) const noexcept { return data_[i]; }
  T *begin() const noexcept { return data_; }
  T *end() const noexcept { return data_ + size_; }

 private:
  T *data_;
  std::size_t size_;
};

using Shape = std::vector<std::int64_t>;

// A tensor to read, row-major, in memory of the caller, which must stay as long as it is used.
class TensorView {
 public:
  template <class T>
  TensorView(const T *data, Shape shape) : TensorView(data, dtype_of<T>(), std::move(shape)) {}
  TensorView(const void *data, DType dtype, Shape shape) : data_(const_cast<void *>(data)), dtype_(dtype), shape_(std::move(shape)) {}

  const void *data() const noexcept { return data_; }
  DType dtype() const noexcept { return dtype_; }
  const Shape &shape() const noexcept { return shape_; }

 protected:
  void *data_;
  DType dtype_;
  Shape shape_;
};

// A tensor to write, row-major, in memory of the caller.
class MutableTensorView : public TensorView {
 public:
  template <class T, class = std::enable_if_t<!std::is_const_v<T>>>
  MutableTensorView(T *data, Shape shape) : TensorView(data, std::move(shape)) {}
  MutableTensorView(void *data, DType dtype, Shape shape) : TensorView(data, dtype, std::move(shape)) {}

  void *data() const noexcept { return data_; }
};

// A result of a run, with memory of its own. It may outlive its program.
class Tensor {
 public:
  Tensor(Tensor &&other) noexcept : tensor_(other.tensor_), shape_(std::move(other.shape_)), release_(other.release_) {
    other.tensor_.data = nullptr;
  }
  Tensor &operator=(Tensor &&other) noexcept {
    std::swap(tensor_, other.tensor_);
    std::swap(shape_, other.shape_);
    std::swap(release_, other.release_);
    return *this;
  }
  Tensor(const Tensor &) = delete;
  Tensor &operator=(const Tensor &) = delete;
  ~Tensor() {
    if (tensor_.data != nullptr) release_(&tensor_);
  }

  const void *data() const noexcept { return tensor_.data; }
  void *data() noexcept { return tensor_.data; }
  DType dtype() const noexcept { return {tensor_.code, tensor_.bits}; }
  const Shape &shape() const noexcept { return shape_; }
  // Elements.
  std::size_t size() const noexcept {
    std::size_t n = 1;
    for (const std::int64_t d : shape_) n *= static_cast<std::size_t>(d);
    return n;
  }
  std::size_t bytes() const noexcept { return size() * dtype().bytes(); }
  // All elements, row by row. Throws Error (output) if they are of another type.
  template <class T>
  Span<const T> values() const & {
    if (dtype() != dtype_of<T>()) throw Error(Code::output, "the result has elements of another type than those that are asked for");
    return {static_cast<const T *>(tensor_.data), size()};
  }
  template <class T>
  Span<const T> values() const && = delete;  // of a temporary: its memory would be gone
  // As an input of another run.
  operator TensorView() const { return {tensor_.data, dtype(), shape_}; }

 private:
  friend class Program;
  explicit Tensor(void (*release)(weft_tensor *), std::size_t rank) : shape_(rank), release_(release) {}

  weft_tensor tensor_{};
  Shape shape_;
  void (*release_)(weft_tensor *);
};

// What an input or output is.
struct Value {
  std::string name;
  std::string dtype_name;  // "float32"
  DType dtype;
  Shape shape;  // -1: a size that is open
};

struct Options {
  int threads = 0;     // of a run, the caller's included; 0: WEFT_THREADS, the model's own, or as many as there are
  std::string sha256;  // the expected hash of the archive, 64 hexadecimal digits; empty: any
};

// A loaded model. run() may be called by several threads at once.
class Program {
 public:
  Program(Program &&other) noexcept
      : library_(other.library_),
        program_(std::exchange(other.program_, nullptr)),
        archive_(std::move(other.archive_)),
        name_(std::move(other.name_)),
        target_(std::move(other.target_)),
        version_(std::move(other.version_)),
        threads_(other.threads_),
        inputs_(std::move(other.inputs_)),
        outputs_(std::move(other.outputs_)) {}
  Program &operator=(Program &&other) noexcept {
    if (this != &other) {
      this->~Program();
      new (this) Program(std::move(other));
    }
    return *this;
  }
  Program(const Program &) = delete;
  Program &operator=(const Program &) = delete;
  ~Program() {
    if (program_ != nullptr) library_.close(program_);
  }

  const std::string &name() const noexcept { return name_; }
  // What it was compiled for.
  const std::string &target() const noexcept { return target_; }
  // Of Weft, by which it was compiled.
  const std::string &version() const noexcept { return version_; }
  // Of a run.
  int threads() const noexcept { return threads_; }
  const std::vector<Value> &inputs() const noexcept { return inputs_; }
  const std::vector<Value> &outputs() const noexcept { return outputs_; }

  // Runs the model. Takes inputs in the order of inputs(), and gives results in the order of outputs().
  std::vector<Tensor> run(const std::vector<TensorView> &inputs) const {
    std::vector<Tensor> results;
    results.reserve(outputs_.size());
    for (const Value &o : outputs_) {
      Tensor made(library_.release, o.shape.size());
      made.tensor_.shape = made.shape_.data();
      results.push_back(std::move(made));  // a moved vector keeps its elements where they are
    }
    std::vector<weft_tensor *> out;
    for (Tensor &t : results) out.push_back(&t.tensor_);
    call(inputs, out);
    return results;
  }

  // Runs the model, and writes results to memory of the caller, in the order of outputs().
  void run(const std::vector<TensorView> &inputs, const std::vector<MutableTensorView> &outputs) const {
    if (outputs.size() != outputs_.size()) throw wrong_count(outputs.size(), outputs_.size(), "outputs");
    std::vector<weft_tensor> tensors;
    for (const MutableTensorView &o : outputs) tensors.push_back(raw(o));
    std::vector<weft_tensor *> out;
    for (weft_tensor &t : tensors) out.push_back(&t);
    call(inputs, out);
  }

 private:
  friend class Library;

  explicit Program(const weft_library &library, weft_program *program, std::vector<std::max_align_t> archive = {})
      : library_(library), program_(program), archive_(std::move(archive)) {
    try {
      describe();
    } catch (...) {
      library_.close(program_);
      throw;
    }
  }

  void describe() {
    weft_error error{sizeof error, 0, {}};
    weft_program_info info{sizeof info, 0, 0, 0, nullptr, nullptr, nullptr};
    check(library_.describe(program_, &info, &error), error);
    name_ = info.name;
    target_ = info.target;
    version_ = info.version;
    threads_ = info.threads;
    for (std::int32_t i = 0; i < info.inputs + info.outputs; ++i) {
      const bool is_input = i < info.inputs;
      weft_value_info v{sizeof v, 0, 0, 0, 0, nullptr, nullptr, nullptr};
      check(is_input ? library_.input(program_, i, &v, &error) : library_.output(program_, i - info.inputs, &v, &error), error);
      (is_input ? inputs_ : outputs_).push_back({v.name, v.dtype, {v.code, v.bits}, Shape(v.shape, v.shape + v.ndim)});
    }
  }

  static void check(std::int32_t result, const weft_error &error) {
    if (result != WEFT_OK) throw Error(static_cast<Code>(result), error.message);
  }

  Error wrong_count(std::size_t given, std::size_t wanted, const char *what) const {
    return {Code::argument, "'" + name_ + "' has " + std::to_string(wanted) + " " + what + ", " + std::to_string(given) + " are given"};
  }

  static weft_tensor raw(const TensorView &v) {
    weft_tensor t{};
    static const std::max_align_t nothing{};  // tensors without elements may have no memory
    t.data = v.data() == nullptr && std::count(v.shape().begin(), v.shape().end(), 0) > 0
                 ? const_cast<std::max_align_t *>(&nothing)
                 : const_cast<void *>(v.data());
    t.device_type = 1;
    t.ndim = static_cast<std::int32_t>(v.shape().size());
    t.code = v.dtype().code;
    t.bits = v.dtype().bits;
    t.lanes = 1;
    t.shape = const_cast<std::int64_t *>(v.shape().data());
    return t;
  }

  void call(const std::vector<TensorView> &inputs, const std::vector<weft_tensor *> &out) const {
    if (inputs.size() != inputs_.size()) throw wrong_count(inputs.size(), inputs_.size(), "inputs");
    std::vector<weft_tensor> tensors;
    for (const TensorView &i : inputs) tensors.push_back(raw(i));
    std::vector<const weft_tensor *> in;
    for (const weft_tensor &t : tensors) in.push_back(&t);
    weft_error error{sizeof error, 0, {}};
    check(library_.run(program_, in.data(), out.data(), &error), error);
  }

  weft_library library_;
  weft_program *program_;
  std::vector<std::max_align_t> archive_;
  std::string name_, target_, version_;
  int threads_ = 0;
  std::vector<Value> inputs_, outputs_;
};

// libweft, or a library that `weft export` wrote. It stays loaded until the process ends.
class Library {
 public:
  // Loads the library at `path`. `prefix` is that of `weft export --prefix`.
  explicit Library(const std::string &path, const std::string &prefix = "") {
    weft_error error{sizeof error, 0, {}};
    Program::check(weft_library_load(&functions_, path.c_str(), prefix.c_str(), &error), error);
  }

  // The functions that the program is linked with: libweft, or an export as an object or a library.
  static Library linked() {
    return Library(weft_library{weft_api_version, weft_open, weft_open_memory, weft_close, weft_describe, weft_input,
                                weft_output, weft_run, weft_release});
  }

  // Opens the archive at `path`, by libweft.
  Program open(const std::string &path, const Options &options = {}) const { return opened(path.c_str(), options); }

  // Opens the model inside of an export.
  Program open(const Options &options = {}) const { return opened(nullptr, options); }

  // Opens an archive that lies in memory, by libweft. It is copied.
  Program open_memory(const void *data, std::size_t bytes, const Options &options = {}) const {
    weft_error error{sizeof error, 0, {}};
    const weft_options given = raw(options);
    weft_program *program = nullptr;
    // 64 bytes more, so that it can begin at a multiple of 64.
    std::vector<std::max_align_t> copy(bytes / sizeof(std::max_align_t) + 1 + 64 / sizeof(std::max_align_t));
    char *at = reinterpret_cast<char *>(copy.data());
    at += (64 - reinterpret_cast<std::uintptr_t>(at) % 64) % 64;
    if (bytes > 0) std::copy_n(static_cast<const char *>(data), bytes, at);
    Program::check(functions_.open_memory(at, bytes, &given, &program, &error), error);
    return Program(functions_, program, std::move(copy));
  }

  const weft_library &functions() const noexcept { return functions_; }

 private:
  explicit Library(const weft_library &functions) : functions_(functions) {}

  static weft_options raw(const Options &options) {
    return {sizeof(weft_options), options.threads, options.sha256.empty() ? nullptr : options.sha256.c_str()};
  }

  Program opened(const char *path, const Options &options) const {
    weft_error error{sizeof error, 0, {}};
    const weft_options given = raw(options);
    weft_program *program = nullptr;
    Program::check(functions_.open(path, &given, &program, &error), error);
    return Program(functions_, program);
  }

  weft_library functions_{};
};

}  // namespace weft

#endif
