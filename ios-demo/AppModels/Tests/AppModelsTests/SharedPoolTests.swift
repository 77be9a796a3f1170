import AppParts
@testable import Core
import Foundation
import XCTest

/// A pool as ExecuTorch's is: to change its count frees it, and a program that was loaded before keeps the old address.
private final class Pool: @unchecked Sendable {
    private let lock = NSLock()
    private var state = (generation: 0, count: 8, running: 0, freed: 0)

    /// How often a pool was used after it was freed, or freed while it was used: each would be a crash.
    var crashes: Int { lock.withLock { state.freed } }
    var count: Int { lock.withLock { state.count } }

    func reset(_ count: Int) -> Bool {
        lock.withLock {
            if state.running > 0 { state.freed += 1 }
            state.generation += 1
            state.count = count
            return true
        }
    }

    final class Program: @unchecked Sendable {
        private let pool: Pool
        private let generation: Int

        init(_ pool: Pool) {
            self.pool = pool
            generation = pool.lock.withLock { pool.state.generation }
        }

        /// Returns the count of threads under which it ran.
        func run(_ meanwhile: () -> Void = {}) -> Int {
            pool.lock.withLock {
                if generation != pool.state.generation { pool.state.freed += 1 }
                pool.state.running += 1
            }
            meanwhile()
            return pool.lock.withLock {
                pool.state.running -= 1
                if generation != pool.state.generation { pool.state.freed += 1 }
                return pool.state.count
            }
        }
    }
}

final class SharedPoolTests: XCTestCase {
    private func shared(_ pool: Pool) -> SharedPool<Pool.Program> {
        SharedPool(read: { pool.count }, set: { pool.reset($0) })
    }

    func testAskThenMeasureWithMoreThreadsThenAskAgain() throws {
        let pool = Pool()
        let owner = shared(pool)
        var loads = 0
        let asked = try owner.open("near/executorch-fp32", RunnerOptions(threads: 1)) {
            loads += 1
            return Pool.Program(pool)
        }
        XCTAssertEqual(try owner.use(asked) { $0.run() }, 1)
        let measured = try owner.open("mood/executorch-fp32", RunnerOptions(threads: 4, isMeasured: true)) { Pool.Program(pool) }
        XCTAssertEqual(try owner.use(measured) { $0.run() }, 4)
        // While it is measured nobody changes its threads.
        let sentence =
            "near/executorch-fp32 was asked for with 1 threads of the runtime, and mood/executorch-fp32 is measured with 4; "
            + "ask again when that has ended"
        XCTAssertThrowsError(try owner.use(asked) { $0.run() }) { XCTAssertEqual("\($0)", sentence) }
        XCTAssertThrowsError(try owner.open("near/executorch-fp32", RunnerOptions(threads: 1)) { Pool.Program(pool) }) {
            XCTAssertEqual("\($0)", sentence)
        }
        XCTAssertEqual(owner.threads, 4)
        XCTAssertEqual(try owner.use(measured) { $0.run() }, 4)
        owner.close(measured)
        XCTAssertThrowsError(try owner.use(measured) { $0.run() })
        // Loaded again before it is timed, not within the run.
        XCTAssertEqual(loads, 1)
        try owner.prepare(asked)
        XCTAssertEqual(loads, 2)
        XCTAssertEqual(try owner.use(asked) { $0.run() }, 1)
        XCTAssertEqual([loads, pool.crashes], [2, 0])
    }

    func testAProgramThatCannotBeLoadedLeavesNothingBehind() throws {
        let pool = Pool()
        let owner = shared(pool)
        let options = RunnerOptions(threads: 4, isMeasured: true)
        XCTAssertThrowsError(try owner.open("broken", options) { throw RunnerFailed("it cannot be loaded") })
        let asked = try owner.open("near", RunnerOptions(threads: 1)) { Pool.Program(pool) }
        XCTAssertEqual(try owner.use(asked) { $0.run() }, 1)
        XCTAssertThrowsError(try SharedPool<Int>(read: { nil }, set: { _ in false }).open("near", options) { 1 }) {
            XCTAssertEqual("\($0)", "the runtime has no pool of threads")
        }
    }

    func testThePoolIsNeverChangedUnderARun() throws {
        let pool = Pool()
        let owner = shared(pool)
        let programs = try (1...3).map { threads in try owner.open("\(threads)", RunnerOptions(threads: threads)) { Pool.Program(pool) } }
        let wrong = Counter()
        DispatchQueue.concurrentPerform(iterations: 6) { number in
            let place = number % programs.count
            for _ in 0..<200 {
                let ran = try? owner.use(programs[place]) { program in program.run { usleep(50) } }
                if ran != place + 1 { wrong.add() }
            }
        }
        XCTAssertEqual([wrong.value, pool.crashes], [0, 0])
    }

    func testInputsAreMadeOnceForARowThatStaysTheSame() throws {
        var prepared = PreparedRow<Int>()
        var made = 0
        func row(_ ids: [Int32], _ name: String = "seq_16") -> PaddedRow {
            let function = Function(name: name, minLength: 16, maxLength: 16, inputs: [], outputs: [])
            return PaddedRow(function: function, length: 16, inputs: ["input_ids": ids])
        }
        func inputs(_ row: PaddedRow) -> Int {
            prepared.inputs(row) { _ in
                made += 1
                return made
            }
        }
        let rows = [row([1]), row([1]), row([2]), row([2], "seq_32"), row([1])]
        XCTAssertEqual(rows.map(inputs), [1, 1, 2, 3, 4])
    }
}

private final class Counter: @unchecked Sendable {
    private let lock = NSLock()
    private var count = 0
    var value: Int { lock.withLock { count } }
    func add() { lock.withLock { count += 1 } }
}
