// Runs a model with one float32 input and one float32 output of two dimensions on rows from a file.
//
// Run LIBRARY ARCHIVE|- INPUT OUTPUT
//
// LIBRARY is libweft, and ARCHIVE a file of `weft compile`; or LIBRARY is a file of `weft export`, and ARCHIVE is "-".
// INPUT and OUTPUT hold the numbers, row by row, and nothing else.
import Foundation
import Weft

let arguments = CommandLine.arguments
guard arguments.count == 5 else {
  print("usage: Run LIBRARY ARCHIVE|- INPUT OUTPUT")
  exit(2)
}
do {
  let library = try Library(path: arguments[1])
  let program = try library.open(path: arguments[2] == "-" ? nil : arguments[2])
  guard let width = program.inputs[0].shape.last ?? nil else { fatalError("the rows have no fixed size") }
  let bytes = try Data(contentsOf: URL(fileURLWithPath: arguments[3]))
  let x = bytes.withUnsafeBytes { Tensor(bytes: $0, dtype: Float.dtype, shape: [bytes.count / 4 / width, width]) }
  let y = try program.run([x])[0]
  try y.withUnsafeBytes { Data($0) }.write(to: URL(fileURLWithPath: arguments[4]))
} catch {
  FileHandle.standardError.write(Data("\(error)\n".utf8))
  exit(1)
}
