import CWeft

/// An element type, as DLPack has it.
public struct DType: Hashable, Sendable {
  /// DLPack's type code: 0 signed, 1 unsigned, 2 float, 4 bfloat16, 6 bool, and others.
  public let code: UInt8
  public let bits: UInt8

  public init(code: UInt8, bits: UInt8) {
    self.code = code
    self.bits = bits
  }

  /// Bytes of an element.
  public var bytes: Int { max(1, Int(bits) / 8) }
}

/// A Swift type that is an element type.
public protocol TensorElement {
  static var dtype: DType { get }
}

extension Int8: TensorElement { public static var dtype: DType { DType(code: 0, bits: 8) } }
extension Int16: TensorElement { public static var dtype: DType { DType(code: 0, bits: 16) } }
extension Int32: TensorElement { public static var dtype: DType { DType(code: 0, bits: 32) } }
extension Int64: TensorElement { public static var dtype: DType { DType(code: 0, bits: 64) } }
extension UInt8: TensorElement { public static var dtype: DType { DType(code: 1, bits: 8) } }
extension UInt16: TensorElement { public static var dtype: DType { DType(code: 1, bits: 16) } }
extension UInt32: TensorElement { public static var dtype: DType { DType(code: 1, bits: 32) } }
extension UInt64: TensorElement { public static var dtype: DType { DType(code: 1, bits: 64) } }
extension Float: TensorElement { public static var dtype: DType { DType(code: 2, bits: 32) } }
extension Double: TensorElement { public static var dtype: DType { DType(code: 2, bits: 64) } }
extension Bool: TensorElement { public static var dtype: DType { DType(code: 6, bits: 8) } }
#if arch(arm64)
  extension Float16: TensorElement { public static var dtype: DType { DType(code: 2, bits: 16) } }
#endif

/// An array, row by row, with memory of its own, which nobody changes.
public final class Tensor: @unchecked Sendable {
  public let dtype: DType
  public let shape: [Int]
  let data: UnsafeMutableRawPointer
  private let free: (UnsafeMutableRawPointer) -> Void

  init(dtype: DType, shape: [Int], data: UnsafeMutableRawPointer, free: @escaping (UnsafeMutableRawPointer) -> Void) {
    self.dtype = dtype
    self.shape = shape
    self.data = data
    self.free = free
  }

  deinit { free(data) }

  /// A tensor of a copy of elements.
  ///
  /// - Precondition: they are as many as the shape says.
  public convenience init<T: TensorElement>(_ elements: [T], shape: [Int]) {
    let copy = elements.withUnsafeBytes { Tensor.copy($0) }
    precondition(shape.allSatisfy { $0 >= 0 } && shape.reduce(1, *) == elements.count, "a tensor of sizes \(shape) is given \(elements.count) elements")
    self.init(dtype: T.dtype, shape: shape, data: copy, free: { $0.deallocate() })
  }

  /// A tensor of a copy of elements of any type, as bytes in the order of the machine.
  ///
  /// - Precondition: they are as many as the shape says.
  public convenience init(bytes: UnsafeRawBufferPointer, dtype: DType, shape: [Int]) {
    precondition(shape.allSatisfy { $0 >= 0 } && shape.reduce(dtype.bytes, *) == bytes.count, "a tensor of sizes \(shape) is given \(bytes.count) bytes")
    self.init(dtype: dtype, shape: shape, data: Tensor.copy(bytes), free: { $0.deallocate() })
  }

  private static func copy(_ bytes: UnsafeRawBufferPointer) -> UnsafeMutableRawPointer {
    let made = UnsafeMutableRawPointer.allocate(byteCount: max(1, bytes.count), alignment: 64)
    if let from = bytes.baseAddress { made.copyMemory(from: from, byteCount: bytes.count) }
    return made
  }

  /// The number of elements.
  public var count: Int { shape.reduce(1, *) }

  /// The elements as bytes in the order of the machine; the pointer is valid in `body`.
  public func withUnsafeBytes<R>(_ body: (UnsafeRawBufferPointer) throws -> R) rethrows -> R {
    try withExtendedLifetime(self) { try body(UnsafeRawBufferPointer(start: data, count: count * dtype.bytes)) }
  }

  /// A copy of the elements.
  ///
  /// - Throws: `WeftError` (output), if they are of another type.
  public func array<T: TensorElement>(of type: T.Type = T.self) throws -> [T] {
    guard dtype == T.dtype else {
      throw WeftError(code: .output, message: "the tensor has elements of another type than \(T.self)")
    }
    return withUnsafeBytes { Array($0.bindMemory(to: T.self)) }
  }
}
