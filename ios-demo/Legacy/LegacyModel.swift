import AppParts
import Combine
import Core
import Foundation

/// What the one screen shows: a model is asked a text, or measured. Observation begins with iOS 17, so this is Combine's way.
@MainActor
final class LegacyModel: ObservableObject {
    @Published private(set) var models: [ShelvedModel] = []
    /// What went wrong, in a sentence.
    @Published private(set) var problem: String?
    /// What a person has yet to write.
    @Published private(set) var missing: Question.Missing?
    @Published private(set) var reply: Reply?
    /// Where a benchmark stands; nil before the first.
    @Published private(set) var progress: RunProgress?
    @Published private(set) var record: RunRecord?
    @Published var chosen = "" {
        didSet {
            guard chosen != oldValue else { return }
            if !isMeasuring { cancel() }
            worker = nil
            reply = nil
        }
    }
    @Published var first = "A man is playing a guitar."
    @Published var second = ""
    /// The run that a computer started the app for.
    let run: String?
    private let equipment: Equipment
    private let background = Background()
    private var worker: Worker?
    private var work: Task<Void, Never>?

    init(_ equipment: Equipment, run: String?) {
        self.equipment = equipment
        self.run = run
    }

    /// Whether the chosen model takes two texts.
    var takesTwo: Bool { model.map { $0.task == .value || $0.task == .answer } ?? false }

    var model: ShelvedModel? { models.first { $0.id == chosen } }

    var isMeasuring: Bool { progress.map { !$0.state.isFinal } ?? false }

    /// Reads the models; or carries out the run that the app was started for, and says how that ended.
    func start() async -> RunProgress? {
        guard models.isEmpty, progress == nil else { return nil }
        if let run { return await carryOut { try $0.runs.folder(run) } }
        let equipment = equipment
        do {
            let shelf = try await background.run { try Shelf.open(equipment, $0) }
            models = shelf.usable
            // What other runtimes would run is passed over where there is something to run.
            problem = shelf.usable.isEmpty ? shelf.refused.map(\.why).joined(separator: "\n") : nil
            chosen = shelf.usable.first?.id ?? ""
        } catch {
            problem = error.sentence
        }
        return nil
    }

    /// Asks the chosen model; what was asked before is cancelled.
    func ask() {
        work?.cancel()
        guard let model else { return }
        let question = takesTwo ? Question(first, second) : Question(first)
        problem = nil
        missing = question.missing(for: model.task)
        if missing != nil { return }
        let worker = worker ?? Worker(model)
        self.worker = worker
        work = Task {
            do {
                let reply = try await worker.ask(question)
                if !Task.isCancelled { self.reply = reply }
            } catch {
                if !Task.isCancelled { problem = error.sentence }
            }
        }
    }

    /// Measures the chosen model for some minutes, by the same contract as a computer would.
    func measure(minutes: Double) {
        guard let model = model?.model, !isMeasuring else { return }
        // A model that is open beside the one that is measured would count as its memory.
        leave()
        let run = "screen-\(Int(Date().timeIntervalSince1970))"
        work = Task {
            _ = await carryOut { equipment in
                let texts = try model.golden().rows.map(\.first).filter { !$0.allSatisfy(\.isWhitespace) }
                return try equipment.runs.write(
                    RunRequest(
                        runId: run, model: model.entry.folder, computeUnits: nil, threads: 1,
                        lengths: model.signature.functions.map(\.maxLength), texts: Array(texts.prefix(24)), minutes: minutes,
                        startBelowC: nil))
            }
        }
    }

    /// Gives up what goes on.
    func cancel() { work?.cancel() }

    /// Gives up what goes on, and the model's memory.
    func leave() {
        cancel()
        worker = nil
    }

    private func carryOut(_ folder: @escaping @Sendable (Equipment) throws -> URL) async -> RunProgress {
        let equipment = equipment
        progress = RunProgress(state: .running, done: 0, doing: "starting")
        record = nil
        let end: RunProgress
        do {
            let place = try await background.run { _ in try folder(equipment) }
            end = await RunInFolder.carryOut(place, equipment) { [weak self] progress in
                if self?.isMeasuring ?? false { self?.progress = progress }
            }
            record = try? RunRecord(folder: place)
        } catch {
            end = RunProgress(state: .refused, done: 0, doing: "refused", message: error.sentence)
        }
        progress = end
        return end
    }
}
