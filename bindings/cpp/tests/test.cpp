// Tests of weft.hpp: test FOLDER, on the files that tests/bindings/materials.py writes. Built with -DLINKED, it is linked
// with mlp.so.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "weft.hpp"

#define CHECK(condition)                                            \
  do {                                                              \
    ++checks;                                                       \
    if (!(condition)) {                                             \
      std::fprintf(stderr, "%d: %s\n", __LINE__, #condition);       \
      std::exit(1);                                                 \
    }                                                               \
  } while (0)

static int checks;
static std::string folder;

static std::string at(const std::string &name) { return folder + "/" + name; }

static std::vector<char> bytes_of(const std::string &name) {
  std::ifstream file(at(name), std::ios::binary);
  CHECK(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

template <class T>
static std::vector<T> read(const std::string &name) {
  const std::vector<char> bytes = bytes_of(name);
  std::vector<T> made(bytes.size() / sizeof(T));
  std::memcpy(made.data(), bytes.data(), bytes.size());
  return made;
}

static bool same(const weft::Tensor &t, const std::string &name) {
  const std::vector<char> expected = bytes_of(name);
  return t.bytes() == expected.size() && std::memcmp(t.data(), expected.data(), expected.size()) == 0;
}

static void fails(weft::Code code, const std::string &part, const std::function<void()> &work) {
  ++checks;
  try {
    work();
  } catch (const weft::Error &error) {
    if (error.code() == code && std::string(error.what()).find(part) != std::string::npos) return;
    std::fprintf(stderr, "code %d: %s\n", static_cast<int>(error.code()), error.what());
    std::exit(1);
  }
  std::fprintf(stderr, "nothing was thrown, expected: %s\n", part.c_str());
  std::exit(1);
}

static void run_mlp(weft::Program program) {
  CHECK(program.name() == "mlp" && program.inputs().size() == 1 && program.outputs().size() == 1);
  const weft::Value &input = program.inputs()[0];
  CHECK(input.name == "x" && input.dtype_name == "float32" && input.dtype == weft::dtype_of<float>());
  CHECK((input.shape == weft::Shape{-1, 64}));
  const auto x = read<float>("mlp-x.bin");
  auto results = program.run({{x.data(), {3, 64}}});
  CHECK((results.size() == 1 && results[0].shape() == weft::Shape{3, 32} && same(results[0], "mlp-y.bin")));
  CHECK(results[0].values<float>().size() == 96);
  fails(weft::Code::output, "another type", [&] { results[0].values<double>(); });

  std::vector<float> room(96);
  program.run({{x.data(), {3, 64}}}, {{room.data(), {3, 32}}});
  CHECK(std::memcmp(room.data(), bytes_of("mlp-y.bin").data(), 384) == 0);
  fails(weft::Code::output, "has size 2 on axis 0", [&] { program.run({{x.data(), {3, 64}}}, {{room.data(), {2, 32}}}); });
  fails(weft::Code::input, "has size 63 on axis 1, expected 64", [&] { program.run({{x.data(), {3, 63}}}); });
  const std::vector<double> wide(192);
  fails(weft::Code::input, "float32", [&] { program.run({{wide.data(), {3, 64}}}); });
  fails(weft::Code::argument, "'mlp' has 1 inputs, 0 are given", [&] { program.run({}); });
  fails(weft::Code::argument, "'mlp' has 1 outputs, 0 are given", [&] { program.run({{x.data(), {3, 64}}}, {}); });
  const auto none = program.run({{static_cast<const float *>(nullptr), {0, 64}}});
  CHECK((none[0].shape() == weft::Shape{0, 32} && none[0].values<float>().empty()));

  std::vector<std::thread> threads;
  std::vector<int> good(4);
  for (int k = 0; k < 4; ++k)
    threads.emplace_back([&, k] {
      for (int i = 0; i < 50; ++i) good[static_cast<std::size_t>(k)] += std::memcmp(program.run({{x.data(), {3, 64}}})[0].data(), results[0].data(), 384) == 0;
    });
  for (std::thread &t : threads) t.join();
  for (const int g : good) CHECK(g == 50);

  weft::Program moved = std::move(program);
  weft::Tensor kept = std::move(moved.run({{x.data(), {3, 64}}})[0]);
  kept = std::move(results[0]);
  { const weft::Program gone = std::move(moved); }
  CHECK(same(kept, "mlp-y.bin"));
}

static void run_mixed(const weft::Program &program) {
  const auto x = read<float>("mixed-x.bin");
  const auto k = read<std::int64_t>("mixed-k.bin");
  const auto s = read<weft::float16>("mixed-s.bin");
  const auto m = bytes_of("mixed-m.bin");
  const auto results = program.run({{x.data(), {4, 3}}, {k.data(), {5}}, {s.data(), {}}, {m.data(), weft::dtype_of<bool>(), {2}}});
  CHECK((results[0].shape() == weft::Shape{4, 3} && results[1].shape() == weft::Shape{2, 7} && results[2].shape().empty()));
  const char *const names[] = {"y", "places", "t", "w", "l"};
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(program.outputs()[i].name == names[i]);
    CHECK(same(results[i], std::string("mixed-") + names[i] + ".bin"));
  }
  const auto again = program.run({results[0], {k.data(), {5}}, results[2], results[3]});
  CHECK((again[1].shape() == weft::Shape{2, 7}));
}

static void errors() {
  fails(weft::Code::file, "cannot be loaded", [] { weft::Library(at("nothing.so")); });
  fails(weft::Code::file, "no function 'weft_api_version'", [] { weft::Library(at("mixed.so")); });
  const weft::Library library(at("libweft.so"));
  fails(weft::Code::file, "nothing.weft", [&] { library.open(at("nothing.weft")); });
  fails(weft::Code::archive, "damaged", [&] { library.open(at("damaged.weft")); });
  fails(weft::Code::machine, "was compiled for", [&] { library.open(at("foreign.weft")); });
  fails(weft::Code::argument, "path is a null pointer", [&] { library.open(); });
  fails(weft::Code::argument, "opens no file", [&] { weft::Library(at("mlp.so")).open(at("mlp.weft")); });
  weft::Options options;
  options.threads = 1;
  const auto digest = bytes_of("mlp.sha256");
  options.sha256.assign(digest.begin(), digest.end());
  CHECK(library.open(at("mlp.weft"), options).threads() == 1);
  fails(weft::Code::archive, "not the expected one", [&] { library.open(at("mixed.weft"), options); });
  weft::Program replaced = library.open(at("mixed.weft"));
  replaced = library.open(at("mlp.weft"));
  CHECK(replaced.name() == "mlp");
  const auto archive = bytes_of("mlp.weft");
  run_mlp(library.open_memory(archive.data(), archive.size()));
  fails(weft::Code::archive, "", [&] { library.open_memory(archive.data(), archive.size() / 2); });
}

int main(int argc, char **argv) try {
  if (argc != 2) return 2;
  folder = argv[1];
  const weft::Library library(at("libweft.so"));
  run_mlp(library.open(at("mlp.weft")));
  run_mixed(library.open(at("mixed.weft")));
  run_mlp(weft::Library(at("mlp.so")).open());
  run_mixed(weft::Library(at("mixed.so"), "mixed").open());
  errors();
#ifdef LINKED
  run_mlp(weft::Library::linked().open());
#endif
  std::printf("%d passed, 0 failed\n", checks);
} catch (const std::exception &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
