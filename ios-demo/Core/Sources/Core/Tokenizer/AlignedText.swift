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

    /// Returns the code point that begins at a UTF-16 code unit.
    static func code(_ units: [UInt16], _ at: Int) -> Code {
        guard UTF16.isLeadSurrogate(units[at]), at + 1 < units.count else { return Code(units[at]) }
        return 0x10000 + (Code(units[at]) - 0xD800) << 10 + (Code(units[at + 1]) - 0xDC00)
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

/// A part of a text that a pattern or a model looks at; what lies outside of it is not seen.
struct Slice {
    let codes: [Code]
    let first: Int
    let end: Int

    init(_ codes: [Code], _ first: Int, _ end: Int) {
        self.codes = codes
        self.first = first
        self.end = end
    }

    init(_ codes: [Code]) { self.init(codes, 0, codes.count) }

    var count: Int { end - first }
}

extension String {
    /// The code points.
    var codes: [Code] { unicodeScalars.map(\.value) }
}

/// Calls `found` with each byte of a code point in UTF-8.
@inline(__always)
func utf8(_ code: Code, _ found: (Int) -> Void) {
    let code = Int(code)
    let more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3
    for left in stride(from: more, through: 0, by: -1) {
        let bits = code >> (6 * left)
        // The first byte tells how many follow, and each of those has six bits.
        found(left < more ? 0x80 | bits & 0x3F : more == 0 ? bits : 0xFF00 >> (more + 1) & 0xFF | bits)
    }
}
