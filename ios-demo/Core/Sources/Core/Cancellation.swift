import Foundation

/// Work was given up because somebody asked for it.
public struct Cancelled: Error, CustomStringConvertible, Sendable {
    public let description = "cancelled"

    public init() {}
}

/// Gives up work that goes on in another thread: whoever started it calls `cancel`, the work calls `check` now and then.
public final class Cancellation: Sendable {
    private let asked = Locked(false)

    public init() {}

    /// Whether somebody called `cancel`.
    public var isCancelled: Bool { asked.withLock { $0 } }

    /// Asks the work to give up.
    public func cancel() { asked.withLock { $0 = true } }

    /// Throws `Cancelled` where somebody called `cancel`.
    public func check() throws {
        if isCancelled { throw Cancelled() }
    }
}

/// Runs work one after the other off the main thread: reading a model and running it takes too long for that one, and a
/// runner takes one call at a time.
public final class Background: Sendable {
    private let queue = DispatchQueue(label: "pocketbert", qos: .userInitiated)

    public init() {}

    /// Runs work behind what was started before, and returns what it returns.
    ///
    /// - Parameter work: is given a cancellation that is asked to give up when the task that waits here is cancelled; work
    ///   that has not begun by then never does.
    /// - Throws: what the work throws, or `Cancelled`.
    public func run<Value: Sendable>(_ work: @escaping @Sendable (Cancellation) throws -> Value) async throws -> Value {
        let cancellation = Cancellation()
        return try await withTaskCancellationHandler {
            try await withCheckedThrowingContinuation { continuation in
                // A queue, not a task: a runtime computes for seconds, and would take one of the few threads of all tasks.
                queue.async {
                    continuation.resume(
                        with: Result {
                            try cancellation.check()
                            return try work(cancellation)
                        })
                }
            }
        } onCancel: {
            cancellation.cancel()
        }
    }
}

/// A clock that is never set, for durations.
enum Ticks {
    static func nanoseconds() -> UInt64 { DispatchTime.now().uptimeNanoseconds }

    static func milliseconds(_ from: UInt64, _ to: UInt64) -> Double { to > from ? Double(to - from) / 1e6 : 0 }
}
