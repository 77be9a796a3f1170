/// What `request.json` asks for; see `pipeline/devices/headless.py`, which says how a run is started and how it can end.
public struct BenchmarkRequest: Sendable {
    private static let shortest = 3

    public let runId: String
    public let model: String
    public let computeUnits: String?
    public let threads: Int
    public let lengths: [Int]
    public let texts: [String]
    public let rounds: Int
    public let runsPerRound: Int
    public let roundMs: Double
    public let textPasses: Int
    public let timeLimitS: Double
    public let startBelowC: Double?
    /// Waits until the thermal state is this or cooler, in the system's own words; nil does not wait.
    public let startThermal: String?
    public let sustainedS: Double
    public let sustainedPartS: Double

    init(_ json: Json) throws {
        runId = try json.text("run_id")
        model = try json.text("model")
        computeUnits = try json.textOrNil("compute_units")
        threads = try json.number("threads")
        lengths = try json.numbers("lengths")
        texts = try json.texts("texts")
        rounds = try json.number("rounds")
        runsPerRound = try json.number("runs_per_round")
        roundMs = try json.double("round_ms")
        textPasses = try json.number("text_passes")
        timeLimitS = try json.double("time_limit_s")
        startBelowC = try json.doubleOrNil("start_below_c")
        startThermal = try json.textOrNil("start_thermal")
        sustainedS = try json.double("sustained_s")
        sustainedPartS = try json.double("sustained_part_s")
        if !Headless.isRunId(runId) { throw WrongJson("run_id is \(runId), which is no plain name") }
        if texts.isEmpty { throw WrongJson("texts is empty; the first one is the first inference") }
        if lengths.isEmpty || lengths.contains(where: { $0 < Self.shortest }) {
            throw WrongJson("lengths is \(lengths.listed); it has to hold lengths of \(Self.shortest) tokens or more")
        }
    }
}

/// What `status.json` says.
public struct BenchmarkStatus: Sendable {
    /// How a run stands: two states go on, the others are its end.
    public enum State: String, Sendable, CaseIterable {
        case cooling
        case running
        case finished
        case refused
        case failed
        case cancelled
        case outOfTime = "out_of_time"
        case tooHot = "too_hot"

        /// The state as the contract spells it.
        public var word: String { rawValue }
        public var isFinal: Bool { self != .cooling && self != .running }
    }

    public let runId: String
    public let state: State
    public let done: Double
    public let doing: String
    public let message: String?
    public let beats: Int

    func json() -> Json {
        .object([
            ("schema_version", .literal("1")),
            ("run_id", .text(runId)),
            ("state", .text(state.word)),
            ("done", .number(min(max(done, 0), 1))),
            ("doing", .text(doing)),
            ("message", message.map(Json.text) ?? .null),
            ("beats", .literal("\(beats)")),
        ])
    }
}

/// The names of the headless contract.
public enum Headless {
    /// Name of the intent extra, and of the launch argument, that carries a run's name.
    public static let run = "pocketbert.run"
    /// The folder of runs, in the app's documents.
    public static let folder = "runs"
    /// The folder, within a run's own, of models that were pushed with it.
    public static let models = "models"
    public static let request = "request.json"
    public static let status = "status.json"
    public static let record = "record.json"
    /// The longest time between two writes of the status.
    public static let heartbeatS = 5.0

    /// Returns whether a name cannot lead out of the folder of runs.
    public static func isRunId(_ name: String) -> Bool { name.isPlainName && name.utf8.count <= 100 }
}

extension Json {
    fileprivate func double(_ name: String) throws -> Double {
        guard let number = try doubleOrNil(name) else { throw wrong(name, "a number") }
        return number
    }
}
