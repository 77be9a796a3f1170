import Core
import Foundation

/// A model that is opened when it is first asked something, runs off the main thread, one call at a time, and gives its memory
/// back when nobody holds it any more.
public final class Worker: Sendable {
    private struct Opened: Sendable {
        let student: Student
        let runner: any Runner
        let tookMs: Double
    }

    /// What a compute unit names beside the CPU, in the words of `Runner.shareByUnit`.
    private static let named = ["GPU": "GPU", "NPU": "NPU", "CPU_AND_GPU": "GPU", "CPU_AND_NE": "Neural Engine"]

    public let shelved: ShelvedModel
    /// The compute unit on which it runs.
    public let unit: String
    private let options: RunnerOptions
    private let background = Background()
    // Touched in the background alone, where work goes one after the other; and in deinit, after all of it.
    nonisolated(unsafe) private var opened: Opened?

    public init(_ shelved: ShelvedModel, _ options: RunnerOptions? = nil) {
        self.shelved = shelved
        let asked = options ?? RunnerOptions(threads: shelved.linked.threads.lowerBound)
        unit = asked.computeUnits ?? shelved.model.computeUnits[0]
        self.options = RunnerOptions(threads: asked.threads, computeUnits: unit)
    }

    deinit {
        guard let opened else { return }
        // Off the thread that let go of it, often the screen's: closing waits for whatever the runtime is busy with.
        DispatchQueue.global(qos: .utility).async { opened.student.close() }
    }

    /// Opens the model, where it is not open.
    public func prepare() async throws {
        try await background.run { [self] _ in _ = try open() }
    }

    /// Gives the model's memory back behind what goes on; what is asked next opens it again.
    public func close() async {
        // A task of its own: also one that is cancelled closes what it opened.
        let work = Task.detached { [self] in
            try await background.run { [self] _ in
                opened?.student.close()
                opened = nil
            }
        }
        try? await work.value
    }

    /// Asks the model something, and returns what it says. Cancelled with the task that waits for it.
    public func ask(_ question: Question) async throws -> Reply {
        try await background.run { [self] cancellation in
            // A worker that tests an untried unit answers nobody before the test has passed.
            _ = try shelved.model.unit(unit)
            let opened = try open()
            let asked = try question.ask(opened.student, cancellation)
            let limit = shelved.model.signature.maxLength
            // A row of that length may have been cut, or just fit.
            let mayBeCut = shelved.task != .answer && asked.tokens == limit
            let cut = mayBeCut ? try question.tokens(opened.student) > limit : false
            return Reply(
                question: question, answer: shelved.model.hasRandomWeights ? .hidden : asked.answer, inferenceMs: asked.inferenceMs,
                tokenizeMs: asked.tokenizeMs, tokens: asked.tokens, length: asked.length, cutAt: cut ? limit : nil,
                openedMs: opened.tookMs, units: Reply.confirmed(opened.runner.shareByUnit))
        }
    }

    /// Returns how many tokens each text has behind a prompt, however many the file takes.
    public func tokens(_ texts: [String], prompt: String?) async throws -> [Int] {
        try await background.run { [self] cancellation in
            _ = try shelved.model.unit(unit)
            let student = try open().student
            return try texts.map { text in
                try cancellation.check()
                return try student.tokens(text, prompt: prompt)
            }
        }
    }

    /// Runs the golden rows that were shipped with the model, also on a compute unit that is untried; where they hold, and the
    /// runtime confirms that the unit ran the file, the unit is offered from now on.
    public func check() async throws -> (golden: Golden, verdict: GoldenVerdict, isConfirmed: Bool) {
        try await background.run { [self] cancellation in
            let (model, runtime) = (shelved.model, shelved.linked.runtime)
            let golden = try model.golden()
            let opened = try open()
            let verdict = try opened.student.check(golden, cancellation: cancellation)
            // Runtimes take to the CPU what a unit cannot run, without a word.
            let isConfirmed = Self.named[unit].map { Reply.confirmed(opened.runner.shareByUnit).contains($0) } ?? true
            // An older runtime may be wrong on other rows.
            let isOld = MinimumVersion(model.signature.minimumRuntime, linked: runtime.version) == .tooOld
            if verdict.failures.isEmpty, !isOld, isConfirmed { PassedUnits.add(model, unit) }
            return (golden, verdict, isConfirmed)
        }
    }

    private func open() throws -> Opened {
        if let opened { return opened }
        let began = DispatchTime.now().uptimeNanoseconds
        let tokenizer = try shelved.model.tokenizer()
        let runner = try shelved.linked.runtime.open(shelved.model, options)
        let new = Opened(
            student: Student(shelved.model, tokenizer, runner), runner: runner,
            tookMs: Double(DispatchTime.now().uptimeNanoseconds - began) / 1e6)
        opened = new
        return new
    }
}

/// What a model is asked.
public struct Question: Sendable, Equatable {
    /// The text; or the question, where there is a passage.
    public let first: String
    /// The other text, or the passage.
    public let second: String?
    /// Name of the prompt before a text that is embedded; nil for the model's default one, an empty name for none.
    public let prompt: String?
    /// Labels in place of the model's.
    public let own: OwnLabels?

