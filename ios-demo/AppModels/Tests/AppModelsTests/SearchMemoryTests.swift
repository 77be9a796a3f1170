import AppModels
import AppParts
import Core
import Foundation
import XCTest

/// Memory while texts are indexed.
@MainActor
final class SearchMemoryTests: XCTestCase {
    private static let characters = 500
    private static let samples = 4

    func testTheNumberOfTextsDoesNotDecideTheMemoryThatIndexingTakes() async throws {
        guard Self.ownBytes() != nil else { throw XCTSkip("this system does not tell a process's own memory as Linux does") }
        // More of them by `POCKETBERT_SEARCH_TEXTS=100000`.
        let texts = ProcessInfo.processInfo.environment["POCKETBERT_SEARCH_TEXTS"].flatMap { Int($0) } ?? 20_000
        let served = try Served()
        let bag = BagOfTokens("executorch", version: try served.runtime("executorch").version)
        let place = try scratch()
        let file = try write(texts, place)
        let search = SearchModel(home: place.appendingPathComponent("home"))
        let model = TryModel(try Shelf.open(try served.equipment(instead: ["executorch": bag])).usable, search: search, warmRuns: 0)
        model.choose("near/executorch-int8_dynamic")
        await search.importFile(file)
        model.ask()
        var used: [(texts: Int, bytes: Int)] = []
        for share in 1...Self.samples {
            let count = texts * share / Self.samples
            while search.index?.passages ?? 0 < count { try await Task.sleep(nanoseconds: 5_000_000) }
            used.append((count, try XCTUnwrap(Self.ownBytes())))
        }
        await search.settled()
        XCTAssertNil(search.index?.texts)
        model.leave()
        let told = used.map { "\($0.texts) texts \($0.bytes / 1024) kB" }.joined(separator: ", ")
        print("memory while texts of \(Self.characters) characters are indexed: \(told)")
        let (first, last) = (used[0], used[used.count - 1])
        // A text has half a thousand bytes, and its embedding a thousand and a half; an id has twelve, and more while they are compared.
        XCTAssertLessThan((last.bytes - first.bytes) / (last.texts - first.texts), 150, told)
    }

    private func write(_ count: Int, _ place: URL) throws -> URL {
        let file = place.appendingPathComponent("notes.txt")
        FileManager.default.createFile(atPath: file.path, contents: nil)
        let handle = try FileHandle(forWritingTo: file)
        let rest = String(repeating: "of a day that was long ", count: Self.characters / 23)
        for first in stride(from: 0, to: count, by: 1_000) {
            let lines = (first..<min(first + 1_000, count)).map { "Note \($0) \(rest)\n" }.joined()
            try handle.write(contentsOf: Data(lines.utf8))
        }
        try handle.close()
        return file
    }

    /// Returns the memory that is the process's own, without mapped files and without what the allocator keeps for later.
    private static func ownBytes() -> Int? {
        if let trim = dlsym(nil, "malloc_trim") { _ = unsafeBitCast(trim, to: (@convention(c) (Int) -> Int32).self)(0) }
        let status = (try? String(contentsOfFile: "/proc/self/status", encoding: .utf8)) ?? ""
        let line = status.split(separator: "\n").first { $0.hasPrefix("RssAnon:") }
        return line?.split(separator: " ").dropFirst().first.flatMap { Int($0) }.map { $0 * 1024 }
    }
}
