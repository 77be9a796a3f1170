import Core
import Foundation

/// The only owner of a runtime's process-wide pool of threads. To give the pool another count frees the pool that there was, and
/// every open program keeps its address: so all programs are put away first, and none runs meanwhile.
///
/// A program that was put away is loaded again when it is next used. One that is measured keeps its count until it is closed,
/// and who asks for another one meanwhile is refused.
public final class SharedPool<Program>: @unchecked Sendable {
    /// A program that is open, be it put away.
    public final class Opened: @unchecked Sendable {
        fileprivate let name: String
        fileprivate let threads: Int
        fileprivate let isMeasured: Bool
        fileprivate let load: () throws -> Program
        // Under the pool's lock.
        fileprivate var program: Program?

        fileprivate init(_ name: String, _ options: RunnerOptions, _ load: @escaping () throws -> Program) {
            self.name = name
            threads = options.threads
            isMeasured = options.isMeasured
            self.load = load
        }
    }

    private let read: () -> Int?
    private let set: (Int) -> Bool
    private let condition = NSCondition()
    // Both under the lock.
    private var opened: [ObjectIdentifier: Opened] = [:]
    private var busy = 0

    /// - Parameters:
    ///   - read: the pool's threads; nil where there is no pool.
    ///   - set: gives it another count; false where that failed.
    public init(read: @escaping () -> Int?, set: @escaping (Int) -> Bool) {
        self.read = read
        self.set = set
    }

    /// The pool's threads now.
    public var threads: Int? { condition.withLock { read() } }

    /// Loads a program under a count of threads; what is open under another count is put away, once nothing runs.
    ///
    /// - Parameters:
    ///   - name: of the model, for messages.
    ///   - options: the threads, and whether the program is measured.
    ///   - load: loads all that can run of it; is called again where it was put away.
    /// - Throws: `RunnerRefused` while a program with another count is measured.
    public func open(_ name: String, _ options: RunnerOptions, load: @escaping () throws -> Program) throws -> Opened {
        let new = Opened(name, options, load)
        condition.lock()
        defer { condition.unlock() }
        opened[ObjectIdentifier(new)] = new
        do {
            try fill(new)
        } catch {
            opened[ObjectIdentifier(new)] = nil
            throw error
        }
        return new
    }

    /// Loads a program again that was put away.
    ///
    /// - Throws: `RunnerRefused` while a program with another count is measured, `RunnerFailed` where this one was closed.
    public func prepare(_ place: Opened) throws {
        condition.lock()
        defer { condition.unlock() }
        try wake(place)
    }

    /// Does work with a program; programs of one count may work at the same time.
    public func use<Value>(_ place: Opened, _ work: (Program) throws -> Value) throws -> Value {
        try condition.withLock {
            try wake(place)
            busy += 1
        }
        defer {
            condition.withLock {
                busy -= 1
                condition.broadcast()
            }
        }
        return try Self.working(place, work)
    }

    /// On its return nothing here holds the program any more, which may be put away after that.
    private static func working<Value>(_ place: Opened, _ work: (Program) throws -> Value) throws -> Value {
        guard let program = place.program else { throw RunnerFailed("the model was closed") }
        return try work(program)
    }

    /// Gives a program's memory back; called while the program does not work.
    public func close(_ place: Opened) {
        condition.withLock {
            place.program = nil
            opened[ObjectIdentifier(place)] = nil
            condition.broadcast()
        }
    }

    private func wake(_ place: Opened) throws {
        if opened[ObjectIdentifier(place)] == nil { throw RunnerFailed("the model was closed") }
        if place.program == nil { try fill(place) }
    }

    /// Loads under the lock: nothing else may begin while programs are put away and the pool is changed.
    private func fill(_ place: Opened) throws {
        while true {
            try refuse(place)
            if read() == place.threads { break }
            if busy > 0 {
                condition.wait()
                continue
            }
            for other in opened.values { other.program = nil }
            if !set(place.threads) { throw RunnerFailed("the runtime has no pool of threads") }
        }
        place.program = try place.load()
    }

    private func refuse(_ place: Opened) throws {
        guard let other = opened.values.first(where: { $0.isMeasured && $0.threads != place.threads }) else { return }
        throw RunnerRefused(
            "\(place.name) was asked for with \(place.threads) threads of the runtime, and \(other.name) is measured with "
                + "\(other.threads); ask again when that has ended")
    }
}
