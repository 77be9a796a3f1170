import AppModels
import AppParts
import Foundation
import XCTest

@testable import Core

/// Every sentence of the real students through the view model of the screen: each answer is Python's.
@MainActor
final class EndToEndTests: XCTestCase {
    private static let close = 1e-12

    func testEveryAnswerOnTheScreenIsAsInPython() async throws {
        let served = try Served()
        let rows = Dictionary(grouping: try served.cases.objects("rows")) { $0.present("model")?.string ?? "" }
        let search = SearchModel()
        search.replace(by: "")
        // One warm run is enough of a median here.
        let model = TryModel(try served.usable(), search: search, warmRuns: 1)
        XCTAssertEqual(Set(rows.keys), Set(model.models.map(\.id)))
        var answers = 0
        for one in model.models {
            model.choose(one.id)
            model.prefersOwn = false
            for row in rows[one.id] ?? [] {
                model.first = try row.text("first")
                model.second = try row.textOrNil("second") ?? ""
                model.ask()
                await model.settled()
                guard case .answered(let reply) = model.state else { return XCTFail("\(one.id), \(model.first): \(model.state)") }
                XCTAssertEqual([try row.number("tokens"), try row.number("length")], [reply.tokens, reply.length])
                XCTAssertGreaterThan(reply.inferenceMs, 0)
                try compare(try row.array("answer"), reply.answer, model.first)
                answers += 1
            }
        }
        XCTAssertGreaterThan(answers, 500)
        if testRun?.totalFailureCount == 0 {
            print("view models: \(answers) answers of \(model.models.count) files, none differs")
        }
    }

    func testLabelsOfOnesOwnOnTheScreenAreAsInPython() async throws {
        let served = try Served()
        let rows = try served.cases.objects("zero_shot")
        let model = TryModel(try served.usable(), search: SearchModel(), warmRuns: 0)
        for (number, row) in rows.enumerated() {
            model.choose(try row.text("model"))
            model.first = try row.text("text")
            model.labels = try row.texts("labels").joined(separator: number % 2 == 0 ? ", " : "\n")
            model.template = try row.text("template")
            model.multiLabel = try row.flag("multi_label")
            model.ask()
            await model.settled()
            guard case .answered(let reply) = model.state, case .labels(let shares) = reply.answer else {
                return XCTFail("\(model.first): \(model.state)")
            }
            XCTAssertEqual([try row.number("tokens"), try row.number("length")], [reply.tokens, reply.length])
            try compare(try row.array("answer"), reply.answer, model.first)
            XCTAssertEqual(shares.given, model.multiLabel ? shares.filter { $0.share >= 0.5 } : Array(shares.prefix(1)))
        }
        XCTAssertFalse(rows.isEmpty)
        if testRun?.totalFailureCount == 0 {
            print("view models: \(rows.count) answers of \(Set(try rows.map { try $0.text("model") }).count) files to labels of one's own")
        }
    }

    func testWhatIsFoundInAShippedIndexIsAsInPython() async throws {
        let served = try Served()
        let rows = try served.cases.objects("searches")
        let shipped = try scratch().appendingPathComponent("models")
        try FileManager.default.copyItem(at: served.folder.appendingPathComponent("models"), to: shipped)
        // It lies apart: where one lies beside the models, it is searched in place of the sentences.
        try FileManager.default.copyItem(at: served.folder.appendingPathComponent("index"), to: shipped.appendingPathComponent("index"))
        let search = SearchModel()
        let model = TryModel(try Shelf.open(try served.equipment(models: shipped)).usable, search: search, warmRuns: 0)
        for row in rows {
            model.choose(try row.text("model"))
            model.first = try row.text("question")
            model.ask()
            await model.settled()
            let wanted = try row.array("found")
            XCTAssertEqual(try wanted.map { try cell($0, 0).whole }, search.found.map(\.place), model.first)
            try compare(wanted, search, model.first)
        }
        XCTAssertFalse(rows.isEmpty)
        if testRun?.totalFailureCount == 0 {
            print("view models: \(rows.count) answers of an index of \(search.index?.passages ?? 0) passages, none differs")
        }
        model.leave()
    }

