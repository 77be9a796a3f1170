// swift-tools-version: 6.0
import PackageDescription

// What both apps are made of; as old as the older of the two. AppModels' tests are its tests too.
let package = Package(
    name: "AppParts",
    platforms: [.iOS(.v15), .macOS(.v12)],
    products: [.library(name: "AppParts", targets: ["AppParts"])],
    dependencies: [.package(path: "../Core")],
    targets: [.target(name: "AppParts", dependencies: ["Core"])]
)
