import AppModels
import AppParts
import Foundation
import XCTest

@testable import Core

final class PartsTests: XCTestCase {
    func testNumbersHaveTheDigitsThatOneReads() {
        XCTAssertEqual([0.8412, 8.41, 84.12, 841.2, 12_345].map { Formats.ms($0) }, ["0.84 ms", "8.41 ms", "84.1 ms", "841 ms", "12.3 s"])
        XCTAssertEqual(
            [0.84, 3.04, 15.1, 841, 12_345].map { Formats.roundedMs($0) }, ["0.84 ms", "3.0 ms", "15.1 ms", "841 ms", "12.3 s"])
        XCTAssertEqual(Formats.ms(Double.nan), "–")
        XCTAssertEqual([940_000, 22_600_000, 438_000_000].map(Formats.megabytes), ["0.94 MB", "22.6 MB", "438.0 MB"])
        XCTAssertEqual([Formats.percent(0.9876), Formats.wholePercent(0.269)], ["98.8%", "27%"])
        XCTAssertEqual(Formats.cosine(0.999_87), "0.99987")
        XCTAssertEqual([.infinity, 31.04].map { Formats.decibels($0) }, [nil, "31.0 dB"])
        XCTAssertEqual([Formats.median([3, 1, 2]), Formats.median([4, 1, 2, 3]), Formats.median([])], [2, 2.5, nil])
    }

    func testErrorsAreSentences() {
        XCTAssertEqual(RunnerRefused("there are no compute units npu here").sentence, "There are no compute units npu here.")
        XCTAssertEqual(NoModels().sentence, NoModels().description)
        let system = NSError(domain: NSCocoaErrorDomain, code: 4, userInfo: [NSLocalizedDescriptionKey: "the disk is full"])
        XCTAssertEqual(system.sentence, "The disk is full.")
    }

    func testAnOlderRuntimeIsSeen() {
        XCTAssertEqual(MinimumVersion("1.4.1", linked: "1.4.1"), .enough)
        XCTAssertEqual(MinimumVersion("1.4.1", linked: "1.10.0"), .enough)
        XCTAssertEqual(MinimumVersion("1.4", linked: "1.4.0-rc1"), .enough)
        XCTAssertEqual(MinimumVersion("1.4.1", linked: "1.4.0"), .tooOld)
        XCTAssertEqual(MinimumVersion("2", linked: "1.99"), .tooOld)
        XCTAssertEqual(MinimumVersion("iOS 18 / macOS 15", linked: "18.1"), .notComparable)
        XCTAssertEqual(MinimumVersion("1.4.1", linked: "1..1"), .notComparable)
    }

    func testARunCannotLeadOutOfItsFolder() throws {
        let runs = RunFolders(root: try scratch().appendingPathComponent("runs"))
        for name in ["", ".", "..", "../a", "a/b", ".a", "a b", String(repeating: "a", count: 101)] {
            XCTAssertThrowsError(try runs.folder(name), name)
            XCTAssertThrowsError(try runs.remove(name), name)
        }
        XCTAssertEqual(try runs.folder("near-2026").lastPathComponent, "near-2026")
        try runs.remove("near-2026")
        XCTAssertFalse(FileManager.default.fileExists(atPath: runs.root.appendingPathComponent("near-2026").path))
        XCTAssertTrue(runs.records().isEmpty)
    }

    func testTheLaunchArgumentNamesTheRun() {
        XCTAssertNil(RunFolders.asked(by: ["/app"]))
        XCTAssertEqual(RunFolders.asked(by: ["/app", "-pocketbert.run", "first"]), "first")
        XCTAssertEqual(RunFolders.asked(by: ["/app", "-pocketbert.run"]), "")
    }

    func testARequestHasEveryFieldOfItsSchema() throws {
        let runs = RunFolders(root: try scratch())
        let request = RunRequest(
            runId: "a", model: "near/litert-fp32", computeUnits: nil, threads: 2, lengths: [32, 128], texts: ["A text."], minutes: 2,
            startBelowC: nil)
        let file = try runs.write(request).appendingPathComponent(Headless.request)
        let found = try XCTUnwrap(try JSONSerialization.jsonObject(with: Data(contentsOf: file)) as? [String: Any])
        let names = ["compute_units", "lengths", "model", "round_ms", "rounds", "run_id", "runs_per_round", "schema_version"]
        let others = ["start_below_c", "start_thermal", "sustained_part_s", "sustained_s", "text_passes", "texts", "threads"]
        XCTAssertEqual(found.keys.sorted(), names + others + ["time_limit_s"])
        XCTAssertTrue(found["compute_units"] is NSNull && found["start_below_c"] is NSNull)
        XCTAssertEqual(found["time_limit_s"] as? Double, 120)
        XCTAssertEqual(found["round_ms"] as? Double, 1_000)
        XCTAssertEqual(found["rounds"] as? Int, 24)
    }

