import AppModels
import AppParts
import Core
import CoreTestSupport
import Foundation
import XCTest

/// An index in place of the sentences: a person's own texts, and the one that was shipped.
@MainActor
final class SearchIndexTests: XCTestCase {
    private static let words = [
        "the lamp is lit", "bread from the oven", "a train at noon", "snow on the hill", "six blue cups", "an old song",
    ]
    private static let id = "near/executorch-int8_dynamic"

    private func bag() throws -> BagOfTokens { BagOfTokens("executorch", version: try Served().runtime("executorch").version) }

    private func models(_ bag: BagOfTokens, _ models: URL? = nil) throws -> [ShelvedModel] {
        try Shelf.open(try Served().equipment(instead: ["executorch": bag], models: models)).usable
    }

    private func texts(_ count: Int, from first: Int = 0) -> [String] {
        (first..<first + count).map { number in
            "Note \(number): \(Self.words[number % Self.words.count])\(String(repeating: " and then some more", count: number % 5))"
        }
    }

    private func file(_ texts: [String], in home: URL, separator: String = "\n") throws -> URL {
        let file = home.appendingPathComponent("notes \(UUID().uuidString).txt")
        try Data(texts.joined(separator: separator).utf8).write(to: file)
        return file
    }

    private func asked(_ model: TryModel, _ text: String) async throws {
        model.first = text
        model.ask()
        await model.settled()
        guard case .answered = model.state else { return XCTFail("it is \(model.state)") }
    }

    private func isFull(_ search: SearchModel, _ count: Int) async throws {
        try await eventually("\(count) texts are in the index") { search.index?.texts == nil && search.index?.passages == count }
    }

    private func model(_ search: SearchModel, _ models: [ShelvedModel]) -> TryModel {
        let model = TryModel(models, search: search, warmRuns: 0)
        model.choose(Self.id)
        return model
    }

    func testManyTextsArePutIntoAnIndexWhichIsThereAtTheNextStart() async throws {
        let (bag, place) = (try bag(), try scratch())
        let home = place.appendingPathComponent("home")
        let all = texts(1_300)
        let search = SearchModel(home: home)
        let first = model(search, try models(bag))
        await search.importFile(try file(all + all.prefix(3), in: place, separator: "\r\n\n"))
        XCTAssertEqual([search.index?.passages, search.index?.texts], [0, 1_303])
        try await asked(first, all[700])
        try await isFull(search, 1_300)
        try await asked(first, all[700])
        XCTAssertEqual(search.found.first?.text, all[700])
        XCTAssertEqual(search.found.first?.cosine ?? 0, 1, accuracy: 0.01)
        XCTAssertEqual(search.found.count, 10)
        first.leave()
        await search.settled()
        XCTAssertEqual(bag.runs, 1_302)
        // Within a window, from the shortest to the longest.
        let window = Array(bag.lengths[1..<513])
        XCTAssertEqual(window, window.sorted())
        let next = SearchModel(home: home)
        let second = model(next, try models(bag))
        try await asked(second, all[9])
        try await isFull(next, 1_300)
        XCTAssertEqual(next.found.first?.text, all[9])
        XCTAssertEqual(bag.runs, 1_303)
        second.leave()
        await next.settled()
        // A damaged one is made again: the texts are kept.
        let made = try FileManager.default.contentsOfDirectory(atPath: home.path).filter { !$0.contains(".") }
        XCTAssertEqual(made.count, 1)
        try Data(count: 5).write(to: home.appendingPathComponent("\(made[0])/vectors.bin"))
        let again = SearchModel(home: home)
        let third = model(again, try models(bag))
        try await asked(third, all[9])
        try await isFull(again, 1_300)
        try await asked(third, all[9])
        XCTAssertEqual(again.found.first?.text, all[9])
        XCTAssertNil(again.problem)
        third.leave()
    }

    func testAKillWhileTextsAreIndexedLosesABatchAtMost() async throws {
        let (bag, place) = (try bag(), try scratch())
        let (killed, home) = (place.appendingPathComponent("killed"), place.appendingPathComponent("home"))
        let all = texts(1_000)
        // What lies there while the 601st text is embedded is what a kill leaves.
        bag.before { if $0 == 601 { try? FileManager.default.copyItem(at: killed, to: home) } }
        let search = SearchModel(home: killed)
        let first = model(search, try models(bag))
        await search.importFile(try file(all, in: place))
        first.ask()
        try await eventually("600 texts were embedded") { bag.runs > 601 }
        first.leave()
        await search.settled()
        let before = bag.runs
        let next = SearchModel(home: home)
        let second = model(next, try models(bag))
        second.ask()
        try await isFull(next, 1_000)
        XCTAssertTrue((400...440).contains(bag.runs - before), "\(bag.runs - before) runs after the kill")
        try await asked(second, all[4])
        XCTAssertEqual(next.found.first?.text, all[4])
        second.leave()
    }

