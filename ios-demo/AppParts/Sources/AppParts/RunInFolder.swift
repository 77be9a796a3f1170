import Core
import Foundation

/// Where a run stands, for a screen.
public struct RunProgress: Sendable, Equatable {
    public let state: BenchmarkStatus.State
    /// From 0 to 1.
    public let done: Double
    public let doing: String
    /// Why it ended, where it did not finish.
    public let message: String?

    public init(state: BenchmarkStatus.State, done: Double, doing: String, message: String? = nil) {
        self.state = state
        self.done = done
        self.doing = doing
        self.message = message
    }

    /// Reads the last status that was written into a run's folder; nil where there is none yet.
    static func read(_ folder: URL) -> RunProgress? {
        struct Status: Decodable {
            let state: String
            let done: Double
            let doing: String
            let message: String?
        }
        guard let data = try? Data(contentsOf: folder.appendingPathComponent(Headless.status)),
            let status = try? JSONDecoder().decode(Status.self, from: data),
            let state = BenchmarkStatus.State(rawValue: status.state)
        else { return nil }
        return RunProgress(state: state, done: status.done, doing: status.doing, message: status.message)
    }
}

/// Carries out the run of a folder, as a computer or the screen has asked for it there.
public enum RunInFolder {
    /// A screen that is drawn anew takes time from what is measured beside it.
    private static let pausesNanoseconds: (first: UInt64, later: UInt64) = (1_000_000_000, 10_000_000_000)

    /// Runs to an end and returns it. Cancelled with the task that waits.
    ///
    /// - Parameters:
    ///   - folder: of the run, with its request.
    ///   - equipment: the app's.
    ///   - tell: is called with where it stands, a second after the start and every ten seconds: what the folder says, as a
    ///     computer would read it.
    public static func carryOut(
        _ folder: URL, _ equipment: Equipment, tell: @escaping @MainActor @Sendable (RunProgress) -> Void
    ) async -> RunProgress {
        // What an earlier run of this name left says nothing of this one.
        for name in [Headless.status, Headless.record] { try? FileManager.default.removeItem(at: folder.appendingPathComponent(name)) }
        let watch = Task {
            var pause = pausesNanoseconds.first
            while !Task.isCancelled {
                try? await Task.sleep(nanoseconds: pause)
                pause = pausesNanoseconds.later
                if let progress = RunProgress.read(folder), !progress.state.isFinal { await tell(progress) }
            }
        }
        defer { watch.cancel() }
        // A run that is asked to end ends itself, with a status: so it is started also where that was asked already.
        let cancellation = Cancellation()
        let status = await withTaskCancellationHandler {
            await withCheckedContinuation { continuation in
                DispatchQueue(label: "pocketbert.run", qos: .userInitiated).async {
                    let run = HeadlessRun(
                        folder: folder,
                        models: {
                            let models = equipment.runs.models(for: folder, own: equipment.models)
                            return try Models.open(models, policy: equipment.policy, cancellation: cancellation)
                        }, runtimes: equipment.runtimes.map(\.runtime), phone: equipment.phone, cancellation: cancellation)
                    continuation.resume(returning: run.run())
                }
            }
        } onCancel: {
            cancellation.cancel()
        }
        return RunProgress(state: status.state, done: status.done, doing: status.doing, message: status.message)
    }
}
