import Core
import Foundation

/// An encoder that is cheap: a text's embedding is the sum of a fixed vector of each of its tokens, at unit length. It runs in
/// microseconds, so that tests can index thousands of texts.
final class BagOfTokens: Runtime, @unchecked Sendable {
    private let lock = NSLock()
    private var tokens: [Int] = []
    private var files = 0
    private var act: @Sendable (Int) throws -> Void = { _ in }
    let name = "bag of tokens"
    let backend: String
    let version: String

    init(_ backend: String, version: String) {
        self.backend = backend
        self.version = version
    }

    /// How many rows were run.
    var runs: Int { lock.withLock { tokens.count } }

    /// How many models are open.
    var openFiles: Int { lock.withLock { files } }

    /// How many tokens each of them had, padding left out.
    var lengths: [Int] { lock.withLock { tokens } }

    /// Is called before each run with its number, in the thread that runs; what it throws is the run's.
    func before(_ act: @escaping @Sendable (Int) throws -> Void) { lock.withLock { self.act = act } }

    func open(_ model: Model, _ options: RunnerOptions) throws -> any Runner {
        lock.withLock { files += 1 }
        return Bag(self)
    }

    fileprivate func close() { lock.withLock { files -= 1 } }

    fileprivate func count(_ length: Int) throws {
        let (number, act) = lock.withLock {
            tokens.append(length)
            return (tokens.count, self.act)
        }
        try act(number)
    }

    fileprivate static func embedding(_ ids: [Int32], _ width: Int) -> [Float] {
        var sum = [Double](repeating: 0, count: width)
        for id in ids {
            // Source: SplitMix64, Steele, Lea and Flood 2014.
            var state = UInt64(id) &* 0x9E37_79B9_7F4A_7C15
            for at in sum.indices {
                state &+= 0x9E37_79B9_7F4A_7C15
                let mixed = (state ^ state >> 30) &* 0xBF58_476D_1CE4_E5B9
                sum[at] += Double(Int64(bitPattern: mixed ^ mixed >> 27)) / Double(Int64.max)
            }
        }
        let length = sum.reduce(0) { $0 + $1 * $1 }.squareRoot()
        return sum.map { Float($0 / length) }
    }
}

private final class Bag: Runner, Sendable {
    private let runtime: BagOfTokens

    init(_ runtime: BagOfTokens) { self.runtime = runtime }

    var delegate: String? { nil }
    var operations: (delegated: Int, all: Int)? { nil }
    var operationsByUnit: [String: Int]? { nil }
    var shareByUnit: [String: Double]? { nil }
    var poolThreads: Int? { nil }

    func run(_ row: PaddedRow) throws -> [String: [Float]] {
        let mask = row.inputs["attention_mask"] ?? []
        let ids = zip(row.inputs["input_ids"] ?? [], mask).filter { $0.1 > 0 }.map(\.0)
        try runtime.count(ids.count)
        return ["sentence_embedding": BagOfTokens.embedding(ids, (row.function.outputs[0].shape.last ?? nil) ?? 0)]
    }

    func close() { runtime.close() }
}
