import Foundation
import XCTest

@testable import Core

/// Times of a search in int8 and float rows, one after the other in one run, for `make search-speed`; nothing is asserted.
final class SearchSpeedTests: XCTestCase {
    private static let (rows, width, batch, queries, turns, top) = (10_000, 384, 500, 20, 6, 10)

    func testTimesOfBothStorages() throws {
        guard ProcessInfo.processInfo.environment["POCKETBERT_SEARCH_SPEED"] != nil else { throw XCTSkip("`make search-speed` runs it") }
        let home = FileManager.default.temporaryDirectory.appendingPathComponent(UUID().uuidString)
        defer { try? FileManager.default.removeItem(at: home) }
        let scales = [Double](repeating: 5 / Double(Self.width).squareRoot() / 127, count: Self.width)
        var random = Numbers(state: 1)
        func vector() -> [Float] {
            let row = (0..<Self.width).map { _ in random.normal() }
            let length = row.reduce(0) { $0 + $1 * $1 }.squareRoot()
            return row.map { Float($0 / length) }
        }
        let queries = (0..<Self.queries).map { _ in vector() }
        let storages = IndexSpec.Storage.allCases
        let indexes = try storages.map { storage in
            let spec = IndexSpec(
                space: "b1946ac92492d234", width: Self.width, storage: storage, scales: storage == .int8 ? scales : nil, isUnitLength: true,
                madeBy: "random")
            return try FlatIndex.openOrCreate(home.appendingPathComponent(storage.rawValue), spec, width: Self.width)
        }
        var addMs = [Double](repeating: 0, count: storages.count)
        for first in stride(from: 0, to: Self.rows, by: Self.batch) {
            let batch = (first..<first + Self.batch).map {
                Passage(id: "\($0)", text: "A passage of some words, number \($0).", embedding: vector())
            }
            for (number, index) in indexes.enumerated() { addMs[number] += try millis { try index.add(batch) } }
        }
        var times = [[Double]](repeating: [], count: storages.count)
        for turn in 0..<Self.turns {
            for query in queries {
                for (number, index) in indexes.enumerated() {
                    let took = try millis { _ = try index.search(query, top: Self.top) }
                    if turn > 0 { times[number].append(took) }
                }
            }
        }
        for (number, index) in indexes.enumerated() {
            let sorted = times[number].sorted()
            print(
                "search: {\"storage\": \"\(storages[number].rawValue)\", \"rows\": \(index.rows), \"width\": \(Self.width), "
                    + "\"search_ms\": \(sorted[sorted.count / 2]), \"p90_ms\": \(sorted[sorted.count * 9 / 10]), "
                    + "\"held_kb\": \(try index.heldBytes() / 1024), \"add_ms\": \(addMs[number])}")
        }
    }

    private func millis(_ act: () throws -> Void) rethrows -> Double {
        let began = ContinuousClock.now
        try act()
        return Double((ContinuousClock.now - began) / .nanoseconds(1)) / 1e6
    }
}