    func testWhatTheTransformerFindsAmongAStaticTablesPassagesIsAsInPython() async throws {
        let served = try Served()
        let wanted = try XCTUnwrap(try served.cases.child("two_speeds"))
        let (texts, rows) = (try wanted.texts("texts"), try wanted.objects("searches"))
        let place = try scratch()
        let notes = place.appendingPathComponent("notes.txt")
        try Data(texts.joined(separator: "\n").utf8).write(to: notes)
        let search = SearchModel(home: place.appendingPathComponent("home"))
        let models = served.folder.appendingPathComponent("two-speeds")
        let model = TryModel(try Shelf.open(try served.equipment(models: models)).usable, search: search, warmRuns: 0)
        model.choose(try XCTUnwrap(rows.first).text("model"))
        model.first = "Who is there?"
        model.ask()
        await model.settled()
        // From here on, so that no passage is the transformer's.
        search.preferFast(true)
        await search.importFile(notes)
        try await eventually("it is being filled by the table") { search.index?.isFast == true && search.index?.other == "near" }
        try await eventually("all are there") { search.index?.texts == nil && search.index?.passages == texts.count }
        for row in rows {
            model.first = try row.text("question")
            model.ask()
            await model.settled()
            try compare(try row.array("found"), search, model.first)
        }
        XCTAssertFalse(rows.isEmpty)
        if testRun?.totalFailureCount == 0 {
            print("view models: \(rows.count) answers among \(texts.count) passages of a static table, none differs")
        }
        model.leave()
    }

    private func compare(_ wanted: [Json], _ search: SearchModel, _ question: String) throws {
        XCTAssertEqual(try wanted.map { try cell($0, 1).string }, search.found.map(\.text), question)
        for (one, found) in zip(wanted, search.found) {
            XCTAssertEqual(try cell(one, 2).real ?? .nan, Double(found.cosine), accuracy: 1e-6)
        }
    }

    private func compare(_ wanted: [Json], _ found: Answer, _ text: String) throws {
        switch found {
        case .embedding(let embedding): XCTAssertEqual(wanted.map { Float($0.real ?? .nan) }, embedding, text)
        case .value(let value): XCTAssertEqual(wanted.map { Float($0.real ?? .nan) }, [value], text)
        case .values(let values):
            XCTAssertEqual(try wanted.map { try cell($0, 0).string }, values.map(\.name), text)
            XCTAssertEqual(try wanted.map { Float(try cell($0, 1).real ?? .nan) }, values.map(\.value), text)
        case .labels(let shares):
            XCTAssertEqual(try wanted.map { try cell($0, 0).string }, shares.map(\.label), text)
            for (row, share) in zip(wanted, shares) {
                XCTAssertEqual(try cell(row, 1).real ?? .nan, share.share, accuracy: Self.close, text)
                if case .array(let cells) = row, cells.count == 3, case .flag(let given) = cells[2] {
                    XCTAssertEqual(given, share.isGiven, text)
                }
            }
        case .entities(let entities): try compare(wanted, entities, text)
        case .span(let span): try compare([.array(wanted)], [try XCTUnwrap(span)], text)
        case .hidden: XCTFail("the answer to \(text) is hidden")
        }
    }

    private func compare(_ wanted: [Json], _ found: [Found], _ text: String) throws {
        XCTAssertEqual(try wanted.map { [try cell($0, 0).whole, try cell($0, 1).whole] }, found.map { [$0.from, $0.to] }, text)
        for (row, one) in zip(wanted, found) {
            XCTAssertEqual(try cell(row, 2).real ?? .nan, one.score, accuracy: Self.close, text)
            if let kind = one.kind { XCTAssertEqual(try cell(row, 3).string, kind, text) }
        }
    }

    private func cell(_ row: Json, _ number: Int) throws -> Json {
        guard case .array(let cells) = row, cells.indices.contains(number) else { throw WrongJson("a row is no list") }
        return cells[number]
    }
}