    func testAPackageIsCompiledOnce() throws {
        let root = try scratch()
        let models = CompiledModels(root: root.appendingPathComponent("compiled"), system: "22A3354")
        var compilations = 0
        func compile() throws -> URL {
            compilations += 1
            let place = root.appendingPathComponent("fresh\(compilations).mlmodelc")
            try FileManager.default.createDirectory(at: place, withIntermediateDirectories: true)
            return place
        }
        let first = try models.find("abc", compile: compile)
        XCTAssertEqual(try models.find("abc", compile: compile), first)
        XCTAssertEqual(compilations, 1)
        let newer = CompiledModels(root: root.appendingPathComponent("compiled"), system: "22B83")
        XCTAssertNotEqual(try newer.find("abc", compile: compile), first)
        XCTAssertEqual(compilations, 2)
        XCTAssertThrowsError(try models.find("ghi") { throw RunnerFailed("it cannot be compiled") })
        XCTAssertFalse(FileManager.default.fileExists(atPath: root.appendingPathComponent("compiled/ghi-22A3354.mlmodelc").path))
    }

    func testAPushedPackageIsKeptForTheNextTurnAndNothingIsTakenFromAProcessThatUsesIt() throws {
        let root = try scratch()
        let folder = root.appendingPathComponent("compiled")
        func compile() throws -> URL {
            let place = root.appendingPathComponent("\(UUID().uuidString).mlmodelc")
            try FileManager.default.createDirectory(at: place, withIntermediateDirectories: true)
            return place
        }
        func launch(_ system: String = "22A3354") -> CompiledModels { CompiledModels(root: folder, system: system) }
        func left() throws -> [String] { try FileManager.default.contentsOfDirectory(atPath: folder.path).sorted() }
        // In no index, as a package that was pushed with a run; each turn launches the app anew.
        _ = try launch().find("pushed", compile: compile)
        _ = try launch("21F90").find("pushed", compile: compile)
        let next = launch()
        next.tidy()
        XCTAssertEqual(try left(), ["pushed-22A3354.mlmodelc"])
        _ = try next.find("pushed") { throw RunnerFailed("it is compiled again") }
        // Nobody has opened it for weeks, but this process may have it mapped.
        let weeks = Date().addingTimeInterval(30 * 24 * 3_600)
        next.tidy(now: weeks)
        XCTAssertEqual(try left(), ["pushed-22A3354.mlmodelc"])
        launch().tidy(now: weeks)
        XCTAssertEqual(try left(), [])
    }

    func testAPackageSaysWhichSystemReadsIt() throws {
        let package = try scratch()
        let program = package.appendingPathComponent("Data/com.apple.CoreML/model.mlmodel")
        try FileManager.default.createDirectory(at: program.deletingLastPathComponent(), withIntermediateDirectories: true)
        XCTAssertNil(CoreMLPackage.oldestIOS(package))
        let cases: [([UInt8], Int?)] = [([8, 9, 18], 18), ([8, 6], 15), ([8, 10], 26), ([8, 99], nil), ([8], nil), ([18, 9], nil)]
        for (bytes, system) in cases {
            try Data(bytes).write(to: program)
            XCTAssertEqual(CoreMLPackage.oldestIOS(package), system, "\(bytes)")
        }
    }

    func testTheUnitsOfAllFunctionsAreAddedUp() throws {
        typealias Operation = UnitPlan.Operation
        let units = ["Neural Engine", "GPU", "CPU"]
        // One operation on the CPU costs more than two on the Neural Engine.
        let short = [Operation("Neural Engine", cost: 0.1), Operation("Neural Engine", cost: 0.1), Operation("CPU", cost: 0.8)]
        let long = [Operation("Neural Engine", cost: 0.5), Operation("Neural Engine", cost: 0.5)]
        let plan = try XCTUnwrap(UnitPlan([short, long], units: units))
        XCTAssertEqual(plan.counts, ["Neural Engine": 4, "GPU": 0, "CPU": 1])
        XCTAssertEqual(try XCTUnwrap(plan.shares["Neural Engine"]), 0.6, accuracy: 1e-12)
        XCTAssertEqual(try XCTUnwrap(plan.shares["CPU"]), 0.4, accuracy: 1e-12)
        XCTAssertEqual([plan.shares["GPU"], plan.shares["CPU"].map { _ in Double(plan.all) }], [0, 5])
        XCTAssertEqual(plan.busiest, "Neural Engine")
        // Where the system estimates no cost, operations count.
        let counted = try XCTUnwrap(UnitPlan([[Operation("GPU", cost: nil), Operation("CPU", cost: nil)]], units: units))
        XCTAssertEqual(counted.shares, ["Neural Engine": 0, "GPU": 0.5, "CPU": 0.5])
        XCTAssertNil(UnitPlan([short, []], units: units))
        XCTAssertNil(UnitPlan([], units: units))
    }

