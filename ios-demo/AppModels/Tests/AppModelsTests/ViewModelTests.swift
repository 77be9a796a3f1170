import AppModels
import AppParts
import CoreTestSupport
import Foundation
import XCTest

@testable import Core

/// States, errors and cancellation, on the real students.
@MainActor
final class ViewModelTests: XCTestCase {
    private func halting(_ served: Served) throws -> (Halting, [ShelvedModel]) {
        let halting = Halting(try served.runtime("litert"))
        let equipment = try served.equipment(instead: ["litert": halting])
        return (halting, try Shelf.open(equipment).usable.filter { $0.model.signature.backend == "litert" })
    }

    func testAnEmptyAppSaysWhatToDo() async throws {
        let served = try Served()
        let shelf = ShelfModel(try served.equipment(models: try scratch()))
        guard case .loading = shelf.state else { return XCTFail("it begins with \(shelf.state)") }
        await shelf.open()
        guard case .failed(let message) = shelf.state else { return XCTFail("it is \(shelf.state)") }
        XCTAssertTrue(message.contains("pocketbert ship"), message)
        XCTAssertTrue(shelf.usable.isEmpty && !shelf.usesUnsigned)
    }

    func testABrokenIndexIsSaid() async throws {
        let served = try Served()
        let models = try copy(served) { try Data("{".utf8).write(to: $0.appendingPathComponent("models.json")) }
        let shelf = ShelfModel(try served.equipment(models: models))
        await shelf.open()
        guard case .failed(let message) = shelf.state else { return XCTFail("it is \(shelf.state)") }
        XCTAssertTrue(message.hasPrefix("Models.json: "), message)
    }

    func testADamagedModelIsRefusedAndTheOthersStay() async throws {
        let served = try Served()
        let models = try copy(served) { place in
            let file = place.appendingPathComponent("mood/litert-int8_dynamic/labels.txt")
            try Data("no\nyes\n".utf8).write(to: file)
        }
        let shelf = ShelfModel(try served.equipment(models: models))
        await shelf.open()
        guard case .ready(let found) = shelf.state else { return XCTFail("it is \(shelf.state)") }
        XCTAssertEqual([found.usable.count, found.refused.count], [15, 1])
        XCTAssertTrue(found.refused[0].why.contains("refused (changed)"), found.refused[0].why)
    }

    func testUnsignedModelsNeedADebugBuildAndShowABanner() async throws {
        let served = try Served()
        let models = try copy(served) { place in
            try FileManager.default.removeItem(at: place.appendingPathComponent("near/litert-int8_dynamic/model.sig"))
        }
        let release = ShelfModel(try served.equipment(models: models))
        await release.open()
        XCTAssertEqual(release.usable.count, 15)
        XCTAssertFalse(release.usesUnsigned)
        let debug = ShelfModel(try served.equipment(unsigned: true, models: models))
        await debug.open()
        XCTAssertEqual(debug.usable.count, 16)
        XCTAssertTrue(debug.usesUnsigned)
        let others = ShelfModel(try served.equipment(keys: [], unsigned: true))
        await others.open()
        guard case .ready(let shelf) = others.state else { return XCTFail("it is \(others.state)") }
        XCTAssertEqual([shelf.usable.count, shelf.refused.count], [0, 16])
        XCTAssertTrue(shelf.refused.allSatisfy { $0.why.contains("other_key") })
    }

    func testAModelWithoutARuntimeIsSaid() async throws {
        let served = try Served()
        let all = try served.equipment()
        let one = Equipment(
            models: all.models, policy: all.policy, runtimes: [all.runtimes[1]], phone: all.phone, runs: all.runs)
        let shelf = try Shelf.open(one)
        XCTAssertEqual([shelf.usable.count, shelf.refused.count], [8, 8])
        XCTAssertTrue(shelf.refused.allSatisfy { $0.why.hasSuffix("is a file for litert, and this app runs ExecuTorch.") })
    }

    func testANewRequestCancelsTheOneBefore() async throws {
        let (halting, models) = try halting(try Served())
        let model = TryModel(models, search: SearchModel())
        model.choose("mood/litert-int8_dynamic")
        model.first = "A charming film."
        model.ask()
        XCTAssertEqual(model.state, .opening)
        try await eventually("the first one runs") { halting.runs == 1 }
        model.first = "A dull film that never ends."
        model.ask()
        model.first = "A fine film, seen twice."
        model.ask()
        halting.release()
        await model.settled()
        guard case .answered(let reply) = model.state else { return XCTFail("it is \(model.state)") }
        XCTAssertEqual(reply.tokens, 9)
        // The one in the middle had not begun, and never does; the last one is warm in the end.
        XCTAssertEqual(halting.runs, 2 + 10)
    }

    func testWhatIsGivenUpLeavesNoAnswer() async throws {
        let (halting, models) = try halting(try Served())
        let model = TryModel(models, search: SearchModel())
        model.choose("mood/litert-int8_dynamic")
        model.ask()
        try await eventually("it runs") { halting.runs == 1 }
        model.cancel()
        XCTAssertEqual(model.state, .idle(nil))
        halting.release()
        await model.settled()
        XCTAssertEqual(model.state, .idle(nil))
    }

