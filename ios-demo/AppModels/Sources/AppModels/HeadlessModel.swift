import AppParts
import Core
import Foundation
import Observation

/// A run that a computer started the app for: nobody touches the phone, and the screen shows how far it is.
@MainActor @Observable
public final class HeadlessModel {
    public let run: String
    public private(set) var progress = RunProgress(state: .running, done: 0, doing: "starting")
    private let equipment: Equipment
    private var work: Task<Void, Never>?

    /// Prepares a run.
    ///
    /// - Parameters:
    ///   - run: its name, as the launch argument gives it.
    ///   - equipment: the app's.
    public init(_ run: String, _ equipment: Equipment) {
        self.run = run
        self.equipment = equipment
    }

    /// Carries it out, once.
    public func start() {
        if work != nil { return }
        let (run, equipment) = (run, equipment)
        work = Task {
            do {
                let folder = try equipment.runs.folder(run)
                progress = await RunInFolder.carryOut(folder, equipment) { [weak self] progress in
                    if self?.progress.state.isFinal == false { self?.progress = progress }
                }
            } catch {
                // There is no folder for a status: whoever waits sees the process end.
                progress = RunProgress(state: .refused, done: 0, doing: "refused", message: error.sentence)
            }
        }
    }

    /// Asks the run to end.
    public func cancel() { work?.cancel() }

    /// Waits until it has ended, and returns how.
    public func settled() async -> RunProgress {
        await work?.value
        return progress
    }
}