    func testATextIsSplitWhereSomethingWasFound() {
        let text = "😀 Ana met Bob."
        let parts = Segment.split(text, [Found(11, 14, 0.9, "name"), Found(3, 6, 0.8, "name"), Found(4, 9, 1), Found(40, 50, 1)])
        XCTAssertEqual(parts.map(\.text), ["😀 ", "Ana", " met ", "Bob", "."])
        XCTAssertEqual(parts.map { $0.found?.score }, [nil, 0.8, nil, 0.9, nil])
        XCTAssertEqual(Segment.split("", []), [])
        XCTAssertEqual(Segment.split("😀", [Found(1, 2, 1)]).map(\.text), ["😀"])
    }

    func testAQuestionSaysWhatItMisses() {
        XCTAssertNil(Question("A text.").missing(for: .labels))
        XCTAssertNil(Question("A question?", "A passage.").missing(for: .answer))
        XCTAssertEqual(Question("A question?", " \n").missing(for: .answer), .questionAndPassage)
        XCTAssertEqual(Question("A text.").missing(for: .value), .twoTexts)
        XCTAssertEqual(Question(" ").missing(for: .entities), .text)
        XCTAssertNil(Question("A text.").missing(for: .values))
        func own(_ labels: [String], _ template: String, multiLabel: Bool = false) -> Question.Missing? {
            Question("A text.", own: OwnLabels(labels, template: template, multiLabel: multiLabel)).missing(for: .labels)
        }
        XCTAssertNil(own(["a", "b"], "It is {}."))
        XCTAssertEqual(own(["a"], "It is {}."), .twoLabels)
        XCTAssertNil(own(["a"], "It is {}.", multiLabel: true))
        XCTAssertEqual(own([], "It is {}.", multiLabel: true), .label)
        for template in ["", "It is.", "{} and {}"] { XCTAssertEqual(own(["a", "b"], template), .template) }
        XCTAssertEqual(Question("", own: OwnLabels([], template: "", multiLabel: false)).missing(for: .labels), .text)
    }

    @MainActor
    func testASetOfSentencesIsKept() async throws {
        let file = try scratch().appendingPathComponent("sentences.txt")
        let search = SearchModel(storage: file)
        XCTAssertGreaterThan(search.sentences.count, 10)
        search.replace(by: "  One. \n\nTwo.\r\nThree.\n")
        search.add("Four.")
        search.remove(at: [1])
        XCTAssertEqual(search.sentences, ["One.", "Three.", "Four."])
        await search.saved()
        let next = SearchModel(storage: file)
        await next.restore()
        XCTAssertEqual(next.sentences, search.sentences)
        // What a person wrote meanwhile is not overwritten.
        let faster = SearchModel(storage: file)
        faster.replace(by: "Mine.")
        await faster.saved()
        await faster.restore()
        XCTAssertEqual(faster.sentences, ["Mine."])
        let nowhere = SearchModel(storage: file.appendingPathComponent("below a file"))
        nowhere.add("One.")
        await nowhere.saved()
        guard case .notKept? = nowhere.problem else { return XCTFail("it is \(String(describing: nowhere.problem))") }
        await search.importFile(file.deletingLastPathComponent().appendingPathComponent("absent.txt"))
        XCTAssertNotNil(search.problem)
        let odd = file.deletingLastPathComponent().appendingPathComponent("odd.txt")
        try Data([0xFF, 0xFE, 0x41]).write(to: odd)
        await search.importFile(odd)
        XCTAssertEqual(search.problem, .notUtf8(file: "odd.txt"))
        XCTAssertEqual(search.sentences.count, 3)
        search.replace(by: (0..<5_002).map { "Line \($0)." }.joined(separator: "\n"))
        XCTAssertEqual(search.sentences.count, SearchModel.mostSentences)
        XCTAssertEqual(search.problem, .cut(taken: 5_000, of: 5_002))
        search.reset()
        XCTAssertNil(search.problem)
    }
}
