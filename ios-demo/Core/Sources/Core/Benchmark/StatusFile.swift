import Dispatch
import Foundation

/// The status of a run as whoever started it reads it. It is written every two seconds at most, since a write
/// takes time from what is measured; and by a timer where a single step, such as loading a large model, takes longer.
final class StatusFile: Sendable {
    private struct Written {
        var last: BenchmarkStatus
        var told: UInt64 = 0
    }

    private static let pauseNanoseconds: UInt64 = 2_000_000_000
    /// With the time between two looks, less than `Headless.heartbeatS`.
    private static let silenceNanoseconds: UInt64 = 2_500_000_000
    private static let lookNanoseconds: UInt64 = 1_000_000_000

    private let folder: URL
    private let schema = Schema.of("benchmark-status")
    private let written: Locked<Written>
    private let heartbeat: Heartbeat

    init(_ folder: URL) {
        self.folder = folder
        written = Locked(
            Written(
                last: BenchmarkStatus(
                    runId: folder.lastPathComponent, state: .running, done: 0, doing: "starting", message: nil, beats: 0)))
        heartbeat = Heartbeat(nanoseconds: Self.lookNanoseconds)
        heartbeat.start { [weak self] in self?.beat() }
    }

    /// Says what is being done.
    func tell(_ cooling: Bool, _ done: Double, _ doing: String) {
        written.withLock { written in
            let state: BenchmarkStatus.State = cooling ? .cooling : .running
            if written.last.beats > 0, Ticks.nanoseconds() - written.told < Self.pauseNanoseconds {
                let last = written.last
                written.last = BenchmarkStatus(
                    runId: last.runId, state: state, done: done, doing: doing, message: nil, beats: last.beats)
            } else {
                write(&written, state, done, doing, nil)
            }
        }
    }

    /// Writes the last status, behind which no other one comes, and returns it.
    func end(_ state: BenchmarkStatus.State, _ message: String?) -> BenchmarkStatus {
        heartbeat.stop()
        return written.withLock { written in
            write(&written, state, state == .finished ? 1 : written.last.done, state.word, message)
            return written.last
        }
    }

    private func beat() {
        written.withLock { written in
            let last = written.last
            let passed = Ticks.nanoseconds() - written.told
            if last.state.isFinal || last.beats == 0 || passed < Self.silenceNanoseconds { return }
            write(&written, last.state, last.done, last.doing, last.message)
        }
    }

    /// A status that cannot be written ends nothing: the record may still find room.
    private func write(
        _ written: inout Written, _ state: BenchmarkStatus.State, _ done: Double, _ doing: String, _ message: String?
    ) {
        let last = written.last
        written.last = BenchmarkStatus(
            runId: last.runId, state: state, done: done, doing: doing, message: message, beats: last.beats + 1)
        written.told = Ticks.nanoseconds()
        let json = written.last.json()
        do {
            try schema.check(json)
        } catch {
            preconditionFailure("a status does not fit its schema: \(error)")
        }
        try? Folder(root: folder).write(Headless.status, Array("\(json.written())\n".utf8))
    }
}

/// Calls something at equal intervals, in a thread of the system's.
private final class Heartbeat: @unchecked Sendable {
    // Made and resumed before anybody else sees it, and cancelled from any thread, which Dispatch allows.
    private let timer = DispatchSource.makeTimerSource(queue: .global(qos: .utility))

    init(nanoseconds: UInt64) {
        let interval = DispatchTimeInterval.nanoseconds(Int(nanoseconds))
        timer.schedule(deadline: .now() + interval, repeating: interval)
    }

    func start(_ act: @escaping @Sendable () -> Void) {
        timer.setEventHandler(handler: act)
        timer.resume()
    }

    func stop() { timer.cancel() }

    deinit { timer.cancel() }
}
