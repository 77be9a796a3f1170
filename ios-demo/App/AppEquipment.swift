import AppParts
import Core
import Foundation

/// What this app has beside its screens: where things lie, whose models it takes, and its runtimes.
enum AppEquipment {
    static func make() throws -> Equipment {
        guard let resources = Bundle.main.resourceURL else { throw NoModels() }
        // `pocketbert ship` writes it; the project takes the folder as it is.
        let models = resources.appendingPathComponent("Model", isDirectory: true)
        let caches = try FileManager.default.url(for: .cachesDirectory, in: .userDomainMask, appropriateFor: nil, create: true)
        let build = System.text("kern.osversion") ?? "unknown"
        let compiled = CompiledModels(root: caches.appendingPathComponent("Compiled", isDirectory: true), system: build)
        let coreml = CoreMLRuntime(build: build, compiled: compiled).linked
        let executorch = ExecuTorchRuntime().linked
        let runtimes = [coreml, executorch]
        let versions = Dictionary(uniqueKeysWithValues: runtimes.map { ($0.runtime.name, $0.runtime.version) })
        let policy = try TrustedKeysOfApp.policy()
        if RunFolders.asked(by: ProcessInfo.processInfo.arguments) == nil {
            // Not beside a benchmark, with which it would share the disk.
            DispatchQueue.global(qos: .utility).async { compiled.tidy() }
        }
        return Equipment(
            models: models, policy: policy, runtimes: runtimes, phone: IPhone(runtimes: versions), runs: try RunFolders.ofApp())
    }

    /// Where the set of sentences that one searches is kept.
    static var sentences: URL? { support?.appendingPathComponent("sentences.txt") }

    /// Where indexes of a person's own texts are kept.
    static var indexes: URL? { support?.appendingPathComponent("Index", isDirectory: true) }

    private static var support: URL? {
        try? FileManager.default.url(for: .applicationSupportDirectory, in: .userDomainMask, appropriateFor: nil, create: true)
    }
}
