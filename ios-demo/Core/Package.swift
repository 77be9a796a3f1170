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
    products: [.library(name: "Core", targets: ["Core"])],
    targets: system + [
        .target(
            name: "Core",
            dependencies: system.map { .target(name: $0.name) },
            resources: [.process("Resources/characters.txt"), .copy("Resources/schemas")]),
        .testTarget(name: "CoreTests", dependencies: ["Core"]),
    ]
)
