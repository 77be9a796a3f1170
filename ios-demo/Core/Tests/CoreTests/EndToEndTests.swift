import CoreTestSupport
import Foundation
import XCTest

@testable import Core

/// The real student in the real runtimes: every answer is Python's (`tests/apps/end_to_end.py`).
final class EndToEndTests: XCTestCase {
    private static let close = 1e-12

    private func folder() throws -> URL {
        guard let folder = ProcessInfo.processInfo.environment["POCKETBERT_ENDTOEND"], !folder.isEmpty else {
            throw XCTSkip("`make core-check` makes the students and serves the runtimes")
        }
        return URL(fileURLWithPath: folder)
    }

    override func setUpWithError() throws { _ = try folder() }

    private func cases() throws -> Json { try Json.read([UInt8](try Data(contentsOf: try folder().appendingPathComponent("cases.json")))) }

    private func runtimes(hangsUpAfter: Int? = nil) throws -> [SocketRuntime] {
        let socket = try folder().deletingLastPathComponent().appendingPathComponent("runtime.sock").path
        return try ["litert", "executorch"].map {
            SocketRuntime(socket: socket, backend: $0, version: try cases().text($0), hangsUpAfter: hangsUpAfter)
        }
    }

    private func models() throws -> [Listed] {
        let policy = Policy(keys: try TrustedKeys(try cases().texts("keys")))
        return try Models.open(try folder().appendingPathComponent("models"), policy: policy)
    }

    private func usable() throws -> [Model] {
        try models().map { listed in
            switch listed {
            case .usable(let model): return model
            case .broken(_, let error): throw error
            }
        }
    }

    private func open(_ model: Model) throws -> Student {
        try Student.open(model, try XCTUnwrap(try runtimes().first { $0.backend == model.signature.backend }))
    }

    func testEveryAnswerIsAsInPython() throws {
        let rows = Dictionary(grouping: try cases().objects("rows")) { $0.present("model")?.string ?? "" }
        let models = try usable()
        XCTAssertEqual(Set(rows.keys), Set(models.map(\.entry.folder)))
        for model in models {
            let student = try open(model)
            defer { student.close() }
            for row in rows[model.entry.folder] ?? [] { try compare(student, row) }
        }
        XCTAssertEqual(Set(models.map(\.signature.task)).count, 7)
        print("end to end: \(rows.values.reduce(0) { $0 + $1.count }) answers of \(models.count) files, none differs")
    }

    private func compare(_ student: Student, _ row: Json) throws {
        let first = try row.text("first")
        let second = try row.textOrNil("second")
        let answer = try row.array("answer")
        switch student.model.signature.outputKind {
        case "embedding":
            let found = try student.embedding(first)
            XCTAssertEqual(answer.map { Float($0.real ?? .nan) }, found.value, first)
            try compare(row, found)
        case "value":
            let found = try student.value(first, second)
            XCTAssertEqual(Float(answer[0].real ?? .nan), found.value, first)
            try compare(row, found)
        case "logits":
            let found = try student.labels(first, second)
            try compare(answer, found.value, first)
            XCTAssertTrue(found.value.allSatisfy { $0.isGiven == nil }, first)
            try compare(row, found)
        case "multi_label":
            let found = try student.labels(first, second)
            try compare(answer, found.value, first)
            XCTAssertEqual(try answer.map { try $0.cell(2).isSet }, found.value.map(\.isGiven), first)
            try compare(row, found)
        case "values":
            let found = try student.values(first, second)
            XCTAssertEqual(try answer.map { try $0.cell(0).string }, found.value.map(\.name), first)
            XCTAssertEqual(try answer.map { Float(try $0.cell(1).real ?? .nan) }, found.value.map(\.value), first)
            try compare(row, found)
        case "token_logits":
            let found = try student.entities(first)
            try compare(answer, found.value, first)
            try compare(row, found)
        default:
            let found = try student.answer(first, try XCTUnwrap(second))
            try compare([.array(answer)], [try XCTUnwrap(found.value)], first)
            try compare(row, found)
        }
    }

    private func compare<Value>(_ row: Json, _ answered: Answered<Value>) throws {
        XCTAssertEqual([try row.number("tokens"), try row.number("length")], [answered.tokens, answered.length])
        XCTAssertGreaterThanOrEqual(answered.tokenizeMs, 0)
        XCTAssertGreaterThan(answered.inferenceMs, 0)
    }

    private func compare(_ wanted: [Json], _ found: [Share], _ text: String) throws {
        XCTAssertEqual(try wanted.map { try $0.cell(0).string }, found.map(\.label), text)
        for (row, share) in zip(wanted, found) {
            XCTAssertEqual(try row.cell(1).real ?? .nan, share.share, accuracy: Self.close, text)
        }
    }

    func testLabelsOfOnesOwnAreAsInPython() throws {
        let rows = Dictionary(grouping: try cases().objects("zero_shot")) { $0.present("model")?.string ?? "" }
        let models = try usable().filter { ZeroShot.isPossible($0.signature) }
        XCTAssertEqual(Set(rows.keys), Set(models.map(\.entry.folder)))
        for model in models {
            let student = try open(model)
            defer { student.close() }
            for row in rows[model.entry.folder] ?? [] {
                let (text, multiLabel) = (try row.text("text"), try row.flag("multi_label"))
                let found = try student.zeroShot(
                    text, try row.texts("labels"), template: try row.text("template"), multiLabel: multiLabel)
                try compare(try row.array("answer"), found.value, text)
                try compare(row, found)
                XCTAssertTrue(found.value.allSatisfy { ($0.isGiven != nil) == multiLabel }, text)
            }
        }
        let answers = rows.values.reduce(0) { $0 + $1.count }
        print("end to end: \(answers) answers of \(models.count) files to labels of one's own, none differs")
    }

