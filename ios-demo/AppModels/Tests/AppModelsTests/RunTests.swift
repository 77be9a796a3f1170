import AppModels
import AppParts
import CoreTestSupport
import Foundation
import XCTest

@testable import Core

/// Benchmarks that a screen or a computer asks for: the same code, and the same folders.
@MainActor
final class RunTests: XCTestCase {
    func testABenchmarkOfTheScreenLeavesARecord() async throws {
        let served = try Served()
        let model = BenchmarkModel(try served.usable(), try served.equipment())
        XCTAssertFalse(model.tellsHeat)
        model.choose("mood/litert-int8_dynamic")
        XCTAssertEqual(model.lengthsOffered, [32, 128])
        model.choose("mood/executorch-int8_dynamic")
        XCTAssertEqual(model.lengthsOffered, [16, 32, 64, 128])
        model.lengths = [16, 128]
        model.threads = 2
        // Measured to its end, which takes nearly half of them.
        model.minutes = 2
        model.start()
        XCTAssertTrue(model.isRunning)
        model.start()
        await model.settled()
        guard case .ended(let end, let record) = model.state else { return XCTFail("it is \(model.state)") }
        XCTAssertEqual(end.state, .finished, end.message ?? "")
        let found = try XCTUnwrap(record)
        XCTAssertEqual(found.lengths.map(\.length), [16, 128])
        XCTAssertTrue(found.lengths.allSatisfy { $0.latencies.n >= 30 && ($0.latencies.p50 ?? 0) > 0 && ($0.latencies.p90 ?? 0) > 0 })
        XCTAssertTrue(found.textMs > 0 && found.tokenizeMs > 0 && found.loadMs > 0)
        XCTAssertEqual([found.runtime, "\(found.threads)"], ["ExecuTorch", "2"])
        XCTAssertEqual(found.model, ModelName(recipe: "mood", scheme: "int8_dynamic", runtime: "ExecuTorch"))
        XCTAssertLessThan(abs(found.started.timeIntervalSinceNow), 600)
        XCTAssertEqual(model.records.first?.run, found.run)
        try compareMemory(found)
        // A copy that somebody made in the Files app is a record of its own, and goes alone.
        let folder = found.file.deletingLastPathComponent()
        let copy = folder.deletingLastPathComponent().appendingPathComponent("\(found.id) 2")
        try FileManager.default.copyItem(at: folder, to: copy)
        await model.readRecords()
        let count = model.records.count
        XCTAssertEqual(Set(model.records.map(\.id)).count, count)
        await model.remove(try RunRecord(folder: copy))
        XCTAssertTrue(FileManager.default.fileExists(atPath: folder.path))
        XCTAssertEqual(model.records.count, count - 1)
        await model.remove(found)
        XCTAssertEqual(model.records.count, count - 2)
    }

    /// The memory of a test's process is no phone's; the same record of a phone shows it.
    private func compareMemory(_ record: RunRecord) throws {
        XCTAssertNil(record.peakBytes)
        let folder = FileManager.default.temporaryDirectory.appendingPathComponent("pocketbert-\(UUID().uuidString)")
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        addTeardownBlock { try? FileManager.default.removeItem(at: folder) }
        let text = try String(contentsOf: record.file, encoding: .utf8)
        let phones = text.replacingOccurrences(of: "\"source\": \"host\"", with: "\"source\": \"device\"")
            .replacingOccurrences(of: "\"source\":\"host\"", with: "\"source\":\"device\"")
        XCTAssertNotEqual(phones, text)
        try Data(phones.utf8).write(to: folder.appendingPathComponent(Headless.record))
        let phone = try RunRecord(folder: folder)
        XCTAssertGreaterThan(phone.peakBytes ?? 0, 0)
        // The request stayed behind.
        XCTAssertNil(phone.model)
    }

    func testABenchmarkCanBeCancelled() async throws {
        let served = try Served()
        let model = BenchmarkModel(try served.usable(), try served.equipment())
        model.choose("near/litert-int8_dynamic")
        model.minutes = 10
        model.start()
        try await eventually("it measures") {
            if case .running(let progress) = model.state { progress.doing.hasPrefix("length") } else { false }
        }
        model.cancel()
        await model.settled()
        guard case .ended(let end, let record) = model.state else { return XCTFail("it is \(model.state)") }
        XCTAssertEqual([end.state == .cancelled, record == nil], [true, true])
        // Somebody wished it: nothing went wrong.
        XCTAssertFalse(model.state.isProblem)
    }

