import CWeftLinked
import Weft

extension Library {
  /// The functions that the program is linked with: an object or library of `weft export`, or libweft.
  public static var linked: Library { Library(functions: weft_linked()) }
}
