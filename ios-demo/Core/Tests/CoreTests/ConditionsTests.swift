import CoreTestSupport
import Foundation
import XCTest

@testable import Core

/// What a run depends on beside the file: the compute unit, the heat, and whether the app was in front.
final class ConditionsTests: XCTestCase {
    private static let words = ["nominal", "fair", "serious", "critical"]
    private static let known = "A software GPU ran such files; no phone's has."

    /// The classifier of the vectors, with what its `shipped.json` says of compute units.
    private func model(_ units: [String] = ["CPU"], _ untried: [String: String] = ["GPU": known]) throws -> Model {
        let whole = try vectors().appendingPathComponent("contract/whole")
        let root = FileManager.default.temporaryDirectory.appendingPathComponent(UUID().uuidString)
        try FileManager.default.copyItem(at: whole, to: root)
        addTeardownBlock { try? FileManager.default.removeItem(at: root) }
        let file = root.appendingPathComponent("mood/litert-int8_dynamic/shipped.json")
        var said = try XCTUnwrap(try JSONSerialization.jsonObject(with: Data(contentsOf: file)) as? [String: Any])
        said["compute_units"] = units
        said["untried_units"] = untried
        try JSONSerialization.data(withJSONObject: said).write(to: file)
        let listed = try Models.open(root, policy: Policy(keys: try TrustedKeys([]), unsigned: true))[0]
        switch listed {
        case .usable(let model): return model
        case .broken(_, let error): throw error
        }
    }

    private func run(
        _ model: Model, _ changes: [String: Any] = [:], _ runtime: Stub = Stub(), phone: HostPhone = HostPhone([])
    ) throws -> (status: BenchmarkStatus, record: Json?) {
        let folder = FileManager.default.temporaryDirectory.appendingPathComponent("\(UUID())/run")
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        addTeardownBlock { try? FileManager.default.removeItem(at: folder.deletingLastPathComponent()) }
        var request: [String: Any] = [
            "schema_version": 1, "run_id": "run", "model": model.entry.folder, "compute_units": NSNull(), "threads": 1,
            "lengths": [16, 32], "texts": ["A text."], "rounds": 1, "runs_per_round": 2, "round_ms": 0, "text_passes": 1,
            "time_limit_s": 60, "start_below_c": NSNull(), "start_thermal": NSNull(), "sustained_s": 0, "sustained_part_s": 60,
        ]
        request.merge(changes) { $1 }
        try JSONSerialization.data(withJSONObject: request).write(to: folder.appendingPathComponent(Headless.request))
        let status = HeadlessRun(folder: folder, models: { [.usable(model)] }, runtimes: [runtime], phone: phone).run()
        let record = try? Json.read([UInt8](try Data(contentsOf: folder.appendingPathComponent(Headless.record))))
        return (status, record)
    }

    func testAFileRunsOnItsFirstUnitUnlessAnotherIsAskedFor() throws {
        let model = try model(["ALL", "CPU_ONLY"], [:])
        let runtime = Stub()
        let first = try run(model, [:], runtime)
        XCTAssertEqual(first.status.state, .finished, first.status.message ?? "")
        XCTAssertEqual(try run(model, ["compute_units": "CPU_ONLY"], runtime).status.state, .finished)
        XCTAssertEqual(runtime.opened, ["ALL", "CPU_ONLY"])
        // The record says what was asked for.
        XCTAssertNil(try first.record?.child("backend")?.textOrNil("compute_units"))
    }

    func testAUnitOnWhichNothingPassedIsRefusedUntilTheSelfTestPassedThere() throws {
        let model = try model()
        let runtime = Stub()
        let refused = try run(model, ["compute_units": "GPU"], runtime).status
        XCTAssertEqual(refused.state, .refused)
        XCTAssertEqual(
            refused.message,
            "no file of this scheme has passed on GPU yet; mood/litert-int8_dynamic runs on CPU, and on GPU once the app's "
                + "self-test has passed there. \(Self.known)")
        let unknown = try run(model, ["compute_units": "NPU"], runtime).status
        XCTAssertEqual(unknown.state, .refused)
        XCTAssertEqual(unknown.message, "there is no compute unit NPU for this file; mood/litert-int8_dynamic runs on CPU")
        XCTAssertEqual(runtime.opened, [])
        XCTAssertEqual(model.allowedUnits, ["CPU"])
        PassedUnits.add(model, "GPU")
        XCTAssertEqual(model.allowedUnits, ["CPU", "GPU"])
        XCTAssertEqual(try run(model, ["compute_units": "GPU"], runtime).status.state, .finished)
        // What passed is no unit that the file does not know.
        PassedUnits.add(model, "NPU")
        XCTAssertThrowsError(try model.unit("NPU"))
    }

