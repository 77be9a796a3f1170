import AppModels
import AppParts
import CoreTestSupport
import Foundation
import XCTest

@testable import Core

/// The self-test, on the real students, and on compute units as phones have them.
@MainActor
final class SelfTestTests: XCTestCase {
    func testTheSelfTestHolds() async throws {
        let served = try Served()
        let model = SelfTestModel(try Shelf.open(try served.equipment()))
        XCTAssertNil(model.verdict)
        model.run()
        await model.settled()
        XCTAssertEqual(model.verdict, SelfTestModel.Verdict(models: 16, passed: 16))
        var rows = 0
        for row in model.rows {
            XCTAssertEqual([row.outcome], [.same])
            XCTAssertEqual(row.units.map(\.unit), ["CPU"])
            for unit in row.units {
                guard case .done(let report) = unit.state else { return XCTFail("\(row.id) is \(unit.state)") }
                XCTAssertEqual(report.sameTokens, report.rows)
                XCTAssertEqual(report.version, .enough)
                XCTAssertGreaterThan(report.worstCosine ?? 0, report.minCosine ?? 0.9)
                rows += report.rows
            }
            XCTAssertNotNil(row.model.model.signedBy)
        }
        print("self-test: \(rows) cases of \(model.rows.count) files, none differs")
    }

    func testTheSelfTestSeesAnOldRuntimeAndOneThatIsGone() async throws {
        let served = try Served()
        let gone = SocketRuntime(socket: "/nowhere.sock", backend: "executorch", version: try served.cases.text("executorch"))
        let old = Halting(try served.runtime("litert"), version: "1.1.9", isOpen: true)
        let shelf = try Shelf.open(try served.equipment(instead: ["litert": old, "executorch": gone]))
        let model = SelfTestModel(Shelf(usable: shelf.usable.filter { $0.model.entry.recipe == "near" }, refused: []))
        model.run()
        await model.settled()
        XCTAssertEqual(model.verdict, SelfTestModel.Verdict(models: 2, passed: 0))
        XCTAssertEqual(
            Dictionary(uniqueKeysWithValues: model.rows.map { ($0.model.model.signature.backend, $0.outcome) }),
            [
                "litert": .differs(.olderRuntime(name: "LiteRT", version: "1.1.9", minimum: "1.2.0")),
                "executorch": .failed("The runtimes are not served at /nowhere.sock."),
            ])
    }

    func testTheSelfTestCanBeStopped() async throws {
        let served = try Served()
        let halting = Halting(try served.runtime("litert"))
        let models = try Shelf.open(try served.equipment(instead: ["litert": halting])).usable.filter {
            $0.linked.runtime.backend == "litert"
        }
        let model = SelfTestModel(Shelf(usable: models, refused: []))
        model.run()
        try await eventually("it runs") { halting.runs == 1 }
        XCTAssertEqual(model.rows[0].outcome, .running)
        model.cancel()
        XCTAssertFalse(model.isRunning)
        halting.release()
        await model.settled()
        XCTAssertTrue(model.rows.allSatisfy { $0.outcome == .notTested })
        try await eventually("it is closed") { halting.openFiles == 0 }
    }

    func testOneModelAtATimeIsInMemory() async throws {
        let served = try Served()
        let halting = Halting(try served.runtime("litert"), isOpen: true, phone: Halting.Phone(closingS: 0.2))
        let models = try Shelf.open(try served.equipment(instead: ["litert": halting])).usable.filter {
            $0.linked.runtime.backend == "litert"
        }
        let model = SelfTestModel(Shelf(usable: models, refused: []))
        model.run()
        await model.settled()
        XCTAssertEqual([halting.openFiles, halting.mostOpenFiles], [0, 1])
    }