    func testWhatIsMissingAndWhatFailsIsSaid() async throws {
        let served = try Served()
        let model = TryModel(try served.usable(), search: SearchModel())
        model.choose("ask/litert-int8_dynamic")
        XCTAssertFalse(model.second.isEmpty)
        model.second = " "
        model.ask()
        XCTAssertEqual(model.state, .idle(.questionAndPassage))
        let gone = SocketRuntime(socket: "/nowhere.sock", backend: "litert", version: "2")
        let shelf = try Shelf.open(try served.equipment(instead: ["litert": gone]))
        let broken = TryModel(shelf.usable, search: SearchModel())
        broken.choose("mood/litert-int8_dynamic")
        broken.ask()
        await broken.settled()
        XCTAssertEqual(broken.state, .failed("The runtimes are not served at /nowhere.sock."))
    }

    func testAChoiceKeepsTheTextOfTheSameTask() async throws {
        let model = TryModel(try Served().usable(), search: SearchModel())
        model.choose("mood/litert-int8_dynamic")
        model.first = "Mine."
        model.choose("mood/executorch-int8_dynamic")
        XCTAssertEqual(model.first, "Mine.")
        model.choose("names/litert-int8_dynamic")
        XCTAssertNotEqual(model.first, "Mine.")
        model.choose("no/such-model")
        XCTAssertEqual(model.chosen?.id, "names/litert-int8_dynamic")
    }

    private func answered(_ model: TryModel) async throws -> Reply {
        model.ask()
        await model.settled()
        guard case .answered(let reply) = model.state else { throw RunnerFailed("it is \(model.state)") }
        return reply
    }

    func testLabelsOfOnesOwnStayWhereAnotherModelIsChosenAndAreAskedWhereItTakesSome() async throws {
        let model = TryModel(try Served().usable(), search: SearchModel(), warmRuns: 0)
        model.choose("infer/litert-int8_dynamic")
        var question = try await answered(model).question
        XCTAssertEqual(question.own, OwnLabels(["film", "travel", "food"], template: "This example is {}.", multiLabel: false))
        (model.labels, model.template, model.multiLabel) = ("rain\nsun, rain", "It is about {}.", true)
        let own = OwnLabels(["rain", "sun"], template: "It is about {}.", multiLabel: true)
        question = try await answered(model).question
        XCTAssertEqual(question, Question(model.first, own: own))
        model.choose("mood/litert-int8_dynamic")
        question = try await answered(model).question
        XCTAssertNil(question.own)
        model.leave()
        model.choose("infer/executorch-int8_dynamic")
        question = try await answered(model).question
        XCTAssertEqual(question.own, own)
        // Its own labels, of a text and another.
        (model.prefersOwn, model.second) = (false, "It rains.")
        let reply = try await answered(model)
        XCTAssertEqual(reply.question, Question(model.first, "It rains."))
        guard case .labels(let shares) = reply.answer else { return XCTFail("it is \(reply.answer)") }
        XCTAssertEqual(Set(shares.map(\.label)), ["contradiction", "entailment", "neutral"])
        model.prefersOwn = true
        for (labels, template, missing) in [
            (" ,", "It is {}.", Question.Missing.label), ("rain", "It is.", .template),
        ] {
            (model.labels, model.template) = (labels, template)
            model.ask()
            XCTAssertEqual(model.state, .idle(missing))
        }
        model.multiLabel = false
        model.ask()
        XCTAssertEqual(model.state, .idle(.twoLabels))
    }

    func testALongTextWithLabelsOfOnesOwnIsSaidToBeCut() async throws {
        let model = TryModel(try Served().usable(), search: SearchModel(), warmRuns: 0)
        model.choose("infer/litert-int8_dynamic")
        (model.template, model.labels) = ("{}", "food, sea sea")
        // The longest of the rows fits: [CLS], the text, [SEP], two words, [SEP].
        for (words, cutAt) in [(123, nil), (124, 128)] {
            model.first = String(repeating: "ocean ", count: words)
            let reply = try await answered(model)
            XCTAssertEqual([reply.tokens, reply.length, reply.cutAt], [128, 128, cutAt])
        }
    }

    func testAnAnswerOfRandomWeightsIsHidden() async throws {
        let served = try Served()
        let models = try copy(served) { place in
            try change(place.appendingPathComponent("mood/litert-int8_dynamic")) { $0["random_weights"] = true }
        }
        let shelf = try Shelf.open(try served.equipment(unsigned: true, models: models))
        let model = TryModel(shelf.usable, search: SearchModel())
        model.choose("mood/litert-int8_dynamic")
        model.ask()
        await model.settled()
        guard case .answered(let reply) = model.state else { return XCTFail("it is \(model.state)") }
        XCTAssertEqual(reply.answer, .hidden)
        XCTAssertGreaterThan(reply.inferenceMs, 0)
    }

