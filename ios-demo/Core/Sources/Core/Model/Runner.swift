/// How a file is run.
public struct RunnerOptions: Sendable {
    /// Threads of the runtime.
    public let threads: Int
    /// As the runtime names them; nil for its default.
    public let computeUnits: String?
    /// Whether it is measured: nothing else of this runtime may change its threads before it is closed.
    public let isMeasured: Bool

    public init(threads: Int = 1, computeUnits: String? = nil, isMeasured: Bool = false) {
        self.threads = threads
        self.computeUnits = computeUnits
        self.isMeasured = isMeasured
    }
}

/// The runtime cannot do what was asked for.
public struct RunnerRefused: Error, CustomStringConvertible, Sendable {
    /// Why, in a sentence for a screen.
    public let description: String

    public init(_ description: String) { self.description = description }
}

/// The runtime failed, or gave what the file does not promise.
public struct RunnerFailed: Error, CustomStringConvertible, Sendable {
    /// What is wrong, in a sentence for a screen.
    public let description: String

    public init(_ description: String) { self.description = description }
}

/// A file that is open in a runtime; one call at a time, off the main thread, not always from the same one.
public protocol Runner: Sendable {
    /// What computes the operations, such as `XNNPACK`; nil where the runtime does not tell.
    var delegate: String? { get }

    /// Operations that the delegate computes, and all; nil where the runtime does not tell.
    var operations: (delegated: Int, all: Int)? { get }

    /// Operations of all functions by the unit that computes them, as the system plans it; nil where it does not tell.
    var operationsByUnit: [String: Int]? { get }

    /// Share of the graph that each compute unit runs, as the runtime confirmed it; nil where it confirms nothing.
    var shareByUnit: [String: Double]? { get }

    /// Threads of the runtime's process-wide pool now; nil for a runtime whose models have their own.
    var poolThreads: Int? { get }

    /// Makes ready what a row needs and no run has to wait for, such as memory for its inputs; called before a run is timed.
    func prepare(_ row: PaddedRow) throws

    /// Runs a row, and returns each output by its name, row-major. Throws `RunnerFailed` where the runtime gave up.
    func run(_ row: PaddedRow) throws -> [String: [Float]]

    /// Gives its memory back; no row can be run after it.
    func close()
}

extension Runner {
    public var operationsByUnit: [String: Int]? { nil }
    public var shareByUnit: [String: Double]? { nil }
    public var poolThreads: Int? { nil }

    public func prepare(_ row: PaddedRow) throws {}
}

/// A runtime as an app has it.
public protocol Runtime: Sendable {
    /// As records name it: `LiteRT`, `ExecuTorch`, `Core ML`.
    var name: String { get }
    var version: String { get }

    /// The backend whose files it runs, as `signature.json` names it.
    var backend: String { get }

    /// Opens a model's file: every function of it can run when this returns.
    ///
    /// - Throws: `RunnerRefused` where the file needs a newer version, or there are no such compute units here; `RunnerFailed`
    ///   where the file cannot be opened.
    func open(_ model: Model, _ options: RunnerOptions) throws -> any Runner
}