    func testIndexingRestsWhileThePhoneIsHotOrItsBatteryLow() async throws {
        let (bag, place) = (try bag(), try scratch())
        let thermals = ["nominal", "fair", "critical", "serious"] + [String](repeating: "fair", count: 3)
        let batteries = [0.9, 0.9, 0.9, 0.9, 0.5, 0.1, 0.9]
        let moments = zip(thermals, batteries).map { Moment(thermal: $0, batteryFraction: $1, charging: false) }
        let phone = HostPhone(moments: moments, thermalStates: ["nominal", "fair", "serious", "critical"])
        let search = SearchModel(home: place.appendingPathComponent("home"), gate: EnergyGate(phone), restSeconds: 0.05)
        let model = model(search, try models(bag))
        await search.importFile(try file(texts(600), in: place))
        model.ask()
        try await eventually("it rests because of the heat") { search.index?.rest == .hot }
        let runs = bag.runs
        XCTAssertTrue((64...65).contains(runs), "\(runs) runs before")
        try await eventually("it goes on, and rests because of the battery") { search.index?.rest == .lowBattery }
        XCTAssertGreaterThan(bag.runs, runs)
        try await isFull(search, 600)
        XCTAssertNil(search.index?.rest)
        model.leave()
        func rest(_ moment: Moment) -> Rest? { EnergyGate(HostPhone(moments: [moment])).rest() }
        XCTAssertEqual(rest(Moment(lowPower: true)), .lowBattery)
        XCTAssertNil(rest(Moment(batteryFraction: 0.1, charging: true, lowPower: true)))
        XCTAssertNil(rest(Moment()))
    }

    func testIndexingIsStoppedGoesOnAndGivesWayToOtherTexts() async throws {
        let (bag, place) = (try bag(), try scratch())
        let home = place.appendingPathComponent("home")
        let search = SearchModel(home: home)
        let model = model(search, try models(bag))
        search.replace(by: texts(900).joined(separator: "\n"))
        bag.before { if $0 == 300 { DispatchQueue.main.sync { MainActor.assumeIsolated { search.stop() } } } }
        model.ask()
        try await eventually("it was stopped") { search.index?.isStopped == true }
        await search.settled()
        let runs = bag.runs
        XCTAssertLessThan(runs, 400)
        try await asked(model, "Note 3")
        XCTAssertEqual(bag.runs, runs + 1)
        bag.before { _ in }
        search.goOn()
        try await isFull(search, 900)
        // 700 of them are there already.
        let before = bag.runs
        await search.importFile(try file(texts(1_000, from: 200), in: place))
        try await isFull(search, 1_000)
        XCTAssertEqual(bag.runs - before, 300)
        try await asked(model, texts(1)[0])
        XCTAssertFalse(search.found.contains { $0.text == texts(1)[0] })
        let odd = place.appendingPathComponent("odd.txt")
        try Data([0xFF, 0xFE, 0x41]).write(to: odd)
        await search.importFile(odd)
        XCTAssertEqual(search.problem, .notUtf8(file: "odd.txt"))
        XCTAssertEqual(search.index?.passages, 1_000)
        search.reset()
        XCTAssertNil(search.index)
        try await asked(model, "When does the shop close?")
        XCTAssertEqual(search.found.count, 10)
        XCTAssertEqual(try FileManager.default.contentsOfDirectory(atPath: home.path), [])
        model.leave()
    }

    func testMoreTextsThanAnIndexTakesAreCut() async throws {
        let place = try scratch()
        let search = SearchModel(home: place.appendingPathComponent("home"))
        await search.importFile(try file((0..<100_002).map { "Line \($0)." }, in: place))
        XCTAssertEqual(search.problem, .cut(taken: 100_000, of: 100_002))
        XCTAssertEqual([search.index?.passages, search.index?.texts], [0, 100_000])
        await search.importFile(try file(["One.", "", " Two. "], in: place))
        XCTAssertEqual(search.sentences, ["One.", "Two."])
        XCTAssertNil(search.index)
        XCTAssertNil(search.problem)
    }

