import Foundation
import XCTest

@testable import Core

/// Indexes that the pipeline wrote give the passages that it gives, and so do those that are written here
/// (`tests/apps/search_cases.py`).
final class SearchCasesTests: XCTestCase {
    func testEverySearchIsAsInPython() throws {
        let home = try vectors().appendingPathComponent("search")
        var searches = 0
        for name in try FileManager.default.contentsOfDirectory(atPath: home.path).sorted() {
            let folder = home.appendingPathComponent(name)
            let json = try Json.read([UInt8](try Data(contentsOf: folder.appendingPathComponent("case.json"))))
            let space = try VectorSpace(try XCTUnwrap(try json.child("vectors")))
            let (theirs, own) = (folder.appendingPathComponent("index"), folder.appendingPathComponent("swift"))
            searches += try compare(try FlatIndex(theirs, space), json)
            // Python opens it when all tests have run.
            try? FileManager.default.removeItem(at: own)
            let index = try FlatIndex.openOrCreate(own, try IndexSpec(try XCTUnwrap(try json.child("about"))), width: space.width)
            let passages = try json.objects("passages").map {
                Passage(id: try $0.text("id"), text: try $0.text("text"), embedding: try floats($0))
            }
            for first in stride(from: 0, to: passages.count, by: 70) {
                try index.add(Array(passages[first..<min(first + 70, passages.count)]))
            }
            try index.remove(try json.texts("removed"))
            _ = try compare(index, json)
            let files = try [theirs, own].map { try Data(contentsOf: $0.appendingPathComponent("vectors.bin")) }
            XCTAssertEqual(files[0], files[1], name)
        }
        XCTAssertGreaterThan(searches, 200)
        print("search: \(searches) cases, none differs")
    }

    private func compare(_ index: FlatIndex, _ json: Json) throws -> Int {
        let queries = try json.objects("queries")
        for query in queries {
            let rows = try query.numbers("rows")
            let hits = try index.search(try floats(query), top: rows.count)
            XCTAssertEqual(hits.map(\.row), rows)
            XCTAssertEqual(hits.map(\.text), try query.texts("texts"))
            for (hit, wanted) in zip(hits, try query.doubles("cosines")) { XCTAssertEqual(Double(hit.cosine), wanted, accuracy: 1e-6) }
        }
        return queries.count
    }

    private func floats(_ json: Json) throws -> [Float] { try json.doubles("embedding").map { Float($0) } }
}
