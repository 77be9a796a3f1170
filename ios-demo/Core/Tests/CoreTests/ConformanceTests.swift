import Foundation
import XCTest

@testable import Core

/// Every id is that of the reference library, for each folder of vectors that `tests/apps/tokenizers` wrote.
///
/// A folder has a `tokenizer.json`, most have the same tokenizer as `tokenizer.bin`, and `rows.jsonl` has
/// `[first, second, longest row, ids, types, from, to]` in each line.
final class ConformanceTests: XCTestCase {
    func testVectors() throws {
        let home = try vectors()
        let folders = try FileManager.default.contentsOfDirectory(at: home, includingPropertiesForKeys: nil)
            .filter { FileManager.default.fileExists(atPath: $0.appendingPathComponent("rows.jsonl").path) }
            .sorted { $0.path < $1.path }
        XCTAssertFalse(folders.isEmpty, "\(home) has no vectors")
        for folder in folders {
            let json = try Tokenizer(json: try Data(contentsOf: folder.appendingPathComponent("tokenizer.json")))
            try compare(folder.lastPathComponent, folder, json)
            let binary = folder.appendingPathComponent("tokenizer.bin")
            if FileManager.default.fileExists(atPath: binary.path) {
                let name = "\(folder.lastPathComponent) (\(binary.lastPathComponent))"
                try compare(name, folder, try Tokenizer(binary: [UInt8](try Data(contentsOf: binary))))
            }
        }
    }

    private func compare(_ name: String, _ folder: URL, _ tokenizer: Tokenizer) throws {
        var rows = 0
        var tokens = 0
        var wrong = 0
        var smallest: (size: Int, what: String)?
        let lines = [UInt8](try Data(contentsOf: folder.appendingPathComponent("rows.jsonl")))
        for line in lines.split(separator: UInt8(ascii: "\n")) {
            guard case .array(let row) = try Json.readAny(Array(line)) else { return XCTFail("a row is no list") }
            rows += 1
            let (count, difference) = try compare(tokenizer, row)
            tokens += count
            guard let difference else { continue }
            wrong += 1
            let size = row[0].string?.unicodeScalars.count ?? 0
            if size < smallest?.size ?? .max {
                smallest = (size, String(decoding: line, as: UTF8.self) + "\n" + difference)
            }
        }
        print("\(name): \(rows) rows, \(tokens) tokens, \(wrong) rows differ")
        if let smallest { XCTFail("\(wrong) of \(rows) rows differ; the smallest is \(smallest.what)") }
    }

    private func compare(_ tokenizer: Tokenizer, _ row: [Json]) throws -> (Int, String?) {
        let found = try tokenizer.encode(try XCTUnwrap(row[0].string), row[1].string, maxLength: row[2].whole)
        let all = [("ids", found.ids), ("types", found.types), ("from", found.from), ("to", found.to)]
        for (at, (name, got)) in all.enumerated() {
            if case .null = row[3 + at] { continue }
            guard case .array(let values) = row[3 + at] else { throw UnsupportedTokenizer("\(name) are no list") }
            let wanted = values.compactMap(\.whole)
            if wanted != got { return (wanted.count, "\(name) are \(got), and should be \(wanted)") }
        }
        return (found.count, nil)
    }
}
