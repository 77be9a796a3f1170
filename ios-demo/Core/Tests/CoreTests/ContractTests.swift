import Foundation
import XCTest

@testable import Core

/// Shipped folders, whole and spoilt (`tests/apps/contract.py`): what is read, and why the rest is refused.
final class ContractTests: XCTestCase {
    private func home() throws -> URL { try vectors().appendingPathComponent("contract") }

    /// Nothing here is signed; `SignedBundleTests` has what is.
    private func open(_ folder: String) throws -> [Listed] {
        try Models.open(try home().appendingPathComponent(folder), policy: Policy(keys: try TrustedKeys([]), unsigned: true))
    }

    func testCases() throws {
        let home = try home()
        let cases = try Json.read([UInt8](try Data(contentsOf: home.appendingPathComponent("cases.json")))).objects("cases")
        XCTAssertGreaterThan(cases.count, 20)
        for test in cases {
            let folder = try test.text("folder")
            if let error = try test.textOrNil("error") {
                refused(error, folder) { _ = try open(folder) }
                continue
            }
            var usable: [String] = []
            let broken = try XCTUnwrap(try test.child("broken"))
            let fails = try XCTUnwrap(try test.child("fails"))
            for listed in try open(folder) {
                switch listed {
                case .broken(let entry, let error):
                    let piece = try broken.text(entry.folder)
                    XCTAssertTrue(error.description.contains(piece), "\(folder): \(error) does not say \(piece)")
                case .usable(let model):
                    usable.append(model.entry.folder)
                    let place = model.entry.folder
                    let tokenizer = try ["json", "bin"].compactMap { try fails.textOrNil("\(place)/tokenizer.\($0)") }.first
                    try read(tokenizer, folder) { _ = try model.tokenizer() }
                    try read(try fails.textOrNil("\(place)/golden.json"), folder) { _ = try model.golden() }
                    if let config = try fails.textOrNil("\(place)/config.json") {
                        try read(config, folder) { _ = try model.pad(try model.tokenizer().encode("words")) }
                    }
                }
            }
            XCTAssertEqual(usable, try test.texts("usable"), folder)
        }
        print("contract: \(cases.count) cases")
    }

    private func refused(_ piece: String, _ folder: String, _ act: () throws -> Void) {
        XCTAssertThrowsError(try act(), folder) { error in
            XCTAssertTrue(error is UnreadableFile && "\(error)".contains(piece), "\(folder): \(error) does not say \(piece)")
        }
    }

    private func read(_ fails: String?, _ folder: String, _ act: () throws -> Void) throws {
        if let fails { refused(fails, folder, act) } else { try act() }
    }

    private func whole() throws -> [Model] {
        try open("whole").map { listed in
            guard case .usable(let model) = listed else { throw UnreadableFile("whole", "it is broken") }
            return model
        }
    }

    func testGoldenIdsAreWhatTheTokenizerGivesAtTheLengthThatFits() throws {
        for model in try whole() {
            let tokenizer = try model.tokenizer()
            let golden = try model.golden()
            XCTAssertGreaterThan(golden.rows.count, 10)
            for row in golden.rows {
                let most = min(golden.maxLength, model.signature.maxLength)
                let before = try model.signature.promptText(row.prompt ?? "")
                let encoded = try tokenizer.encode(before + row.first, row.second, maxLength: most)
                XCTAssertEqual(encoded.ids, row.ids, row.first)
                XCTAssertEqual(encoded.types, row.types, row.first)
                let padded = try model.pad(encoded)
                XCTAssertTrue((padded.function.minLength...padded.function.maxLength).contains(padded.length))
                XCTAssertEqual(padded.inputs["attention_mask"]?.reduce(0, +), Int32(encoded.count))
                XCTAssertEqual(padded.inputs["input_ids"]?.prefix(encoded.count).map { Int($0) }, encoded.ids)
                XCTAssertTrue(padded.inputs.values.allSatisfy { $0.count == padded.length })
            }
            XCTAssertEqual(golden.rows[0].output, [0.5, -1.25e-7, 3])
            XCTAssertEqual(model.entry.bytes, 1 << 32)
            XCTAssertThrowsError(try model.signature.choose(65)) { XCTAssertTrue($0 is RowTooLong) }
        }
    }

    func testTheSmallestLengthThatFitsIsChosen() throws {
        let signatures = try whole().map(\.signature)
        XCTAssertEqual(try [1, 16, 17, 64].map { try signatures[0].choose($0).1 }, [16, 16, 32, 64])
        XCTAssertEqual(try [1, 17, 64].map { try signatures[1].choose($0).1 }, [1, 17, 64])
    }

    func testWeightsThatNobodyTrainedAreSaidToBeRandom() throws {
        XCTAssertEqual(try whole().map(\.hasRandomWeights), [false, true])
    }
}
