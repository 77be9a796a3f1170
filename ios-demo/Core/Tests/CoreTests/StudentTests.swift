import Foundation
import XCTest

@testable import Core

/// What a student gives a runtime and makes of its numbers, by the facts of its signature (`tests/apps/contract.py`).
final class StudentTests: XCTestCase {
    private static let width = 8

    private func home() throws -> URL { try vectors().appendingPathComponent("contract") }

    /// Opens a model of a folder in a runtime that gives the same numbers for every row, and remembers the rows.
    private func student(_ folder: String, _ place: Int, _ numbers: [Float]) throws -> (Student, Same) {
        let listed = try Models.open(
            try home().appendingPathComponent(folder), policy: Policy(keys: try TrustedKeys([]), unsigned: true))[place]
        guard case .usable(let model) = listed else { throw UnreadableFile(folder, "it is broken") }
        let runtime = Same(model.signature.backend, numbers)
        return (try Student.open(model, runtime), runtime)
    }

    private func embedder() throws -> (Student, Same) { try student("whole", 1, [Float](repeating: 1, count: Self.width)) }

    func testAPromptStandsBeforeTheTextAndIsNotPooledWhereTheSignatureSaysSo() throws {
        let (student, runtime) = try embedder()
        let cases = try Json.read([UInt8](try Data(contentsOf: try home().appendingPathComponent("cases.json")))).objects("prompts")
        for test in cases {
            let (text, prompt) = (try test.text("text"), try test.textOrNil("prompt"))
            let tokens = try student.embedding(text, prompt: prompt).tokens
            let row = try XCTUnwrap(runtime.rows.last)
            let ids = try test.numbers("ids")
            XCTAssertEqual(row["input_ids"]?.map { Int($0) }, ids, text)
            XCTAssertEqual(row["attention_mask"]?.map { Int($0) }, try test.numbers("mask"), text)
            XCTAssertEqual(ids.count, tokens)
            let whole = try student.tokens(text, prompt: prompt)
            XCTAssertEqual(ids.count, min(whole, student.model.signature.maxLength))
        }
        XCTAssertGreaterThan(cases.count, 50)
        XCTAssertTrue(runtime.rows.contains { $0["attention_mask"]?.contains(2) ?? false })
        print("prompts: \(cases.count) cases, none differs")
    }

    func testAPromptThatThereIsNoneOfIsSaidWithThoseThatThereAre() throws {
        XCTAssertThrowsError(try embedder().0.embedding("A text.", prompt: "passage")) { error in
            XCTAssertTrue(error is NoSuchPrompt)
            XCTAssertEqual("\(error)", "there is no prompt passage for model.pte; it has document, nothing, query")
        }
        XCTAssertThrowsError(try student("whole", 0, []).0.tokens("A text.", prompt: "query")) { error in
            XCTAssertEqual("\(error)", "there is no prompt query for model.tflite; it has none")
        }
    }

    func testTheSelfTestTakesThePromptOfEachRowAndNoneWhereARowHasNone() throws {
        let (student, runtime) = try embedder()
        let golden = try student.model.golden()
        func changed(_ prompt: (GoldenRow) -> String?) -> Golden {
            let rows = golden.rows.map {
                GoldenRow(
                    first: $0.first, second: $0.second, window: $0.window, ids: $0.ids, types: $0.types,
                    output: [Float](repeating: 1, count: Self.width), prompt: prompt($0))
            }
            return Golden(task: golden.task, maxLength: golden.maxLength, minCosine: golden.minCosine, minSqnrDb: nil, rows: rows)
        }
        XCTAssertEqual(try student.check(changed(\.prompt)).failures, [])
        XCTAssertEqual(Set(golden.rows.map(\.prompt)), [nil, "query", "document", "nothing"])
        for (row, padded) in zip(golden.rows, runtime.rows) {
            XCTAssertEqual(padded["attention_mask"]?.contains(2), row.prompt == "query" || row.prompt == "document", row.first)
        }
        // The same rows without their prompts are other rows.
        XCTAssertEqual(try student.check(changed { _ in nil }).failures, ["other ids for \"Thanks!\""])
    }

    func testEachLabelIsDecidedByItself() throws {
        let shares = try student("multi_label", 0, [0, 2, -1]).0.labels("A text.").value
        // The thresholds are 0.2, 0.9 and 0.5.
        XCTAssertEqual(shares.map(\.label), ["neutral", "negative", "positive"])
        XCTAssertEqual(shares.map(\.isGiven), [false, true, false])
        XCTAssertEqual(shares.map(\.share), [2, 0, -1].map(Outputs.sigmoid))
        let softmax = try student("whole", 0, [0, 2, -1]).0.labels("A text.").value
        XCTAssertEqual(softmax.map(\.label), ["neutral", "negative", "positive"])
        XCTAssertEqual(softmax.map(\.isGiven), [nil, nil, nil])
    }

    func testNumbersOfARegressionGoThroughItsActivationAndGoldenRowsDoNot() throws {
        let one = try student("value", 0, [0, 2, -1]).0
        XCTAssertEqual(try one.value("A text.", "Another.").value, 0.5)
        let (several, runtime) = try student("values", 0, [0, 2, -1])
        XCTAssertEqual(
            try several.values("A text.").value,
            [("negative", 0.5), ("neutral", 0.8807971), ("positive", 0.26894143)].map { NamedValue(name: $0, value: $1) })
        XCTAssertEqual(try several.output(try several.model.tokenizer().encode("A text.")), [0, 2, -1])
        XCTAssertEqual(runtime.rows.count, 2)
        XCTAssertEqual(try student("value", 0, [-1.0986123, 0, 0]).0.value("A text.").value, 0.25, accuracy: 1e-6)
        XCTAssertThrowsError(try one.values("A text.")) { XCTAssertTrue($0 is OutputError) }
    }
}

/// A runtime that gives the same numbers for every row, and remembers the rows.
private final class Same: Runtime {
    let name = "Same"
    let version = "1.0"
    let backend: String
    private let numbers: [Float]
    private let seen = Locked<[[String: [Int32]]]>([])

    init(_ backend: String, _ numbers: [Float]) {
        self.backend = backend
        self.numbers = numbers
    }

    var rows: [[String: [Int32]]] { seen.withLock { $0 } }

    func open(_ model: Model, _ options: RunnerOptions) throws -> any Runner { SameRunner(numbers: numbers, seen: seen) }
}

private struct SameRunner: Runner {
    let numbers: [Float]
    let seen: Locked<[[String: [Int32]]]>
    let delegate: String? = nil
    let operations: (delegated: Int, all: Int)? = nil

    func run(_ row: PaddedRow) throws -> [String: [Float]] {
        seen.withLock { $0.append(row.inputs) }
        return Dictionary(uniqueKeysWithValues: row.function.outputs.map { ($0.name, numbers) })
    }

    func close() {}
}
