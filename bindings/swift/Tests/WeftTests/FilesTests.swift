import Foundation
import XCTest

@testable import Weft

/// Tests on the files that tests/bindings/materials.py writes, in the folder WEFT_TEST_FOLDER.
final class FilesTests: XCTestCase {
  func at(_ name: String) -> String { ProcessInfo.processInfo.environment["WEFT_TEST_FOLDER"]! + "/" + name }

  func bytes(_ name: String) throws -> Data { try Data(contentsOf: URL(fileURLWithPath: at(name))) }

  func tensor(_ name: String, _ dtype: DType, _ shape: [Int]) throws -> Tensor {
    try bytes(name).withUnsafeBytes { Tensor(bytes: $0, dtype: dtype, shape: shape) }
  }

  func fails(_ code: WeftError.Code, _ part: String, _ work: () throws -> Void) {
    XCTAssertThrowsError(try work()) { error in
      XCTAssertEqual((error as? WeftError)?.code, code)
      XCTAssertTrue("\(error)".contains(part), "\(error)")
    }
  }

  func mlps() throws -> [Program] {
    [
      try Library(path: at("libweft.so")).open(path: at("mlp.weft")),
      try Library(path: at("mlp.so")).open(),
    ]
  }

  func testRuns() throws {
    for program in try mlps() {
      XCTAssertEqual(program.name, "mlp")
      XCTAssertEqual(program.inputs[0].shape, [nil, 64])
      let y = try program.run([tensor("mlp-x.bin", Float.dtype, [3, 64])])[0]
      XCTAssertEqual(y.shape, [3, 32])
      XCTAssertEqual(y.withUnsafeBytes { Data($0) }, try bytes("mlp-y.bin"))
      XCTAssertEqual(try y.array(of: Float.self).count, 96)
      fails(.output, "another type") { _ = try y.array(of: Double.self) }
      fails(.input, "has size 63 on axis 1, expected 64") {
        _ = try program.run([Tensor([Float](repeating: 0, count: 63), shape: [1, 63])])
      }
      fails(.argument, "'mlp' has 1 inputs, 0 are given") { _ = try program.run([]) }
    }
  }

  func testEveryKindOfValue() throws {
    let archive = try Library(path: at("libweft.so")).open(path: at("mixed.weft"))
    let export = try Library(path: at("mixed.so"), prefix: "mixed").open()
    for program in [archive, export] {
      let results = try program.run([
        tensor("mixed-x.bin", Float.dtype, [4, 3]), tensor("mixed-k.bin", Int64.dtype, [5]),
        tensor("mixed-s.bin", DType(code: 2, bits: 16), []), tensor("mixed-m.bin", Bool.dtype, [2]),
      ])
      for (value, result) in zip(program.outputs, results) {
        XCTAssertEqual(result.withUnsafeBytes { Data($0) }, try bytes("mixed-\(value.name).bin"))
      }
      XCTAssertEqual(results[1].shape, [2, 7])
    }
  }

  func testWhatCannotBeLoaded() throws {
    fails(.file, "cannot be loaded") { _ = try Library(path: at("nothing.so")) }
    fails(.file, "no function 'weft_api_version'") { _ = try Library(path: at("mixed.so")) }
    let library = try Library(path: at("libweft.so"))
    fails(.file, "nothing.weft") { _ = try library.open(path: at("nothing.weft")) }
    fails(.archive, "damaged") { _ = try library.open(path: at("damaged.weft")) }
    fails(.machine, "was compiled for") { _ = try library.open(path: at("foreign.weft")) }
    fails(.argument, "path is a null pointer") { _ = try library.open() }
    let digest = String(decoding: try bytes("mlp.sha256"), as: UTF8.self)
    XCTAssertEqual(try library.open(path: at("mlp.weft"), options: Options(threads: 1, sha256: digest)).threads, 1)
    fails(.archive, "not the expected one") { _ = try library.open(path: at("mixed.weft"), options: Options(sha256: digest)) }
  }
}
