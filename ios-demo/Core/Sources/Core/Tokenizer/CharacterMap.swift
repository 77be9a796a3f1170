/// What characters become; those that are not in it stay.
final class CharacterMap: Sendable {
    private static let lowEnd: Code = 0x180
    private let keys: [Code]
    private let becomes: [[Code]]
    // As in a set, the characters of most texts are looked up at once.
    private let low: [[Code]?]

    /// Takes the characters, the lowest first, and what each of them becomes.
    init(_ keys: [Code], _ becomes: [[Code]]) {
        self.keys = keys
        self.becomes = becomes
        var low = [[Code]?](repeating: nil, count: Int(Self.lowEnd))
        for (key, to) in zip(keys, becomes) where key < Self.lowEnd { low[Int(key)] = to }
        self.low = low
    }

    /// What a character becomes, or nil where it stays.
    subscript(code: Code) -> [Code]? {
        if code < Self.lowEnd { return low[Int(code)] }
        var first = 0
        var end = keys.count
        while first < end {
            let middle = (first + end) / 2
            if keys[middle] == code { return becomes[middle] }
            if keys[middle] < code { first = middle + 1 } else { end = middle }
        }
        return nil
    }

    /// Calls `found` with each character and what it becomes, the lowest first.
    func each(_ found: (Code, [Code]) -> Void) {
        for (key, to) in zip(keys, becomes) { found(key, to) }
    }
}