    func testALongTextIsSaidToBeCut() async throws {
        let model = TryModel(try Served().usable(), search: SearchModel())
        model.choose("mood/litert-int8_dynamic")
        model.first = String(repeating: "ocean ", count: 126)
        model.ask()
        await model.settled()
        guard case .answered(let whole) = model.state else { return XCTFail("it is \(model.state)") }
        XCTAssertEqual([whole.tokens, whole.length, whole.cutAt], [128, 128, nil])
        model.first += "ocean"
        model.ask()
        await model.settled()
        guard case .answered(let cut) = model.state else { return XCTFail("it is \(model.state)") }
        XCTAssertEqual([cut.tokens, cut.cutAt], [128, 128])
    }

    func testASetIsSearchedAndEachSentenceIsEmbeddedOnce() async throws {
        let served = try Served()
        let halting = Halting(try served.runtime("executorch"), isOpen: true)
        let shelf = try Shelf.open(try served.equipment(instead: ["executorch": halting]))
        let search = SearchModel()
        let model = TryModel(shelf.usable, search: search, warmRuns: 0)
        model.choose("near/executorch-int8_dynamic")
        search.replace(by: "The shop closes at six.\nA man is playing a guitar.\nIt rained all day.")
        model.first = "The store shuts at six o'clock."
        model.ask()
        await model.settled()
        guard case .answered = model.state else { return XCTFail("it is \(model.state)") }
        XCTAssertEqual(search.found.first?.text, "The shop closes at six.")
        XCTAssertEqual(search.found.count, 3)
        XCTAssertNil(search.progress)
        XCTAssertEqual(halting.runs, 4)
        search.add("The kitchen is yellow.")
        XCTAssertTrue(search.found.isEmpty)
        model.first = "Music on six strings."
        model.ask()
        await model.settled()
        XCTAssertEqual(halting.runs, 6)
        XCTAssertEqual(search.found.first?.text, "A man is playing a guitar.")
    }

    func testASetThatIsReplacedWhileItIsEmbeddedSpoilsNothing() async throws {
        let served = try Served()
        // The question and the first sentence.
        let halting = Halting(try served.runtime("litert"), free: 2)
        let search = SearchModel()
        let model = TryModel(try Shelf.open(try served.equipment(instead: ["litert": halting])).usable, search: search, warmRuns: 0)
        model.choose("near/litert-int8_dynamic")
        search.replace(by: "One.\nTwo.\nThree.")
        model.ask()
        try await eventually("the second sentence is embedded") { halting.runs == 3 }
        XCTAssertEqual(search.progress?.done, 0)
        search.replace(by: "Two.\nFour.")
        halting.release()
        await model.settled()
        guard case .answered = model.state else { return XCTFail("it is \(model.state)") }
        XCTAssertNil(search.progress)
        XCTAssertEqual(search.found, [])
        model.ask()
        await model.settled()
        XCTAssertEqual(Set(search.found.map(\.text)), ["Two.", "Four."])
        for neighbour in search.found { XCTAssertEqual(neighbour.text, search.sentences[neighbour.place]) }
    }

    func testTwoModelsAreCompared() async throws {
        let served = try Served()
        let model = CompareModel(try served.usable().filter { $0.model.entry.recipe == "mood" })
        XCTAssertEqual(model.sides.count, 2)
        XCTAssertNil(model.verdict)
        model.first = "A charming film."
        model.run()
        XCTAssertTrue(model.isRunning)
        await model.settled()
        XCTAssertFalse(model.isRunning)
        XCTAssertNotNil(model.verdict)
        for side in model.sides {
            XCTAssertEqual(side.samples.count, 20)
            XCTAssertNil(side.trouble)
            guard case .labels(let shares)? = side.reply?.answer else { return XCTFail("\(side.id) has no labels") }
            XCTAssertEqual(shares.count, 2)
        }
        let second = model.sides[1].id
        model.choose(second, for: 0)
        XCTAssertEqual(model.sides.map(\.id), [second, second])
        XCTAssertTrue(model.sides.allSatisfy { $0.samples.isEmpty })
    }

    func testOneModelAloneIsNotCompared() async throws {
        let model = CompareModel(Array(try Served().usable().prefix(1)))
        XCTAssertTrue(model.sides.isEmpty)
        model.run()
        XCTAssertNil(model.verdict)
    }

    func testAComparisonSaysWhatIsMissingAndCanBeStopped() async throws {
        let served = try Served()
        let model = CompareModel(try served.usable().filter { $0.model.entry.recipe == "mood" || $0.model.entry.recipe == "ask" })
        model.choose("ask/litert-int8_dynamic", for: 0)
        model.choose("mood/litert-int8_dynamic", for: 1)
        XCTAssertTrue(model.takesTwo)
        (model.first, model.second) = ("Who built it?", "")
        model.run()
        await model.settled()
        XCTAssertEqual(model.sides[0].trouble, .missing(.questionAndPassage))
        XCTAssertNil(model.verdict)
        XCTAssertEqual(model.sides[1].samples.count, 20)
        model.run()
        model.cancel()
        await model.settled()
        XCTAssertFalse(model.isRunning)
    }
}
