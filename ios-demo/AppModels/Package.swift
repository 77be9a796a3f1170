// swift-tools-version: 6.0
import PackageDescription

let package = Package(
    name: "AppModels",
    // Observation begins with these.
    platforms: [.iOS(.v17), .macOS(.v14)],
    products: [.library(name: "AppModels", targets: ["AppModels"])],
    dependencies: [.package(path: "../Core"), .package(path: "../AppParts")],
    targets: [
        .target(name: "AppModels", dependencies: ["Core", "AppParts"]),
        .testTarget(
            name: "AppModelsTests", dependencies: ["AppModels", .product(name: "CoreTestSupport", package: "Core")]),
    ]
)
