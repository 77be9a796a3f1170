import AppParts
import Core
import Observation

/// Whether the shipped models are what was verified, on this phone and in the runtimes of this app.
@MainActor @Observable
public final class SelfTestModel {
    /// What a model showed.
    public struct Report: Sendable {
        /// The version that is linked in, against the one that the file asks for.
        public let version: MinimumVersion
        public let rows: Int
        public let sameTokens: Int
        public let worstCosine: Double?
        public let minCosine: Double?
        public let sqnrDb: Double?
        public let minSqnrDb: Double?
        /// What is wrong, in sentences.
        public let failures: [String]

        public var passed: Bool { failures.isEmpty }
    }

    public enum State: Sendable {
        case waiting
        case running
        case done(Report)
        /// It could not be tested; the message is a sentence.
        case failed(String)
    }

    public struct Row: Sendable, Identifiable {
        public let model: ShelvedModel
        public fileprivate(set) var state = State.waiting

        public var id: String { model.id }

        /// Who signed the model, in a sentence.
        public var signature: String {
            model.model.signedBy.map { "Signed with the key \($0.prefix(16))…" } ?? "Nobody signed it: a debug build takes it all the same."
        }

        /// The runtime that is linked in and the oldest that the file may be run with.
        public var runtime: String {
            let runtime = model.linked.runtime
            return "\(runtime.name) \(runtime.version); the file asks for \(model.model.signature.minimumRuntime) or later"
        }
    }

    public private(set) var rows: [Row]
    /// Models that are refused, with the reason.
    public let refused: [Shelf.Refused]
    public private(set) var isRunning = false
    private var work: Task<Void, Never>?

    public init(_ shelf: Shelf) {
        rows = shelf.usable.map { Row(model: $0) }
        refused = shelf.refused
    }

    /// How it went over all, in a sentence; nil before all have ended.
    public var verdict: String? {
        var passed = 0
        for row in rows {
            switch row.state {
            case .done(let report): passed += report.passed ? 1 : 0
            case .failed: continue
            case .waiting, .running: return nil
            }
        }
        if rows.isEmpty { return nil }
        return passed == rows.count
            ? "All \(rows.count) models compute here what was verified." : "\(rows.count - passed) of \(rows.count) models do not hold."
    }

    /// Tests one model after the other; a run that goes on is cancelled first.
    public func run() {
        cancel()
        for place in rows.indices { rows[place].state = .waiting }
        isRunning = true
        work = Task {
            for place in rows.indices {
                rows[place].state = .running
                let state = await Self.test(rows[place].model)
                if Task.isCancelled { return }
                rows[place].state = state
            }
            isRunning = false
        }
    }

    private static func test(_ shelved: ShelvedModel) async -> State {
        let minimum = shelved.model.signature.minimumRuntime
        let linked = shelved.linked.runtime
        let version = MinimumVersion(minimum, linked: linked.version)
        do {
            let (golden, verdict) = try await Worker(shelved).check()
            // An older runtime may run the file and be wrong, and not on these rows.
            let old = version == .tooOld ? ["\(linked.name) \(linked.version) is older than \(minimum), which the file asks for"] : []
            return .done(
                Report(
                    version: version, rows: verdict.rows.count, sameTokens: verdict.rows.count { $0.sameIds },
                    worstCosine: verdict.worstCosine, minCosine: golden.minCosine, sqnrDb: verdict.sqnrDb,
                    minSqnrDb: golden.minSqnrDb, failures: old + verdict.failures))
        } catch {
            return .failed(error.sentence)
        }
    }

    /// Gives up what goes on; what has ended stays.
    public func cancel() {
        work?.cancel()
        work = nil
        isRunning = false
        for place in rows.indices {
            if case .running = rows[place].state { rows[place].state = .waiting }
        }
    }

    /// Waits for what goes on.
    public func settled() async { await work?.value }
}
