/// What `signature.json` says of an embedding model's vectors: whether those of two files may lie in one index, and how they are
/// stored.
public struct VectorSpace: Sendable, Equatable {
    /// Two files share an index where it is equal.
    public let id: String
    /// Numbers of a whole embedding.
    public let width: Int
    /// Whether embeddings are scaled to unit length.
    public let isUnitLength: Bool
    /// `cosine` or `dot`; of vectors of unit length both are the same number.
    public let similarity: String
    /// Those of which the first numbers are worth keeping, the whole one first.
    public let widths: [Int]
    /// Of int8 codes, one for each number, calibrated on text.
    public let scales: [Double]

    static let cosine = "cosine"
    static let dot = "dot"
    static let similarities: Set<String> = [cosine, dot]

    /// Whether an index orders its rows by the dot product; otherwise by the cosine, also of vectors of unit length.
    public var isByDot: Bool { similarity == Self.dot && !isUnitLength }

    /// Reads the fields of `vectors`, and refuses what no space can be.
    init(_ json: Json) throws {
        id = try json.text("space")
        width = try json.number("width")
        guard let isUnitLength = try json.flagOrNil("unit_length") else { throw json.wrong("unit_length", "true or false") }
        self.isUnitLength = isUnitLength
        similarity = try json.text("similarity")
        widths = try json.numbers("widths")
        scales = try json.doubles("scales")
        try check()
    }

    private func check() throws {
        if !Self.isId(id) { throw WrongJson("vectors: space is \(id), which is not 16 hexadecimal digits") }
        if width < 1 { throw WrongJson("vectors: width is \(width)") }
        if !Self.similarities.contains(similarity) {
            throw WrongJson("vectors: similarity is \(similarity), and there are \(Self.similarities.sorted().listed)")
        }
        let fall = widths.allSatisfy { $0 > 0 } && zip(widths, widths.dropFirst()).allSatisfy { $0 > $1 }
        if widths.first != width || !fall { throw WrongJson("vectors: widths are \(widths.listed), which have to fall from \(width)") }
        if let wrong = Self.wrongScales(scales, width) { throw WrongJson("vectors: \(wrong)") }
    }

    /// Whether a text can be the id of a space.
    static func isId(_ text: String) -> Bool {
        text.utf8.count == 16 && text.utf8.allSatisfy { (0x30...0x39).contains($0) || (0x61...0x66).contains($0) }
    }

    /// Says what is wrong with scales of int8 codes, or returns nil.
    static func wrongScales(_ scales: [Double], _ width: Int) -> String? {
        if scales.count != width { return "there are \(scales.count) scales for \(width) numbers" }
        return scales.allSatisfy { $0.isFinite && $0 > 0 } ? nil : "scales: not all are above 0"
    }
}