    public init(_ first: String, _ second: String? = nil, prompt: String? = nil, own: OwnLabels? = nil) {
        self.first = first
        self.second = second
        self.prompt = prompt
        self.own = own
    }

    /// What a person has yet to write.
    public enum Missing: Sendable, Equatable {
        case text
        case twoTexts
        case questionAndPassage
        case label
        case twoLabels
        case template
    }

    /// Returns what is missing for a task, or nil.
    public func missing(for task: ShelvedModel.Task) -> Missing? {
        let hasFirst = !first.allSatisfy(\.isWhitespace)
        let hasSecond = !(second ?? "").allSatisfy(\.isWhitespace)
        switch task {
        case .answer: return hasFirst && hasSecond ? nil : .questionAndPassage
        case .value: return hasFirst && hasSecond ? nil : .twoTexts
        case .labels: return hasFirst ? own?.missing : .text
        case .values, .search, .entities: return hasFirst ? nil : .text
        }
    }

    /// Returns how many tokens the longest row has that it asks, however many the file takes.
    fileprivate func tokens(_ student: Student) throws -> Int {
        guard let own else { return try student.tokens(first, second, prompt: prompt) }
        let asked = try ZeroShot(
            student.model.signature, own.labels, template: own.template, multiLabel: own.multiLabel)
        return try asked.hypotheses.map { try student.tokens(first, $0) }.max() ?? 0
    }

    fileprivate func ask(_ student: Student, _ cancellation: Cancellation) throws -> Asked {
        switch ShelvedModel.Task(student.model.signature) {
        case .search: return Asked(try student.embedding(first, prompt: prompt, cancellation: cancellation)) { .embedding($0) }
        case .value: return Asked(try student.value(first, second, cancellation: cancellation)) { .value($0) }
        case .values: return Asked(try student.values(first, second, cancellation: cancellation)) { .values($0) }
        case .labels: return Asked(try labels(student, cancellation)) { .labels($0) }
        case .entities: return Asked(try student.entities(first, cancellation: cancellation)) { .entities($0) }
        case .answer: return Asked(try student.answer(first, second ?? "", cancellation: cancellation)) { .span($0) }
        }
    }

    private func labels(_ student: Student, _ cancellation: Cancellation) throws -> Answered<[Share]> {
        guard let own else { return try student.labels(first, second, cancellation: cancellation) }
        return try student.zeroShot(
            first, own.labels, template: own.template, multiLabel: own.multiLabel, cancellation: cancellation)
    }
}

/// Labels that a person wrote, for a model of natural language inference; see `ZeroShot`.
public struct OwnLabels: Sendable, Equatable {
    public let labels: [String]
    public let template: String
    /// Whether each is decided by itself, so that several may be true.
    public let multiLabel: Bool

    public init(_ labels: [String], template: String, multiLabel: Bool) {
        self.labels = labels
        self.template = template
        self.multiLabel = multiLabel
    }

    /// What has to be written before a model can be asked, or nil.
    var missing: Question.Missing? {
        if labels.count < ZeroShot.least(multiLabel: multiLabel) { return multiLabel ? .label : .twoLabels }
        return ZeroShot.isTemplate(template) ? nil : .template
    }
}

/// What a student answered, whatever its task is.
private struct Asked {
    let answer: Answer
    let tokens: Int
    let length: Int
    let tokenizeMs: Double
    let inferenceMs: Double

    init<Value>(_ answered: Answered<Value>, _ answer: (Value) -> Answer) {
        self.answer = answer(answered.value)
        tokens = answered.tokens
        length = answered.length
        tokenizeMs = answered.tokenizeMs
        inferenceMs = answered.inferenceMs
    }
}

/// What came out of a model.
public enum Answer: Sendable, Equatable {
    /// The most probable first.
    case labels([Share])
    case value(Float)
    case values([NamedValue])
    /// A part of the passage; nil where there is none.
    case span(Found?)
    case entities([Found])
    case embedding([Float])
    /// The model's weights are random.
    case hidden
}

extension [Share] {
    /// Those that are the answer: the first one, or each that is given where each is decided by itself.
    public var given: [Share] { contains { $0.isGiven != nil } ? filter { $0.isGiven == true } : Array(prefix(1)) }
}

/// An answer, and how long it took.
public struct Reply: Sendable, Equatable {
    /// What was asked: the positions of an answer are of its texts.
    public let question: Question
    public let answer: Answer
    public let inferenceMs: Double
    public let tokenizeMs: Double
    /// Tokens of the row, special ones included.
    public let tokens: Int
    /// The length at which it ran.
    public let length: Int
    /// How many tokens the file takes, where the text has more and its end was not read.
    public let cutAt: Int?
    /// How long opening the model took, when it was opened.
    public let openedMs: Double
    /// The compute units that the runtime confirms, the busiest first; none where it confirms nothing.
    public let units: [String]

    /// Returns the units that run a share of the graph, the largest share first; none where the runtime confirms nothing.
    static func confirmed(_ shares: [String: Double]?) -> [String] {
        (shares ?? [:]).filter { $0.value > 0 }.sorted { ($1.value, $0.key) < ($0.value, $1.key) }.map(\.key)
    }
}
