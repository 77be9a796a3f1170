import Foundation

/// What `state.json` says is in an index: so many rows, bytes of text and removals count, and what is behind them does not.
struct IndexState: Sendable {
    let rows: Int
    let textBytes: Int
    let removed: Int

    private static let keys: Set<String> = ["rows", "text_bytes", "removed"]

    init(rows: Int = 0, textBytes: Int = 0, removed: Int = 0) {
        self.rows = rows
        self.textBytes = textBytes
        self.removed = removed
    }

    init(_ json: Json) throws {
        rows = Int(try json.long("rows"))
        textBytes = Int(try json.long("text_bytes"))
        removed = Int(try json.long("removed"))
        try json.refuseOthers(than: Self.keys)
        if rows < 0 || rows > Int32.max || textBytes < 0 || removed < 0 || removed > rows || (rows == 0) != (textBytes == 0) {
            throw WrongJson("\(rows) rows, \(textBytes) bytes of text and \(removed) removed ones cannot be")
        }
    }

    var json: Json {
        .object([("rows", .literal("\(rows)")), ("text_bytes", .literal("\(textBytes)")), ("removed", .literal("\(removed)"))])
    }
}

/// The files of an index. What is appended counts from `commit` on, which is one rename; what a kill has left behind the last one
/// is cut off by whoever opens the index to write next, and never read.
final class IndexFiles {
    /// What an index consists of beside `index.json` and `state.json`.
    enum Part: String, CaseIterable {
        case vectors = "vectors.bin"
        case passages = "passages.jsonl"
        case offsets = "offsets.bin"
        case removed = "removed.bin"
    }

    static let index = "index.json"
    private static let state = "state.json"
    private static let lock = "lock"
    /// All files of an index, for whoever copies one.
    static let all = [index, state] + Part.allCases.map(\.rawValue)
    private static let longestLine = 64 << 20
    private static let offsetsAtOnce = 8_192

    /// Where it is; what is open stays so where the folder is renamed.
    var folder: URL
    let spec: IndexSpec
    private(set) var state = IndexState()
    private let isWritable: Bool
    private var files: [Part: Int32] = [:]
    private var locked: Int32 = -1

    /// Opens an index. Throws `IndexRefused` where it is damaged, or somebody else writes it.
    init(_ folder: URL, isWritable: Bool) throws {
        self.folder = folder
        self.isWritable = isWritable
        let stored = folder.appendingPathComponent(Self.index)
        guard FileManager.default.fileExists(atPath: stored.path) else {
            throw IndexRefused.damaged(folder.lastPathComponent, "it has no \(Self.index)")
        }
        spec = try Self.json(stored, IndexSpec.init)
        if isWritable { try lock() }
        let place = folder.appendingPathComponent(Self.state)
        if FileManager.default.fileExists(atPath: place.path) {
            state = try Self.json(place, IndexState.init)
        } else if let data = Part.allCases.first(where: { size($0) > 0 }) {
            // Who made it was killed before the first commit; data without one is something else.
            throw damaged("it has \(data.rawValue) and no \(Self.state)")
        }
        for part in Part.allCases { try attach(part) }
        try checkOffsets()
    }

    /// Makes an empty index. Throws where it cannot be written.
    static func create(_ folder: URL, _ spec: IndexSpec) throws -> IndexFiles {
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        try replace(folder, index, spec.json)
        try replace(folder, state, IndexState().json)
        return try IndexFiles(folder, isWritable: true)
    }

    deinit {
        for file in files.values { close(file) }
        // The lock goes with its file.
        if locked >= 0 { close(locked) }
    }

    private func damaged(_ why: String) -> IndexRefused { .damaged(folder.lastPathComponent, why) }

    private func path(_ name: String) -> String { folder.appendingPathComponent(name).path }

    private func size(_ part: Part) -> Int {
        var status = stat()
        return stat(path(part.rawValue), &status) == 0 ? Int(status.st_size) : 0
    }

    private func counted(_ part: Part, _ state: IndexState) -> Int {
        switch part {
        case .vectors: state.rows * spec.rowBytes
        case .passages: state.textBytes
        case .offsets: state.rows * 8
        case .removed: state.removed * 4
        }
    }

