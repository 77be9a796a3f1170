import Foundation
import XCTest

@testable import Core

/// Post-processing says what `pipeline.metrics.outputs` says, case by case (`tests/apps/outputs.py`).
final class OutputsTests: XCTestCase {
    func testEveryCaseIsAsInPython() throws {
        let lines = [UInt8](try Data(contentsOf: try vectors().appendingPathComponent("outputs.jsonl")))
        var counts: [String: Int] = [:]
        for line in lines.split(separator: UInt8(ascii: "\n")) {
            let test = try Json.read(Array(line))
            let kind = try test.text("kind")
            try compare(kind, test)
            counts[kind, default: 0] += 1
        }
        let kinds: Set = ["softmax", "each_label", "words", "entities", "answer", "nearest", "statistics", "zero_shot"]
        XCTAssertEqual(Set(counts.keys), kinds)
        print("post-processing: \(counts.values.reduce(0, +)) cases, none differs")
    }

    private func compare(_ kind: String, _ test: Json) throws {
        switch kind {
        case "softmax": close(try test.doubles("shares"), Outputs.softmax(try test.floats("logits")))
        case "each_label":
            let logits = try test.floats("logits")
            let thresholds = test.present("thresholds") == nil ? nil : try test.doubles("thresholds")
            let found = try Outputs.eachLabel(logits.indices.map { "\($0)" }, logits, thresholds: thresholds)
            XCTAssertEqual(try test.texts("labels"), found.map(\.label))
            let given = try test.array("given").map { value in
                if case .flag(let flag) = value { flag } else { throw WrongJson("given holds \(value.shown)") }
            }
            XCTAssertEqual(given, found.map(\.isGiven))
            close(try test.doubles("shares"), found.map(\.share))
        case "words":
            let wanted = try test.rows("words").map { Int($0[0].double)..<Int($0[1].double) }
            XCTAssertEqual(wanted, Outputs.words(try test.text("text")))
        case "entities":
            let found = Outputs.entities(
                try test.text("text"), labels: try test.array("labels").compactMap(\.string), from: try test.ints("from"),
                to: try test.ints("to"), logits: try test.rows("logits").map { $0.map { Float($0.double) } })
            let wanted = try test.rows("entities")
            XCTAssertEqual(wanted.map { Int($0[0].double)..<Int($0[1].double) }, found.map { $0.from..<$0.to })
            XCTAssertEqual(wanted.map(\.[3].string), found.map(\.kind))
            close(wanted.map(\.[2].double), found.map(\.score))
        case "nearest":
            let among = try test.rows("among").map { $0.map { Float($0.double) } }
            let found = Outputs.nearest(try test.floats("one"), among: among, top: try test.number("top"))
            XCTAssertEqual(found.map(\.place), try test.ints("places"))
            for (wanted, one) in zip(try test.doubles("cosines"), found) { XCTAssertEqual(wanted, Double(one.cosine), accuracy: 1e-6) }
        case "zero_shot": try zeroShot(test)
        case "statistics":
            let samples = try test.doubles("samples")
            let found = Statistics.percentiles(samples)
            for (wanted, one) in zip(try test.array("percentiles"), [found.p50, found.p90, found.p99, found.mean]) {
                guard let number = wanted.real else {
                    XCTAssertNil(one)
                    continue
                }
                XCTAssertEqual(number, try XCTUnwrap(one), accuracy: 1e-9 * number)
            }
            XCTAssertEqual(found.n, samples.count)
            let mean = try XCTUnwrap(try test.doubleOrNil("mean_of_medians"))
            XCTAssertEqual(mean, Statistics.meanOfMedians(samples, passes: try test.number("passes")), accuracy: 1e-9 * mean)
        default:
            let windows = try test.objects("windows").map {
                AnsweredWindow(
                    from: try $0.ints("from"), to: try $0.ints("to"), starts: try $0.floats("starts"), ends: try $0.floats("ends"))
            }
            let found = Outputs.answer(windows)
            let margin = try XCTUnwrap(try test.doubleOrNil("margin"))
            XCTAssertEqual(try test.flag("answered"), Outputs.answer(windows, noAnswerMargin: margin) != nil)
            guard test.present("answer") != nil else { return XCTAssertNil(found) }
            let wanted = try test.doubles("answer")
            XCTAssertEqual(found, Found(Int(wanted[0]), Int(wanted[1]), wanted[2]))
        }
    }