    func testABenchmarkWaitsUntilThePhoneIsCool() async throws {
        let served = try Served()
        let phone = HostPhone(moments: [Moment(thermal: "serious", foreground: true)], thermalStates: ["nominal", "fair", "serious"])
        let model = BenchmarkModel(try served.usable(), try served.equipment(phone: phone))
        XCTAssertTrue(model.tellsHeat)
        model.waitsUntilCool = true
        model.start()
        try await eventually("it cools down") { if case .running(let progress) = model.state { progress.state == .cooling } else { false } }
        model.cancel()
        await model.settled()
        guard case .ended(let end, nil) = model.state else { return XCTFail("it is \(model.state)") }
        XCTAssertEqual(end.state, .cancelled)
    }

    func testAModelThatWasPushedWithARunIsMeasuredAndVerified() async throws {
        let served = try Served()
        let files = FileManager.default
        let folder = try served.equipment().runs.folder("pushed")
        try files.removeItem(at: folder)
        try files.createDirectory(at: folder, withIntermediateDirectories: true)
        let request = RunRequest(
            runId: "pushed", model: "near/litert-int8_dynamic", computeUnits: nil, threads: 1, lengths: [32], texts: ["A text."],
            minutes: 0.1, startBelowC: nil)
        let place = try served.equipment().runs.write(request)
        // The app itself has nothing.
        let nothing = files.temporaryDirectory.appendingPathComponent("nothing-\(UUID().uuidString)")
        try files.createDirectory(at: nothing, withIntermediateDirectories: true)
        let equipment = try served.equipment(models: nothing)
        let without = await RunInFolder.carryOut(place, equipment) { _ in }
        XCTAssertEqual(without.state, .refused, without.message ?? "")
        try files.copyItem(at: served.equipment().models, to: place.appendingPathComponent(Headless.models))
        let end = await RunInFolder.carryOut(place, equipment) { _ in }
        XCTAssertEqual(end.state, .finished, end.message ?? "")
        let pushed = place.appendingPathComponent("\(Headless.models)/near/litert-int8_dynamic")
        try files.setAttributes([.posixPermissions: 0o755], ofItemAtPath: pushed.path)
        try files.removeItem(at: pushed.appendingPathComponent("model.sig"))
        let unsigned = await RunInFolder.carryOut(place, equipment) { _ in }
        XCTAssertEqual(unsigned.state, .refused, unsigned.message ?? "")
        XCTAssertTrue(unsigned.message?.contains("(unsigned)") ?? false, unsigned.message ?? "")
        try files.removeItem(at: place)
    }

    func testABenchmarkWithoutALengthIsNotBegun() async throws {
        let served = try Served()
        let model = BenchmarkModel(try served.usable(), try served.equipment())
        model.lengths = []
        model.start()
        guard case .lacksLength = model.state else { return XCTFail("it is \(model.state)") }
        XCTAssertFalse(model.state.isProblem)
    }

    func testANameThatIsNoneEndsTheHeadlessRun() async throws {
        let served = try Served()
        for name in ["", "../good", "a/b"] {
            let model = HeadlessModel(name, try served.equipment())
            model.start()
            let end = await model.settled()
            XCTAssertEqual(end.state, .refused)
            XCTAssertTrue(end.message?.contains("is no name of a run") ?? false, end.message ?? "")
        }
    }

    func testHeadlessRunsEndAsTheyHaveTo() async throws {
        let served = try Served()
        let runs = try served.cases.objects("runs")
        try? FileManager.default.removeItem(at: served.runs.root)
        for test in runs {
            let name = try test.text("run")
            let end = try await run(served, test)
            XCTAssertEqual(try test.text("state"), end.state.word, "\(name): \(end.message ?? "")")
            if let message = try test.textOrNil("message") {
                XCTAssertTrue((end.message ?? "").contains(message), "\(name): \(end.message ?? "")")
            }
        }
        print("headless runs of the app: \(runs.count) cases, each ended as it has to")
    }

    private func run(_ served: Served, _ test: Json) async throws -> RunProgress {
        let name = try test.text("run")
        let does = try test.text("does")
        let folder = try served.runs.folder(name)
        // What an earlier run left may not be taken for this one's.
        try Data("{}".utf8).write(to: folder.appendingPathComponent(Headless.status))
        if let text = try test.textOrNil("request") { try Data(text.utf8).write(to: folder.appendingPathComponent(Headless.request)) }
        if does == "no room" {
            let place = folder.appendingPathComponent("\(Headless.record).new")
            try FileManager.default.createDirectory(at: place, withIntermediateDirectories: true)
        }
        let equipment = try served.equipment(
            phone: HostPhone(does == "cools" ? [40, 38, 30] : [37]), hangsUpAfter: does == "hangs up" ? 5 : nil)
        let model = HeadlessModel(name, equipment)
        model.start()
        if does == "cancels" {
            try await eventually("it measures") { model.progress.doing.contains("length") }
            model.cancel()
        }
        return await model.settled()
    }
}
