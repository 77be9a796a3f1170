import AppParts
import Core
import Foundation
import Observation

/// What is searched by meaning: a set of sentences, each of which is embedded once and kept while the model and the sentence stay
/// the same; or an index, of a person's own texts where there are many, or the one that was shipped with the model. An index is
/// filled while the screen is open, and goes on where it was left.
@MainActor @Observable
public final class SearchModel {
    /// A sentence that was found.
    public struct Neighbour: Sendable, Equatable, Identifiable {
        public let place: Int
        public let text: String
        public let cosine: Float

        public var id: Int { place }
    }

    /// What went wrong with the set.
    public enum Problem: Sendable, Equatable {
        case tooLarge(file: String, mostBytes: Int64)
        case notUtf8(file: String)
        case cut(taken: Int, of: Int)
        /// It is used and could not be written; the reason is a sentence.
        case notKept(String)
        /// The message is a sentence.
        case failed(String)
    }

    /// An index in place of the sentences.
    public struct Indexed: Sendable, Equatable {
        /// Whether it is of a person's own texts.
        public let isOwn: Bool
        /// How many passages can be found.
        public fileprivate(set) var passages: Int
        /// Of how many texts they are, where more are to come; nil where the index is full.
        public fileprivate(set) var texts: Int?
        /// Why filling it rests; nil where it goes on.
        public fileprivate(set) var rest: Rest?
        /// Whether a person has stopped it.
        public fileprivate(set) var isStopped = false
        /// The name of the model that can fill it in place of the one that does; nil where there is none.
        public fileprivate(set) var other: String?
        /// Whether the faster and less exact one of both fills it, see `ShelvedModel.faster`.
        public fileprivate(set) var isFast = false
    }

    /// More are not embedded for one question where there is no folder for an index: a phone embeds some hundred a second.
    public static let mostSentences = 5_000
    /// More are kept in an index, where there is a folder for one.
    public static let mostInMemory = 500
    /// An index of a person's own texts has no more.
    public nonisolated static let mostTexts = 100_000
    private nonisolated static let mostFileBytes = 8 << 20
    private nonisolated static let top = 10
    /// What is shown is looked for again each time that so many passages came to the index.
    private static let foundEvery = 512

    public private(set) var sentences: [String]
    /// How many sentences have their embedding; nil while none is being computed.
    public private(set) var progress: (done: Int, all: Int)?
    public private(set) var found: [Neighbour] = []
    public private(set) var problem: Problem?
    /// What is searched in place of the sentences; nil where they are.
    public private(set) var index: Indexed?
    private let storage: URL?
    private let home: URL?
    private let own: OwnTexts?
    private let gate: EnergyGate?
    private let restSeconds: Double
    private var worker: Worker?
    /// The index that is searched, while it is opened and then.
    private var opening: Task<OpenIndex?, Never>?
    private var filling: Task<Void, Never>?
    private var closing: Task<Void, Never>?
    /// Rises whenever another index is opened, or none.
    private var opened = 0
    /// What was looked for last.
    private var query: [Float]?
    /// The model whose embeddings are kept, also while it is closed.
    private var embedder: ShelvedModel?
    /// Fills an index of a person's own texts in place of `embedder` when asked to, and answers no question; nil where there is none.
    private var faster: ShelvedModel?
    private var prefersFast = false
    private var embeddings: [String: [Float]] = [:]
    /// Rises whenever the set is written.
    private var edition = 0

    private var isRestored = false
    private var saving: Task<Void, Never>?

    /// Begins with the example.
    ///
    /// - Parameters:
    ///   - storage: a text file for the set, see `restore`; nil keeps it in memory alone.
    ///   - home: a folder for indexes; nil has none of a person's own texts.
    ///   - gate: says when filling an index has to rest; nil for never.
    ///   - restSeconds: after which the gate is asked again.
    public init(storage: URL? = nil, home: URL? = nil, gate: EnergyGate? = nil, restSeconds: Double = 30) {
        self.storage = storage
        self.home = home
        self.gate = gate
        self.restSeconds = restSeconds
        own = home.map(OwnTexts.init)
        sentences = Examples.sentences
    }

    /// Takes up the set where it was left, once.
    public func restore() async {
        guard let storage, !isRestored else { return }
        isRestored = true
        let kept = await Task.detached { (try? String(contentsOf: storage, encoding: .utf8)).map(Self.lines) }.value
        // Whoever was faster than the disk means the set as it is now.
        guard let kept, edition == 0 else { return }
        sentences = kept
        edition += 1
        found = []
    }

    /// Waits until the set is written.
    public func saved() async { await saving?.value }

