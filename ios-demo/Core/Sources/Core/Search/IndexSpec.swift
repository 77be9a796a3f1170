import Foundation

/// An index cannot be used; the description is a sentence for a screen.
public struct IndexRefused: Error, CustomStringConvertible, Sendable, Equatable {
    /// Why not.
    public enum Reason: Sendable, Equatable {
        /// Its files are not what its `state.json` says.
        case damaged
        /// It holds vectors of another space than a model gives.
        case otherSpace
        /// Somebody else writes it.
        case inUse
    }

    public let reason: Reason
    public let description: String

    static func damaged(_ folder: String, _ why: String) -> IndexRefused {
        IndexRefused(reason: .damaged, description: "the index \(folder) is damaged: \(why); index the texts again")
    }

    static func otherSpace(_ folder: String, index: String, model: String) -> IndexRefused {
        let why = "the index \(folder) is of the space \(index), and this model's vectors are of \(model), so that they cannot be compared"
        let advice = "index the texts again, or ask `pocketbert compatible` whether the old vectors may stay"
        return IndexRefused(reason: .otherSpace, description: "\(why); \(advice)")
    }

    static func inUse(_ folder: String) -> IndexRefused {
        let why = "the index \(folder) is being written by somebody else; ask again when that has ended"
        return IndexRefused(reason: .inUse, description: why)
    }
}

/// What `index.json` says, which never changes.
public struct IndexSpec: Sendable {
    /// How an index keeps a number of a vector.
    public enum Storage: String, Sendable, CaseIterable {
        case int8
        case float32

        var bytes: Int { self == .int8 ? 1 : 4 }
    }

    /// Id of the vector space.
    public let space: String
    /// Numbers that are kept of a vector.
    public let width: Int
    public let storage: Storage
    /// Of int8 codes, one for each number; nil where numbers are kept as they are.
    public let scales: [Double]?
    /// Whether the model's embeddings are of unit length.
    public let isUnitLength: Bool
    /// Whether rows are ordered by the dot product, and not by the cosine.
    public let isByDot: Bool
    /// Name of the prompt of the passages; nil for the default one.
    public let documentPrompt: String?
    /// Name of the prompt of what is looked for; nil for the default one.
    public let queryPrompt: String?
    /// The file whose vectors were the first, such as `litert-int8_dynamic`.
    public let madeBy: String

    private static let schema = 1
    private static let keys: Set<String> = [
        "schema_version", "space", "width", "storage", "scales", "unit_length", "similarity", "document_prompt", "query_prompt",
        "made_by",
    ]

    var rowBytes: Int { width * storage.bytes }

    public init(
        space: String, width: Int, storage: Storage, scales: [Double]?, isUnitLength: Bool, isByDot: Bool = false,
        documentPrompt: String? = nil, queryPrompt: String? = nil, madeBy: String
    ) {
        self.space = space
        self.width = width
        self.storage = storage
        self.scales = scales
        self.isUnitLength = isUnitLength
        self.isByDot = isByDot
        self.documentPrompt = documentPrompt
        self.queryPrompt = queryPrompt
        self.madeBy = madeBy
    }

    /// What an index of a model's vectors says.
    ///
    /// - Parameter width: how many first numbers are kept; nil for all.
    public init(
        _ vectors: VectorSpace, _ storage: Storage, width: Int? = nil, documentPrompt: String? = nil, queryPrompt: String? = nil,
        madeBy: String
    ) {
        let width = width ?? vectors.width
        self.init(
            space: vectors.id, width: width, storage: storage, scales: storage == .int8 ? Array(vectors.scales.prefix(width)) : nil,
            isUnitLength: vectors.isUnitLength, isByDot: vectors.isByDot, documentPrompt: documentPrompt, queryPrompt: queryPrompt,
            madeBy: madeBy)
    }

    /// Reads the fields, and refuses what no index can be.
    init(_ json: Json) throws {
        let version = try json.number("schema_version")
        if version != Self.schema {
            throw WrongJson("its schema_version is \(version), and this version reads \(Self.schema); update the app")
        }
        try json.refuseOthers(than: Self.keys)
        space = try json.text("space")
        width = try json.number("width")
        let word = try json.text("storage")
        guard let storage = Storage(rawValue: word) else { throw WrongJson("storage is \(word), and there are int8, float32") }
        self.storage = storage
        scales = try json.present("scales") == nil ? nil : json.doubles("scales")
        guard let isUnitLength = try json.flagOrNil("unit_length") else { throw json.wrong("unit_length", "true or false") }
        self.isUnitLength = isUnitLength
        let similarity = try json.textOrNil("similarity") ?? VectorSpace.cosine
        if !VectorSpace.similarities.contains(similarity) {
            throw WrongJson("similarity is \(similarity), and there are \(VectorSpace.similarities.sorted().listed)")
        }
        isByDot = similarity == VectorSpace.dot
        documentPrompt = try json.textOrNil("document_prompt")
        queryPrompt = try json.textOrNil("query_prompt")
        madeBy = try json.text("made_by")
        if !VectorSpace.isId(space) { throw WrongJson("space is \(space), which is not 16 hexadecimal digits") }
        if isByDot && isUnitLength { throw WrongJson("similarity is dot, and of unit length the cosine is the same") }
        if width < 1 { throw WrongJson("width is \(width)") }
        if storage == .int8, let wrong = VectorSpace.wrongScales(scales ?? [], width) { throw WrongJson(wrong) }
        if storage == .float32, scales != nil { throw WrongJson("scales: float32 has none") }
    }

    var similarity: String { isByDot ? VectorSpace.dot : VectorSpace.cosine }

    var json: Json {
        .object([
            ("schema_version", .literal("\(Self.schema)")), ("space", .text(space)), ("width", .literal("\(width)")),
            ("storage", .text(storage.rawValue)), ("scales", scales.map { .array($0.map(Json.number)) } ?? .null),
            ("unit_length", .flag(isUnitLength)), ("similarity", .text(similarity)),
            ("document_prompt", documentPrompt.map(Json.text) ?? .null), ("query_prompt", queryPrompt.map(Json.text) ?? .null),
            ("made_by", .text(madeBy)),
        ])
    }
}

extension Json {
    /// Throws where an object has a field that is none of these.
    func refuseOthers(than keys: Set<String>) throws {
        guard case .object(let fields) = self, let other = fields.first(where: { !keys.contains($0.key) }) else { return }
        throw WrongJson("\(other.key) is no field of it; there are \(keys.sorted().joined(separator: ", "))")
    }
}