    /// Returns a shelf with a file that may use the CPU and the GPU, and untried the NPU.
    ///
    /// - Parameters:
    ///   - recipe: of the file. Each test has one of its own, since a unit that passed is kept for the process.
    ///   - phone: what it computes.
    private func shelf(_ recipe: String, _ phone: Halting.Phone) throws -> (Equipment, Shelf) {
        let served = try Served()
        let folder = "\(recipe)/litert-int8_dynamic"
        let models = try copy(served) { place in
            try change(place.appendingPathComponent(folder)) {
                $0["compute_units"] = ["CPU", "GPU"]
                $0["untried_units"] = ["NPU": "No phone's has run one yet.", "absent here": "Nobody knows."]
            }
        }
        let halting = Halting(try served.runtime("litert"), isOpen: true, phone: phone)
        let equipment = try served.equipment(instead: ["litert": halting], unsigned: true, models: models, units: ["CPU", "GPU", "NPU"])
        let shelf = try Shelf.open(equipment)
        return (equipment, Shelf(usable: shelf.usable.filter { $0.id == folder }, refused: []))
    }

    func testAnUntriedUnitThatPassedIsOffered() async throws {
        let (equipment, shelf) = try shelf("mood", Halting.Phone())
        let benchmark = BenchmarkModel(shelf.usable, equipment)
        XCTAssertEqual(benchmark.unitsOffered, ["CPU", "GPU"])
        let model = SelfTestModel(shelf)
        model.run()
        await model.settled()
        XCTAssertEqual(model.rows[0].units.map(\.unit), ["CPU", "GPU", "NPU"])
        XCTAssertEqual(model.rows[0].units.map(\.known), [nil, nil, "No phone's has run one yet."])
        XCTAssertEqual(model.rows[0].outcome, .same)
        XCTAssertEqual(benchmark.unitsOffered, ["CPU", "GPU", "NPU"])
        // It is tested again, and still said to be untried so far.
        model.run()
        await model.settled()
        XCTAssertEqual(model.rows[0].units.map(\.known), [nil, nil, "No phone's has run one yet."])
    }

    func testAUnitThatComputesSomethingElseIsSeen() async throws {
        let (equipment, shelf) = try shelf("names", Halting.Phone(wrongUnits: ["GPU", "NPU"]))
        let model = SelfTestModel(shelf)
        model.run()
        await model.settled()
        let differences = model.rows[0].units.map { unit in
            if case .done(let report) = unit.state { report.differences.count } else { -1 }
        }
        XCTAssertEqual(differences.map { $0 > 0 }, [false, true, true], "\(differences)")
        // Which gate sees it first depends on the task.
        guard case .differs(let how) = model.rows[0].outcome else { return XCTFail("it is \(model.rows[0].outcome)") }
        switch how {
        case .cosine(let found?, least: let least?): XCTAssertLessThan(found, least)
        case .noise(let found, let least): XCTAssertLessThan(found, least)
        default: XCTFail("it is \(how)")
        }
        XCTAssertEqual(model.verdict, SelfTestModel.Verdict(models: 1, passed: 0))
        XCTAssertEqual(BenchmarkModel(shelf.usable, equipment).unitsOffered, ["CPU", "GPU"])
    }

    func testAWrongUntriedUnitIsNoFaultOfTheModel() async throws {
        let (equipment, shelf) = try shelf("near", Halting.Phone(wrongUnits: ["NPU"]))
        let model = SelfTestModel(shelf)
        model.run()
        await model.settled()
        XCTAssertEqual(model.rows[0].outcome, .same)
        XCTAssertEqual(model.verdict, SelfTestModel.Verdict(models: 1, passed: 1))
        XCTAssertEqual(BenchmarkModel(shelf.usable, equipment).unitsOffered, ["CPU", "GPU"])
    }

    func testAUnitThatTheCPUStandsInForIsNotOffered() async throws {
        let (equipment, shelf) = try shelf("ask", Halting.Phone(silentUnits: ["GPU", "NPU"]))
        let model = SelfTestModel(shelf)
        model.run()
        await model.settled()
        guard case .done(let report) = model.rows[0].units[2].state else { return XCTFail("it is \(model.rows[0].units[2].state)") }
        XCTAssertEqual(report.differences, [.unconfirmed(unit: "NPU")])
        XCTAssertEqual(model.rows[0].outcome, .same)
        XCTAssertEqual(BenchmarkModel(shelf.usable, equipment).unitsOffered, ["CPU", "GPU"])
    }
}
