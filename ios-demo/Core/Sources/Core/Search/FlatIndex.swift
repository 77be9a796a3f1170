import Foundation

/// A text with its embedding, which is whole whatever an index keeps of it.
public struct Passage: Sendable {
    public let id: String
    public let text: String
    public let embedding: [Float]

    public init(id: String, text: String, embedding: [Float]) {
        self.id = id
        self.text = text
        self.embedding = embedding
    }

    /// Returns an id for a text that has none of its own: 16 digits of its SHA-256.
    public static func id(of text: String) -> String { String(Sha256.hex(of: text.utf8).prefix(16)) }
}

/// A passage that was found.
public struct Hit: Sendable, Equatable {
    public let row: Int
    public let id: String
    public let text: String
    public let cosine: Float
}

/// Passages in a folder that are searched by comparing a query with each of them (`pipeline/search/flat.py` writes the same files).
/// Vectors are mapped, and texts stay in their file until they are shown. Used from one thread at a time.
public final class FlatIndex {
    /// The files of an index, for whoever copies one.
    public static let files = IndexFiles.all
    private static let copiedAtOnce = 1_024
    private static let shown = 60
    // As `pipeline/search/flat.py` names them.
    private static let new = "new"
    private static let before = "before"

    private let folder: URL
    private var files: IndexFiles
    private let isWhole: Bool
    private let isWritable: Bool
    private var removed = Removed()
    private var norms: [Float] = []
    private var mapped: MappedRows?
    private var known: Ids?

    /// What the index says of itself.
    public var spec: IndexSpec { files.spec }

    /// Rows of the files, removed ones included.
    public var rows: Int { files.state.rows }

    /// How many passages can be found.
    public var count: Int { rows - files.state.removed }

    /// Opens an index for a model's vectors.
    ///
    /// - Parameters:
    ///   - folder: of the index.
    ///   - space: of the model's vectors.
    ///   - isWritable: whether passages can be added; one at a time writes. What a kill has left is cut off then.
    /// - Throws: `IndexRefused` where it holds vectors of another space, is damaged, or somebody else writes it.
    public convenience init(_ folder: URL, _ space: VectorSpace, isWritable: Bool = false) throws {
        try self.init(folder, space.id, width: space.width, isWritable: isWritable)
        if !space.widths.contains(spec.width) || spec.isUnitLength != space.isUnitLength || spec.isByDot != space.isByDot {
            let says = "it says width \(spec.width), unit_length \(spec.isUnitLength) and similarity \(spec.similarity)"
            let model = "the model says \(space.widths.listed), \(space.isUnitLength) and \(space.similarity)"
            throw IndexRefused.damaged(folder.lastPathComponent, "\(says), and \(model)")
        }
    }

    private init(_ folder: URL, _ space: String, width: Int, isWritable: Bool) throws {
        Self.recover(folder)
        self.folder = folder
        self.isWritable = isWritable
        files = try IndexFiles(folder, isWritable: isWritable)
        if files.spec.space != space {
            throw IndexRefused.otherSpace(folder.lastPathComponent, index: files.spec.space, model: space)
        }
        isWhole = files.spec.isUnitLength && files.spec.width == width
        try readRemoved()
    }

    /// Opens an index to write, and makes it where there is none.
    ///
    /// - Parameters:
    ///   - folder: of the index.
    ///   - spec: what a new one says; one that is there has to be of its space.
    ///   - width: of a whole vector.
    /// - Throws: `IndexRefused` as `init`; any error where it cannot be made.
    public static func openOrCreate(_ folder: URL, _ spec: IndexSpec, width: Int) throws -> FlatIndex {
        if !isThere(folder) { _ = try IndexFiles.create(folder, spec) }
        return try FlatIndex(folder, spec.space, width: width, isWritable: true)
    }

    /// Returns whether a folder holds an index.
    public static func isThere(_ folder: URL) -> Bool {
        recover(folder)
        return FileManager.default.fileExists(atPath: folder.appendingPathComponent(IndexFiles.index).path)
    }

    private static func beside(_ folder: URL, _ what: String) -> URL {
        folder.deletingLastPathComponent().appendingPathComponent(".\(folder.lastPathComponent).\(what)")
    }

    /// Puts an index back in its place that was being compacted when the process was killed.
    private static func recover(_ folder: URL) {
        if !FileManager.default.fileExists(atPath: folder.path) { _ = rename(beside(folder, before).path, folder.path) }
    }

    private func readRemoved() throws {
        removed = Removed()
        for row in try files.removed() where !removed.insert(row) {
            throw IndexRefused.damaged(folder.lastPathComponent, "it removes a row twice")
        }
    }

    /// Returns the bytes of memory that a search needs: vectors that are mapped, and norms and removals beside them.
    public func heldBytes() throws -> Int { try map().bytes.count + norms.count * 4 + removed.bytes }

    /// Returns the passages that are nearest to a query, the nearest first; of equal ones the one that was added first.
    ///
    /// - Parameters:
    ///   - query: a whole embedding of a model of the index's space.
    ///   - top: how many.
    public func search(_ query: [Float], top: Int) throws -> [Hit] {
        let rows = try map()
        return try Scan.nearest(query, rows, spec, norms: isWhole ? nil : norms, top: top, removed: removed).map { found in
            let passage = try passage(found.row)
            return Hit(row: found.row, id: passage.id, text: passage.text, cosine: found.cosine)
        }
    }

