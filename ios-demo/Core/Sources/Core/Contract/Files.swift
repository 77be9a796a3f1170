import Foundation

/// Something shipped cannot be used; the message is a sentence for a screen.
public protocol Unusable: Error, CustomStringConvertible, Sendable {}

/// A shipped file is missing, broken, or of another version.
public struct UnreadableFile: Unusable {
    /// The file, relative to the index.
    public let file: String
    /// The file and what is wrong, in one sentence.
    public let description: String

    init(_ file: String, _ why: String) {
        self.file = file
        description = "\(file): \(why)"
    }
}

/// A file below a folder.
public struct FoundFile: Sendable {
    /// Relative to the folder, with `/` between names.
    public let path: String
    /// Its size; nil where only reading it tells.
    public let bytes: Int64?
    /// False for links, pipes and devices.
    public let regular: Bool

    public init(path: String, bytes: Int64?, regular: Bool) {
        self.path = path
        self.bytes = bytes
        self.regular = regular
    }
}

/// Where shipped files lie: a folder, such as an app's bundle.
public protocol Files: Sendable {
    /// Reads a file piece by piece, so that a large one is never in memory as a whole.
    ///
    /// - Parameters:
    ///   - path: relative to where the files lie.
    ///   - take: is called with each piece; what it throws ends the reading.
    /// - Throws: any error where there is no such file.
    func stream(_ path: String, _ take: (UnsafeRawBufferPointer) throws -> Void) throws

    /// Returns every file below a folder, at any depth. Links are not followed.
    ///
    /// - Throws: any error where there is no such folder.
    func list(_ folder: String) throws -> [FoundFile]

    /// Returns where the file system has a file, for a runtime that maps it; nil where it lies within something else.
    func onDisk(_ path: String) -> URL?
}

extension Files {
    public func onDisk(_ path: String) -> URL? { nil }
}

/// A call of the system failed.
struct SystemError: Error, CustomStringConvertible {
    let description: String

    /// Reads the error of the call that was made last.
    init(_ path: String) { description = "\(path): \(String(cString: strerror(errno)))" }

    init(_ path: String, _ why: String) { description = "\(path): \(why)" }
}

/// Files below a folder of the file system.
public struct Folder: Files {
    /// The folder.
    public let root: URL

    public init(root: URL) { self.root = root }

    public func stream(_ path: String, _ take: (UnsafeRawBufferPointer) throws -> Void) throws {
        try readPieces(place(path), take)
    }

    public func list(_ folder: String) throws -> [FoundFile] { try walk(place(folder)) }

    public func onDisk(_ path: String) -> URL? { root.appendingPathComponent(path) }

    /// Writes a file beside its place and renames it, so that a reader finds all of it or nothing.
    func write(_ path: String, _ bytes: [UInt8]) throws {
        let aside = place("\(path).new")
        try writeAll(aside, bytes)
        if rename(aside, place(path)) != 0 { throw SystemError(path) }
    }

    private func place(_ path: String) -> String { "\(root.path)/\(path)" }
}

extension Files {
    /// Reads a file that can have no more than `most` bytes.
    func read(_ path: String, most: Int = 64 << 20) throws -> [UInt8] {
        var bytes: [UInt8] = []
        do {
            try stream(path) { piece in
                if bytes.count + piece.count > most { throw UnreadableFile(path, "it has more than \(most) bytes") }
                bytes += piece
            }
        } catch let error as UnreadableFile {
            throw error
        } catch {
            throw UnreadableFile(path, "it is missing; ship the model again")
        }
        return bytes
    }
}

private func readPieces(_ path: String, _ take: (UnsafeRawBufferPointer) throws -> Void) throws {
    // A pipe would be waited for, and a device never ends; what a link leads to is not what was listed.
    let file = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC)
    if file < 0 { throw SystemError(path) }
    defer { close(file) }
    var status = stat()
    if fstat(file, &status) != 0 { throw SystemError(path) }
    if status.st_mode & S_IFMT != S_IFREG { throw SystemError(path, "it is no regular file") }
    var buffer = [UInt8](repeating: 0, count: 1 << 16)
    while true {
        let count = read(file, &buffer, buffer.count)
        if count < 0, errno == EINTR { continue }
        if count < 0 { throw SystemError(path) }
        if count == 0 { return }
        try buffer.withUnsafeBytes { try take(UnsafeRawBufferPointer(rebasing: $0[..<count])) }
    }
}

private func writeAll(_ path: String, _ bytes: [UInt8]) throws {
    let file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0o644)
    if file < 0 { throw SystemError(path) }
    var rest = bytes[...]
    while !rest.isEmpty {
        let count = rest.withUnsafeBytes { write(file, $0.baseAddress, $0.count) }
        if count < 0, errno == EINTR { continue }
        if count < 0 {
            let error = SystemError(path)
            close(file)
            throw error
        }
        rest = rest.dropFirst(count)
    }
    // Some file systems tell of a full disk only here.
    if close(file) != 0 { throw SystemError(path) }
}

/// Returns what lies below a folder; a link in its place is one file that is not regular.
private func walk(_ top: String) throws -> [FoundFile] {
    var found: [FoundFile] = []
    var pending = [""]
    while let path = pending.popLast() {
        let full = path.isEmpty ? top : "\(top)/\(path)"
        var status = stat()
        if lstat(full, &status) != 0 { throw SystemError(full) }
        if status.st_mode & S_IFMT == S_IFDIR {
            pending += try names(full).map { path.isEmpty ? $0 : "\(path)/\($0)" }
        } else {
            found.append(FoundFile(path: path, bytes: Int64(status.st_size), regular: status.st_mode & S_IFMT == S_IFREG))
        }
    }
    return found
}

private func names(_ folder: String) throws -> [String] {
    guard let stream = opendir(folder) else { throw SystemError(folder) }
    defer { closedir(stream) }
    guard let place = MemoryLayout<dirent>.offset(of: \.d_name) else { preconditionFailure("dirent has no name") }
    var names: [String] = []
    errno = 0
    while let entry = readdir(stream) {
        // The system gives no more of the tuple than the name needs.
        let name = String(cString: (UnsafeRawPointer(entry) + place).assumingMemoryBound(to: CChar.self))
        if name != ".", name != ".." { names.append(name) }
        errno = 0
    }
    if errno != 0 { throw SystemError(folder) }
    return names
}
