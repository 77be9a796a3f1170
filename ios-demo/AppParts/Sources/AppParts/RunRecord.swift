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
    /// When it began, as the record writes it: texts of that form sort as times do.
    public let started: String
    public let model: String
    public let runtime: String
    public let lengths: [Length]
    /// The mean over the texts of each one's median.
    public let textMs: Double
    /// The same of their tokenisation.
    public let tokenizeMs: Double
    public let loadMs: Double
    public let firstMs: Double
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
        started = document.started_utc
        model = "\(document.model.id), \(Formats.megabytes(document.model.bytes))"
        runtime = [backend.runtime + " " + backend.version, backend.delegate, backend.compute_units, "\(backend.threads) threads"]
            .compactMap { $0 }.joined(separator: " · ")
        lengths = timing.lengths.map {
            Length(length: $0.seq_len, ranAt: $0.ran_at, latencies: Statistics.percentiles($0.latencies_ms))
        }
        textMs = Statistics.meanOfMedians(timing.texts.latencies_ms, passes: timing.texts.passes)
        tokenizeMs = Statistics.meanOfMedians(timing.texts.tokenise_ms, passes: timing.texts.passes)
        loadMs = timing.load_ms
        firstMs = timing.first_inference_ms
        peakBytes = document.memory.peak_bytes
        if let delegated = backend.ops_delegated, let all = backend.ops_total {
            operations = (delegated, all)
        } else {
            operations = nil
        }
    }

    // The fields as the schema spells them.
    // swift-format-ignore: AlwaysUseLowerCamelCase
    private struct Document: Decodable {
        struct Model: Decodable {
            let id: String
            let bytes: Int64
        }
        struct Backend: Decodable {
            let runtime: String
            let version: String
            let delegate: String?
            let compute_units: String?
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
        let started_utc: String
        let model: Model
        let backend: Backend
        let timing: Timing
        let memory: Memory
    }
}