    func testAFileWithoutAUnitIsBroken() throws {
        XCTAssertThrowsError(try model([], [:])) { XCTAssertTrue("\($0)".contains("compute_units is empty"), "\($0)") }
    }

    func testItWaitsForTheThermalStateThatWasAskedFor() throws {
        let moments = ["serious", "fair", "nominal"].map { Moment(thermal: $0) }
        let cooled = try run(
            try model(), ["start_thermal": "nominal"], phone: HostPhone(moments: moments, thermalStates: Self.words))
        XCTAssertEqual(cooled.status.state, .finished, cooled.status.message ?? "")
        XCTAssertEqual(try cooled.record?.child("conditions")?.text("thermal_before"), "nominal")
        let cooler = try run(
            try model(), ["start_thermal": "serious"], phone: HostPhone(moments: moments, thermalStates: Self.words))
        XCTAssertEqual(try cooler.record?.child("conditions")?.text("thermal_before"), "fair")
        let hot = try run(
            try model(), ["start_thermal": "fair", "time_limit_s": 0.5],
            phone: HostPhone(moments: [Moment(thermal: "critical")], thermalStates: Self.words))
        XCTAssertEqual(hot.status.state, .tooHot)
        XCTAssertEqual(hot.status.message, "it did not cool down to the thermal state fair in 0.5 s; it is at critical")
        let other = try run(
            try model(), ["start_thermal": "light"], phone: HostPhone(moments: moments, thermalStates: Self.words))
        XCTAssertEqual(other.status.state, .refused)
        XCTAssertEqual(other.status.message, "start_thermal is light, and this system has nominal, fair, serious, critical")
    }

    func testOneMomentInTheBackgroundAndPowerSavingAtOneEndAreInTheRecord() throws {
        let here = Moment(lowPower: false, foreground: true, timesInBackground: 0)
        func conditions(_ after: Moment) throws -> [Bool?] {
            let found = try XCTUnwrap(try run(try model(), phone: HostPhone(moments: [here, after])).record?.child("conditions"))
            return [try found.flagOrNil("foreground"), try found.flagOrNil("low_power")]
        }
        XCTAssertEqual(try conditions(here), [true, false])
        XCTAssertEqual(try conditions(Moment(lowPower: true, foreground: true, timesInBackground: 1)), [false, true])
        XCTAssertEqual(try conditions(Moment(lowPower: nil, foreground: false, timesInBackground: 0)), [false, false])
        XCTAssertEqual(try conditions(Moment()), [nil, false])
    }

    func testWhatTheRuntimeConfirmedIsInTheRecord() throws {
        let runtime = Stub(share: ["Neural Engine": 0.75, "CPU": 0.25], pool: 4)
        let backend = try XCTUnwrap(try run(try model(), [:], runtime).record?.child("backend"))
        XCTAssertEqual(try backend.child("share_by_unit")?.doubleOrNil("Neural Engine"), 0.75)
        XCTAssertEqual(try backend.number("pool_threads"), 4)
        let silent = try XCTUnwrap(try run(try model()).record?.child("backend"))
        XCTAssertTrue(silent.present("share_by_unit") == nil && silent.present("pool_threads") == nil)
    }
}

/// A runtime that opens whatever it is given, and remembers on which unit.
private final class Stub: Runtime {
    let name = "LiteRT"
    let backend = "litert"
    let version = "2.3.0"
    private let units = Locked<[String?]>([])
    private let share: [String: Double]?
    private let pool: Int?

    init(share: [String: Double]? = nil, pool: Int? = nil) {
        self.share = share
        self.pool = pool
    }

    var opened: [String?] { units.withLock { $0 } }

    func open(_ model: Model, _ options: RunnerOptions) throws -> any Runner {
        units.withLock { $0.append(options.computeUnits) }
        return StubRunner(shareByUnit: share, poolThreads: pool)
    }
}

private struct StubRunner: Runner {
    let delegate: String? = nil
    let operations: (delegated: Int, all: Int)? = nil
    let shareByUnit: [String: Double]?
    let poolThreads: Int?

    func run(_ row: PaddedRow) throws -> [String: [Float]] { ["logits": [0, 0, 0]] }

    func close() {}
}
