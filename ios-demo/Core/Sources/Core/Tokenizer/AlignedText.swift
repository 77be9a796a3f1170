/// Code points, and for each the part of the user's text that it came from.
struct AlignedText: Sendable {
    /// The code points.
    var codes: [Code]
    /// Where each one's part begins, as an offset in UTF-16 code units into the user's string.
    var from: [Int]
    /// Where it ends.
    var to: [Int]

    init(codes: [Code], from: [Int], to: [Int]) {
        self.codes = codes
        self.from = from
        self.to = to
    }

    /// Makes an empty text with room for some code points.
    init(capacity: Int) {
        self.init(codes: [], from: [], to: [])
        codes.reserveCapacity(capacity)
        from.reserveCapacity(capacity)
        to.reserveCapacity(capacity)
    }

    /// Takes a user's text apart.
    init(_ text: String) {
        self.init(capacity: text.utf8.count)
        var at = 0
        for scalar in text.unicodeScalars {
            let end = at + (scalar.value > 0xFFFF ? 2 : 1)
            add(scalar.value, at, end)
            at = end
        }
    }

    var count: Int { codes.count }

    mutating func add(_ code: Code, _ first: Int, _ end: Int) {
        codes.append(code)
        from.append(first)
        to.append(end)
    }

    mutating func add(_ text: AlignedText, _ at: Int) { add(text.codes[at], text.from[at], text.to[at]) }

    func slice(_ first: Int, _ end: Int) -> AlignedText {
        first == 0 && end == count
            ? self : AlignedText(codes: Array(codes[first..<end]), from: Array(from[first..<end]), to: Array(to[first..<end]))
    }
}

extension String {
    /// The code points.
    var codes: [Code] { unicodeScalars.map(\.value) }
}
