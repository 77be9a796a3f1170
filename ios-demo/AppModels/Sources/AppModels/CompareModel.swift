import AppParts
import Core
import Observation

/// Two shipped models side by side on the same text, live.
@MainActor @Observable
public final class CompareModel {
    /// Why a side did not answer.
    public enum Trouble: Sendable, Equatable {
        case missing(Question.Missing)
        /// The message is a sentence.
        case failed(String)
    }

    /// One of the two, with what it has shown on this text.
    public struct Side: Sendable, Identifiable {
        public let model: ShelvedModel
        /// Latencies of the last runs, in ms.
        public fileprivate(set) var samples: [Double] = []
        public fileprivate(set) var reply: Reply?
        public fileprivate(set) var trouble: Trouble?

        public var id: String { model.id }

        /// The warm median of the last runs; nil before the first.
        public var medianMs: Double? { Formats.median(samples) }
    }

    /// A side in the verdict.
    public struct Timed: Sendable, Equatable {
        public let name: ModelName
        public let medianMs: Double
        /// Nobody trained it: only its time means something.
        public let isRandom: Bool

        public init(name: ModelName, medianMs: Double, isRandom: Bool) {
            self.name = name
            self.medianMs = medianMs
            self.isRandom = isRandom
        }
    }

    /// What a comparison says: the headline is about the student alone, and the other one is its caption.
    public struct Verdict: Sendable, Equatable {
        public let student: Timed
        public let other: Timed

        public init(student: Timed, other: Timed) {
            self.student = student
            self.other = other
        }

        /// How many times as long as the student the other one takes.
        public var times: Double { other.medianMs / student.medianMs }
    }

    /// What the screen shows, and what a reader of the screen hears, in this order below the title.
    public enum Part: Sendable, Hashable {
        case input
        case answer
        case caption
        case actions
        /// The answers of the two, below all that compares them.
        case sides
    }

    /// Runs of each model on a text; the median of the last ones is shown.
    public static let runs = 30
    /// As many of the last runs are in a median.
    public static let kept = 20

    public let models: [ShelvedModel]
    public private(set) var sides: [Side] = []
    public private(set) var isRunning = false
    /// Whether all runs have ended, so that the figures no longer change.
    public private(set) var isFinal = false
    public var first = ""
    public var second = ""
    private var workers: [Worker] = []
    private var work: Task<Void, Never>?

    /// Takes the first two models: the smaller one beside the larger, since that is the comparison one makes.
    public init(_ models: [ShelvedModel]) {
        self.models = models
        let bySize = models.sorted { $0.model.entry.bytes < $1.model.entry.bytes }
        if let small = bySize.first, let large = bySize.last, small.id != large.id { set([small, large]) }
    }

    /// Takes another model for a side.
    public func choose(_ id: ShelvedModel.ID, for side: Int) {
        guard sides.indices.contains(side), let model = models.first(where: { $0.id == id }), sides[side].id != id else { return }
        var both = sides.map(\.model)
        both[side] = model
        set(both)
    }

    private func set(_ both: [ShelvedModel]) {
        leave()
        sides = both.map { Side(model: $0) }
        isFinal = false
        if first.isEmpty, let task = both.first?.task {
            let example = Examples.question(for: task)
            first = example.first
            second = example.second ?? ""
        }
    }

    /// Whether a side takes two texts.
    public var takesTwo: Bool { sides.contains { $0.model.task == .value || $0.model.task == .answer } }

    public var parts: [Part] {
        sides.isEmpty ? [.answer] : [.input, .answer, .caption, .actions, .sides]
    }

    /// How long the two take; nil while that changes, and where one of them did not answer. Random weights are the opponent, on
    /// whichever side they stand.
    public var verdict: Verdict? {
        guard isFinal, sides.count == 2, let one = timed(0), let two = timed(1), one.medianMs > 0, two.medianMs > 0 else { return nil }
        return one.isRandom && !two.isRandom ? Verdict(student: two, other: one) : Verdict(student: one, other: two)
    }

    private func timed(_ place: Int) -> Timed? {
        let (own, other) = (sides[place].model, sides[1 - place].model)
        return sides[place].medianMs.map {
            Timed(name: ModelName(own, beside: other), medianMs: $0, isRandom: own.model.hasRandomWeights)
        }
    }

    /// Runs both on the text, by turns, so that a phone that grows warm slows both; what went on before is cancelled.
    public func run() {
        cancel()
        for place in sides.indices { sides[place] = Side(model: sides[place].model) }
        if workers.isEmpty { workers = sides.map { Worker($0.model) } }
        isRunning = true
        isFinal = false
        let (workers, first, second) = (workers, first, second)
        work = Task {
            for number in 0...Self.runs {
                for (place, worker) in workers.enumerated() where sides[place].trouble == nil {
                    await run(worker, place, first, second, isFirst: number == 0)
                    if Task.isCancelled { return }
                }
            }
            isRunning = false
            isFinal = true
        }
    }

    private func run(_ worker: Worker, _ place: Int, _ first: String, _ second: String, isFirst: Bool) async {
        let task = worker.shelved.task
        let question = task == .value || task == .answer ? Question(first, second) : Question(first)
        if let missing = question.missing(for: task) {
            sides[place].trouble = .missing(missing)
            return
        }
        do {
            let reply = try await worker.ask(question)
            if Task.isCancelled { return }
            sides[place].reply = reply
            // The first run opens the model and warms it up.
            if !isFirst { sides[place].samples = (sides[place].samples + [reply.inferenceMs]).suffix(Self.kept) }
        } catch {
            if !Task.isCancelled { sides[place].trouble = .failed(error.sentence) }
        }
    }

    /// Gives up what goes on; what was measured stays.
    public func cancel() {
        work?.cancel()
        work = nil
        isRunning = false
    }

    /// Gives up what goes on, and the models' memory: the screen is left. The next run opens them again.
    public func leave() {
        cancel()
        workers = []
        // Half a comparison says nothing.
        if !isFinal { sides = sides.map { Side(model: $0.model) } }
    }

    /// Waits for what goes on.
    public func settled() async { await work?.value }
}
