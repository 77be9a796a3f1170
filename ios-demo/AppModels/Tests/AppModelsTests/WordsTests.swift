#if !canImport(Darwin)
    import AppModels
    import AppParts
    import Foundation
    import XCTest

    @testable import Core

    /// What the screens say, through the app's own catalog: every key is there, and the grammar is right for one and for many.
    final class WordsTests: XCTestCase {
        private typealias Timed = CompareModel.Timed

        private func timed(_ recipe: String, _ ms: Double, isRandom: Bool = false) throws -> Timed {
            try timed(ModelName(recipe: recipe, scheme: nil, runtime: nil), ms, isRandom)
        }

        private func timed(_ name: ModelName, _ ms: Double, _ isRandom: Bool) throws -> Timed {
            Timed(name: name, medianMs: ms, isRandom: isRandom)
        }

        func testOneAndManyAreSaidRight() {
            XCTAssertEqual(
                [Words.runs(1), Words.runs(60), Words.threads(1), Words.threads(0)], ["1 run", "60 runs", "1 thread", "0 threads"])
            XCTAssertEqual([Words.tokens(1), Words.models(1), Words.models(3)], ["1 token", "1 model", "3 models"])
            XCTAssertEqual(
                [1, 10].map { Words.verdict(SelfTestModel.Verdict(models: $0, passed: $0)) },
                ["The model gives the same answers as the reference.", "All 10 models give the same answers as the reference."])
            XCTAssertEqual(
                Words.verdict(SelfTestModel.Verdict(models: 3, passed: 2)), "Different from the reference: 1 of 3 models.")
            XCTAssertEqual([1, 2].map { Words.difference(.tokens(texts: $0)) }, ["other tokens for 1 text", "other tokens for 2 texts"])
            XCTAssertEqual(
                [1, 20].map { Words.medians(of: $0) }, ["Warm medians of 1 run each, by turns", "Warm medians of 20 runs each, by turns"])
        }

        func testTheHeadlineIsAboutTheStudentAlone() throws {
            let random = CompareModel.Verdict(
                student: try timed("minilm", 3.04), other: try timed("bert-base-random", 40.7, isRandom: true))
            XCTAssertEqual(Words.headline(random), "minilm answers in 3.0 ms")
            XCTAssertEqual(
                Words.caption(random),
                "bert-base-random takes 40.7 ms: 13 times as long. Its weights are random: only its time means something.")
            let near = CompareModel.Verdict(student: try timed("a", 3), other: try timed("b", 3.1))
            XCTAssertEqual(Words.caption(near), "b takes 3.1 ms: just as long.")
            let faster = CompareModel.Verdict(student: try timed("a", 3), other: try timed("b", 1.2))
            XCTAssertEqual(Words.caption(faster), "b takes 1.2 ms: 40% of that time.")
            let slower = CompareModel.Verdict(student: try timed("a", 3), other: try timed("b", 4.2))
            XCTAssertEqual(Words.caption(slower), "b takes 4.2 ms: 1.4 times as long.")
            let both = CompareModel.Verdict(student: try timed("a", 3, isRandom: true), other: try timed("b", 6, isRandom: true))
            XCTAssertEqual(Words.headline(both), "a takes 3.0 ms")
            XCTAssertTrue(Words.caption(both).hasSuffix("Their weights are random: only their times mean something."))
            let same = ModelName(recipe: "a", scheme: "int8_dynamic", runtime: "LiteRT")
            XCTAssertEqual(
                Words.headline(CompareModel.Verdict(student: try timed(same, 3, false), other: try timed("b", 6))),
                "a int8 · LiteRT answers in 3.0 ms")
        }

        func testWhatIsMissingIsSaid() {
            let missing: [Question.Missing] = [.text, .twoTexts, .questionAndPassage, .label, .twoLabels, .template]
            XCTAssertEqual(Set(missing.map(Words.missing)).count, missing.count)
            XCTAssertEqual(Words.missing(.template), "Write {} once in the template, where a label is put.")
        }

        func testLabelsAndSchemesAreWords() {
            XCTAssertEqual(
                ["positive", "not_at_all", "LABEL_0", "1", "LABEL_", "label 1"].map { Words.label($0) },
                ["positive", "not at all", "class 0", "class 1", "LABEL ", "label 1"])
            XCTAssertEqual(
                ["int8_dynamic", "int8_static", "int4_weight_only", "fp16", "some_thing"].map { Words.scheme($0) },
                ["int8", "int8 static", "int4 weights", "fp16", "some thing"])
        }

        func testWhatIsUnsureIsSaidToBe() {
            let found = [Found(0, 9, 0.97, "person"), Found(10, 15, 0.5, "LABEL_3"), Found(16, 21, 0.269, "work_of_art")]
            XCTAssertEqual(found.map { Confidence($0.score) }, [.sure, .likely, .unsure])
            XCTAssertEqual([0.8, 0.7999, 0.4999].map { Confidence($0) }, [.sure, .likely, .unsure])
            let said = Words.answer(.entities(found), Question("Anna Berg Apple Thing"))
            XCTAssertEqual(said, "Anna Berg, person, 97%; Apple, class 3, 50%; Thing, work of art, unsure, 27%")
            XCTAssertEqual(Words.answer(.span(nil), Question("Who?", "Nobody.")), "There is no answer in the passage.")
            XCTAssertEqual(Words.answer(.labels([Share(label: "LABEL_1", share: 0.988)]), Question("A text.")), "class 1, 98.8%")
        }

        func testWhatIsGivenIsMarkedAndValuesHaveNames() {
            let shares = [
                Share(label: "toxic", share: 0.9, isGiven: false), Share(label: "LABEL_2", share: 0.83, isGiven: true),
                Share(label: "an_insult", share: 0.1, isGiven: true),
            ]
            XCTAssertEqual(shares.map { Words.share($0) }, ["90.0%", "given, 83.0%", "given, 10.0%"])
            XCTAssertEqual(Words.share(Share(label: "a", share: 0.5)), "50.0%")
            XCTAssertEqual(Words.answer(.labels(shares), Question("A text.")), "class 2, 83.0%; an insult, 10.0%")
            XCTAssertEqual(Words.answer(.labels([shares[0]]), Question("A text.")), "No label reaches its threshold.")
            let values = [NamedValue(name: "clear_style", value: 0.5), NamedValue(name: "LABEL_1", value: -2)]
            XCTAssertEqual(Words.answer(.values(values), Question("A text.")), "clear style, 0.500; value 1, -2.000")
        }

        func testPromptsAreNamed() {
            XCTAssertEqual(["", "query"].map { Words.prompt($0) }, ["No prompt", "query"])
            XCTAssertEqual(
                Words.unused(["passage", "query"]), "The text was embedded without a prompt. This model has: passage, query.")
        }

        func testUnitsAreNamedWhereTheyAreConfirmed() {
            XCTAssertEqual(
                [[], ["CPU"], ["Neural Engine", "CPU"], ["Neural Engine", "GPU", "CPU"]].map { Words.place("Core ML", $0) },
                [
                    "Core ML", "Core ML on the CPU", "Core ML on the Neural Engine and the CPU",
                    "Core ML on the Neural Engine, the GPU and the CPU",
                ])
        }

        func testDifferencesAreSaid() {
            XCTAssertEqual(Words.outcome(.same), "same answers")
            XCTAssertEqual(
                Words.outcome(.differs(.cosine(0.93, least: 0.999))), "differs: least similar text 0.93000, at least 0.99900 is asked for")
            XCTAssertEqual(
                Words.outcome(.differs(.olderRuntime(name: "LiteRT", version: "1.1.9", minimum: "1.2.0"))),
                "differs: LiteRT 1.1.9 is older than 1.2.0, which the file asks for")
            XCTAssertEqual(Words.difference(.noise(sqnrDb: 9.04, leastDb: 20)), "SQNR 9.0 dB, at least 20.0 dB is asked for")
            XCTAssertEqual(Words.noise(.infinity), "no noise")
            XCTAssertEqual(Words.problem(.cut(taken: 5_000, of: 5_002)), "Only the first 5000 of 5002 lines were taken.")
            XCTAssertEqual(Words.problem(.tooLarge(file: "a.txt", mostBytes: 8_388_608)), "a.txt is larger than 8.39 MB.")
        }

        func testWhatAnIndexHoldsIsSaid() {
            XCTAssertEqual(Words.passages(10_000), "10000 passages are searched")
            XCTAssertEqual(Words.rest(.hot), "The phone is hot: indexing goes on when it has cooled down.")
            XCTAssertEqual(Words.rest(.lowBattery), "The battery is low: indexing goes on when it is charged.")
        }

        func testEveryEndOfARunIsSaid() {
            for state in BenchmarkStatus.State.allCases {
                let said = Words.progress(RunProgress(state: state, done: 0, doing: "it", message: "why not."))
                XCTAssertFalse(said.contains("‹"), said)
                XCTAssertEqual(said, Words.progress(RunProgress(state: state, done: 0, doing: "it", message: "why not")))
                XCTAssertEqual(said.hasSuffix(": why not."), ![.cooling, .running, .finished, .cancelled].contains(state), said)
            }
        }
    }
#endif
