import AppParts
import Core
import Observation

/// Whether the shipped models are what was verified, on each compute unit of this phone and in the runtimes of this app.
@MainActor @Observable
public final class SelfTestModel {
    /// In what a model differs from its reference.
    public enum Difference: Sendable, Equatable {
        /// An older runtime may run the file and be wrong, and not on these rows.
        case olderRuntime(name: String, version: String, minimum: String)
        /// There is no row that the file takes.
        case noRows
        case tokens(texts: Int)
        /// The least similar text; nil where an output is no number.
        case cosine(Double?, least: Double?)
        case noise(sqnrDb: Double, leastDb: Double)
        /// The answers are right, and another unit may have given them: the runtime does not say that this one ran the file.
        case unconfirmed(unit: String)
    }

    /// What a model showed on a compute unit.
    public struct Report: Sendable {
        /// The version that is linked in, against the one that the file asks for.
        public let version: MinimumVersion
        public let rows: Int
        public let sameTokens: Int
        public let worstCosine: Double?
        public let minCosine: Double?
        public let sqnrDb: Double?
        public let minSqnrDb: Double?
        public let differences: [Difference]

        public var passed: Bool { differences.isEmpty }
    }

    public enum State: Sendable {
        case waiting
        case running
        case done(Report)
        /// It could not be tested; the message is a sentence.
        case failed(String)

        var passed: Bool {
            if case .done(let report) = self { report.passed } else { false }
        }
    }

    /// A compute unit, with what the model showed there.
    public struct UnitTest: Sendable, Identifiable {
        public let unit: String
        /// What is known of a unit on which no file of the scheme had passed when the model was shipped; nil for another one.
        public let known: String?
        public fileprivate(set) var state = State.waiting

        public var id: String { unit }
    }

    /// What the line of a model says: untried units are no part of it.
    public enum Outcome: Sendable, Equatable {
        case notTested
        case running
        case same
        case differs(Difference)
        /// The message is a sentence.
        case failed(String)
    }

    public struct Row: Sendable, Identifiable {
        public let model: ShelvedModel
        public fileprivate(set) var units: [UnitTest]

        public var id: String { model.id }

        init(_ model: ShelvedModel) {
            self.model = model
            let untried = model.model.untriedUnits
            units = (model.units + model.untriedUnits.map(\.unit)).map { UnitTest(unit: $0, known: untried[$0]) }
        }

        public var outcome: Outcome {
            var isSame = true
            for test in units {
                if case .running = test.state { return .running }
            }
            for test in units where test.known == nil {
                switch test.state {
                case .failed(let sentence): return .failed(sentence)
                case .done(let report):
                    if let difference = report.differences.first { return .differs(difference) }
                case .waiting, .running: isSame = false
                }
            }
            return isSame && !units.isEmpty ? .same : .notTested
        }
    }

    /// How it went over all.
    public struct Verdict: Sendable, Equatable {
        public let models: Int
        public let passed: Int

        public init(models: Int, passed: Int) {
            self.models = models
            self.passed = passed
        }
    }

    public private(set) var rows: [Row]
    /// Models that are refused, with the reason.
    public let refused: [Shelf.Refused]
    public private(set) var isRunning = false
    private let usable: [ShelvedModel]
    private var work: Task<Void, Never>?

    public init(_ shelf: Shelf) {
        usable = shelf.usable
        rows = shelf.usable.map { Row($0) }
        refused = shelf.refused
    }

    /// How it went over all; nil before all have ended.
    public var verdict: Verdict? {
        let isDone = rows.allSatisfy { row in
            row.units.allSatisfy { if case .done = $0.state { true } else if case .failed = $0.state { true } else { false } }
        }
        return rows.isEmpty || !isDone ? nil : Verdict(models: rows.count, passed: rows.count { $0.outcome == .same })
    }

    /// Tests one model after the other on each of its compute units; a run that goes on is cancelled first.
    public func run() {
        cancel()
        rows = usable.map { Row($0) }
        isRunning = true
        work = Task {
            for place in rows.indices {
                for unit in rows[place].units.indices {
                    rows[place].units[unit].state = .running
                    let state = await Self.test(rows[place].model, on: rows[place].units[unit])
                    if Task.isCancelled { return }
                    rows[place].units[unit].state = state
                }
            }
            isRunning = false
        }
    }

    private static func test(_ shelved: ShelvedModel, on test: UnitTest) async -> State {
        let worker = Worker(shelved, RunnerOptions(threads: shelved.linked.threads.lowerBound, computeUnits: test.unit))
        let state: State
        do {
            let check = try await worker.check()
            // A unit that is offered may leave a file to the CPU: its answers are right all the same.
            let isMissing = test.known != nil && !check.isConfirmed
            state = .done(report(shelved, check.golden, check.verdict, unconfirmed: isMissing ? test.unit : nil))
        } catch {
            state = .failed(error.sentence)
        }
        // Before the next one is opened, so that one model at a time is in memory.
        await worker.close()
        return state
    }

    private static func report(
        _ shelved: ShelvedModel, _ golden: Golden, _ verdict: GoldenVerdict, unconfirmed unit: String?
    ) -> Report {
        let (minimum, linked) = (shelved.model.signature.minimumRuntime, shelved.linked.runtime)
        let version = MinimumVersion(minimum, linked: linked.version)
        let same = verdict.rows.count { $0.sameIds }
        var differences: [Difference] = []
        if version == .tooOld { differences.append(.olderRuntime(name: linked.name, version: linked.version, minimum: minimum)) }
        if verdict.rows.isEmpty { differences.append(.noRows) }
        if same < verdict.rows.count { differences.append(.tokens(texts: verdict.rows.count - same)) }
        let compared = verdict.rows.filter(\.sameIds)
        let worst = compared.min { ($0.cosine ?? -.infinity) < ($1.cosine ?? -.infinity) }
        if let worst, !(worst.cosine.map { $0 >= golden.minCosine ?? -.infinity } ?? false) {
            differences.append(.cosine(worst.cosine, least: golden.minCosine))
        }
        if let least = golden.minSqnrDb, let found = verdict.sqnrDb, found < least {
            differences.append(.noise(sqnrDb: found, leastDb: least))
        }
        if let unit { differences.append(.unconfirmed(unit: unit)) }
        return Report(
            version: version, rows: verdict.rows.count, sameTokens: same, worstCosine: worst?.cosine, minCosine: golden.minCosine,
            sqnrDb: verdict.sqnrDb, minSqnrDb: golden.minSqnrDb, differences: differences)
    }

    /// Gives up what goes on; what has ended stays.
    public func cancel() {
        work?.cancel()
        work = nil
        isRunning = false
        for place in rows.indices {
            for unit in rows[place].units.indices {
                if case .running = rows[place].units[unit].state { rows[place].units[unit].state = .waiting }
            }
        }
    }

    /// Waits for what goes on.
    public func settled() async { await work?.value }
}
