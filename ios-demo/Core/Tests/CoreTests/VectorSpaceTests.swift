import XCTest

@testable import Core

/// What a signature says of its vectors.
final class VectorSpaceTests: XCTestCase {
    private func read(_ vectors: String, kind: String = "embedding", task: String = "embedding") throws -> Signature {
        let inputs = ["input_ids", "attention_mask"].map { "{\"name\": \"\($0)\", \"dtype\": \"int32\", \"shape\": [1, 32]}" }
            .joined(separator: ", ")
        let output = kind == "embedding" ? "sentence_embedding" : "logits"
        let outputs = "{\"name\": \"\(output)\", \"dtype\": \"float32\", \"shape\": [1, 3]}"
        let function = "{\"name\": \"a\", \"min_length\": 32, \"max_length\": 32, \"inputs\": [\(inputs)], \"outputs\": [\(outputs)]}"
        let json = """
            {"backend": "litert", "scheme": "fp32", "task": "\(task)", "output_kind": "\(kind)", "file": "m.tflite", "labels": null,
            "minimum_runtime": "1.2.0", "pad_token_id": 0, "parameters": 1, "functions": [\(function)]\(vectors)}
            """
        return try Signature(try Json.read([UInt8](json.utf8)))
    }

    private func with(_ fields: [String: String]) -> String {
        let good = [
            "space": "\"b1946ac92492d234\"", "width": "3", "unit_length": "true", "similarity": "\"cosine\"", "widths": "[3, 1]",
            "scales": "[0.5, 0.25, 1e-3]",
        ]
        let all = good.merging(fields) { $1 }.map { "\"\($0.key)\": \($0.value)" }.joined(separator: ", ")
        return ", \"vectors\": {\(all)}"
    }

    func testASignatureMayHaveASpaceAndOlderOnesHaveNone() throws {
        let space = try XCTUnwrap(try read(with([:])).vectors)
        XCTAssertEqual(space.id, "b1946ac92492d234")
        XCTAssertEqual(space.widths, [3, 1])
        XCTAssertEqual(space.scales, [0.5, 0.25, 0.001])
        XCTAssertTrue(space.isUnitLength && space.similarity == "cosine" && space.width == 3)
        XCTAssertNil(try read("").vectors)
        XCTAssertNil(try read(", \"vectors\": null").vectors)
        XCTAssertEqual(try read(with(["similarity": "\"dot\""])).vectors?.similarity, "dot")
    }

    func testWhatNoSpaceCanBeIsRefused() {
        let cases: [([String: String], String)] = [
            (["space": "\"B1946AC92492D234\""], "not 16 hexadecimal digits"),
            (["space": "\"b1946ac92492d23\""], "not 16 hexadecimal digits"),
            (["space": "7"], "a text"),
            (["width": "4", "widths": "[4]", "scales": "[1, 1, 1, 1]"], "width is 4, and a gives 3 numbers"),
            (["width": "0"], "width is 0"), (["unit_length": "null"], "unit_length is null; it has to be true or false"),
            (["similarity": "\"euclid\""], "similarity is euclid"),
            (["widths": "[1]"], "have to fall from 3"),
            (["widths": "[3, 3]"], "have to fall from 3"), (["widths": "[3, 0]"], "have to fall from 3"),
            (["widths": "[]"], "have to fall from 3"), (["scales": "[1, 1]"], "there are 2 scales for 3 numbers"),
            (["scales": "[1, 0, 1]"], "not all are above 0"), (["scales": "[1, \"1\", 1]"], "a list of numbers"),
        ]
        for (fields, piece) in cases { refused(piece) { try self.read(self.with(fields)) } }
        refused("an object") { try self.read(", \"vectors\": []") }
        refused("vectors: output_kind value has none") { try self.read(self.with([:]), kind: "value", task: "regression") }
    }

    private func refused(_ piece: String, _ act: () throws -> Signature) {
        XCTAssertThrowsError(try act(), piece) { error in
            XCTAssertTrue(error is WrongJson && "\(error)".contains(piece), "\(error) does not say \(piece)")
        }
    }
}
