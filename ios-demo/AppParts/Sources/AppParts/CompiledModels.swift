import Foundation

/// Core ML runs compiled models, and what is shipped is a package: it is compiled when it is first opened, and kept. The name
/// says of which package and under which system, since the next one may compile it otherwise.
public final class CompiledModels: @unchecked Sendable {
    private static let suffix = "mlmodelc"
    /// A package that was pushed with a run is in no index, and the next turn of its benchmark needs it again.
    private static let keptUnused: TimeInterval = 14 * 24 * 3_600
    private let root: URL
    private let system: String
    private let lock = NSLock()
    // Under the lock: what this process may have open.
    private var given: Set<String> = []

    /// Names the place.
    ///
    /// - Parameters:
    ///   - root: a folder that the system may empty, such as one in Caches.
    ///   - system: the build of the operating system.
    public init(root: URL, system: String) {
        self.root = root
        self.system = system.filter { $0.isASCII && ($0.isLetter || $0.isNumber) }
    }

    /// Returns a package's compiled form, and keeps it from being tidied away.
    ///
    /// - Parameters:
    ///   - digest: of the package, as the index has it.
    ///   - compile: compiles it into a temporary place and returns that.
    public func find(_ digest: String, compile: () throws -> URL) throws -> URL {
        let place = place(digest)
        let files = FileManager.default
        let isThere = lock.withLock {
            given.insert(place.lastPathComponent)
            return files.fileExists(atPath: place.path)
        }
        if isThere {
            // The date says when it was last used; where it cannot be written the package is compiled again some day.
            try? files.setAttributes([.modificationDate: Date()], ofItemAtPath: place.path)
            return place
        }
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
    public func forget(_ digest: String) { try? FileManager.default.removeItem(at: place(digest)) }

    /// Removes what was compiled under another system, and what nobody has opened for two weeks; never what this process found.
    ///
    /// - Parameter now: for tests.
    public func tidy(now: Date = Date()) {
        let files = FileManager.default
        let found = (try? files.contentsOfDirectory(at: root, includingPropertiesForKeys: [.contentModificationDateKey])) ?? []
        for place in found where place.pathExtension == Self.suffix {
            let used = (try? place.resourceValues(forKeys: [.contentModificationDateKey]))?.contentModificationDate ?? now
            let isOurs = place.deletingPathExtension().lastPathComponent.hasSuffix("-\(system)")
            if isOurs, now.timeIntervalSince(used) < Self.keptUnused { continue }
            lock.withLock {
                if !given.contains(place.lastPathComponent) { try? files.removeItem(at: place) }
            }
        }
    }

    private func place(_ digest: String) -> URL {
        root.appendingPathComponent("\(digest)-\(system).\(Self.suffix)", isDirectory: true)
    }
}
