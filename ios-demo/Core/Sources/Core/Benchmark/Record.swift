import Foundation

/// The machine that was measured; what it does not tell is nil.
public struct Machine: Sendable {
    public let platform: String
    public let modelId: String
    public let soc: String?
    public let os: String
    public let osBuild: String?
    public let ramBytes: Int64
    public let cores: Int
    public let abi: String
    public let pageSize: Int
    public let coreMaxMhz: [Int]?
    public let cpuFeatures: [String]

    public init(
        platform: String, modelId: String, soc: String?, os: String, osBuild: String?, ramBytes: Int64, cores: Int, abi: String,
        pageSize: Int, coreMaxMhz: [Int]?, cpuFeatures: [String]
    ) {
        self.platform = platform
        self.modelId = modelId
        self.soc = soc
        self.os = os
        self.osBuild = osBuild
        self.ramBytes = ramBytes
        self.cores = cores
        self.abi = abi
        self.pageSize = pageSize
        self.coreMaxMhz = coreMaxMhz
        self.cpuFeatures = cpuFeatures
    }
}

/// The machine's state before or after a run; what it does not tell is nil.
public struct Moment: Sendable {
    public let thermal: String?
    public let temperatureC: Double?
    public let clocksMhz: [Int]?
    public let batteryFraction: Double?
    public let batteryChargeUah: Int64?
    public let charging: Bool?
    public let lowPower: Bool?
    /// Whether the app is in front.
    public let foreground: Bool?
    /// How often the app has left the foreground since the process began; nil where it is not counted.
    public let timesInBackground: Int?
    public let loadAverage: Double?
    public let batteryMillivolts: Int?
    public let governors: [String]?
    public let coresAllowed: [Int]?

    public init(
        thermal: String? = nil, temperatureC: Double? = nil, clocksMhz: [Int]? = nil, batteryFraction: Double? = nil,
        batteryChargeUah: Int64? = nil, charging: Bool? = nil, lowPower: Bool? = nil, foreground: Bool? = nil,
        timesInBackground: Int? = nil, loadAverage: Double? = nil, batteryMillivolts: Int? = nil, governors: [String]? = nil,
        coresAllowed: [Int]? = nil
    ) {
        self.thermal = thermal
        self.temperatureC = temperatureC
        self.clocksMhz = clocksMhz
        self.batteryFraction = batteryFraction
        self.batteryChargeUah = batteryChargeUah
        self.charging = charging
        self.lowPower = lowPower
        self.foreground = foreground
        self.timesInBackground = timesInBackground
        self.loadAverage = loadAverage
        self.batteryMillivolts = batteryMillivolts
        self.governors = governors
        self.coresAllowed = coresAllowed
    }
}

/// What an app knows of the phone that it runs on, and of itself.
public protocol Phone: Sendable {
    /// `device`, `simulator`, `host` or `emulated-arm64`.
    var source: String { get }
    var machine: Machine { get }

    /// Versions of the app and of what it runs, by name.
    var versions: [String: String] { get }

    /// From the start of the process until the app could take a request; nil where the system does not tell.
    var processToReadyMs: Double? { get }

    /// The words of `Moment.thermal`, the coolest first; empty where the system tells no thermal state.
    var thermalStates: [String] { get }

    /// What `residentBytes` and `peakBytes` count: `rss`, `pss` or `footprint`.
    var memoryKind: String { get }

    func moment() -> Moment

    func residentBytes() -> Int64?

    /// The highest since the process began, or since the system was asked to begin again.
    func peakBytes() -> Int64?

    /// The proportional set, in which a page shared by n processes counts as an nth; nil where the system does not tell.
    func proportionalBytes() -> Int64?

    /// Processor time of the process, all threads; nil where the system does not tell.
    func cpuMs() -> Double?
}

extension Phone {
    public var thermalStates: [String] { [] }
}

/// Times of full rows of one length.
struct LengthSamples {
    let length: Int
    let ranAt: Int
    var wall: [Double] = []
    var cpu: [Double?] = []
}

/// Times of texts as they come, pass by pass.
struct TextSamples {
    let passes: Int
    var tokens: [Int] = []
    var ranAt: [Int] = []
    var wall: [Double] = []
    var cpu: [Double?] = []
    var tokenize: [Double] = []
}

/// Times of a part of a sustained run, and the phone's state at its end.
struct SustainedPart {
    let beginsS: Double
    let seconds: Double
    let wall: [Double]
    let after: Moment
}

/// What was measured, put into the schema of a `BenchmarkRecord` (`docs/schemas/benchmark-record.schema.json`).
enum Record {
    private static let schema = Schema.of("benchmark-record")
    private static let tenthsOfUs = 1e4

    /// Returns a record that fits the schema.
    static func checked(_ record: Json) throws -> Json {
        try schema.check(record)
        return record
    }

