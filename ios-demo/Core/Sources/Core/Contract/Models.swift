import Foundation

/// A shipped file is missing, broken, or of another version; the message is for a screen.
public struct UnreadableFile: Error, CustomStringConvertible, Sendable {
    /// The file, relative to the index.
    public let file: String
    /// The file and what is wrong, in one sentence.
    public let description: String

    init(_ file: String, _ why: String) {
        self.file = file
        description = "\(file): \(why)"
    }
}

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
    public let bytes: Int
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
    private let root: URL
    public let entry: Entry
    public let signature: Signature
    /// `passed`, or `not_run` where the file could not be run when it was verified.
    public let verdict: String
    public let reasons: [String]
    public let licence: String?

    fileprivate init(_ root: URL, _ entry: Entry) throws {
        self.root = root
        self.entry = entry
        let signature = try parse(root, "\(entry.folder)/signature.json") { try Signature($0) }
        for (name, said, found) in [
            ("backend", entry.backend, signature.backend), ("scheme", entry.scheme, signature.scheme), ("task", entry.task, signature.task),
        ] where said != found {
            throw UnreadableFile("\(entry.folder)/signature.json", "\(name) is \(found), and models.json says \(said); ship again")
        }
        self.signature = signature
        (verdict, reasons, licence) = try parse(root, "\(entry.folder)/shipped.json") { json in
            if try json.text("digest") != entry.digest {
                throw WrongJson("it is of another model than models.json says; ship again")
            }
            return (try json.text("verdict"), try json.texts("reasons"), try json.textOrNil("licence"))
        }
    }

    /// The model file or package.
    public var file: URL { root.appendingPathComponent(entry.folder).appendingPathComponent(signature.file) }

    /// Reads the tokenizer. Throws `UnreadableFile` where it is missing, broken or not supported.
    public func tokenizer() throws -> Tokenizer {
        let path = "\(entry.folder)/tokenizer.json"
        do {
            return try Tokenizer(json: try content(root, path))
        } catch let error as UnsupportedTokenizer {
            let why = error.description
            throw UnreadableFile(path, why.hasPrefix("tokenizer.json: ") ? String(why.dropFirst(16)) : why)
        }
    }

    /// Reads the golden rows. Throws `UnreadableFile` where they are missing or broken.
    public func golden() throws -> Golden {
        try parse(root, "\(entry.folder)/golden.json") { json in
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
                guard case .number(let number) = value else { throw json.wrong("output", "a list of numbers") }
                return Float(number)
            })
    }
}

/// A model that can be used, or why it cannot.
public enum Listed: Sendable {
    case usable(Model)
    case broken(Entry, UnreadableFile)
}

/// The models that were shipped into an app.
public enum Models {
    private static let version = 1

    /// Reads `models.json` in a folder and what lies below it. A model that cannot be used is listed with the reason.
    ///
    /// - Throws: `UnreadableFile` where the index itself cannot be read.
    public static func open(_ root: URL) throws -> [Listed] {
        let entries = try parse(root, "models.json") { json in
            try json.checkVersion(version)
            return try json.objects("models").map(entry)
        }
        return try entries.map { entry in
            do {
                return .usable(try Model(root, entry))
            } catch let error as UnreadableFile {
                return .broken(entry, error)
            }
        }
    }

    private static func entry(_ json: Json) throws -> Entry {
        let folder = try json.text("folder")
        let names = folder.split(separator: "/", omittingEmptySubsequences: false)
        if names.count != 2 || !names.allSatisfy({ String($0).isPlainName }) {
            throw WrongJson("folder is \(folder), which is not <recipe>/<target>")
        }
        return Entry(
            folder: folder, recipe: try json.text("recipe"), backend: try json.text("backend"), scheme: try json.text("scheme"),
            task: try json.text("task"), digest: try json.text("digest"), bytes: try json.number("bytes"))
    }
}

private func content(_ root: URL, _ path: String) throws -> Data {
    do {
        return try Data(contentsOf: root.appendingPathComponent(path), options: .mappedIfSafe)
    } catch {
        throw UnreadableFile(path, "it is missing; ship the model again")
    }
}

private func parse<Result>(_ root: URL, _ path: String, _ read: (Json) throws -> Result) throws -> Result {
    do {
        return try read(try Json.read([UInt8](try content(root, path))))
    } catch let error as WrongJson {
        throw UnreadableFile(path, error.description)
    }
}
