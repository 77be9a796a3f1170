import Foundation

/// One model of the index.
public struct Entry: Sendable {
    /// Where it lies, relative to the index: `<recipe>/<target>`.
    public let folder: String
    public let recipe: String
    public let backend: String
    public let scheme: String
    public let task: String
    /// The content digest of the model that was verified.
    public let digest: String
    public let bytes: Int64
}

/// A text with the ids and outputs that a correct implementation gives.
public struct GoldenRow: Sendable {
    public let first: String
    public let second: String?
    /// Number of the window over the passage `second`; nil for the text as a whole.
    public let window: Int?
    public let ids: [Int]
    public let types: [Int]
    /// The reference's numbers, token after token for tasks that have some for each token.
    public let output: [Float]
    /// Name of the prompt before `first`; nil for none, not even the default one.
    public let prompt: String?
}

/// What `golden.json` says: rows, and how far a file may be off in its worst one.
public struct Golden: Sendable {
    public let task: String
    public let maxLength: Int
    public let minCosine: Double?
    public let minSqnrDb: Double?
    public let rows: [GoldenRow]
}

/// One shipped model.
public struct Model: Sendable {
    private let files: any Files
    public let entry: Entry
    public let signature: Signature
    /// `passed`, or `not_run` where the file could not be run when it was verified.
    public let verdict: String
    public let reasons: [String]
    public let licence: String?
    /// Whether nobody trained it: its latency says something, and its answers nothing.
    public let hasRandomWeights: Bool
    /// The fingerprint of the trusted key that signed it; nil for one that is used unsigned, under a banner.
    public let signedBy: String?
    /// The sha256 of the model file, as it was shipped; nil for a package of several files.
    public let fileDigest: String?
    /// The compute units that an app may offer, as the runtime names them; the first is the default.
    public let computeUnits: [String]
    /// Further units on which no file of this scheme has passed yet, each with a sentence that says what is known.
    public let untriedUnits: [String: String]

    /// Rows of the table of words; a folder whose config.json cannot be read is of use for all but running it.
    private let vocabulary: Result<Int, any Error>
    /// Large tokenizers have it beside `tokenizer.json`: the same one, opened in milliseconds.
    private static let binary = "tokenizer.bin"
    private let hasBinary: Bool

    fileprivate init(_ files: any Files, _ entry: Entry, _ policy: Policy) throws {
        let bundle = try SignedBundle(files, entry.folder)
        var signedBy: String?
        do {
            signedBy = try bundle.verify(policy.keys, entry.folder)
        } catch let error as SignatureRefused {
            if error.reason != .unsigned || !policy.unsigned { throw error }
        }
        let signature = try files.parse("\(entry.folder)/signature.json", "signature") { try Signature($0) }
        let shipped = try files.parse("\(entry.folder)/shipped.json", "shipped") { json in
            if try "\(json.text("recipe"))/\(json.text("target"))" != entry.folder || json.text("digest") != entry.digest {
                throw WrongJson("it is of another model than models.json says; ship again")
            }
            for (name, indexed, found) in [
                ("backend", entry.backend, signature.backend), ("scheme", entry.scheme, signature.scheme),
                ("task", entry.task, signature.task),
            ] {
                if let other = [try json.text(name), indexed].first(where: { ExactText($0) != ExactText(found) }) {
                    throw WrongJson("\(name) is \(other), and signature.json says \(found); ship again")
                }
            }
            let listed = Dictionary(try json.objects("files").map { (ExactText(try $0.text("path")), $0) }) { $1 }
            let digests = try listed.mapValues { try $0.text("sha256") }
            // What is signed was compared with the signature already.
            if signedBy == nil { try bundle.compareWith(digests, listed.mapValues { try $0.long("bytes") }, itself: "shipped.json") }
            let units = try json.texts("compute_units")
            if units.isEmpty { throw WrongJson("compute_units is empty; the first one is the default") }
            return (
                verdict: try json.text("verdict"), reasons: try json.texts("reasons"), licence: try json.textOrNil("licence"),
                random: try json.flag("random_weights"), digests: digests, units: units,
                untried: try json.textsByName("untried_units")
            )
        }
        self.files = files
        self.entry = entry
        self.signature = signature
        self.signedBy = signedBy
        vocabulary = Result { try Self.vocabulary(files, entry.folder) }
        verdict = shipped.verdict
        reasons = shipped.reasons
        licence = shipped.licence
        hasRandomWeights = shipped.random
        hasBinary = shipped.digests[ExactText(Self.binary)] != nil
        fileDigest = shipped.digests[ExactText(signature.file)]
        computeUnits = shipped.units
        untriedUnits = shipped.untried
    }

    /// Where the model file or package lies, relative to the index.
    public var file: String { "\(entry.folder)/\(signature.file)" }

    /// The model file or package in the file system; nil where it lies within something else.
    public var onDisk: URL? { files.onDisk(file) }

    /// Reads the tokenizer. Throws `UnreadableFile` where it is missing, broken or not supported.
    public func tokenizer() throws -> Tokenizer {
        let name = hasBinary ? Self.binary : "tokenizer.json"
        let path = "\(entry.folder)/\(name)"
        let bytes = try files.read(path)
        do {
            return try hasBinary ? Tokenizer(binary: bytes) : Tokenizer(json: Data(bytes))
        } catch let error as UnsupportedTokenizer {
            let why = error.description
            throw UnreadableFile(path, why.hasPrefix("\(name): ") ? String(why.dropFirst(name.count + 2)) : why)
        }
    }

