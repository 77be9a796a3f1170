import AppParts
import Core
import Foundation
import Observation

/// Measures a model as a computer would: the request is written into a folder of a run, and carried out from there.
@MainActor @Observable
public final class BenchmarkModel {
    public enum State: Sendable {
        case idle
        case running(RunProgress)
        case ended(RunProgress, RunRecord?)
        /// It did not begin: no length is chosen.
        case lacksLength
        /// It did not begin; the message is a sentence.
        case failed(String)

        /// Whether something went wrong: a run that somebody stopped is none.
        public var isProblem: Bool {
            switch self {
            case .idle, .running, .lacksLength: false
            case .ended(let end, _): end.state != .finished && end.state != .cancelled
            case .failed: true
            }
        }
    }

    private nonisolated static let mostTexts = 24
    private static let freeLengths = [16, 32, 64, 128, 256, 512]
    public static let minutesOffered = [1.0, 2, 5, 10]

    public let models: [ShelvedModel]
    public private(set) var chosen: ShelvedModel?
    public private(set) var state = State.idle
    /// Records of earlier runs, the newest first.
    public private(set) var records: [RunRecord] = []
    /// One of the units that are offered; nil for the file's default.
    public var computeUnits: String?
    public var threads = 1
    public var lengths: Set<Int> = []
    public var minutes = 2.0
    /// Waits until the phone's thermal state is its coolest one.
    public var waitsUntilCool = false
    private let equipment: Equipment
    private let background = Background()
    private var work: Task<Void, Never>?

    public init(_ models: [ShelvedModel], _ equipment: Equipment) {
        self.models = models
        self.equipment = equipment
        if let model = models.first { choose(model.id) }
    }

    /// Whether this phone tells how warm it is, so that one can wait for it.
    public var tellsHeat: Bool { !equipment.phone.thermalStates.isEmpty }

    /// The lengths that the chosen file runs at; where it takes any, some that are usual.
    public var lengthsOffered: [Int] {
        guard let signature = chosen?.model.signature else { return [] }
        if signature.functions.allSatisfy(\.fixed) { return signature.functions.map(\.maxLength) }
        return Self.freeLengths.filter { $0 < signature.maxLength } + [signature.maxLength]
    }

    /// The compute units that the chosen file may be measured on: untried ones once the self-test has passed there.
    public var unitsOffered: [String] { chosen?.units ?? [] }

    /// Takes another model, with what its runtime offers.
    public func choose(_ id: ShelvedModel.ID) {
        guard let model = models.first(where: { $0.id == id }) else { return }
        chosen = model
        if computeUnits.map({ !model.units.contains($0) }) ?? false { computeUnits = nil }
        threads = min(max(threads, model.linked.threads.lowerBound), model.linked.threads.upperBound)
        lengths = Set(lengthsOffered)
    }

    public var isRunning: Bool {
        if case .running = state { true } else { false }
    }

    /// Starts a run, unless one goes on.
    public func start() {
        guard let chosen, !isRunning else { return }
        if lengths.isEmpty {
            state = .lacksLength
            return
        }
        state = .running(RunProgress(state: .running, done: 0, doing: "starting"))
        let (equipment, background) = (equipment, background)
        let (units, threads, lengths) = (computeUnits, threads, lengths.sorted())
        let (minutes, run) = (minutes, Self.name(chosen))
        let startThermal = waitsUntilCool ? equipment.phone.thermalStates.first : nil
        work = Task {
            do {
                let folder = try await background.run { _ in
                    try equipment.runs.write(
                        RunRequest(
                            runId: run, model: chosen.id, computeUnits: units, threads: threads, lengths: lengths,
                            texts: try Self.texts(chosen.model), minutes: minutes, startBelowC: nil, startThermal: startThermal))
                }
                let end = await RunInFolder.carryOut(folder, equipment) { [weak self] progress in
                    if self?.isRunning ?? false { self?.state = .running(progress) }
                }
                state = .ended(end, end.state == .finished ? try? RunRecord(folder: folder) : nil)
            } catch {
                state = .failed(error.sentence)
            }
            await readRecords()
        }
    }

    /// Asks the run that goes on to end: it writes that into its folder, and then has ended.
    public func cancel() { work?.cancel() }

    /// Waits for what goes on.
    public func settled() async { await work?.value }

    /// Reads the records of earlier runs.
    public func readRecords() async {
        let runs = equipment.runs
        // Also where the task was cancelled: the list is to be right after it.
        records = await Task.detached { runs.records() }.value
    }

    /// Removes an earlier run; where that fails, the state says why.
    public func remove(_ record: RunRecord) async {
        do {
            try equipment.runs.remove(record.id)
        } catch {
            if !isRunning { state = .failed(error.sentence) }
        }
        await readRecords()
    }

    /// Names a run by its model and the time, so that folders sort by time within a model.
    private static func name(_ model: ShelvedModel) -> String {
        let moment = ISO8601DateFormatter().string(from: Date()).filter { $0 != ":" }
        return "\(model.id.replacingOccurrences(of: "/", with: "-").prefix(60))-\(moment)"
    }

    /// Takes the texts that were shipped with a model to test it: they are real ones, short and long.
    private nonisolated static func texts(_ model: Model) throws -> [String] {
        let all = try model.golden().rows.map(\.first).filter { !$0.allSatisfy(\.isWhitespace) }
        var seen: Set<String> = []
        return Array(all.filter { seen.insert($0).inserted }.prefix(mostTexts))
    }
}