    private func lock() throws {
        let place = path(Self.lock)
        locked = openFile(place, O_RDWR | O_CREAT)
        if locked < 0 { throw SystemError(place) }
        if flock(locked, LOCK_EX | LOCK_NB) != 0 { throw IndexRefused.inUse(folder.lastPathComponent) }
    }

    private func attach(_ part: Part) throws {
        let (there, counts) = (size(part), counted(part, state))
        if there < counts { throw damaged("\(part.rawValue) has \(there) bytes, and \(Self.state) says \(counts)") }
        let place = path(part.rawValue)
        if !isWritable, counts == 0 { return }
        let file = openFile(place, isWritable ? O_RDWR | O_CREAT : O_RDONLY)
        if file < 0 { throw SystemError(place) }
        files[part] = file
        if isWritable, there > counts, ftruncate(file, off_t(counts)) != 0 { throw SystemError(place) }
    }

    /// A line that begins where another one does not end would show a passage beside a vector of another one.
    private func checkOffsets() throws {
        var before = -1
        try forOffsets { row, offset in
            let fits = row == 0 ? offset == 0 : offset > before
            if !fits || offset >= state.textBytes { throw damaged("\(Part.offsets.rawValue) says \(offset) for row \(row)") }
            before = offset
        }
    }

    private func forOffsets(_ act: (_ row: Int, _ offset: Int) throws -> Void) throws {
        var row = 0
        while row < state.rows {
            let count = min(Self.offsetsAtOnce, state.rows - row)
            let offsets = try offsets(row, count)
            for number in 0..<count { try act(row + number, offsets[number]) }
            row += count
        }
    }

    private func offsets(_ first: Int, _ count: Int) throws -> [Int] {
        try read(.offsets, first * 8, count * 8).withUnsafeBytes { bytes in
            try (0..<count).map { number in
                let offset = UInt64(littleEndian: bytes.loadUnaligned(fromByteOffset: number * 8, as: UInt64.self))
                guard let offset = Int(exactly: offset) else { throw damaged("\(Part.offsets.rawValue) says \(offset)") }
                return offset
            }
        }
    }

    /// Calls back with each row's line, one after the other.
    func forLines(_ act: (_ row: Int, _ line: [UInt8]) throws -> Void) throws {
        var from = 0
        try forOffsets { row, offset in
            if row > 0 { try act(row - 1, line(from, offset)) }
            from = offset
        }
        if state.rows > 0 { try act(state.rows - 1, line(from, state.textBytes)) }
    }

    /// Returns a row's line of `passages.jsonl`.
    func line(_ row: Int) throws -> [UInt8] {
        let isLast = row == state.rows - 1
        let ends = try offsets(row, isLast ? 1 : 2)
        return try line(ends[0], isLast ? state.textBytes : ends[1])
    }

    private func line(_ from: Int, _ to: Int) throws -> [UInt8] {
        if to - from > Self.longestLine { throw damaged("\(Part.passages.rawValue) has a line of \(to - from) bytes") }
        return try read(.passages, from, to - from)
    }

    /// Returns the rows that were removed, in the order of their removal.
    func removed() throws -> [Int] {
        let bytes = try read(.removed, 0, state.removed * 4)
        return try (0..<state.removed).map { number in
            let row = Int(bytes.withUnsafeBytes { UInt32(littleEndian: $0.loadUnaligned(fromByteOffset: number * 4, as: UInt32.self)) })
            if row >= state.rows { throw damaged("\(Part.removed.rawValue) names row \(row) of \(state.rows)") }
            return row
        }
    }

    /// Returns the vectors as they lie in the file, mapped: the system brings in what is read, and takes it back.
    func map() throws -> MappedRows { try MappedRows(files[.vectors] ?? -1, bytes: counted(.vectors, state)) }

    private func read(_ part: Part, _ from: Int, _ count: Int) throws -> [UInt8] {
        guard count > 0, let file = files[part] else { return [] }
        return try [UInt8](unsafeUninitializedCapacity: count) { bytes, read in
            while read < count {
                let got = pread(file, bytes.baseAddress.map { $0 + read }, count - read, off_t(from + read))
                if got < 0, errno == EINTR { continue }
                if got < 0 { throw SystemError(path(part.rawValue)) }
                if got == 0 { throw damaged("\(part.rawValue) ends at \(from + read)") }
                read += got
            }
        }
    }

