/// A code point.
typealias Code = UInt32

/// A set of code points, kept as ranges that go up and do not overlap.
final class CharacterSet: Sendable {
    private static let lowEnd: Code = 0x180
    private static let end: Code = 0x110000
    private let ranges: [ClosedRange<Code>]
    // Most of a text is here, and looking it up is faster than searching.
    private let low: [Bool]

    init(_ ranges: [ClosedRange<Code>]) {
        self.ranges = ranges
        var low = [Bool](repeating: false, count: Int(Self.lowEnd))
        for range in ranges where range.lowerBound < Self.lowEnd {
            for code in range.lowerBound...min(Self.lowEnd - 1, range.upperBound) { low[Int(code)] = true }
        }
        self.low = low
    }

    /// Makes a set of one code point.
    convenience init(_ code: Code) { self.init([code...code]) }

    func contains(_ code: Code) -> Bool { code < Self.lowEnd ? low[Int(code)] : search(code) }

    private func search(_ code: Code) -> Bool {
        var low = 0
        var high = ranges.count
        while low < high {
            let middle = (low + high) / 2
            if ranges[middle].lowerBound <= code { low = middle + 1 } else { high = middle }
        }
        return low > 0 && code <= ranges[low - 1].upperBound
    }

    /// Every code point that is not in this set.
    func inverted() -> CharacterSet {
        var outside: [ClosedRange<Code>] = []
        var next: Code = 0
        for range in ranges {
            if next < range.lowerBound { outside.append(next...range.lowerBound - 1) }
            next = range.upperBound + 1
        }
        if next < Self.end { outside.append(next...Self.end - 1) }
        return CharacterSet(outside)
    }

    /// Calls `found` with the first and the last code point of each range, the lowest first.
    func each(_ found: (Code, Code) -> Void) {
        for range in ranges { found(range.lowerBound, range.upperBound) }
    }

    /// What is in any of the sets.
    static func union(_ sets: [CharacterSet]) -> CharacterSet {
        if sets.count == 1 { return sets[0] }
        var whole: [ClosedRange<Code>] = []
        for range in sets.flatMap(\.ranges).sorted(by: { $0.lowerBound < $1.lowerBound }) {
            if let last = whole.last, range.lowerBound <= last.upperBound + 1 {
                whole[whole.count - 1] = last.lowerBound...max(last.upperBound, range.upperBound)
            } else {
                whole.append(range)
            }
        }
        return CharacterSet(whole)
    }

    /// What is in all of the sets.
    static func intersection(_ sets: [CharacterSet]) -> CharacterSet {
        sets.count == 1 ? sets[0] : union(sets.map { $0.inverted() }).inverted()
    }
}
