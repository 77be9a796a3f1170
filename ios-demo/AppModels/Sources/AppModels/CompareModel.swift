import AppParts
import Core
import Observation

/// Two shipped models side by side on the same text, live.
@MainActor @Observable
public final class CompareModel {
    /// One of the two, with what it has shown on this text.
    public struct Side: Sendable, Identifiable {
        public let model: ShelvedModel
        /// Latencies of the last runs, in ms.
        public fileprivate(set) var samples: [Double] = []
        public fileprivate(set) var reply: Reply?
        /// Why it did not answer, in a sentence.
        public fileprivate(set) var problem: String?

        public var id: String { model.id }

        /// The median of the last runs; nil before the first.
        public var medianMs: Double? { Formats.median(samples) }
    }

    /// Runs of each model on a text; the median of the last ones is shown.
    public static let runs = 30
    private static let kept = 20

    public let models: [ShelvedModel]
    public private(set) var sides: [Side] = []
    public private(set) var isRunning = false
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
        cancel()
        sides = both.map { Side(model: $0) }
        workers = both.map { Worker($0) }
        if first.isEmpty, let task = both.first?.task {
            let example = Examples.question(for: task)
            first = example.first
            second = example.second ?? ""
        }
    }

    /// Whether a side takes two texts.
    public var takesTwo: Bool { sides.contains { $0.model.task == .value || $0.model.task == .answer } }

    /// How much less time the first needs than the second, or how much more; nil before both have run.
    public var verdict: String? {
        sides.count == 2 ? Formats.percentLess(sides[0].medianMs, than: sides[1].medianMs) : nil
    }

    /// Runs both on the text, by turns, so that a phone that grows warm slows both; what went on before is cancelled.
    public func run() {
        cancel()
        for place in sides.indices { sides[place] = Side(model: sides[place].model) }
        isRunning = true
        let (workers, first, second) = (workers, first, second)
        work = Task {
            for number in 0...Self.runs {
                for (place, worker) in workers.enumerated() where sides[place].problem == nil {
                    await run(worker, place, first, second, isFirst: number == 0)
                    if Task.isCancelled { return }
                }
            }
            isRunning = false
        }
    }

    private func run(_ worker: Worker, _ place: Int, _ first: String, _ second: String, isFirst: Bool) async {
        let task = worker.shelved.task
        let question = task == .value || task == .answer ? Question(first, second) : Question(first)
        if let missing = question.missing(for: task) {
            sides[place].problem = missing
            return
        }
        do {
            let reply = try await worker.ask(question)
            if Task.isCancelled { return }
            sides[place].reply = reply
            // The first run opens the model and warms it up.
            if !isFirst { sides[place].samples = (sides[place].samples + [reply.inferenceMs]).suffix(Self.kept) }
        } catch {
            if !Task.isCancelled { sides[place].problem = error.sentence }
        }
    }

    /// Gives up what goes on; what was measured stays.
    public func cancel() {
        work?.cancel()
        work = nil
        isRunning = false
    }

    /// Waits for what goes on.
    public func settled() async { await work?.value }
}
