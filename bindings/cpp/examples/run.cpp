// Runs a model with one float32 input and one float32 output of two dimensions on rows from a file.
//
// run LIBRARY ARCHIVE|- INPUT OUTPUT
//
// LIBRARY is libweft, and ARCHIVE a file of `weft compile`; or LIBRARY is a file of `weft export`, and ARCHIVE is "-".
// INPUT and OUTPUT hold the numbers, row by row, and nothing else.
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "weft.hpp"

int main(int argc, char **argv) try {
  if (argc != 5) throw std::invalid_argument("usage: run LIBRARY ARCHIVE|- INPUT OUTPUT");
  const weft::Library library(argv[1]);
  const std::string archive = argv[2];
  const weft::Program program = archive == "-" ? library.open() : library.open(archive);

  const weft::Value &input = program.inputs().at(0);
  if (input.shape.size() != 2 || input.shape[1] < 1) throw std::invalid_argument(input.name + " has no rows of a fixed size");

  std::ifstream file(argv[3], std::ios::binary);
  if (!file) throw std::runtime_error(std::string(argv[3]) + " cannot be read");
  const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
  std::vector<float> x(bytes.size() / sizeof(float));
  std::copy_n(bytes.data(), x.size() * sizeof(float), reinterpret_cast<char *>(x.data()));

  const auto results = program.run({{x.data(), {static_cast<std::int64_t>(x.size()) / input.shape[1], input.shape[1]}}});
  const auto y = results.at(0).values<float>();
  std::ofstream(argv[4], std::ios::binary).write(reinterpret_cast<const char *>(y.data()), static_cast<std::streamsize>(results[0].bytes()));
} catch (const std::exception &error) {
  std::cerr << error.what() << "\n";
  return 1;
}
