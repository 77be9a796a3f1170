import Foundation
import XCTest

@testable import Core

final class TokenizerTests: XCTestCase {
    private func tokenizer() throws -> Tokenizer {
        try Tokenizer(json: try Data(contentsOf: try vectors().appendingPathComponent("wordpiece/tokenizer.json")))
    }

    func testWindowsShareTokensAndCoverThePassage() throws {
        let passage = [String](repeating: "word", count: 100).joined(separator: " ")
        let windows = try tokenizer().windows("what is it", passage, maxLength: 32, stride: 8)
        let room = 32 - 3 - 3
        XCTAssertTrue(windows.dropLast().allSatisfy { $0.count == 32 })
        XCTAssertEqual(windows.count, 1 + (100 - room + (room - 8) - 1) / (room - 8))
        XCTAssertEqual(windows.last?.to.max(), passage.utf16.count)
        for (one, next) in zip(windows, windows.dropFirst()) {
            let last = one.from.indices.filter { one.texts[$0] == 1 }.suffix(8).map { one.from[$0] }
            XCTAssertEqual(last, next.from.indices.filter { next.texts[$0] == 1 }.prefix(8).map { next.from[$0] })
        }
        XCTAssertEqual(try tokenizer().windows("what is it", "", maxLength: 32, stride: 8).count, 1)
    }

    func testAQuestionThatLeavesNoRoomIsRefused() throws {
        let question = String(repeating: "why ", count: 40)
        XCTAssertThrowsError(try tokenizer().windows(question, "because", maxLength: 32, stride: 8)) { error in
            XCTAssertTrue("\(error)".contains("the question has 40 tokens; a row of 32 has no room"), "\(error)")
        }
        XCTAssertThrowsError(try tokenizer().windows("why", "because", maxLength: 32, stride: 28))
    }

    func testStrangeTextsAreEncoded() throws {
        let tokenizer = try tokenizer()
        XCTAssertEqual(try tokenizer.encode("").ids, [101, 102])
        XCTAssertEqual(try tokenizer.encode(" \t\n").ids, [101, 102])
        XCTAssertEqual(try tokenizer.encode("many words", maxLength: 2).count, 2)
        XCTAssertEqual(try tokenizer.encode("many words", maxLength: 0).count, 2)
        XCTAssertEqual(try tokenizer.encode(String(repeating: "word ", count: 100_000)).count, 100_002)
        XCTAssertEqual(tokenizer.id("[CLS]"), 101)
        XCTAssertNil(tokenizer.id("no such token"))
    }

    func testSeveralThreadsMayEncodeAtOnce() async throws {
        let tokenizer = try tokenizer()
        let texts = (0..<200).map { "text number \($0) with an accent: é à ü 東京" }
        let wanted = try texts.map { try tokenizer.encode($0).ids }
        try await withThrowingTaskGroup(of: [[Int]].self) { group in
            for _ in 0..<8 { group.addTask { try texts.map { try tokenizer.encode($0).ids } } }
            for try await found in group { XCTAssertEqual(found, wanted) }
        }
    }

    func testALongTextIsGivenUpWhenAsked() async throws {
        let tokenizer = try tokenizer()
        let long = String(repeating: "a long passage about nothing, ", count: 100_000)
        let (begun, begins) = AsyncStream<Void>.makeStream()
        let work = Task {
            try await Background().run { cancellation in
                begins.yield()
                return try tokenizer.encode(long, cancellation: cancellation).count
            }
        }
        for await _ in begun { break }
        try await Task.sleep(nanoseconds: 20_000_000)
        work.cancel()
        let ended = await work.result
        XCTAssertThrowsError(try ended.get()) { XCTAssertTrue($0 is Cancelled, "\($0)") }
        let asked = Cancellation()
        asked.cancel()
        XCTAssertThrowsError(try tokenizer.windows("Who?", long, maxLength: 64, stride: 8, cancellation: asked)) {
            XCTAssertTrue($0 is Cancelled)
        }
        // The next text is encoded as if nothing had been.
        XCTAssertEqual(try tokenizer.encode("A text.").count, 5)
    }

    func testWordsThatLookAlikeAreTwo() throws {
        // Swift takes é as one code point and as two for the same string; a vocabulary does not.
        let json = #"{"model": {"type": "WordPiece", "unk_token": "u", "vocab": {"u": 0, "\u00e9": 1, "e\u0301": 2}}}"#
        let tokenizer = try Tokenizer(json: Data(json.utf8))
        XCTAssertEqual(try tokenizer.encode("\u{e9}").ids, [1])
        XCTAssertEqual(try tokenizer.encode("e\u{301}").ids, [2])
    }

    func testWhatIsNotSupportedIsNamed() {
        func refused(_ json: String, _ why: String, line: UInt = #line) {
            XCTAssertThrowsError(try Tokenizer(json: Data(json.utf8)), line: line) { error in
                XCTAssertTrue("\(error)".contains(why), "\(error)", line: line)
            }
        }
        let model = #""model": {"type": "WordPiece", "unk_token": "u", "vocab": {"u": 0}}"#
        refused("{", "cannot be read")
        refused("[]", "holds no object")
        refused("{}", "no model")
        refused(String(repeating: "[", count: 100_000), "levels")
        refused(#"{"model": {"type": "WordLevel"}}"#, "WordLevel")
        refused("{\(model), \"normalizer\": {\"type\": \"Nmt\"}}", "the normalizer Nmt")
        refused("{\(model), \"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"(?i)a\"}, \"content\": \"\"}}", "(?")
        refused("{\(model), \"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}}", "UnicodeScripts")
        refused(#"{"model": {"type": "WordPiece", "unk_token": "x", "vocab": {"u": 0}}}"#, "unk_token x")
        refused(#"{"model": {"type": "WordPiece", "unk_token": 7, "vocab": {"u": 0}}}"#, "unk_token is 7")
    }

    func testPatternsAreReadAsOnigurumaReadsThem() throws {
        func matches(_ pattern: String, _ text: String) throws -> [Range<Int>] {
            var found: [Range<Int>] = []
            try Pattern(pattern).each(Slice(text.codes)) { found.append($0..<$1) }
            return found
        }
        XCTAssertEqual(try matches("a+", "aa aa"), [0..<2, 3..<5])
        XCTAssertEqual(try matches("a+?", "aa"), [0..<1, 1..<2])
        XCTAssertEqual(try matches("(?<=a)b(?!c)", "abb"), [1..<2])
        XCTAssertEqual(try matches(#"(?:ab|abc)(?=d|\z)"#, "abcd"), [0..<3])
        XCTAssertEqual(try matches("[a-z&&[^aeiou]]", "abe"), [1..<2])
        XCTAssertEqual(try matches(#"[\x{1F600}]"#, "\u{1F600}"), [0..<1])
        XCTAssertEqual(try matches("(ab){2}", "ababab").first, 0..<4)
        XCTAssertEqual(try matches(#"\Ab"#, "ab"), [])
        for broken in ["(", "[a", "a)", "*", "\\", "[b-a]", "\\p{Nowhere}", "\\x{zz}", "(?<name>a)", "(ab)++", "(?<=a*)b"] {
            XCTAssertThrowsError(try Pattern(broken), broken)
        }
    }
}
