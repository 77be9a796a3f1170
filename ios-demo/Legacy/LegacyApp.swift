import AppParts
import Core
import Foundation
import SwiftUI

/// The app for phones that end at iOS 15: Core ML alone, one screen, and the headless benchmark.
@main
struct LegacyApp: App {
    private let equipment = Result { try LegacyApp.equipment() }
    private let run = RunFolders.asked(by: ProcessInfo.processInfo.arguments)

    var body: some Scene {
        WindowGroup {
            switch equipment {
            case .failure(let error): Text(verbatim: error.sentence).padding()
            case .success(let equipment): LegacyScreen(model: LegacyModel(equipment, run: run))
            }
        }
    }

    private static func equipment() throws -> Equipment {
        guard let resources = Bundle.main.resourceURL else { throw NoModels() }
        let models = resources.appendingPathComponent("Model", isDirectory: true)
        let caches = try FileManager.default.url(for: .cachesDirectory, in: .userDomainMask, appropriateFor: nil, create: true)
        let build = System.text("kern.osversion") ?? "unknown"
        let compiled = CompiledModels(root: caches.appendingPathComponent("Compiled", isDirectory: true), system: build)
        let coreml = CoreMLRuntime(build: build, compiled: compiled)
        if RunFolders.asked(by: ProcessInfo.processInfo.arguments) == nil {
            DispatchQueue.global(qos: .utility).async { compiled.tidy() }
        }
        return Equipment(
            models: models, policy: try TrustedKeysOfApp.policy(), runtimes: [coreml.linked],
            phone: IPhone(runtimes: [coreml.name: coreml.version]), runs: try RunFolders.ofApp())
    }
}