    /// Appends rows and removals, and commits them: all that is appended here counts after a kill, or nothing of it.
    ///
    /// - Parameters:
    ///   - vectors: as many rows as there are lines.
    ///   - lines: of `passages.jsonl`.
    ///   - removed: numbers of rows, which may be among the new ones.
    /// - Throws: any error where there is no room; the index is as it was.
    func commit(vectors: [UInt8], lines: [[UInt8]], removed: [Int]) throws {
        precondition(isWritable, "the index is open to be read")
        var (texts, offsets): ([UInt8], [UInt8]) = ([], [])
        for line in lines {
            withUnsafeBytes(of: UInt64(state.textBytes + texts.count).littleEndian) { offsets += $0 }
            texts += line
        }
        var removals: [UInt8] = []
        for row in removed { withUnsafeBytes(of: UInt32(row).littleEndian) { removals += $0 } }
        let new = IndexState(
            rows: state.rows + lines.count, textBytes: state.textBytes + texts.count, removed: state.removed + removed.count)
        for (part, bytes) in [(Part.vectors, vectors), (.passages, texts), (.offsets, offsets), (.removed, removals)] {
            try write(part, bytes)
        }
        try Self.replace(folder, Self.state, new.json)
        state = new
    }

    private func write(_ part: Part, _ bytes: [UInt8]) throws {
        guard !bytes.isEmpty, let file = files[part] else { return }
        let place = path(part.rawValue)
        let end = counted(part, state)
        var done = 0
        while done < bytes.count {
            let count = bytes.withUnsafeBytes { pwrite(file, $0.baseAddress.map { $0 + done }, bytes.count - done, off_t(end + done)) }
            if count < 0, errno == EINTR { continue }
            if count < 0 { throw SystemError(place) }
            done += count
        }
        if fsync(file) != 0 { throw SystemError(place) }
    }

    private static func json<Value>(_ file: URL, _ read: (Json) throws -> Value) throws -> Value {
        do {
            return try read(try Json.readStrict([UInt8](try Data(contentsOf: file))))
        } catch let error as WrongJson {
            throw IndexRefused.damaged(file.deletingLastPathComponent().lastPathComponent, "\(file.lastPathComponent): \(error)")
        }
    }

    /// Writes beside the place and renames, so that a reader finds all of it or what was there.
    private static func replace(_ folder: URL, _ name: String, _ json: Json) throws {
        let place = folder.appendingPathComponent(name).path
        try writeDurably("\(place).new", [UInt8]("\(json.written())\n".utf8))
        if rename("\(place).new", place) != 0 { throw SystemError(place) }
    }
}

private func openFile(_ path: String, _ flags: Int32) -> Int32 { open(path, flags | O_CLOEXEC, 0o644) }

private func writeDurably(_ path: String, _ bytes: [UInt8]) throws {
    let file = openFile(path, O_WRONLY | O_CREAT | O_TRUNC)
    if file < 0 { throw SystemError(path) }
    defer { close(file) }
    if bytes.withUnsafeBytes({ write(file, $0.baseAddress, $0.count) }) != bytes.count { throw SystemError(path) }
    if fsync(file) != 0 { throw SystemError(path) }
}

/// Rows of an index in memory, as they lie in the file.
final class MappedRows {
    let bytes: UnsafeRawBufferPointer

    init(_ file: Int32, bytes count: Int) throws {
        if count == 0 {
            bytes = UnsafeRawBufferPointer(start: nil, count: 0)
            return
        }
        guard let start = mmap(nil, count, PROT_READ, MAP_SHARED, file, 0), start != MAP_FAILED else { throw SystemError("vectors.bin") }
        bytes = UnsafeRawBufferPointer(start: start, count: count)
    }

    deinit {
        if let start = bytes.baseAddress { munmap(UnsafeMutableRawPointer(mutating: start), bytes.count) }
    }
}
