import Foundation
import XCTest

@testable import Core

/// Times, for `make core-speed`; nothing is asserted.
final class SpeedTests: XCTestCase {
    func testTimesOfEachTokenizer() throws {
        let environment = ProcessInfo.processInfo.environment
        guard let file = environment["POCKETBERT_SPEED"], let vectors = environment["POCKETBERT_VECTORS"] else {
            throw XCTSkip("`make core-speed` runs it")
        }
        guard case .array(let all) = try Json.readAny([UInt8](try Data(contentsOf: URL(fileURLWithPath: file)))) else { return }
        let texts = all.compactMap(\.string)
        let folders = try FileManager.default.contentsOfDirectory(at: URL(fileURLWithPath: vectors), includingPropertiesForKeys: nil)
            .filter { FileManager.default.fileExists(atPath: $0.appendingPathComponent("rows.jsonl").path) }
        for folder in folders.sorted(by: { $0.path < $1.path }) {
            let json = try Data(contentsOf: folder.appendingPathComponent("tokenizer.json"))
            let loads = try (0..<5).map { _ in try millis { _ = try Tokenizer(json: json) } }
            let tokenizer = try Tokenizer(json: json)
            for _ in 0..<1_000 { _ = try tokenizer.encode(texts[0]) }
            let one = try (0..<7).map { _ in try millis { for _ in 0..<1_000 { _ = try tokenizer.encode(texts[0]) } } }.sorted()[3]
            let before = resident()
            let whole = try millis { for text in texts { _ = try tokenizer.encode(text) } }
            print(
                "speed: {\"tokenizer\": \"\(folder.lastPathComponent)\", \"cold_load_ms\": \(loads[0]), "
                    + "\"load_ms\": \(loads.dropFirst().min() ?? 0), \"sentence_us\": \(one), \"texts_ms\": \(whole), "
                    + "\"texts\": \(texts.count), \"grown_kb\": \(resident() - before)}")
        }
    }

    private func millis(_ act: () throws -> Void) rethrows -> Double {
        let began = ContinuousClock.now
        try act()
        return Double((ContinuousClock.now - began) / .nanoseconds(1)) / 1e6
    }

    /// Returns the resident memory in KiB, where the system tells.
    private func resident() -> Int {
        let status = (try? String(contentsOfFile: "/proc/self/status", encoding: .utf8)) ?? ""
        let line = status.split(separator: "\n").first { $0.hasPrefix("VmRSS:") }
        return line.flatMap { Int($0.split(separator: " ").dropFirst().first ?? "") } ?? 0
    }
}