    private func zeroShot(_ test: Json) throws {
        let signature = try Signature(try XCTUnwrap(try test.child("signature")))
        let multiLabel = try test.flag("multi_label")
        let ask = {
            try ZeroShot(signature, try test.texts("labels"), template: try test.text("template"), multiLabel: multiLabel)
        }
        if let error = try test.textOrNil("error") {
            XCTAssertThrowsError(try ask(), "\(test.shown)") { thrown in
                XCTAssertTrue(thrown is WrongLabels && "\(thrown)".contains(error), "\(thrown)")
            }
            return
        }
        XCTAssertTrue(ZeroShot.isPossible(signature) && (!multiLabel || ZeroShot.decidesEach(signature)))
        let asked = try ask()
        // Two strings are equal to Swift where their accents are written otherwise.
        XCTAssertEqual(try test.texts("hypotheses").map { Array($0.utf8) }, asked.hypotheses.map { Array($0.utf8) })
        let found = asked.shares(try test.rows("logits").map { $0.map { Float($0.double) } })
        let wanted = try test.rows("answer")
        XCTAssertEqual(wanted.map { Array(($0[0].string ?? "").utf8) }, found.map { Array($0.label.utf8) })
        close(wanted.map(\.[1].double), found.map(\.share))
        XCTAssertEqual(found.map(\.isGiven), found.map { multiLabel ? $0.share >= 0.5 : nil })
    }

    func testLabelsAreWrittenWithCommasOrLinesBetween() {
        XCTAssertEqual(ZeroShot.split(" travel,food\r\n\u{2003}old house\n,food, "), ["travel", "food", "old house"])
        XCTAssertEqual(ZeroShot.split(" ,\n"), [])
    }

    private func close(_ wanted: [Double], _ found: [Double]) {
        XCTAssertEqual(wanted.count, found.count)
        for (one, other) in zip(wanted, found) { XCTAssertEqual(one, other, accuracy: 1e-12) }
    }

    func testLabelsComeWithTheMostProbableFirst() throws {
        let shares = try Outputs.labels(["a", "b", "c"], [0, 2, 1])
        XCTAssertEqual(shares.map(\.label), ["b", "c", "a"])
        XCTAssertEqual(shares.reduce(0) { $0 + $1.share }, 1, accuracy: 1e-12)
        XCTAssertThrowsError(try Outputs.labels(["a"], [0, 1]))
        XCTAssertThrowsError(try Outputs.eachLabel(["a"], [0, 1]))
        XCTAssertThrowsError(try Outputs.values(["a"], [0, 1]))
    }

    func testAnEntityEndsWhereItsWordsEnd() {
        // 𐄀 is punctuation of two UTF-16 code units; €, + and letters are none.
        let found = ["(Anna", "Berg,", "is", "\u{10100}Ur\u{10100}", "€5+", "…"].reduce(into: (text: "", from: [Int](), to: [Int]())) {
            $0.from.append($0.text.utf16.count)
            $0.text += $1
            $0.to.append($0.text.utf16.count)
            $0.text += " "
        }
        let logits: [[Float]] = [[0, 9, 0], [0, 0, 9], [9, 0, 0], [0, 9, 0], [0, 9, 0], [0, 9, 0]]
        let entities = Outputs.entities(found.text, labels: ["O", "B-name", "I-name"], from: found.from, to: found.to, logits: logits)
        let units = Array(found.text.utf16)
        XCTAssertEqual(entities.map { String(decoding: units[$0.from..<$0.to], as: UTF16.self) }, ["Anna Berg", "Ur", "€5+", "…"])
    }

    func testTheNearestComeFirst() {
        let among: [[Float]] = [[0, 1], [1, 0], [0.6, 0.8]]
        XCTAssertEqual(Outputs.nearest([1, 0], among: among, top: 2).map(\.place), [1, 2])
        XCTAssertEqual(Outputs.length(among[2]), 1, accuracy: 1e-6)
    }
}

extension Json {
    fileprivate var double: Double { if case .number(let number) = self { number } else { .nan } }

    fileprivate func floats(_ name: String) throws -> [Float] { try doubles(name).map { Float($0) } }

    fileprivate func ints(_ name: String) throws -> [Int] { try array(name).compactMap(\.whole) }

    fileprivate func rows(_ name: String) throws -> [[Json]] {
        try array(name).map { row in
            if case .array(let cells) = row { cells } else { [] }
        }
    }
}
