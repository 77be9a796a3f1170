import AppParts
import Core
import Observation

/// One model at a time is asked what a person writes; once it has answered, the same row runs on until its warm median is known.
@MainActor @Observable
public final class TryModel {
    public enum State: Sendable, Equatable {
        /// Nothing was asked, or something is missing.
        case idle(Question.Missing?)
        /// The model's file is being opened, which is no part of an inference.
        case opening
        case working
        case answered(Reply)
        /// The message is a sentence.
        case failed(String)
    }

    /// What the screen shows, and what a reader of the screen hears, in this order below the title.
    public enum Part: Sendable, Hashable {
        case input
        case answer
        case caption
        case actions
    }

    public let models: [ShelvedModel]
    public private(set) var chosen: ShelvedModel?
    public private(set) var state = State.idle(nil)
    /// The median of the runs after the one that gave the answer; nil until all of them have run.
    public private(set) var warmMs: Double?
    /// The text; or the question.
    public var first = ""
    /// The second text, or the passage.
    public var second = ""
    /// The one of the chosen model's prompts that is put before the text; an empty name for none.
    public private(set) var prompt = ""
    /// Whether a person's own labels are asked where the chosen model takes some.
    public var prefersOwn = true
    /// Those labels, with commas or ends of lines between.
    public var labels = Examples.labels
    /// The sentence into which each is put.
    public var template = ZeroShot.template
    /// Whether each is decided by itself where the chosen model can.
    public var multiLabel = false
    /// The set that is searched, where the chosen model embeds texts.
    public let search: SearchModel
    private let warmRuns: Int
    private var worker: Worker?
    private var work: Task<Void, Never>?

    /// Chooses the first model, and asks it nothing yet.
    ///
    /// - Parameters:
    ///   - models: those that can be asked.
    ///   - search: the set for models that embed texts.
    ///   - warmRuns: how often an answered row is run again for its median.
    public init(_ models: [ShelvedModel], search: SearchModel, warmRuns: Int = 10) {
        self.models = models
        self.search = search
        self.warmRuns = warmRuns
        if let model = models.first { choose(model.id) }
    }

    /// Takes another model, with an example of what it can be asked. What was asked of the one before is cancelled.
    public func choose(_ id: ShelvedModel.ID) {
        guard let model = models.first(where: { $0.id == id }), model.id != chosen?.id else { return }
        leave()
        let sameTask = model.task == chosen?.task
        chosen = model
        // What is shown is of the model before.
        state = .idle(nil)
        warmMs = nil
        search.forget()
        // What is written here is looked for.
        prompt = model.model.signature.queryPrompt ?? model.model.signature.defaultPrompt ?? ""
        if !sameTask {
            let example = Examples.question(for: model.task)
            first = example.first
            second = example.second ?? ""
        }
    }

    /// Takes another prompt of the chosen model; an empty name for none.
    public func choosePrompt(_ name: String) {
        if name.isEmpty || chosen?.prompts.contains(name) ?? false { prompt = name }
    }

    /// The prompts of the model that has answered without one of them.
    public var unusedPrompts: [String] {
        guard case .answered(let reply) = state, reply.question.prompt == "" else { return [] }
        return chosen?.prompts ?? []
    }

    /// The labels that are asked in place of the chosen model's; nil where its own are.
    public var own: OwnLabels? {
        guard let chosen, chosen.takesOwnLabels, prefersOwn else { return nil }
        return OwnLabels(ZeroShot.split(labels), template: template, multiLabel: multiLabel && chosen.decidesEach)
    }

    /// What the chosen model would be asked.
    public var question: Question {
        switch chosen?.task {
        case .value, .answer: Question(first, second)
        // The second text of a classification may be left out; a label of a person's own takes its place.
        case .labels, .values: Question(first, own != nil || second.isEmpty ? nil : second, own: own)
        case .search: Question(first, prompt: prompt)
        case .entities, nil: Question(first)
        }
    }

    public var parts: [Part] {
        let shown: [Part] =
            switch state {
            case .idle(nil): [.input]
            case .answered: [.input, .answer, .caption]
            default: [.input, .answer]
            }
        return chosen?.task == .search ? shown + [.actions] : shown
    }

    /// Asks the chosen model; what was asked before and is not answered yet is cancelled.
    public func ask() {
        cancel()
        guard let chosen else { return }
        let question = question
        warmMs = nil
        if let missing = question.missing(for: chosen.task) {
            state = .idle(missing)
            return
        }
        let worker = worker ?? Worker(chosen)
        self.worker = worker
        search.use(worker, among: models)
        state = .opening
        work = Task {
            do {
                try await worker.prepare()
                if Task.isCancelled { return }
                state = .working
                let reply = try await worker.ask(question)
                if Task.isCancelled { return }
                if case .embedding(let embedding) = reply.answer {
                    try await search.find(embedding)
                    if Task.isCancelled { return }
                }
                state = .answered(reply)
                let median = try await warm(worker, question)
                if !Task.isCancelled { warmMs = median }
            } catch {
                if !Task.isCancelled { state = .failed(error.sentence) }
            }
        }
    }

    /// Runs an answered row again, and returns the median of its latencies.
    private func warm(_ worker: Worker, _ question: Question) async throws -> Double? {
        var samples: [Double] = []
        for _ in 0..<warmRuns {
            samples.append(try await worker.ask(question).inferenceMs)
            try Task.checkCancellation()
        }
        return Formats.median(samples)
    }

    /// Gives up what goes on; an answer stays.
    public func cancel() {
        work?.cancel()
        work = nil
        if state == .opening || state == .working { state = .idle(nil) }
    }

    /// Gives up what goes on, and the model's memory: the screen is left. What is asked next opens it again.
    public func leave() {
        cancel()
        worker = nil
        search.use(nil)
    }

    /// Waits for what goes on.
    public func settled() async { await work?.value }
}
