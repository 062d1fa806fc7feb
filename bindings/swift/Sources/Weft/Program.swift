import CWeft

/// What an input or output is.
public struct Value: Sendable {
  public let name: String
  /// The element type by name: "float32".
  public let dtypeName: String
  public let dtype: DType
  /// Sizes; nil for one that is open.
  public let shape: [Int?]
}

/// How a program is opened.
public struct Options: Sendable {
  /// Threads of a run, the caller's included; 0: WEFT_THREADS, the model's own, or as many as the process may use.
  public var threads: Int32
  /// The expected hash of the archive, 64 hexadecimal digits: another file is refused.
  public var sha256: String?

  public init(threads: Int32 = 0, sha256: String? = nil) {
    self.threads = threads
    self.sha256 = sha256
  }
}

/// libweft, or a library that `weft export` wrote. It stays loaded until the process ends.
///
/// Libraries and archives hold machine code, which runs with the rights of the process: load only those that you trust.
public struct Library: @unchecked Sendable {
  let functions: weft_library

  /// The functions of a library that is loaded already.
  public init(functions: weft_library) { self.functions = functions }

  /// Loads the library at `path`. `prefix` is that of `weft export --prefix`.
  ///
  /// - Throws: `WeftError`, if it cannot be loaded or is no library of Weft.
  public init(path: String, prefix: String? = nil) throws {
    var functions = weft_library()
    try WeftError.check { error in
      guard let prefix else { return weft_library_load(&functions, path, nil, error) }
      return weft_library_load(&functions, path, prefix, error)
    }
    self.functions = functions
  }

  /// Opens the archive at `path`, by libweft; without a path the model inside of an export.
  ///
  /// - Throws: `WeftError`, if the file cannot be read, is no archive, or does not fit this machine or library.
  public func open(path: String? = nil, options: Options = Options()) throws -> Program {
    var handle: OpaquePointer?
    try WeftError.check { error in
      withOptions(options) { raw in
        guard let path else { return functions.open!(nil, raw, &handle, error) }
        return functions.open!(path, raw, &handle, error)
      }
    }
    return try Program(functions: functions, handle: handle!)
  }

  private func withOptions(_ options: Options, _ body: (UnsafePointer<weft_options>) -> Int32) -> Int32 {
    var raw = weft_options()
    raw.size = UInt32(MemoryLayout<weft_options>.size)
    raw.threads = options.threads
    guard let sha256 = options.sha256 else { return body(&raw) }
    return sha256.withCString { text in
      raw.sha256 = text
      return body(&raw)
    }
  }
}

/// A loaded model. Several threads may run it at once.
public final class Program: @unchecked Sendable {
  public let name: String
  /// What it was compiled for.
  public let target: String
  /// The version of Weft by which it was compiled.
  public let version: String
  /// Threads of a run.
  public let threads: Int
  public let inputs: [Value]
  public let outputs: [Value]
  private let functions: weft_library
  private let handle: OpaquePointer

  init(functions: weft_library, handle: OpaquePointer) throws {
    do {
      var info = weft_program_info()
      info.size = UInt32(MemoryLayout<weft_program_info>.size)
      try WeftError.check { functions.describe!(handle, &info, $0) }
      name = String(cString: info.name)
      target = String(cString: info.target)
      version = String(cString: info.version)
      threads = Int(info.threads)
      inputs = try (0..<info.inputs).map { index in
        try Program.value { functions.input!(handle, index, $0, $1) }
      }
      outputs = try (0..<info.outputs).map { index in
        try Program.value { functions.output!(handle, index, $0, $1) }
      }
    } catch {
      functions.close!(handle)
      throw error
    }
    self.functions = functions
    self.handle = handle
  }

  deinit { functions.close!(handle) }

  private static func value(
    _ describe: (UnsafeMutablePointer<weft_value_info>, UnsafeMutablePointer<weft_error>) -> Int32
  ) throws -> Value {
    var info = weft_value_info()
    info.size = UInt32(MemoryLayout<weft_value_info>.size)
    try WeftError.check { describe(&info, $0) }
    let sizes = UnsafeBufferPointer(start: info.shape, count: Int(info.ndim))
    return Value(
      name: String(cString: info.name), dtypeName: String(cString: info.dtype),
      dtype: DType(code: info.code, bits: info.bits), shape: sizes.map { $0 < 0 ? nil : Int($0) })
  }

  /// Runs the model on inputs in the order of `inputs`.
  ///
  /// - Returns: results in the order of `outputs`. They may outlive the program.
  /// - Throws: `WeftError`, if an input does not fit or the run failed.
  public func run(_ given: [Tensor]) throws -> [Tensor] {
    guard given.count == inputs.count else {
      throw WeftError(
        code: .argument, message: "'\(name)' has \(inputs.count) inputs, \(given.count) are given")
    }
    let ranks = given.map(\.shape.count) + outputs.map(\.shape.count)
    let sizes = UnsafeMutablePointer<Int64>.allocate(capacity: ranks.reduce(1, +))
    sizes.initialize(repeating: 0, count: ranks.reduce(1, +))
    let tensors = UnsafeMutablePointer<weft_tensor>.allocate(capacity: ranks.count + 1)
    tensors.initialize(repeating: weft_tensor(), count: ranks.count + 1)
    defer {
      sizes.deallocate()
      tensors.deallocate()
    }
    var at = sizes
    for (k, rank) in ranks.enumerated() {
      tensors[k].shape = at
      if k < given.count {
        tensors[k].data = given[k].data
        tensors[k].device_type = 1
        tensors[k].ndim = Int32(rank)
        tensors[k].code = given[k].dtype.code
        tensors[k].bits = given[k].dtype.bits
        tensors[k].lanes = 1
        for (i, n) in given[k].shape.enumerated() { at[i] = Int64(n) }
      }
      at += rank
    }
    let first = given.count
    let taken: [UnsafePointer<weft_tensor>?] = (0..<first).map { UnsafePointer(tensors + $0) }
    let made: [UnsafeMutablePointer<weft_tensor>?] = outputs.indices.map { tensors + (first + $0) }
    try withExtendedLifetime(given) {
      try WeftError.check { functions.run!(handle, taken, made, $0) }
    }
    let release = functions.release
    return outputs.indices.map { k in
      let raw = tensors[first + k]
      let shape = UnsafeBufferPointer(start: raw.shape, count: Int(raw.ndim)).map { Int($0) }
      return Tensor(dtype: DType(code: raw.code, bits: raw.bits), shape: shape, data: raw.data) { data in
        var gone = weft_tensor()
        gone.data = data
        release?(&gone)
      }
    }
  }
}
