import CoreTestSupport
import Foundation
import XCTest

@testable import Core

final class HeadlessRunTests: XCTestCase {
    func testTheStatusBeatsWhileASingleStepTakesLong() throws {
        let folder = FileManager.default.temporaryDirectory.appendingPathComponent("\(UUID())/slow")
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(at: folder.deletingLastPathComponent()) }
        try Data(Self.request.utf8).write(to: folder.appendingPathComponent(Headless.request))
        func status() throws -> Json {
            try Json.read([UInt8](try Data(contentsOf: folder.appendingPathComponent(Headless.status))))
        }
        var seen: [Int] = []
        let slowly = {
            // As where models of hundreds of MB are read for their signatures. A busy machine may beat late.
            for _ in 0..<120 where seen.isEmpty || seen[seen.count - 1] < seen[0] + 2 {
                Thread.sleep(forTimeInterval: 0.5)
                seen.append(try status().number("beats"))
            }
            return [Listed]()
        }
        let ended = HeadlessRun(folder: folder, models: slowly, runtimes: [], phone: HostPhone([])).run()
        XCTAssertGreaterThanOrEqual(try XCTUnwrap(seen.last), try XCTUnwrap(seen.first) + 2, "\(seen)")
        XCTAssertEqual(ended.state, .refused)
        Thread.sleep(forTimeInterval: 3)
        // What beats no more has ended.
        XCTAssertEqual(try status().text("state"), "refused")
        XCTAssertEqual(try status().number("beats"), ended.beats)
    }

    private static let request = """
        {"schema_version": 1, "run_id": "slow", "model": "a/litert-fp32", "compute_units": null, "threads": 1, "lengths": [16],
        "texts": ["A text."], "rounds": 1, "runs_per_round": 1, "round_ms": 1.0, "text_passes": 1, "time_limit_s": 60.0,
        "start_below_c": null, "start_thermal": null, "sustained_s": 0.0, "sustained_part_s": 60.0}
        """
}
