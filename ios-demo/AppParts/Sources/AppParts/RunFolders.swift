import Core
import Foundation

/// The folder in which benchmarks leave what they were asked and what they found: one folder a run, by the headless contract,
/// whoever asks, a computer or the screen.
public struct RunFolders: Sendable {
    public let root: URL

    public init(root: URL) { self.root = root }

    /// The folder of runs in an app's documents, where a computer and the Files app reach it.
    public static func ofApp() throws -> RunFolders {
        let documents = try FileManager.default.url(for: .documentDirectory, in: .userDomainMask, appropriateFor: nil, create: true)
        return RunFolders(root: documents.appendingPathComponent(Headless.folder))
    }

    /// Returns a run's folder, and makes it where there is none yet: whoever waits reads the status there, be it a refusal.
    ///
    /// - Throws: `WrongRun` where the name could lead out of the folder of runs.
    public func folder(_ run: String) throws -> URL {
        if !Headless.isRunId(run) { throw WrongRun(run) }
        let folder = root.appendingPathComponent(run)
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        return folder
    }

    /// Writes a request into a new run's folder, and returns the run's name.
    public func write(_ request: RunRequest) throws -> URL {
        let folder = try folder(request.runId)
        let encoder = JSONEncoder()
        encoder.outputFormatting = [.sortedKeys, .prettyPrinted]
        try encoder.encode(request).write(to: folder.appendingPathComponent(Headless.request), options: .atomic)
        return folder
    }

    /// Returns the records that lie here, the newest first; what cannot be read is left out.
    public func records() -> [RunRecord] {
        let folders = (try? FileManager.default.contentsOfDirectory(at: root, includingPropertiesForKeys: nil)) ?? []
        return folders.compactMap { try? RunRecord(folder: $0) }.sorted { $0.started > $1.started }
    }

    /// Returns where the models lie that a run measures: those that were pushed with it, or else the app's own.
    public func models(for folder: URL, own: URL) -> URL {
        let pushed = folder.appendingPathComponent(Headless.models, isDirectory: true)
        return FileManager.default.fileExists(atPath: pushed.appendingPathComponent("models.json").path) ? pushed : own
    }

    /// Removes a folder of a run with all that is there; a copy of a run has a name that is no run's.
    public func remove(_ folder: String) throws {
        if folder.isEmpty || folder.hasPrefix(".") || folder.contains("/") { throw WrongRun(folder) }
        try FileManager.default.removeItem(at: root.appendingPathComponent(folder))
    }

    /// Returns the run that the app was started for: what follows `-pocketbert.run` among its arguments, or nil.
    public static func asked(by arguments: [String]) -> String? {
        guard let place = arguments.firstIndex(of: "-\(Headless.run)") else { return nil }
        let next = arguments.index(after: place)
        // Whoever asks for a run without a name has to be told so, and not be shown the app.
        return next < arguments.endIndex ? arguments[next] : ""
    }
}

/// A run's name is none.
public struct WrongRun: Error, CustomStringConvertible {
    public let description: String

    init(_ name: String) { description = "\"\(name.prefix(60))\" is no name of a run: letters, digits, dots and dashes make one." }
}

/// What a screen asks a benchmark for, as `request.json` has it (`docs/schemas/benchmark-request.schema.json`).
public struct RunRequest: Sendable, Encodable {
    /// Short rounds, since a status is written between two of them, and has to be written every five seconds.
    private static let roundMs = 1_000.0
    private static let leastRounds = 3
    private static let leastRuns = 3
    private static let textPasses = 3
    /// Full rows take no more than this share of the time; opening, the texts and the first runs take the rest.
    private static let lengthsShare = 0.4
    private static let msPerMinute = 60_000.0
    private static let mostRounds = 1_000.0

    public let runId: String
    let model: String
    let computeUnits: String?
    let threads: Int
    let lengths: [Int]
    let texts: [String]
    let rounds: Int
    let timeLimitS: Double
    let startBelowC: Double?
    let startThermal: String?

    /// Asks for a run.
    ///
    /// - Parameters:
    ///   - runId: a name for it, see `Headless.isRunId`.
    ///   - model: the folder of a shipped model.
    ///   - computeUnits: as the runtime names them; nil for its default.
    ///   - threads: of the runtime.
    ///   - lengths: full rows of these lengths are timed.
    ///   - texts: are timed as they come.
    ///   - minutes: after which it ends, finished or not.
    ///   - startBelowC: waits until the phone is cooler; nil does not wait.
    ///   - startThermal: waits until the thermal state is this or cooler, see `Phone.thermalStates`; nil does not wait.
    public init(
        runId: String, model: String, computeUnits: String?, threads: Int, lengths: [Int], texts: [String], minutes: Double,
        startBelowC: Double?, startThermal: String? = nil
    ) {
        self.runId = runId
        self.model = model
        self.computeUnits = computeUnits
        self.threads = threads
        self.lengths = lengths
        self.texts = texts
        self.startBelowC = startBelowC
        self.startThermal = startThermal
        timeLimitS = minutes * 60
        let rounds = minutes * Self.msPerMinute * Self.lengthsShare / (Self.roundMs * Double(max(lengths.count, 1)))
        self.rounds = max(Self.leastRounds, Int(min(rounds, Self.mostRounds)))
    }

    private enum CodingKeys: String, CodingKey {
        case model, threads, lengths, texts, rounds
        case schemaVersion = "schema_version"
        case runId = "run_id"
        case computeUnits = "compute_units"
        case runsPerRound = "runs_per_round"
        case roundMs = "round_ms"
        case textPasses = "text_passes"
        case timeLimitS = "time_limit_s"
        case startBelowC = "start_below_c"
        case startThermal = "start_thermal"
        case sustainedS = "sustained_s"
        case sustainedPartS = "sustained_part_s"
    }

    /// Writes every field: the schema asks for a null where there is nothing.
    public func encode(to encoder: any Encoder) throws {
        var container = encoder.container(keyedBy: CodingKeys.self)
        try container.encode(1, forKey: .schemaVersion)
        try container.encode(runId, forKey: .runId)
        try container.encode(model, forKey: .model)
        try container.encode(computeUnits, forKey: .computeUnits)
        try container.encode(threads, forKey: .threads)
        try container.encode(lengths, forKey: .lengths)
        try container.encode(texts, forKey: .texts)
        try container.encode(rounds, forKey: .rounds)
        try container.encode(Self.leastRuns, forKey: .runsPerRound)
        try container.encode(Self.roundMs, forKey: .roundMs)
        try container.encode(Self.textPasses, forKey: .textPasses)
        try container.encode(timeLimitS, forKey: .timeLimitS)
        try container.encode(startBelowC, forKey: .startBelowC)
        try container.encode(startThermal, forKey: .startThermal)
        // Half an hour without a pause is asked for from outside, by `pocketbert benchmark --sustained`.
        try container.encode(0.0, forKey: .sustainedS)
        try container.encode(60.0, forKey: .sustainedPartS)
    }
}