    func testTheSmallestModelOfTheSameSpaceThatIsSmallerAndOfAnotherRecipeIsTheFasterOne() async throws {
        let served = try Served()
        let file = served.folder.appendingPathComponent("models/near/litert-int8_dynamic/signature.json")
        let signature = try XCTUnwrap(try JSONSerialization.jsonObject(with: Data(contentsOf: file)) as? [String: Any])
        let vectors = try XCTUnwrap(signature["vectors"] as? [String: Any])
        let parameters = try XCTUnwrap(signature["parameters"] as? Int)
        func with(_ facts: [String: Any]) -> [String: Any] { ["parameters": 1, "vectors": vectors.merging(facts) { $1 }] }
        let scales = try XCTUnwrap(vectors["scales"] as? [Double])
        let functions = try XCTUnwrap(signature["functions"] as? [[String: Any]]).map { function in
            let output: [String: Any] = ["name": "sentence_embedding", "dtype": "float32", "shape": [1, 192]]
            return function.merging(["outputs": [output]]) { $1 }
        }
        let narrow = with(["width": 192, "widths": [192], "scales": Array(scales[..<192])]).merging(["functions": functions]) { $1 }
        let kin: [String: [String: Any]] = [
            "near": ["parameters": 1],
            "fast": ["parameters": parameters - 1],
            "fastest": ["parameters": 2],
            "equal": ["parameters": parameters],
            "larger": ["parameters": parameters + 1],
            "random": ["parameters": 1, "random_weights": true],
            "elsewhere": with(["space": "0123456789abcdef"]),
            "unscaled": with(["unit_length": false]),
            "narrow": narrow,
        ]
        let models = try copyWithKin(served, kin)
        let all = try Shelf.open(try served.equipment(unsigned: true, models: models)).usable
        XCTAssertEqual(all.count, kin.count + 1)
        let near = try XCTUnwrap(all.first { $0.id == Self.id })
        XCTAssertEqual(all.filter { near.faster(among: [near, $0]) != nil }.map(\.name).sorted(), ["fast", "fastest"])
        XCTAssertEqual(near.faster(among: all)?.name, "fastest")
        XCTAssertEqual(near.faster(among: all.reversed())?.name, "fastest")
        let fastest = try XCTUnwrap(all.first { $0.name == "fastest" })
        XCTAssertNil(fastest.faster(among: all.filter { $0.id == Self.id || $0.name == "fast" }))
    }

    /// Returns a model that is asked and has a smaller one of its space beside it, and what runs both.
    private func twoSpeeds(_ search: SearchModel) throws -> (model: TryModel, bag: BagOfTokens, fast: BagOfTokens) {
        let served = try Served()
        let (bag, fast) = (try bag(), BagOfTokens("litert", version: try served.runtime("litert").version))
        let models = try copyWithKin(served, ["fast": ["parameters": 1, "prompts": ["passage": "passage: "]]])
        let equipment = try served.equipment(instead: ["executorch": bag, "litert": fast], unsigned: true, models: models)
        return (model(search, try Shelf.open(equipment).usable), bag, fast)
    }

    private func expect(_ search: SearchModel, other: String?, isFast: Bool, line: UInt = #line) {
        XCTAssertEqual(search.index?.other, other, line: line)
        XCTAssertEqual(search.index?.isFast, isFast, line: line)
    }

    func testAFasterModelOfTheSpaceIndexesTextsWhenAskedToAndIsAskedNoQuestion() async throws {
        let place = try scratch()
        let search = SearchModel(home: place.appendingPathComponent("home"))
        let (model, bag, fast) = try twoSpeeds(search)
        let all = texts(1_500)
        await search.importFile(try file(all, in: place))
        let slow = DispatchSemaphore(value: 0)
        bag.before { if $0 == 600 { slow.wait() } }
        model.ask()
        try await eventually("the model that is asked embeds the 600th text") { bag.runs == 600 }
        expect(search, other: "fast", isFast: false)
        XCTAssertEqual(fast.runs, 0)
        let there = try XCTUnwrap(search.index?.passages)
        XCTAssertGreaterThan(there, 512)
        search.preferFast(true)
        expect(search, other: "near", isFast: true)
        slow.signal()
        try await isFull(search, 1_500)
        // What was there is not embedded again.
        XCTAssertEqual([bag.runs, fast.runs], [600, 1_500 - there])
        try await eventually("the faster model is closed") { fast.openFiles == 0 }
        expect(search, other: nil, isFast: false)
        for place in [3, 1_400] {
            try await asked(model, all[place])
            XCTAssertEqual(search.found.first?.text, all[place])
        }
        // Behind the prompt of the faster model, since the other one has none.
        try await asked(model, "passage: \(all[1_400])")
        XCTAssertEqual(search.found.first?.cosine ?? 0, 1, accuracy: 0.01)
        XCTAssertEqual([bag.runs, fast.runs], [603, 1_500 - there])
        // Other texts are indexed by it as well, until it is given up.
        let halted = DispatchSemaphore(value: 0)
        fast.before { if $0 == 1_700 - there { halted.wait() } }
        await search.importFile(try file(texts(2_000, from: 1_000), in: place))
        try await eventually("the faster model embeds the 200th of them") { fast.runs == 1_700 - there }
        expect(search, other: "near", isFast: true)
        XCTAssertEqual(bag.runs, 603)
        let now = try XCTUnwrap(search.index?.passages)
        search.preferFast(false)
        expect(search, other: "fast", isFast: false)
        halted.signal()
        try await isFull(search, 2_000)
        XCTAssertEqual([bag.runs, fast.runs], [603 + 2_000 - now, 1_700 - there])
        try await eventually("the faster model is closed") { fast.openFiles == 0 }
        model.leave()
    }

