import Core
import Foundation

/// A person's texts, one on each line of a file, of which there are so many that they are never in memory together.
struct OwnTexts: Sendable {
    /// Why a file is not taken.
    enum Refused: Error {
        case tooLarge
        case notUtf8
    }

    static let mostBytes = 64 << 20
    private static let pieceBytes = 1 << 16
    private let file: URL
    private let aside: URL

    /// - Parameter home: the app's folder for indexes.
    init(home: URL) {
        file = home.appendingPathComponent("texts.txt")
        aside = home.appendingPathComponent("texts.new")
    }

    var isThere: Bool { FileManager.default.fileExists(atPath: file.path) }

    /// Copies the texts of a file beside those that are kept, and returns how many there are.
    ///
    /// - Throws: `Refused`; any error where it cannot be read, or there is no room.
    func take(_ from: URL) throws -> Int {
        try Self.check(from, most: Self.mostBytes)
        try makeFolder()
        drop()
        try FileManager.default.copyItem(at: from, to: aside)
        return try count(aside)
    }

    /// Returns the text of a file that is kept in memory.
    ///
    /// - Throws: `Refused`; any error where it cannot be read.
    static func read(_ file: URL, most: Int) throws -> String {
        try check(file, most: most)
        guard let text = String(data: try Data(contentsOf: file), encoding: .utf8) else { throw Refused.notUtf8 }
        return text
    }

    private static func check(_ file: URL, most: Int) throws {
        let size = try FileManager.default.attributesOfItem(atPath: file.path)[.size] as? Int ?? 0
        if size > most { throw Refused.tooLarge }
    }

    /// Takes texts that are in memory.
    func take(_ texts: [String]) throws {
        try makeFolder()
        try Data(texts.joined(separator: "\n").utf8).write(to: aside)
    }

    private func makeFolder() throws {
        try FileManager.default.createDirectory(at: aside.deletingLastPathComponent(), withIntermediateDirectories: true)
    }

    /// Returns what `take` has copied, where there are few.
    func taken() throws -> [String] { try read(aside).next(.max) }

    /// Keeps what `take` has copied in place of the texts that were there.
    func keep() throws {
        if isThere { try FileManager.default.removeItem(at: file) }
        try FileManager.default.moveItem(at: aside, to: file)
    }

    /// Forgets what `take` has copied.
    func drop() { try? FileManager.default.removeItem(at: aside) }

    /// Forgets the texts.
    func remove() {
        drop()
        try? FileManager.default.removeItem(at: file)
    }

    /// Returns how many texts are kept.
    func count() throws -> Int { try count(file) }

    private func count(_ file: URL) throws -> Int {
        let texts = try read(file)
        var all = 0
        while case let window = try texts.next(512), !window.isEmpty { all += window.count }
        return all
    }

    /// Opens the texts.
    func read() throws -> Reading { try read(file) }

    private func read(_ file: URL) throws -> Reading { Reading(try FileHandle(forReadingFrom: file)) }

    /// Texts that are read one window after the other.
    final class Reading {
        private let file: FileHandle
        private var rest: [UInt8] = []
        private var at = 0
        private var isAtEnd = false

        init(_ file: FileHandle) { self.file = file }

        deinit { try? file.close() }

        /// Returns the next texts; none at the end.
        ///
        /// - Throws: `Refused.notUtf8`.
        func next(_ most: Int) throws -> [String] {
            var window: [String] = []
            while window.count < most, let line = try line() {
                guard let text = String(bytes: line, encoding: .utf8) else { throw Refused.notUtf8 }
                let trimmed = text.trimmingCharacters(in: .whitespaces)
                if !trimmed.isEmpty { window.append(trimmed) }
            }
            return window
        }

        private func line() throws -> ArraySlice<UInt8>? {
            var from = at
            while true {
                if let end = rest[from...].firstIndex(where: { $0 == UInt8(ascii: "\n") || $0 == UInt8(ascii: "\r") }) {
                    defer { at = end + 1 }
                    return rest[at..<end]
                }
                if isAtEnd {
                    defer { at = rest.count }
                    return at < rest.count ? rest[at...] : nil
                }
                // What was read is looked through once.
                from = rest.count - at
                rest.removeFirst(at)
                at = 0
                let piece = try file.read(upToCount: OwnTexts.pieceBytes) ?? Data()
                isAtEnd = piece.isEmpty
                rest += piece
            }
        }
    }

    /// Returns the number that is a text's id, so that a text that is there in another file as well is embedded once.
    static func number(_ text: String) -> UInt64 { UInt64(Passage.id(of: text), radix: 16) ?? 0 }

    /// Returns a text's id as an index has it.
    static func id(_ number: UInt64) -> String {
        let digits = String(number, radix: 16)
        return String(repeating: "0", count: 16 - digits.count) + digits
    }
}
