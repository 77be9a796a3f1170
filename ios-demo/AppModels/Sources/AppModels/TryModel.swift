import AppParts
import Core
import Observation

/// One model at a time is asked what a person writes.
@MainActor @Observable
public final class TryModel {
    public enum State: Sendable, Equatable {
        /// Nothing was asked, or something is missing; the sentence says what.
        case idle(String?)
        case working
        case answered(Reply)
        case failed(String)
    }

    public let models: [ShelvedModel]
    public private(set) var chosen: ShelvedModel?
    public private(set) var state = State.idle(nil)
    /// The text; or the question.
    public var first = ""
    /// The second text, or the passage.
    public var second = ""
    /// The set that is searched, where the chosen model embeds texts.
    public let search: SearchModel
    private var worker: Worker?
    private var work: Task<Void, Never>?

    /// Chooses the first model, and asks it nothing yet.
    public init(_ models: [ShelvedModel], search: SearchModel) {
        self.models = models
        self.search = search
        if let model = models.first { choose(model.id) }
    }

    /// Takes another model, with an example of what it can be asked. What was asked of the one before is cancelled.
    public func choose(_ id: ShelvedModel.ID) {
        guard let model = models.first(where: { $0.id == id }), model.id != chosen?.id else { return }
        cancel()
        let sameTask = model.task == chosen?.task
        chosen = model
        // What is shown is of the model before.
        state = .idle(nil)
        let worker = Worker(model)
        self.worker = worker
        search.use(worker)
        if !sameTask {
            let example = Examples.question(for: model.task)
            first = example.first
            second = example.second ?? ""
        }
    }

    /// What the chosen model would be asked.
    public var question: Question {
        switch chosen?.task {
        case .value, .answer: Question(first, second)
        // The second text of a classification may be left out.
        case .labels: Question(first, second.isEmpty ? nil : second)
        default: Question(first)
        }
    }

    /// Asks the chosen model; what was asked before and is not answered yet is cancelled.
    public func ask() {
        cancel()
        guard let worker else { return }
        let question = question
        if let missing = question.missing(for: worker.shelved.task) {
            state = .idle(missing)
            return
        }
        state = .working
        work = Task {
            do {
                let reply = try await worker.ask(question)
                if Task.isCancelled { return }
                if case .embedding(let embedding) = reply.answer {
                    try await search.find(embedding)
                    if Task.isCancelled { return }
                }
                state = .answered(reply)
            } catch {
                if !Task.isCancelled { state = .failed(error.sentence) }
            }
        }
    }

    /// Gives up what goes on.
    public func cancel() {
        work?.cancel()
        work = nil
        if state == .working { state = .idle(nil) }
    }

    /// Waits for what goes on.
    public func settled() async { await work?.value }
}
