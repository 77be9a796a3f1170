import AppParts
import Core
import Foundation
import Observation

/// A set of sentences that is searched by meaning: each one's embedding is computed once, and kept while the model and the
/// sentence stay the same.
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

    /// A file from which sentences are imported may not be larger: a phone embeds some hundred sentences a second.
    public static let mostSentences = 5_000
    private nonisolated static let mostFileBytes = 8 << 20
    private nonisolated static let top = 10

    public private(set) var sentences: [String]
    /// How many sentences have their embedding; nil while none is being computed.
    public private(set) var progress: (done: Int, all: Int)?
    public private(set) var found: [Neighbour] = []
    public private(set) var problem: Problem?
    private let storage: URL?
    private var worker: Worker?
    /// The model whose embeddings are kept, also while it is closed.
    private var embedder: ShelvedModel.ID?
    private var embeddings: [String: [Float]] = [:]
    /// Rises whenever the set is written.
    private var edition = 0

    private var isRestored = false
    private var saving: Task<Void, Never>?

    /// Begins with the example.
    ///
    /// - Parameter storage: a text file for the set, see `restore`; nil keeps it in memory alone.
    public init(storage: URL? = nil) {
        self.storage = storage
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

    /// Takes an open model, whose embeddings may be others; nil where it is closed.
    func use(_ worker: Worker?) {
        self.worker = worker
        guard let worker, worker.shelved.id != embedder else { return }
        embedder = worker.shelved.id
        embeddings = [:]
        found = []
    }

    /// Forgets what was found: it is another model's.
    func forget() { found = [] }

    /// Replaces the set by the lines of a text; empty ones are left out.
    public func replace(by text: String) { set(Self.lines(text)) }

    /// Adds a sentence at the end.
    public func add(_ sentence: String) { set(sentences + Self.lines(sentence)) }

    /// Removes sentences by their places.
    public func remove(at places: IndexSet) {
        set(sentences.indices.filter { !places.contains($0) }.map { sentences[$0] })
    }

    /// Puts the example back.
    public func reset() { set(Examples.sentences) }

    /// Replaces the set by the lines of a text file, which is read off the main thread: it may lie in a cloud.
    public func importFile(_ file: URL) async {
        do {
            guard let data = try await Task.detached(operation: { try Self.read(file) }).value else {
                problem = .tooLarge(file: file.lastPathComponent, mostBytes: Int64(Self.mostFileBytes))
                return
            }
            guard let text = String(data: data, encoding: .utf8) else {
                problem = .notUtf8(file: file.lastPathComponent)
                return
            }
            replace(by: text)
        } catch {
            problem = .failed(error.sentence)
        }
    }

    /// Returns what a file holds, or nil where that is too much.
    private nonisolated static func read(_ file: URL) throws -> Data? {
        let size = try FileManager.default.attributesOfItem(atPath: file.path)[.size] as? Int ?? 0
        return size > mostFileBytes ? nil : try Data(contentsOf: file)
    }

    /// Finds the sentences that are nearest to an embedding; embeds those that are new first. Cancelled with the task.
    func find(_ embedding: [Float]) async throws {
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
            let prompt = Self.sentencePrompt(worker.shelved.model.signature)
            let reply = try await worker.ask(Question(sentence, prompt: prompt))
            try Task.checkCancellation()
            // Another model may have been taken meanwhile.
            guard worker === self.worker, case .embedding(let embedding) = reply.answer else { throw CancellationError() }
            embeddings[sentence] = embedding
            all.append(embedding)
        }
        return all
    }

    /// Returns the prompt of what is looked for. The prompts of a search, for models that have some: what is looked for is
    /// embedded with the one named `query`, the sentences with `document` or `passage`, and with the default one where there is
    /// none of these names.
    static func queryPrompt(_ signature: Signature) -> String? { signature.prompts["query"].map { _ in "query" } }

    /// Returns the prompt of the sentences, as `queryPrompt` says.
    static func sentencePrompt(_ signature: Signature) -> String? {
        ["document", "passage"].first { signature.prompts[$0] != nil }
    }

    private func set(_ new: [String]) {
        sentences = Array(new.prefix(Self.mostSentences))
        edition += 1
        problem = new.count > Self.mostSentences ? .cut(taken: Self.mostSentences, of: new.count) : nil
        let kept = Set(sentences)
        embeddings = embeddings.filter { kept.contains($0.key) }
        found = []
        if let storage { save(sentences, storage, edition, behind: saving) }
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