    /// Takes an open model, whose embeddings may be others, and goes on with its index; nil where it is closed.
    ///
    /// - Parameters:
    ///   - worker: that model's.
    ///   - models: of which a faster one may fill it.
    func use(_ worker: Worker?, among models: [ShelvedModel] = []) {
        if self.worker !== worker { pause() }
        self.worker = worker
        guard let worker else { return }
        if worker.shelved.id != embedder?.id {
            embedder = worker.shelved
            faster = worker.shelved.faster(among: models)
            prefersFast = false
            embeddings = [:]
            found = []
        }
        if opening == nil { open() }
    }

    /// Gives up filling the index, and closes it: the screen is left, or something else is searched.
    func pause() {
        filling?.cancel()
        let (before, filled, index) = (closing, filling, opening)
        filling = nil
        opening = nil
        query = nil
        opened += 1
        guard let index else { return }
        closing = Task {
            await before?.value
            await filled?.value
            await index.value?.close()
        }
    }

    /// Stops filling the index until `goOn`.
    public func stop() {
        filling?.cancel()
        index?.isStopped = true
        index?.rest = nil
    }

    /// Goes on with filling the index.
    public func goOn() {
        index?.isStopped = false
        pause()
        open()
    }

    /// Goes on with filling the index by the faster model, or by the one that is asked; passages that are there stay.
    public func preferFast(_ isSo: Bool) {
        prefersFast = isSo && faster != nil
        offer()
        goOn()
    }

    /// Says of an index that is being filled by which model, and which other one can.
    private func offer() {
        guard index?.texts != nil else { return }
        index?.other = (prefersFast ? embedder : faster)?.name
        index?.isFast = prefersFast
    }

    /// Waits until the index is full or stopped, or is closed where it was left.
    public func settled() async {
        await filling?.value
        await closing?.value
    }

    private func open() {
        guard let worker, worker.shelved.task == .search, !worker.shelved.model.hasRandomWeights else { return }
        let before = closing
        let opening = Task {
            await before?.value
            return await opened(worker.shelved.model)
        }
        self.opening = opening
        filling = Task {
            guard let index = await opening.value, index.isOwn, self.index?.isStopped != true, !Task.isCancelled else { return }
            // Closed when nobody holds it any more: questions are asked of the other one.
            let filler = prefersFast ? faster.map { Worker($0) } : nil
            await fill(index, filler ?? worker)
        }
    }

    private func opened(_ model: Model) async -> OpenIndex? {
        let (edition, home, own, isExample) = (opened, home, own, sentences == Examples.sentences)
        do {
            let (found, texts) = try await Task.detached { () -> (OpenIndex?, Int?) in
                guard let home, let own, own.isThere else {
                    if let home { OpenIndex.forget(home) }
                    return (isExample ? try OpenIndex.shipped(model) : nil, nil)
                }
                return (try OpenIndex(own: home, model), min(try own.count(), Self.mostTexts))
            }.value
            let passages = await found?.count ?? 0
            guard edition == opened else { return found }
            let isStopped = index?.isStopped ?? false
            index = found.map { Indexed(isOwn: $0.isOwn, passages: passages, texts: texts, isStopped: isStopped) }
            offer()
            return found
        } catch {
            if edition == opened {
                problem = .failed(error.sentence)
                index = nil
            }
            return nil
        }
    }

    private func fill(_ index: OpenIndex, _ worker: Worker) async {
        guard let own else { return }
        let (edition, gate) = (opened, gate)
        var told = 0
        do {
            try await index.fill(own, worker, rest: { gate?.rest() }, restSeconds: restSeconds) { done, rest in
                try Task.checkCancellation()
                guard edition == self.opened else { return }
                self.index?.passages = done
                self.index?.rest = rest
                if done - told < Self.foundEvery { return }
                told = done
                try await self.look(index)
            }
            let passages = await index.count
            guard edition == opened, !Task.isCancelled else { return }
            self.index = Indexed(isOwn: true, passages: passages)
            try await look(index)
        } catch {
            if edition != opened || Task.isCancelled || error is CancellationError { return }
            problem = .failed(error.sentence)
            self.index?.isStopped = true
        }
    }

    /// Finds what is nearest to the last query in an index.
    private func look(_ index: OpenIndex) async throws {
        guard let query else { return }
        let edition = opened
        let hits = try await index.search(query, top: Self.top)
        // Something else may be searched by now.
        guard edition == opened, query == self.query else { return }
        found = hits.map { Neighbour(place: $0.row, text: $0.text, cosine: $0.cosine) }
    }

    /// Forgets what was found: it is another model's.
    func forget() { found = [] }

    /// Replaces what is searched by the lines of a text; empty ones are left out.
    public func replace(by text: String) { set(Self.lines(text)) }

    /// Adds a sentence at the end.
    public func add(_ sentence: String) { set(sentences + Self.lines(sentence)) }

