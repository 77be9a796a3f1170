import AppModels
import AppParts
import Foundation
import XCTest

@testable import Core

/// Real students with other facts in their signatures: prompts, an activation, labels that are decided one by one.
@MainActor
final class FactsTests: XCTestCase {
    private static let near = "near/litert-int8_dynamic"
    private static let mood = "mood/litert-int8_dynamic"
    private static let alike = "alike/litert-int8_dynamic"

    /// Opens the students, of which one has other facts in its signature.
    private func model(_ student: String, _ facts: [String: Any], search: SearchModel? = nil) throws -> TryModel {
        let served = try Served()
        let models = try copy(served) { try change($0.appendingPathComponent(student), facts: facts) }
        let usable = try Shelf.open(try served.equipment(unsigned: true, models: models)).usable
        let model = TryModel(usable, search: search ?? SearchModel(), warmRuns: 0)
        model.choose(student)
        return model
    }

    private func reply(_ model: TryModel, _ first: String, _ second: String = "") async throws -> Reply {
        (model.first, model.second) = (first, second)
        model.ask()
        await model.settled()
        guard case .answered(let reply) = model.state else { throw RunnerFailed("it is \(model.state)") }
        return reply
    }

    private func embedding(_ model: TryModel, _ text: String) async throws -> [Float] {
        guard case .embedding(let embedding) = try await reply(model, text).answer else { throw RunnerFailed("it is no embedding") }
        return embedding
    }

    private func plain(_ text: String) async throws -> [Float] {
        let search = SearchModel()
        search.replace(by: "")
        let model = TryModel(try Served().usable(), search: search, warmRuns: 0)
        model.choose(Self.near)
        return try await embedding(model, text)
    }

    private func shares(_ model: TryModel) async throws -> [Share] {
        guard case .labels(let shares) = try await reply(model, "A charming film.").answer else { throw RunnerFailed("no labels") }
        return shares
    }

    func testWhatIsLookedForAndWhatIsSearchedHavePromptsOfTheirOwn() async throws {
        let search = SearchModel()
        search.replace(by: "The shop closes at six.\nIt rained all day.")
        let model = try model(Self.near, ["prompts": ["query": "query: ", "passage": "passage: "]], search: search)
        XCTAssertEqual(model.chosen?.prompts, ["passage", "query"])
        XCTAssertEqual(model.prompt, "query")
        let asked = try await embedding(model, "When does the store shut?")
        let wanted = try await plain("query: When does the store shut?")
        XCTAssertEqual(asked, wanted)
        XCTAssertEqual(model.unusedPrompts, [])
        XCTAssertEqual(search.found.map(\.text), ["The shop closes at six.", "It rained all day."])
        for one in search.found {
            let sentence = try await plain("passage: \(one.text)")
            XCTAssertEqual(one.cosine, Outputs.cosine(asked, sentence))
        }
    }

    func testAPersonChoosesAPromptOrNoneAndNoneIsSaidWhereThereAreSome() async throws {
        let model = try model(Self.near, ["prompts": ["sts": "sts: ", "topic": "topic: "], "default_prompt": "sts"])
        XCTAssertEqual(model.prompt, "sts")
        var wanted = try await plain("sts: A text.")
        var found = try await embedding(model, "A text.")
        XCTAssertEqual(found, wanted)
        model.choosePrompt("topic")
        // The answer that stands was given with the other one.
        XCTAssertEqual(model.unusedPrompts, [])
        wanted = try await plain("topic: A text.")
        found = try await embedding(model, "A text.")
        XCTAssertEqual(found, wanted)
        model.choosePrompt("no such prompt")
        XCTAssertEqual(model.prompt, "topic")
        model.choosePrompt("")
        XCTAssertEqual(model.unusedPrompts, [])
        wanted = try await plain("A text.")
        found = try await embedding(model, "A text.")
        XCTAssertEqual(found, wanted)
        XCTAssertEqual(model.unusedPrompts, ["sts", "topic"])
        // The sentences have the default one whatever a person has chosen.
        let nearest = try XCTUnwrap(model.search.found.first)
        let sentence = try await plain("sts: \(nearest.text)")
        XCTAssertEqual(nearest.cosine, Outputs.cosine(found, sentence))
        model.choose("near/executorch-int8_dynamic")
        XCTAssertEqual(model.prompt, "")
        XCTAssertEqual(model.chosen?.prompts, [])
        _ = try await embedding(model, "A text.")
        XCTAssertEqual(model.unusedPrompts, [])
    }