    /// Pads a row as `Signature.pad` does. Throws `UnreadableFile` where the tokenizer gave an id that the file has no row for:
    /// runtimes read beside the table, or end the process.
    public func pad(_ row: Encoding) throws -> PaddedRow {
        let rows = try vocabulary.get()
        if let odd = row.ids.first(where: { !(0..<rows).contains($0) }) {
            let why = "the table of words has \(rows) rows, and tokenizer.json gives the id \(odd); ship the model again"
            throw UnreadableFile("\(entry.folder)/config.json", why)
        }
        return try signature.pad(row)
    }

    private static func vocabulary(_ files: any Files, _ folder: String) throws -> Int {
        let path = "\(folder)/config.json"
        do {
            return try Json.read(try files.read(path)).number("vocab_size")
        } catch let error as WrongJson {
            throw UnreadableFile(path, error.description)
        }
    }

    /// Reads the golden rows. Throws `UnreadableFile` where they are missing or broken.
    public func golden() throws -> Golden {
        try files.parse("\(entry.folder)/golden.json", "golden") { json in
            Golden(
                task: try json.text("task"), maxLength: try json.number("max_length"), minCosine: try json.doubleOrNil("min_cosine"),
                minSqnrDb: try json.doubleOrNil("min_sqnr_db"), rows: try json.objects("rows").map(Self.row))
        }
    }

    private static func row(_ json: Json) throws -> GoldenRow {
        GoldenRow(
            first: try json.text("first"), second: try json.textOrNil("second"),
            window: json.present("window") == nil ? nil : try json.number("window"), ids: try json.numbers("input_ids"),
            types: try json.numbers("token_type_ids"),
            output: try json.array("output").map { value in
                guard case .literal(let literal) = value, let number = Float(literal) else {
                    throw WrongJson("output holds \(value.shown)")
                }
                return number
            }, prompt: try json.textOrNil("prompt"))
    }
}

/// A model that can be used, or why it cannot.
public enum Listed: Sendable {
    case usable(Model)
    case broken(Entry, any Unusable)

    /// What the index says of it.
    public var entry: Entry {
        switch self {
        case .usable(let model): model.entry
        case .broken(let entry, _): entry
        }
    }
}

/// The models that were shipped into an app.
public enum Models {
    /// Reads `models.json` and what lies below it, and checks who signed it. A model that cannot be used is listed with the
    /// reason, and the others stay usable. Reads every byte of every model: call it off the main thread.
    ///
    /// The index itself is not signed: all that it says is compared with files that are.
    ///
    /// - Throws: `UnreadableFile` where the index itself cannot be read, `Cancelled` where somebody asked for it.
    public static func open(_ files: any Files, policy: Policy, cancellation: Cancellation = Cancellation()) throws -> [Listed] {
        let entries = try files.parse("models.json", "models") { try $0.objects("models").map(entry) }
        return try entries.map { entry in
            try cancellation.check()
            do {
                return .usable(try Model(files, entry, policy))
            } catch let error as any Unusable {
                return .broken(entry, error)
            }
        }
    }

    /// Reads the models in a folder, such as one of an app's bundle.
    public static func open(_ root: URL, policy: Policy, cancellation: Cancellation = Cancellation()) throws -> [Listed] {
        try open(Folder(root: root), policy: policy, cancellation: cancellation)
    }

    private static func entry(_ json: Json) throws -> Entry {
        let folder = try json.text("folder")
        if !isFolder(folder) { throw WrongJson("folder is \(folder), which is not <recipe>/<target>") }
        return Entry(
            folder: folder, recipe: try json.text("recipe"), backend: try json.text("backend"), scheme: try json.text("scheme"),
            task: try json.text("task"), digest: try json.text("digest"), bytes: try json.long("bytes"))
    }

    /// Whether it is `[A-Za-z0-9][A-Za-z0-9._-]*/[a-z]+-[a-z0-9_]+`.
    private static func isFolder(_ folder: String) -> Bool {
        let names = folder.utf8.split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false)
        guard names.count == 2, String(names[0])?.isPlainName ?? false else { return false }
        let parts = names[1].split(separator: UInt8(ascii: "-"), omittingEmptySubsequences: false)
        guard parts.count == 2, !parts[0].isEmpty, !parts[1].isEmpty else { return false }
        let isSmall: (UInt8) -> Bool = { (0x61...0x7A).contains($0) }
        return parts[0].allSatisfy(isSmall)
            && parts[1].allSatisfy { isSmall($0) || (0x30...0x39).contains($0) || $0 == UInt8(ascii: "_") }
    }
}

extension Files {
    /// Reads a file that a schema describes.
    func parse<Result>(_ path: String, _ schema: String, _ read: (Json) throws -> Result) throws -> Result {
        let bytes = try self.read(path)
        do {
            return try read(try Schema.of(schema).read(bytes))
        } catch let error as WrongJson {
            throw UnreadableFile(path, error.description)
        }
    }
}
