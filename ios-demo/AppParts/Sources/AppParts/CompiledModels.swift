import Foundation

/// Core ML runs compiled models, and what is shipped is a package: it is compiled when it is first opened, and kept. The name
/// says of which package and under which system, since the next one may compile it otherwise.
public struct CompiledModels: Sendable {
    private static let suffix = "mlmodelc"
    private let root: URL
    private let system: String

    /// Names the place.
    ///
    /// - Parameters:
    ///   - root: a folder that the system may empty, such as one in Caches.
    ///   - system: the build of the operating system.
    public init(root: URL, system: String) {
        self.root = root
        self.system = system.filter { $0.isASCII && ($0.isLetter || $0.isNumber) }
    }

    /// Returns a package's compiled form.
    ///
    /// - Parameters:
    ///   - digest: of the package, as the index has it.
    ///   - compile: compiles it into a temporary place and returns that.
    public func find(_ digest: String, compile: () throws -> URL) throws -> URL {
        let place = root.appendingPathComponent("\(digest)-\(system).\(Self.suffix)", isDirectory: true)
        let files = FileManager.default
        if files.fileExists(atPath: place.path) { return place }
        try files.createDirectory(at: root, withIntermediateDirectories: true)
        let fresh = try compile()
        do {
            // Moved in one step, so that a folder with this name is whole.
            try files.moveItem(at: fresh, to: place)
        } catch {
            // Somebody else may have been faster.
            if !files.fileExists(atPath: place.path) { throw error }
            try? files.removeItem(at: fresh)
        }
        return place
    }

    /// Removes a package's compiled form, which turned out to be damaged: the system empties such folders in part.
    public func forget(_ digest: String) {
        try? FileManager.default.removeItem(at: root.appendingPathComponent("\(digest)-\(system).\(Self.suffix)", isDirectory: true))
    }

    /// Removes what was compiled for packages that are no longer shipped, or under another system.
    public func keep(only digests: Set<String>) {
        let wanted = Set(digests.map { "\($0)-\(system).\(Self.suffix)" })
        let found = (try? FileManager.default.contentsOfDirectory(at: root, includingPropertiesForKeys: nil)) ?? []
        for place in found where place.pathExtension == Self.suffix && !wanted.contains(place.lastPathComponent) {
            try? FileManager.default.removeItem(at: place)
        }
    }
}