    /// Removes sentences by their places.
    public func remove(at places: IndexSet) {
        set(sentences.indices.filter { !places.contains($0) }.map { sentences[$0] })
    }

    /// Puts the example back, or the index that was shipped with the model.
    public func reset() { set(Examples.sentences) }

    /// Replaces what is searched by the lines of a text file, which is read off the main thread: it may lie in a cloud.
    public func importFile(_ file: URL) async {
        let name = file.lastPathComponent
        do {
            guard let own else {
                return replace(by: try await Task.detached { try OwnTexts.read(file, most: Self.mostFileBytes) }.value)
            }
            let most = Self.mostInMemory
            let (count, few) = try await Task.detached { () -> (Int, [String]?) in
                let count = try own.take(file)
                return (count, count <= most ? try own.taken() : nil)
            }.value
            if let few { set(few) } else { try keepOwn(count) }
        } catch OwnTexts.Refused.tooLarge {
            problem = .tooLarge(file: name, mostBytes: Int64(own == nil ? Self.mostFileBytes : OwnTexts.mostBytes))
        } catch OwnTexts.Refused.notUtf8 {
            problem = .notUtf8(file: name)
        } catch {
            problem = .failed(error.sentence)
        }
        own?.drop()
    }

    /// Takes the texts that were copied; more than fit in memory.
    private func keepOwn(_ count: Int) throws {
        try own?.keep()
        pause()
        sentences = []
        edition += 1
        embeddings = [:]
        found = []
        problem = count > Self.mostTexts ? .cut(taken: Self.mostTexts, of: count) : nil
        index = Indexed(isOwn: true, passages: 0, texts: min(count, Self.mostTexts))
        open()
    }

    /// Finds what is nearest to an embedding, in the index where there is one; embeds sentences that are new first. Cancelled with
    /// the task.
    func find(_ embedding: [Float]) async throws {
        query = embedding
        if let index = await opening?.value {
            try Task.checkCancellation()
            return try await look(index)
        }
        let (sentences, edition) = (sentences, edition)
        let among = try await embedded(sentences)
        // A set of thousands takes milliseconds, in which the screen would stand still.
        let nearest = await Task.detached(priority: .userInitiated) {
            Outputs.nearest(embedding, among: among, top: Self.top)
        }.value
        try Task.checkCancellation()
        // Another set may have been written meanwhile; what was found in the old one is of no use there.
        guard edition == self.edition else { return }
        found = nearest.map { Neighbour(place: $0.place, text: sentences[$0.place], cosine: $0.cosine) }
    }

    /// Returns an embedding for each sentence, at its place.
    private func embedded(_ sentences: [String]) async throws -> [[Float]] {
        guard let worker else { return [] }
        defer { progress = nil }
        var missing = 0
        var all: [[Float]] = []
        for (place, sentence) in sentences.enumerated() {
            if let known = embeddings[sentence] {
                all.append(known)
                continue
            }
            if missing % 8 == 0 { progress = (place, sentences.count) }
            missing += 1
            let prompt = worker.shelved.model.signature.documentPrompt
            let reply = try await worker.ask(Question(sentence, prompt: prompt))
            try Task.checkCancellation()
            // Another model may have been taken meanwhile.
            guard worker === self.worker, case .embedding(let embedding) = reply.answer else { throw CancellationError() }
            embeddings[sentence] = embedding
            all.append(embedding)
        }
        return all
    }

    private func set(_ new: [String]) {
        if let own, new.count > Self.mostInMemory {
            do {
                try own.take(new)
                return try keepOwn(new.count)
            } catch {
                problem = .notKept(error.sentence)
                return
            }
        }
        own?.remove()
        pause()
        index = nil
        sentences = Array(new.prefix(Self.mostSentences))
        edition += 1
        problem = new.count > Self.mostSentences ? .cut(taken: Self.mostSentences, of: new.count) : nil
        let kept = Set(sentences)
        embeddings = embeddings.filter { kept.contains($0.key) }
        found = []
        if let storage { save(sentences, storage, edition, behind: saving) }
        open()
    }

    /// Writes the set off the main thread, behind what is being written.
    private func save(_ sentences: [String], _ storage: URL, _ edition: Int, behind before: Task<Void, Never>?) {
        saving = Task {
            await before?.value
            do {
                try await Task.detached {
                    try Data(sentences.joined(separator: "\n").utf8).write(to: storage, options: .atomic)
                }.value
            } catch {
                if edition == self.edition { problem = .notKept(error.sentence) }
            }
        }
    }

    private nonisolated static func lines(_ text: String) -> [String] {
        text.split(whereSeparator: \.isNewline).map { $0.trimmingCharacters(in: .whitespaces) }.filter { !$0.isEmpty }
    }
}
