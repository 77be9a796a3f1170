/// The compute units on which a model's self-test passed in this process: what `shipped.json` calls untried is offered there.
public enum PassedUnits {
    private struct Place: Hashable {
        let digest: String
        let unit: String
    }

    private static let passed = Locked<Set<Place>>([])

    /// Remembers that every golden row of a model held on a compute unit.
    public static func add(_ model: Model, _ unit: String) {
        _ = passed.withLock { $0.insert(Place(digest: model.entry.digest, unit: unit)) }
    }

    static func contains(_ model: Model, _ unit: String) -> Bool {
        passed.withLock { $0.contains(Place(digest: model.entry.digest, unit: unit)) }
    }
}

extension Model {
    /// The compute units on which it may be asked and measured: those that were shipped with it, and those on which its
    /// self-test passed in this process.
    public var allowedUnits: [String] {
        computeUnits + untriedUnits.keys.sorted().filter { PassedUnits.contains(self, $0) }
    }

    /// Returns the compute unit of a request.
    ///
    /// - Parameter asked: as the runtime names it; nil for the file's default.
    /// - Throws: `RunnerRefused` for a unit on which the file is not known to be right.
    public func unit(_ asked: String?) throws -> String {
        guard let asked else { return computeUnits[0] }
        if allowedUnits.contains(asked) { return asked }
        let there = "\(entry.folder) runs on \(computeUnits.joined(separator: ", "))"
        guard let known = untriedUnits[asked] else { throw RunnerRefused("there is no compute unit \(asked) for this file; \(there)") }
        throw RunnerRefused(
            "no file of this scheme has passed on \(asked) yet; \(there), and on \(asked) once the app's self-test has passed there. "
                + known)
    }
}
