// swift-tools-version:5.9
import PackageDescription

let package = Package(
  name: "Weft",
  platforms: [.macOS(.v11), .iOS(.v14)],
  products: [
    .library(name: "Weft", targets: ["Weft"]),
    .library(name: "WeftLinked", targets: ["WeftLinked"]),
  ],
  targets: [
    // weft.h and weft_library.h, copies of those of libweft and of the binding for C.
    .target(name: "CWeft", linkerSettings: [.linkedLibrary("dl", .when(platforms: [.linux]))]),
    .target(name: "Weft", dependencies: ["CWeft"]),
    // The functions that the app is linked with: an object of `weft export -f macho-obj`.
    .target(name: "CWeftLinked", dependencies: ["CWeft"]),
    .target(name: "WeftLinked", dependencies: ["Weft", "CWeftLinked"]),
    .executableTarget(name: "Run", dependencies: ["Weft"], path: "Examples/Run"),
    .testTarget(name: "WeftTests", dependencies: ["Weft"]),
  ]
)