    func testWithoutADefaultPromptNoneIsChosenAndEmptyPromptsAreNone() async throws {
        let model = try model(Self.near, ["prompts": ["topic": "topic: "]])
        XCTAssertEqual(model.prompt, "")
        let wanted = try await plain("A text.")
        var found = try await embedding(model, "A text.")
        XCTAssertEqual(found, wanted)
        XCTAssertEqual(model.unusedPrompts, ["topic"])
        let empty = try self.model(Self.near, ["prompts": ["query": "", "document": ""]])
        found = try await embedding(empty, "A text.")
        XCTAssertEqual(found, wanted)
        XCTAssertEqual([empty.chosen?.prompts, empty.unusedPrompts], [[], []])
    }

    func testAPromptCountsAmongTheTokensThatATextMayHave() async throws {
        let search = SearchModel()
        search.replace(by: "")
        let model = try model(Self.near, ["prompts": ["query": "query: "]], search: search)
        for (prompt, cutAt) in [("", nil), ("query", 128)] {
            model.choosePrompt(prompt)
            let cut = try await reply(model, String(repeating: "ocean ", count: 126)).cutAt
            XCTAssertEqual(cut, cutAt)
        }
    }

    func testLabelsAreDecidedOneByOne() async throws {
        let found = try await shares(try model(Self.mood, ["output_kind": "multi_label", "thresholds": [0.0, 1.0]]))
        XCTAssertEqual(found.given, found.filter { $0.isGiven == true })
        XCTAssertEqual(found.given.count, 1)
        let all = try await shares(try model(Self.mood, ["output_kind": "multi_label", "thresholds": [0.0, 0.0]]))
        XCTAssertEqual(all.given, all)
        let none = try await shares(try model(Self.mood, ["output_kind": "multi_label", "thresholds": [1.0, 1.0]]))
        XCTAssertEqual([none.given.count, none.count], [0, 2])
        let plain = TryModel(try Served().usable(), search: SearchModel(), warmRuns: 0)
        plain.choose(Self.mood)
        let one = try await shares(plain)
        XCTAssertEqual(one.given, Array(one.prefix(1)))
        XCTAssertNil(one[0].isGiven)
        XCTAssertNotEqual(one.map(\.share), found.map(\.share))
    }

    func testValuesHaveNamesAndGoThroughTheActivation() async throws {
        let answer = try await reply(try model(Self.mood, ["output_kind": "values"]), "A charming film.").answer
        guard case .values(let values) = answer else { return XCTFail("it is \(answer)") }
        let shares = try await shares(try model(Self.mood, ["output_kind": "multi_label"]))
        XCTAssertEqual(Set(values.map(\.name)), Set(shares.map(\.label)))
        for one in values {
            XCTAssertEqual(shares.first { $0.label == one.name }?.share, Outputs.sigmoid(Double(one.value)))
        }
        var numbers: [Float] = []
        for activation in ["identity", "sigmoid"] {
            let model = try model(Self.alike, ["activation": activation])
            let answer = try await reply(model, "A man is playing a guitar.", "Somebody plays an instrument.").answer
            if case .value(let number) = answer { numbers.append(number) }
        }
        XCTAssertEqual(numbers.count, 2)
        XCTAssertEqual(Float(Outputs.sigmoid(Double(numbers[0]))), numbers[1])
    }
}
