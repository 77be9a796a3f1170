import AppModels
import AppParts
import CoreTestSupport
import Foundation
import XCTest

@testable import Core

/// What a screen holds and measures: models are closed when it is left, and opening or a cold run is never taken for a warm one.
@MainActor
final class LeavingTests: XCTestCase {
    private func models(_ halting: Halting, _ recipe: String, _ served: Served) throws -> [ShelvedModel] {
        try Shelf.open(try served.equipment(instead: ["litert": halting, "executorch": halting])).usable
            .filter { $0.model.signature.backend == halting.backend && $0.name == recipe }
    }

    func testTheWarmMedianFollowsTheAnswer() async throws {
        let served = try Served()
        // The first run is free, and the warm ones wait.
        let halting = Halting(try served.runtime("litert"), free: 1, phone: Halting.Phone(coldS: 0.3))
        let model = TryModel(try models(halting, "mood", served), search: SearchModel())
        model.ask()
        XCTAssertEqual([model.state, model.warmMs == nil ? .idle(nil) : .working], [.opening, .idle(nil)])
        XCTAssertEqual(model.parts, [.input, .answer])
        try await eventually("the answer is there") { if case .answered = model.state { true } else { false } }
        XCTAssertNil(model.warmMs)
        XCTAssertEqual(model.parts, [.input, .answer, .caption])
        halting.release()
        await model.settled()
        guard case .answered(let reply) = model.state else { return XCTFail("it is \(model.state)") }
        XCTAssertEqual(halting.runs, 11)
        XCTAssertGreaterThan(reply.inferenceMs, 300)
        let warm = try XCTUnwrap(model.warmMs)
        XCTAssertTrue(warm > 0 && warm < 300, "\(warm)")
        // Another text has no median before it has run.
        model.first = "Another text."
        model.ask()
        XCTAssertNil(model.warmMs)
        await model.settled()
        XCTAssertNotNil(model.warmMs)
    }

    func testOpeningIsNoInference() async throws {
        let served = try Served()
        let halting = Halting(try served.runtime("litert"), phone: Halting.Phone(coldS: 0.3))
        let model = TryModel(try models(halting, "mood", served), search: SearchModel())
        model.ask()
        XCTAssertEqual(model.state, .opening)
        try await eventually("it is open") { model.state == .working }
        XCTAssertEqual(halting.openFiles, 1)
        halting.release()
        await model.settled()
        guard case .answered(let reply) = model.state else { return XCTFail("it is \(model.state)") }
        XCTAssertGreaterThan(reply.openedMs, 300)
        XCTAssertEqual(reply.units, ["CPU"])
    }

    func testTheWarmRunsOfAnAnswerEndWithTheNextRequest() async throws {
        let served = try Served()
        let halting = Halting(try served.runtime("litert"), free: 1)
        let model = TryModel(try models(halting, "mood", served), search: SearchModel())
        model.ask()
        try await eventually("it is warmed up") { halting.runs == 2 }
        model.first = "Another text."
        model.ask()
        halting.release()
        await model.settled()
        // The one that waited, and eleven of the other text.
        XCTAssertEqual(halting.runs, 2 + 11)
    }

    func testTryClosesItsModelWhenItIsLeft() async throws {
        let served = try Served()
        let halting = Halting(try served.runtime("litert"), isOpen: true)
        let shelf = try Shelf.open(try served.equipment(instead: ["litert": halting]))
        let model = TryModel(shelf.usable.filter { $0.model.signature.backend == "litert" }, search: SearchModel(), warmRuns: 1)
        model.choose("mood/litert-int8_dynamic")
        model.ask()
        await model.settled()
        XCTAssertEqual(halting.openFiles, 1)
        model.leave()
        try await eventually("it is closed") { halting.openFiles == 0 }
        guard case .answered = model.state else { return XCTFail("it is \(model.state)") }
        // Whoever comes back asks again; another choice closes what was open.
        model.choose("near/litert-int8_dynamic")
        model.search.replace(by: "One.\nTwo.")
        model.ask()
        await model.settled()
        XCTAssertEqual(halting.openFiles, 1)
        model.choose("names/litert-int8_dynamic")
        try await eventually("it is closed") { halting.openFiles == 0 }
        XCTAssertEqual(model.parts, [.input])
        model.choose("near/litert-int8_dynamic")
        let runs = halting.runs
        model.ask()
        await model.settled()
        // The question, and once more for its median: the sentences' embeddings were kept.
        XCTAssertEqual(halting.runs, runs + 2)
        XCTAssertEqual(model.parts, [.input, .answer, .caption, .actions])
        XCTAssertEqual(halting.mostOpenFiles, 1)
    }

    func testCompareClosesBothModelsAndForgetsHalfAComparison() async throws {
        let served = try Served()
        let halting = Halting(try served.runtime("litert"), free: 9)
        let shelf = try Shelf.open(try served.equipment(instead: ["litert": halting]))
        let model = CompareModel(shelf.usable.filter { $0.model.signature.backend == "litert" && ["mood", "names"].contains($0.name) })
        model.first = "Ana flew to Oslo."
        model.run()
        try await eventually("it measures") { model.sides.allSatisfy { $0.medianMs != nil } && halting.runs > 9 }
        // Figures that change are no verdict, and are not announced.
        XCTAssertNil(model.verdict)
        model.leave()
        halting.release()
        try await eventually("both are closed") { halting.openFiles == 0 }
        XCTAssertTrue(model.sides.allSatisfy { $0.medianMs == nil && $0.reply == nil })
        XCTAssertFalse(model.isRunning)
        model.run()
        await model.settled()
        XCTAssertNotNil(model.verdict)
        XCTAssertEqual(model.parts, [.input, .answer, .caption, .actions, .sides])
        model.leave()
        try await eventually("both are closed") { halting.openFiles == 0 }
        // A whole one stays to be looked at.
        XCTAssertNotNil(model.verdict)
    }

    func testRandomWeightsAreTheOpponentOnEitherSide() async throws {
        let served = try Served()
        let models = try copy(served) { place in
            try change(place.appendingPathComponent("names/litert-int8_dynamic")) { $0["random_weights"] = true }
        }
        let usable = try Shelf.open(try served.equipment(unsigned: true, models: models)).usable
        let model = CompareModel(usable.filter { ["mood/litert-int8_dynamic", "names/litert-int8_dynamic"].contains($0.id) })
        for (place, id) in ["names/litert-int8_dynamic", "mood/litert-int8_dynamic"].enumerated() { model.choose(id, for: place) }
        model.first = "Ana flew to Oslo."
        model.run()
        await model.settled()
        let verdict = try XCTUnwrap(model.verdict)
        XCTAssertEqual([verdict.student.name.recipe, verdict.other.name.recipe], ["mood", "names"])
        XCTAssertEqual([verdict.student.isRandom, verdict.other.isRandom], [false, true])
        XCTAssertEqual(verdict.times, verdict.other.medianMs / verdict.student.medianMs)
    }
}