    func testAFasterModelThatFailsIsClosedAndAnotherModelThatIsAskedDoesWithoutIt() async throws {
        let place = try scratch()
        let search = SearchModel(home: place.appendingPathComponent("home"))
        let (model, bag, fast) = try twoSpeeds(search)
        bag.before { if $0 > 100 { throw RunnerFailed("it is slow") } }
        await search.importFile(try file(texts(600), in: place))
        model.ask()
        try await eventually("it is stopped") { search.index?.isStopped == true }
        fast.before { _ in throw RunnerFailed("it is fast") }
        search.preferFast(true)
        try await eventually("the faster model has failed") { search.problem == .failed("It is fast.") }
        try await eventually("the faster model is closed") { fast.openFiles == 0 }
        expect(search, other: "near", isFast: true)
        XCTAssertEqual(search.index?.isStopped, true)
        let halted = DispatchSemaphore(value: 0)
        fast.before { if $0 == 3 { halted.wait() } }
        model.choose("near/litert-int8_dynamic")
        search.goOn()
        model.ask()
        try await eventually("the faster one is offered") { search.index?.other == "fast" && search.index?.isFast == false }
        halted.signal()
        try await isFull(search, 600)
        model.leave()
        try await eventually("all are closed") { bag.openFiles + fast.openFiles == 0 }
    }

    /// Writes an index as `pocketbert index` does, of texts that an app's model embeds.
    private func write(_ folder: URL, _ texts: [String], _ models: [ShelvedModel], space: String? = nil) async throws {
        let shelved = try XCTUnwrap(models.first { $0.id == Self.id })
        let vectors = try XCTUnwrap(shelved.model.signature.vectors)
        let spec = IndexSpec(
            space: space ?? vectors.id, width: vectors.width, storage: .int8, scales: vectors.scales, isUnitLength: true,
            madeBy: "executorch-int8_dynamic")
        let worker = Worker(shelved)
        var passages: [Passage] = []
        for text in texts {
            guard case .embedding(let embedding) = try await worker.ask(Question(text)).answer else { return XCTFail("no embedding") }
            passages.append(Passage(id: text, text: text, embedding: embedding))
        }
        try FlatIndex.openOrCreate(folder, spec, width: spec.width).add(passages)
    }

    func testAShippedIndexIsSearchedWhereItIsOfTheModelsSpace() async throws {
        let (bag, place) = (try bag(), try scratch())
        let all = texts(100)
        let shipped = place.appendingPathComponent("models")
        try FileManager.default.copyItem(at: try Served().folder.appendingPathComponent("models"), to: shipped)
        let models = try models(bag, shipped)
        for name in ["index", "near/index"] {
            let folder = shipped.appendingPathComponent(name)
            try await write(folder, all, models)
            let search = SearchModel()
            let model = model(search, models)
            try await asked(model, all[42])
            XCTAssertEqual([search.index?.passages, search.index?.texts], [100, nil])
            XCTAssertEqual(search.index?.isOwn, false)
            XCTAssertEqual(search.found.first?.text, all[42])
            XCTAssertEqual(search.found.count, 10)
            // A person's own sentences are searched in its place.
            search.replace(by: "One.\nTwo.")
            try await asked(model, "One.")
            XCTAssertEqual(Set(search.found.map(\.text)), ["One.", "Two."])
            search.reset()
            try await asked(model, all[7])
            XCTAssertEqual(search.found.first?.text, all[7])
            model.leave()
            try FileManager.default.removeItem(at: folder)
        }
        let folder = shipped.appendingPathComponent("index")
        try await write(folder, all, models, space: "0123456789abcdef")
        let search = SearchModel()
        let other = model(search, models)
        try await asked(other, "When does the shop close?")
        XCTAssertNil(search.index)
        XCTAssertNil(search.problem)
        XCTAssertEqual(search.found.count, 10)
        other.leave()
        try Data(count: 3).write(to: folder.appendingPathComponent("vectors.bin"))
        let damaged = SearchModel()
        let last = model(damaged, models)
        try await asked(last, "When does the shop close?")
        guard case .failed(let why)? = damaged.problem else { return XCTFail("it is \(String(describing: damaged.problem))") }
        XCTAssertTrue(why.contains("damaged"), why)
        last.leave()
    }
}
