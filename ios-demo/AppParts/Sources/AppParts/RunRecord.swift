import Core
import Foundation

/// What a screen shows of a `record.json`.
public struct RunRecord: Sendable, Identifiable {
    /// Full rows of one length.
    public struct Length: Sendable, Identifiable {
        public let length: Int
        /// The length of the function that ran them.
        public let ranAt: Int
        public let latencies: Percentiles

        public var id: Int { length }
    }

    /// The record itself, for sharing.
    public let file: URL
    public let run: String
    public let started: Date
    /// The model as its request names it; nil where the request is not there.
    public let model: ModelName?
    public let runtime: String
    public let version: String
    public let delegate: String?
    /// The compute units that the runtime confirmed, the busiest first; none where it confirmed nothing.
    public let units: [String]
    public let threads: Int
    public let lengths: [Length]
    /// The mean over the texts of each one's median.
    public let textMs: Double
    /// The same of their tokenisation.
    public let tokenizeMs: Double
    public let loadMs: Double
    public let firstMs: Double
    /// Nil also where the process that was measured is not the app's on a phone.
    public let peakBytes: Int64?
    /// Operations that the delegate computes, and all; nil where the runtime does not tell.
    public let operations: (delegated: Int, all: Int)?

    /// The folder, which is one of a kind: a record that somebody copied in the Files app says the same name.
    public var id: String { file.deletingLastPathComponent().lastPathComponent }

    /// Reads the record of a run's folder.
    public init(folder: URL) throws {
        file = folder.appendingPathComponent(Headless.record)
        let document = try JSONDecoder().decode(Document.self, from: Data(contentsOf: file))
        let backend = document.backend
        let timing = document.timing
        run = document.run_id
        guard let date = Self.date(document.started_utc) else {
            throw RunnerFailed("\(Headless.record): started_utc is \(document.started_utc); it has to be a date and a time")
        }
        started = date
        model = Self.recipe(folder).map { ModelName(recipe: $0, scheme: document.model.scheme, runtime: backend.runtime) }
        runtime = backend.runtime
        version = backend.version
        delegate = backend.delegate
        units = Reply.confirmed(backend.share_by_unit)
        threads = backend.threads
        lengths = timing.lengths.map {
            Length(length: $0.seq_len, ranAt: $0.ran_at, latencies: Statistics.percentiles($0.latencies_ms))
        }
        textMs = Statistics.meanOfMedians(timing.texts.latencies_ms, passes: timing.texts.passes)
        tokenizeMs = Statistics.meanOfMedians(timing.texts.tokenise_ms, passes: timing.texts.passes)
        loadMs = timing.load_ms
        firstMs = timing.first_inference_ms
        peakBytes = document.source == "device" ? document.memory.peak_bytes : nil
        if let delegated = backend.ops_delegated, let all = backend.ops_total {
            operations = (delegated, all)
        } else {
            operations = nil
        }
    }

    /// Reads a time as records write it, with or without parts of a second.
    private static func date(_ text: String) -> Date? {
        let reader = ISO8601DateFormatter()
        if let date = reader.date(from: text) { return date }
        reader.formatOptions.insert(.withFractionalSeconds)
        return reader.date(from: text)
    }

    /// Returns the recipe that a run's request names.
    private static func recipe(_ folder: URL) -> String? {
        struct Asked: Decodable {
            let model: String
        }
        let asked = try? JSONDecoder().decode(Asked.self, from: Data(contentsOf: folder.appendingPathComponent(Headless.request)))
        return asked?.model.split(separator: "/").first.map(String.init)
    }

    // The fields as the schema spells them.
    // swift-format-ignore: AlwaysUseLowerCamelCase
    private struct Document: Decodable {
        struct Model: Decodable {
            let scheme: String
        }
        struct Backend: Decodable {
            let runtime: String
            let version: String
            let delegate: String?
            let share_by_unit: [String: Double]?
            let threads: Int
            let ops_delegated: Int?
            let ops_total: Int?
        }
        struct Length: Decodable {
            let seq_len: Int
            let ran_at: Int
            let latencies_ms: [Double]
        }
        struct Texts: Decodable {
            let passes: Int
            let latencies_ms: [Double]
            let tokenise_ms: [Double]
        }
        struct Timing: Decodable {
            let load_ms: Double
            let first_inference_ms: Double
            let lengths: [Length]
            let texts: Texts
        }
        struct Memory: Decodable {
            let peak_bytes: Int64?
        }
        let run_id: String
        let source: String
        let started_utc: String
        let model: Model
        let backend: Backend
        let timing: Timing
        let memory: Memory
    }
}
