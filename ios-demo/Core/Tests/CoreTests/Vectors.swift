import Foundation
import XCTest

/// Where the texts and cases lie that Python wrote.
func vectors() throws -> URL {
    let home = try XCTUnwrap(
        ProcessInfo.processInfo.environment["POCKETBERT_VECTORS"],
        "run `make core-check`: it writes the vectors and names their folder")
    return URL(fileURLWithPath: home)
}
