import Core

/// The runtime that is linked in, against the oldest that a file may be run with: an older one may run it and be wrong.
public enum MinimumVersion: Sendable, Equatable {
    case enough
    case tooOld
    /// One of the two is no row of numbers: the system's own runtime refuses a file that is too new for it, by itself.
    case notComparable

    public init(_ minimum: String, linked: String) {
        guard let minimum = Self.numbers(minimum), let linked = Self.numbers(linked) else {
            self = .notComparable
            return
        }
        self = linked.lexicographicallyPrecedes(minimum) ? .tooOld : .enough
    }

    /// Returns `1.4.1` as three numbers, with what follows a dash or a plus left out; nil for other texts.
    private static func numbers(_ version: String) -> [Int]? {
        let parts = version.prefix { $0 != "-" && $0 != "+" }.split(separator: ".", omittingEmptySubsequences: false)
        let numbers = parts.compactMap { Int($0) }
        // 1.4 is 1.4.0.
        return numbers.count == parts.count && !numbers.isEmpty ? numbers + Array(repeating: 0, count: max(0, 4 - numbers.count)) : nil
    }
}
