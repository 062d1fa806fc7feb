import CWeft

/// What went wrong.
public struct WeftError: Error, CustomStringConvertible, Sendable {
  /// The kind of an error; the numbers are those of weft.h.
  public enum Code: Int32, Sendable {
    /// A number of tensors, or a path where none is taken.
    case argument = 1
    /// An input of another dtype, rank or size.
    case input
    /// Storage for an output that does not fit.
    case output
    /// No memory.
    case memory
    /// A file cannot be read, or a library loaded.
    case file
    /// No archive, or one that is damaged, cut short, or not the expected one.
    case archive
    /// Written by another version of Weft.
    case version
    /// Compiled for another architecture, or a processor with more instructions.
    case machine
    /// A step of the model runs where Python is: strings, pictures, other devices.
    case unsupported
    /// The run itself failed.
    case run
    /// The system refuses: executable memory is forbidden, for example.
    case system
  }

  public let code: Code
  /// What, then lines "where: ", "why: ", "hint: " as far as they are known.
  public let message: String

  public var description: String { message }

  /// Calls a function of weft.h.
  ///
  /// - Throws: what it wrote, if it failed.
  static func check(_ call: (UnsafeMutablePointer<weft_error>) -> Int32) throws {
    var error = weft_error()
    error.size = UInt32(MemoryLayout<weft_error>.size)
    let result = call(&error)
    guard result != 0 else { return }
    let message = withUnsafeBytes(of: &error.message) { bytes in
      String(decoding: bytes.prefix { $0 != 0 }, as: UTF8.self)
    }
    throw WeftError(code: Code(rawValue: result) ?? .run, message: message)
  }
}