    static func machine(_ machine: Machine) -> Json {
        .object([
            ("platform", json(machine.platform)),
            ("model_id", json(machine.modelId)),
            ("soc", json(machine.soc)),
            ("os", json(machine.os)),
            ("os_build", json(machine.osBuild)),
            ("ram_bytes", json(machine.ramBytes)),
            ("cores", json(machine.cores)),
            ("abi", json(machine.abi)),
            ("page_size", json(machine.pageSize)),
            ("core_max_mhz", list(machine.coreMaxMhz)),
            ("cpu_features", texts(machine.cpuFeatures)),
        ])
    }

    static func conditions(_ before: Moment, _ after: Moment) -> Json {
        .object([
            ("thermal_before", json(before.thermal)),
            ("thermal_after", json(after.thermal)),
            ("temperature_before_c", json(before.temperatureC)),
            ("temperature_after_c", json(after.temperatureC)),
            ("clocks_before_mhz", list(before.clocksMhz)),
            ("clocks_after_mhz", list(after.clocksMhz)),
            ("governors", after.governors.map(texts) ?? .null),
            ("cores_allowed", list(after.coresAllowed)),
            ("low_power", json(either(before.lowPower, after.lowPower))),
            ("battery_fraction", json(before.batteryFraction)),
            ("battery_after_fraction", json(after.batteryFraction)),
            ("battery_charge_before_uah", json(before.batteryChargeUah)),
            ("battery_charge_after_uah", json(after.batteryChargeUah)),
            ("charging", json(before.charging)),
            ("foreground", json(inFront(before, after))),
            ("busy_before_fraction", .null),
            ("load_average_before", json(before.loadAverage)),
            ("load_average_after", json(after.loadAverage)),
        ])
    }

    /// Whether the app was in front all the time: one moment in the background between two looks counts.
    private static func inFront(_ before: Moment, _ after: Moment) -> Bool? {
        guard let one = before.foreground, let other = after.foreground else { return nil }
        return one && other && before.timesInBackground == after.timesInBackground
    }

    private static func either(_ one: Bool?, _ other: Bool?) -> Bool? {
        guard let one, let other else { return one ?? other }
        return one || other
    }

    static func length(_ samples: LengthSamples) -> Json {
        .object([
            ("seq_len", json(samples.length)),
            ("ran_at", json(samples.ranAt)),
            ("latencies_ms", times(samples.wall)),
            ("cpu_ms", cpu(samples.cpu)),
        ])
    }

    static func texts(_ samples: TextSamples) -> Json {
        .object([
            ("passes", json(samples.passes)),
            ("texts", json(samples.tokens.count)),
            ("tokens", list(samples.tokens)),
            ("ran_at", list(samples.ranAt)),
            ("latencies_ms", times(samples.wall)),
            ("cpu_ms", cpu(samples.cpu)),
            ("tokenise_ms", times(samples.tokenize)),
        ])
    }

    static func sustained(_ samples: LengthSamples, _ parts: [SustainedPart]) -> Json {
        .object([
            ("seq_len", json(samples.length)),
            ("ran_at", json(samples.ranAt)),
            ("parts", .array(parts.map(part))),
        ])
    }

    private static func part(_ part: SustainedPart) -> Json {
        let found = Statistics.percentiles(part.wall)
        return .object([
            ("begins_s", json(part.beginsS)),
            ("seconds", json(part.seconds)),
            ("runs", json(part.wall.count)),
            ("p50_ms", json(found.p50.map(rounded))),
            ("p90_ms", json(found.p90.map(rounded))),
            ("thermal", json(part.after.thermal)),
            ("temperature_c", json(part.after.temperatureC)),
            ("clocks_mhz", list(part.after.clocksMhz)),
            ("battery_charge_uah", json(part.after.batteryChargeUah)),
            ("battery_mv", json(part.after.batteryMillivolts)),
        ])
    }

    static func counts(_ counts: [String: Int]?) -> Json {
        counts.map { .object($0.sorted { $0.key < $1.key }.map { ($0.key, json($0.value)) }) } ?? .null
    }

    static func shares(_ shares: [String: Double]?) -> Json {
        shares.map { .object($0.sorted { $0.key < $1.key }.map { ($0.key, json($0.value)) }) } ?? .null
    }

    static func json(_ text: String?) -> Json { text.map(Json.text) ?? .null }

    static func json(_ number: (some BinaryInteger)?) -> Json { number.map { .literal("\($0)") } ?? .null }

    static func json(_ number: Double?) -> Json { number.map(Json.number) ?? .null }

    static func json(_ flag: Bool?) -> Json { flag.map(Json.flag) ?? .null }

    static func list(_ numbers: [Int]?) -> Json { numbers.map { .array($0.map(json)) } ?? .null }

    static func texts(_ texts: [String]) -> Json { .array(texts.map(Json.text)) }

    private static func cpu(_ samples: [Double?]) -> Json {
        let known = samples.compactMap { $0 }
        return known.count < samples.count ? .null : times(known)
    }

    private static func times(_ ms: [Double]) -> Json { .array(ms.map { .number(rounded($0)) }) }

    /// Keeps tenths of a microsecond; more is noise and makes the records large.
    private static func rounded(_ ms: Double) -> Double { (ms * tenthsOfUs + 0.5).rounded(.down) / tenthsOfUs }
}
