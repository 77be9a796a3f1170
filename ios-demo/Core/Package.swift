// swift-tools-version: 6.0
import PackageDescription

// ECDSA and SHA-256 are CryptoKit's on Apple's systems, and OpenSSL's on Linux.
#if os(Linux)
    let system: [Target] = [.systemLibrary(name: "COpenSSL", pkgConfig: "libcrypto", providers: [.apt(["libssl-dev"])])]
#else
    let system: [Target] = []
#endif

let package = Package(
    name: "Core",
    platforms: [.iOS(.v15), .macOS(.v12)],
    products: [
        .library(name: "Core", targets: ["Core"]),
        // For tests alone, of this package and of the apps': no app links it.
        .library(name: "CoreTestSupport", targets: ["CoreTestSupport"]),
    ],
    targets: system + [
        .target(
            name: "Core",
            dependencies: system.map { .target(name: $0.name) },
            resources: [.process("Resources/characters.txt"), .copy("Resources/schemas")]),
        .target(name: "CoreTestSupport", dependencies: ["Core"], path: "Tests/Support"),
        .testTarget(name: "CoreTests", dependencies: ["Core", "CoreTestSupport"]),
    ]
)