    private func map() throws -> MappedRows {
        if let mapped { return mapped }
        let rows = try files.map()
        if !isWhole { norms = Scan.norms(rows, spec) }
        mapped = rows
        return rows
    }

    private func passage(_ row: Int) throws -> (id: String, text: String) { try passage(row, try files.line(row)) }

    private func passage(_ row: Int, _ line: [UInt8]) throws -> (id: String, text: String) {
        do {
            let json = try Json.readStrict(line)
            return (try json.text("id"), try json.text("text"))
        } catch let error as WrongJson {
            throw IndexRefused.damaged(folder.lastPathComponent, "the passage of row \(row): \(error)")
        }
    }

    private func id(_ row: Int) throws -> String { try passage(row).id }

    private func ids() throws -> Ids {
        if let known { return known }
        var ids = Ids(rows: rows)
        try files.forLines { row, line in
            if removed.contains(row) { return }
            let id = try passage(row, line).id
            if try ids.find(id, self.id) != nil {
                throw IndexRefused.damaged(folder.lastPathComponent, "it has two passages with the id \(id.prefix(Self.shown))")
            }
            try ids.put(id, row, self.id)
        }
        known = ids
        return ids
    }

    /// Returns whether a passage is in the index with this text, so that it needs no embedding.
    public func has(_ id: String, _ text: String) throws -> Bool {
        guard let row = try ids().find(id, self.id) else { return false }
        return ExactText(try passage(row).text) == ExactText(text)
    }

    /// Adds passages, and keeps them: after a kill all of them are there. One whose id is there takes the place of that one.
    ///
    /// - Throws: `OutputError` where an embedding is none that the index can keep; any error where there is no room. The index is as
    ///   it was then.
    public func add(_ passages: [Passage]) throws {
        var last: [ExactText: Int] = [:]
        for (place, one) in passages.enumerated() { last[ExactText(one.id)] = place }
        // Where an id is there twice, the later text stands at the place of the earlier one, as it does in the other languages.
        var seen: Set<ExactText> = []
        let new = passages.filter { seen.insert(ExactText($0.id)).inserted }.map { passages[last[ExactText($0.id)] ?? 0] }
        if new.isEmpty { return }
        _ = try ids()
        let vectors = try new.flatMap { try Scan.stored($0.embedding, spec) }
        let lines = new.map { [UInt8]("\(Json.object([("id", .text($0.id)), ("text", .text($0.text))]).written())\n".utf8) }
        let first = rows
        let replaced = try new.compactMap { try known?.find($0.id, self.id) }
        try files.commit(vectors: vectors, lines: lines, removed: replaced)
        for row in replaced { removed.insert(row) }
        for (number, one) in new.enumerated() { try known?.put(one.id, first + number, self.id) }
        mapped = nil
    }

    /// Removes passages, where they are there.
    public func remove(_ ids: [String]) throws {
        _ = try self.ids()
        var rows: [Int] = []
        var gone: Set<Int> = []
        for id in ids {
            guard let row = try known?.find(id, self.id), gone.insert(row).inserted else { continue }
            rows.append(row)
        }
        if rows.isEmpty { return }
        try files.commit(vectors: [], lines: [], removed: rows)
        for id in ids { try known?.remove(id, self.id) }
        for row in rows { removed.insert(row) }
    }

    /// Removes the passages whose id is not wanted.
    public func retain(_ isWanted: (_ id: String) -> Bool) throws {
        var unwanted: [String] = []
        try files.forLines { row, line in
            if removed.contains(row) { return }
            let id = try passage(row, line).id
            if !isWanted(id) { unwanted.append(id) }
        }
        try remove(unwanted)
    }

    /// Writes the index anew without removed rows; the old one stays until the new one is complete.
    ///
    /// - Throws: any error where there is no room; the index is as it was.
    public func compact() throws {
        precondition(isWritable, "the index is open to be read")
        let (new, before) = (Self.beside(folder, Self.new), Self.beside(folder, Self.before))
        try? FileManager.default.removeItem(at: new)
        let target = try IndexFiles.create(new, spec)
        try copy(to: target)
        try? FileManager.default.removeItem(at: before)
        for (from, to) in [(folder, before), (new, folder)] where rename(from.path, to.path) != 0 { throw SystemError(from.path) }
        try? FileManager.default.removeItem(at: before)
        target.folder = folder
        files = target
        try readRemoved()
        known = nil
        mapped = nil
    }

    private func copy(to target: IndexFiles) throws {
        let rows = try map().bytes
        var (vectors, lines): ([UInt8], [[UInt8]]) = ([], [])
        func flush() throws {
            try target.commit(vectors: vectors, lines: lines, removed: [])
            vectors = []
            lines = []
        }
        try files.forLines { row, line in
            if removed.contains(row) { return }
            vectors += rows[(row * spec.rowBytes)..<((row + 1) * spec.rowBytes)]
            lines.append(line)
            if lines.count == Self.copiedAtOnce { try flush() }
        }
        if !lines.isEmpty { try flush() }
    }
}
