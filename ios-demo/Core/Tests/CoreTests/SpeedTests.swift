import Foundation
import XCTest

@testable import Core

/// Times and memory, for `make core-speed`; nothing is asserted.
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
        let files = folders.sorted { $0.path < $1.path }.flatMap { folder in
            ["tokenizer.json", "tokenizer.bin"].map { folder.appendingPathComponent($0) }
        }
        // One alone is the first that this process opens.
        let only = environment["POCKETBERT_SPEED_ONLY"] ?? ""
        for file in files where FileManager.default.fileExists(atPath: file.path) && (only.isEmpty || file.path.hasSuffix(only)) {
            try measure(file, texts)
        }
    }

    private func measure(_ file: URL, _ texts: [String]) throws {
        let cold = try millis { _ = try open(file) }
        let loads = try (0..<7).map { _ in try millis { _ = try open(file) } }.sorted()
        let fresh = resident()
        let tokenizer = try open(file)
        let kept = resident() - fresh
        for _ in 0..<1_000 { _ = try tokenizer.encode(texts[0]) }
        let one = try (0..<7).map { _ in try millis { for _ in 0..<1_000 { _ = try tokenizer.encode(texts[0]) } } }.sorted()[3]
        let before = resident()
        let whole = try millis { for text in texts { _ = try tokenizer.encode(text) } }
        print(
            "speed: {\"tokenizer\": \"\(file.deletingLastPathComponent().lastPathComponent)\", "
                + "\"file\": \"\(file.lastPathComponent)\", \"cold_load_ms\": \(cold), \"load_ms\": \(loads[3]), "
                + "\"kept_kb\": \(kept), \"sentence_us\": \(one), \"texts_ms\": \(whole), "
                + "\"texts\": \(texts.count), \"grown_kb\": \(resident() - before)}")
    }

    private func open(_ file: URL) throws -> Tokenizer {
        let data = try Data(contentsOf: file)
        return file.pathExtension == "json" ? try Tokenizer(json: data) : try Tokenizer(binary: [UInt8](data))
    }

    private func millis(_ act: () throws -> Void) rethrows -> Double {
        let began = ContinuousClock.now
        try act()
        return Double((ContinuousClock.now - began) / .nanoseconds(1)) / 1e6
    }

    /// Returns the resident memory in KiB, without what the allocator keeps for later, where the system tells.
    private func resident() -> Int {
        if let trim = dlsym(nil, "malloc_trim") { _ = unsafeBitCast(trim, to: (@convention(c) (Int) -> Int32).self)(0) }
        let status = (try? String(contentsOfFile: "/proc/self/status", encoding: .utf8)) ?? ""
        let line = status.split(separator: "\n").first { $0.hasPrefix("VmRSS:") }
        return line.flatMap { Int($0.split(separator: " ").dropFirst().first ?? "") } ?? 0
    }
}
