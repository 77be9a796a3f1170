import Foundation
import XCTest

@testable import Core

/// Documents of every schema are taken and refused as pydantic takes and refuses them (`tests/apps/schemas.py`).
final class SchemaTests: XCTestCase {
    func testEveryDocumentIsJudgedAsInPython() throws {
        let lines = [UInt8](try Data(contentsOf: try vectors().appendingPathComponent("schemas.jsonl")))
        var schemas: [String: Schema] = [:]
        var counts = (taken: 0, refused: 0)
        for line in lines.split(separator: UInt8(ascii: "\n")) {
            let test = try Json.read(Array(line))
            let name = try test.text("schema")
            let schema = schemas[name] ?? Schema.of(name)
            schemas[name] = schema
            let document = try test.text("document")
            var error: WrongJson?
            do {
                _ = try schema.read(Array(document.utf8))
            } catch let found as WrongJson {
                error = found
            }
            XCTAssertEqual(try test.flag("valid"), error == nil, "\(document): \(error?.description ?? "taken")")
            if error == nil { counts.taken += 1 } else { counts.refused += 1 }
        }
        XCTAssertEqual(schemas.count, 7)
        XCTAssertGreaterThan(min(counts.taken, counts.refused), 100)
        print("schemas: \(counts.taken + counts.refused) cases, \(counts.refused) of them refused, none differs")
    }

    func testStrictReadingTakesJsonToTheLetter() throws {
        func refused(_ json: String, _ why: String, line: UInt = #line) {
            XCTAssertThrowsError(try Json.readStrict(Array(json.utf8)), line: line) { error in
                XCTAssertTrue("\(error)".contains(why), "\(error)", line: line)
            }
        }
        for number in ["01", "+1", "1.", ".5", "1e", "--1", "0x1", "NaN", "Infinity", "none", "1_0", "-"] {
            refused("{\"a\": \(number)}", "it cannot be read: \(number) is no value")
        }
        for number in ["0", "-0", "10", "1.50", "1e5", "1E-05", "-0.0e+7"] {
            XCTAssertEqual(try Json.readStrict(Array("{\"a\":\(number)}".utf8)).written(), "{\"a\":\(number)}")
        }
        refused(#"{"a": 1, "\u0061": 2}"#, "a: the key is there more than once")
        refused("{\"a\": \"\n\"}", "a control character")
        refused(#"{"a": "\ud800"}"#, "half of a pair")
        refused(#"{"a": "\u+0ab"}"#, "an escape that is none")
        refused(#"{"a": 1,}"#, "it cannot be read")
        refused(String(repeating: "[", count: 100_000), "levels")
        XCTAssertThrowsError(try Json.readStrict([0x7B, 0x22, 0xC3, 0x28, 0x22, 0x3A, 0x31, 0x7D])) { error in
            XCTAssertEqual("\(error)", "it cannot be read: it is not UTF-8")
        }
        // Two keys that Swift takes for the same string.
        XCTAssertNoThrow(try Json.readStrict(Array(#"{"\u00e9": 1, "e\u0301": 2, "K": 3, "\u212a": 4}"#.utf8)))
    }

    func testWhatIsWrittenIsReadAsItWas() throws {
        let text = "\"\\/\u{8}\u{C}\n\r\t\u{1}\u{1F}\u{7F} é 東 😀"
        let json = Json.object([("text", .text(text)), (text, .array([.null, .flag(true), .literal("7"), .number(1e-7)]))])
        let read = try Json.readStrict(Array(json.written().utf8))
        XCTAssertEqual(try read.text("text"), text)
        XCTAssertEqual(read.written(), json.written())
        for number in [0, 0.1, -1.5e300, .leastNonzeroMagnitude, 1e21, 123_456_789.123] {
            let read = try Json.readStrict(Array(Json.object([("a", .number(number))]).written().utf8))
            XCTAssertEqual(try read.doubleOrNil("a"), number)
        }
        XCTAssertEqual(Json.array([.number(.nan), .number(-.infinity)]).written(), #"["nan","-inf"]"#)
        XCTAssertThrowsError(try Json.readStrict(Array(#"{"a": 9223372036854775808}"#.utf8)).long("a"))
        XCTAssertEqual(try Json.readStrict(Array(#"{"a": -9223372036854775808}"#.utf8)).long("a"), .min)
        XCTAssertThrowsError(try Json.readStrict(Array(#"{"a": 2147483648}"#.utf8)).number("a"))
    }
}