    private func compare(_ wanted: [Json], _ found: [Found], _ text: String) throws {
        XCTAssertEqual(try wanted.map { [try $0.cell(0).whole, try $0.cell(1).whole] }, found.map { [$0.from, $0.to] }, text)
        for (row, one) in zip(wanted, found) {
            XCTAssertEqual(try row.cell(2).real ?? .nan, one.score, accuracy: Self.close, text)
            if let kind = one.kind { XCTAssertEqual(try row.cell(3).string, kind, text) }
        }
    }

    func testGoldenRowsHold() throws {
        var rows = 0
        for model in try usable() {
            let student = try open(model)
            defer { student.close() }
            let verdict = try student.check(try model.golden())
            XCTAssertEqual(verdict.failures, [], model.entry.folder)
            XCTAssertTrue(verdict.rows.count > 10 && verdict.rows.allSatisfy(\.sameIds))
            rows += verdict.rows.count
        }
        print("golden rows: \(rows) cases, none differs")
    }

    func testGoldenRowsOfAnotherModelDoNotHold() throws {
        let models = try usable()
        let golden = try XCTUnwrap(models.first { $0.entry.folder == "alike/litert-int8_dynamic" }).golden()
        let verdict = try open(try XCTUnwrap(models.first { $0.entry.folder == "near/litert-int8_dynamic" })).check(golden)
        XCTAssertFalse(verdict.failures.isEmpty)
        XCTAssertNil(verdict.sqnrDb)
    }

    func testTheNearestTextsAreFound() throws {
        let student = try open(try XCTUnwrap(try usable().first { $0.signature.task == "embedding" }))
        let texts = ["The shop closes at six.", "A man is playing a guitar.", "It rained all day."]
        let among = try texts.map { try student.embedding($0).value }
        let found = Outputs.nearest(try student.embedding("The store shuts at six o'clock.").value, among: among, top: 2)
        XCTAssertEqual(found[0].place, 0)
        XCTAssertGreaterThan(found[0].cosine, max(found[1].cosine, 0.7))
    }

    func testWorkGoesOnInTheBackgroundAndIsGivenUpWhenAsked() async throws {
        let student = try open(try XCTUnwrap(try usable().first { $0.signature.task == "embedding" }))
        let background = Background()
        let first = Task { try await background.run { _ in try student.embedding("A text.").tokens } }
        let second = Task {
            try await background.run { cancellation -> Int in
                while true { try cancellation.check() }
            }
        }
        second.cancel()
        let tokens = try await first.value
        XCTAssertEqual(tokens, 5)
        do {
            _ = try await second.value
            XCTFail("it ended")
        } catch {
            XCTAssertTrue(error is Cancelled, "\(error)")
        }
    }

    func testHeadlessRunsEndAsTheyHaveTo() throws {
        let runs = try cases().objects("runs")
        for test in runs {
            let name = try test.text("run")
            let status = try run(test)
            XCTAssertEqual(try test.text("state"), status.state.word, "\(name): \(status.message ?? "")")
            if let message = try test.textOrNil("message") {
                XCTAssertTrue((status.message ?? "").contains(message), "\(name): \(status.message ?? "")")
            }
        }
        print("headless runs: \(runs.count) cases, each ended as it has to")
    }

    private func run(_ test: Json) throws -> BenchmarkStatus {
        let home = try folder().appendingPathComponent("runs-swift").appendingPathComponent(try test.text("run"))
        try? FileManager.default.removeItem(at: home)
        try FileManager.default.createDirectory(at: home, withIntermediateDirectories: true)
        let request = home.appendingPathComponent(Headless.request)
        if let text = try test.textOrNil("request") { try Data(text.utf8).write(to: request) }
        let does = try test.text("does")
        if does == "no room" {
            let place = home.appendingPathComponent("\(Headless.record).new")
            try FileManager.default.createDirectory(at: place, withIntermediateDirectories: true)
        }
        let cancellation = Cancellation()
        let headless = HeadlessRun(
            folder: home, models: models, runtimes: try runtimes(hangsUpAfter: does == "hangs up" ? 5 : nil),
            phone: HostPhone(does == "cools" ? [40, 38, 30] : [37]), cancellation: cancellation)
        if does != "cancels" { return headless.run() }
        // Cancelled once it is seen to run, as somebody at the phone would.
        let status = home.appendingPathComponent(Headless.status)
        DispatchQueue.global().async {
            while !((try? String(contentsOf: status, encoding: .utf8)) ?? "").contains("length") { usleep(10_000) }
            cancellation.cancel()
        }
        let last = headless.run()
        XCTAssertTrue(last.state == .cancelled && last.message != nil && last.beats > 1)
        return last
    }
}

extension Json {
    fileprivate func cell(_ number: Int) throws -> Json {
        guard case .array(let cells) = self else { throw WrongJson("a row is no list") }
        return cells[number]
    }

    fileprivate var isSet: Bool? { if case .flag(let flag) = self { flag } else { nil } }
}
